"""The meter: per second, a minute at least, to the microdollar, and never from a price that is not in the tariff."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.embedded.documents import google_stamp, parse_stamp, utc_stamp
from orchestrator.embedded.inventory import Inventory, region_of
from orchestrator.embedded.meter import Account, Meter, Rate, Tariff, UnknownSku
from orchestrator.embedded.store import Store

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
TARIFF = Tariff.load()


def rate(machine: str = "g2-standard-4", region: str = "us-central1", *, spot: bool = True, **changes: object) -> Rate:
    given = {"disk_type": "pd-balanced", "disk_gib": 60, "external_ip": True} | changes
    return TARIFF.rate(machine, region, provisioning="spot" if spot else "standard", **given)  # type: ignore[arg-type]


def cost(seconds: float, stopped_after: float | None = None) -> Decimal:
    """What a VM has cost that ran for so long."""
    stopped = None if stopped_after is None else NOON + timedelta(seconds=stopped_after)
    ended = NOON + timedelta(seconds=seconds)
    return replace(account(), started_at=NOON, stopped_at=stopped, ended_at=ended).usd(NOON)


def test_an_hour_of_a_spot_l4_costs_the_sum_of_its_four_published_parts() -> None:
    expected = Decimal("0.2862") + Decimal("0.07502") + Decimal("0.10") * 60 / 730 + Decimal("0.0025")
    assert rate().usd_per_hour == expected
    assert cost(3600) == expected.quantize(Decimal("0.000001"))


def test_a_second_is_charged_as_a_minute_and_the_first_second_after_it_as_a_second() -> None:
    assert cost(1) == cost(60)
    assert cost(61) > cost(60)


def test_a_vm_that_never_ran_costs_nothing() -> None:
    never = replace(account(), ended_at=NOON)
    assert never.usd(NOON) == never.seconds(NOON) == 0


def test_a_stopped_vm_goes_on_paying_for_its_disk_and_for_nothing_else() -> None:
    stopped = cost(7200, stopped_after=3600)
    disk = (rate().disk).quantize(Decimal("0.000001"))
    assert abs(stopped - cost(3600) - disk) <= Decimal("0.000001")


@given(st.floats(min_value=0, max_value=1e6), st.floats(min_value=0, max_value=1e6))
def test_running_longer_never_costs_less(one: float, other: float) -> None:
    short, long = sorted((one, other))
    assert cost(short) <= cost(long)


@pytest.mark.parametrize("machine", [*TARIFF.document["machines"], *TARIFF.document["scaled"]])
def test_spot_is_never_dearer_than_standard(machine: str) -> None:
    base = TARIFF.document["scaled"].get(machine, {"of": machine})["of"]
    regions = TARIFF.document["machines"][base]["regions"]
    for region in (name for name, sold in regions.items() if "standard" in sold):
        assert rate(machine, region).usd_per_hour <= rate(machine, region, spot=False).usd_per_hour


def test_a_bigger_machine_pays_for_more_machine_and_the_same_gpu() -> None:
    assert rate("g2-standard-8").machine == 2 * rate("g2-standard-4").machine
    assert rate("g2-standard-8").gpu == rate("g2-standard-4").gpu


def test_attached_gpus_are_paid_for_one_by_one() -> None:
    assert rate("n1-standard-4", gpu_count=4).gpu == 4 * rate("n1-standard-4").gpu


def test_no_address_no_charge_for_it() -> None:
    assert rate(external_ip=False).external_ip == 0


@pytest.mark.parametrize(("machine", "region", "disk"), [
    ("z9-huge", "us-central1", "pd-balanced"),
    ("g2-standard-4", "mars-north1", "pd-balanced"),
    ("g2-standard-4", "us-central1", "pd-imaginary"),
])  # fmt: skip
def test_what_has_no_price_cannot_be_charged(machine: str, region: str, disk: str) -> None:
    with pytest.raises(UnknownSku):
        rate(machine, region, disk_type=disk)


def test_every_machine_type_on_offer_has_a_price_where_it_is_offered() -> None:
    inventory = Inventory.load(TARIFF)
    offered = [(m.name, region_of(zone)) for zone in inventory.zones for m in inventory.machine_types_in(zone)]
    assert len(offered) > 100
    for machine, region in offered:
        assert rate(machine, region).usd_per_hour > 0


def test_every_figure_says_how_far_it_can_be_trusted() -> None:
    for entry in TARIFF.document["machines"].values():
        for region in entry["regions"].values():
            for part in region.values():
                assert part["confidence"] in TARIFF.document["sources"]
                assert isinstance(part["gpu"], str)


def account(vm_id: str = "1") -> Account:
    return Account(vm_id, "r1", "vm-" + vm_id, "us-central1-a", "g2-standard-4", "nvidia-l4", "spot", True, rate())


def test_a_bill_is_the_sum_of_its_rows_and_survives_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    meter = Meter(store)
    for vm_id in "12":
        meter.open(account(vm_id))
        meter.started(vm_id, NOON)
    meter.stopped("1", NOON + timedelta(minutes=10), "preemption")
    meter.ended("1", NOON + timedelta(minutes=20), "client")
    later = NOON + timedelta(hours=1)
    bill = meter.bill(later)
    assert bill.usd == sum(row.usd for row in bill.rows) > 0
    assert [row.ended_by for row in bill.rows] == ["preemption", None]
    assert bill.document()["usd"] == str(bill.usd)
    store.close()
    store = Store(tmp_path / "state")
    assert Meter(store).bill(later) == bill
    store.close()


def test_what_is_written_off_ends_at_the_last_sign_of_life_but_never_before_it_began(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    meter = Meter(store)
    for vm_id in "123":
        meter.open(account(vm_id))
    meter.started("1", NOON)
    meter.started("2", NOON + timedelta(minutes=9))
    meter.write_off(NOON + timedelta(minutes=5), "crash")
    meter.write_off(NOON + timedelta(hours=5), "crash")
    rows = {row.vm: row for row in meter.bill(NOON).rows}
    assert rows["vm-1"].ended_at == NOON + timedelta(minutes=5)
    assert rows["vm-2"].ended_at == NOON + timedelta(minutes=9)
    assert rows["vm-3"].usd == 0
    assert rows["vm-3"].started_at is None
    store.close()


def test_both_ways_to_write_a_moment_can_be_read_back() -> None:
    moment = NOON + timedelta(microseconds=123_000)
    assert parse_stamp(utc_stamp(moment)) == parse_stamp(google_stamp(moment)) == moment


def test_a_store_keeps_documents_in_the_order_of_their_making(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    for key in "cab":
        store.put("letter", key, key)
    store.put("letter", "c", "c again")
    assert store.all("letter") == ["c again", "a", "b"]
    assert store.get("letter", "z") is None
    store.close()
