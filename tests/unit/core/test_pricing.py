"""Money and time: every rounding goes against us."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.errors import ConfigError
from orchestrator.core.market.pricing import (
    BILLED_MINIMUM_S,
    MAX_TTL_S,
    PricedMachine,
    PriceSheet,
    accrued_usd,
    billed_usd,
    ceiling_usd,
    round_up,
    ttl_within,
    usd,
)

ROOT = Path(__file__).parents[3]
SHEET = PriceSheet.parse((ROOT / "configs/prices.yaml").read_text(encoding="utf-8"))
TARIFF = yaml.safe_load((ROOT / "orchestrator/embedded/tariff.yaml").read_text(encoding="utf-8"))
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
L4 = PricedMachine("g2-standard-4", "nvidia-l4", 1)

prices = st.decimals(min_value="0.000001", max_value="100", places=6)
dollars = st.decimals(min_value="0", max_value="500", places=6)
attempts = st.integers(1, 20)
ttls = st.integers(30, MAX_TTL_S)


@given(dollars, prices, attempts)
def test_the_time_that_dollars_buy_never_costs_more_than_they_are(
    dollars: Decimal, price: Decimal, attempts: int
) -> None:
    ttl = ttl_within(dollars, price, attempts)
    if ttl:
        assert ceiling_usd(price, ttl, attempts) <= dollars
    else:
        assert ceiling_usd(price, 30, attempts) > dollars


@given(dollars, prices, attempts)
def test_one_second_more_would_not_fit(dollars: Decimal, price: Decimal, attempts: int) -> None:
    ttl = ttl_within(dollars, price, attempts)
    if 0 < ttl < MAX_TTL_S:
        assert ceiling_usd(price, ttl + 1, attempts) > dollars


@given(prices, ttls, attempts)
def test_dollars_that_are_a_ceiling_buy_at_least_the_time_of_that_ceiling(
    price: Decimal, ttl: int, attempts: int
) -> None:
    assert ttl_within(ceiling_usd(price, ttl, attempts), price, attempts) >= ttl


@given(prices, ttls, st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_machines_that_end_by_deadline_and_slack_never_cost_more_than_the_ceiling(
    price: Decimal, ttl: int, lives: list[float]
) -> None:
    bills = [accrued_usd(price, NOON, NOON + timedelta(seconds=(ttl + 30) * life)) for life in lives]
    assert sum(bills) <= ceiling_usd(price, ttl, len(lives))


@given(prices, st.integers(0, 10**7))
def test_a_bill_is_rounded_up_to_a_millionth_of_a_dollar(price: Decimal, seconds: int) -> None:
    exact = Fraction(price) * max(seconds, BILLED_MINIMUM_S) / 3600
    bill = billed_usd(price, seconds)
    assert exact <= Fraction(bill) < exact + Fraction(1, 10**6)
    assert bill == bill.quantize(Decimal("0.000001"))


def test_a_machine_is_billed_for_at_least_a_minute_and_every_begun_second() -> None:
    hour = Decimal("3.600000")
    assert accrued_usd(hour, NOON, NOON) == accrued_usd(hour, NOON, NOON + timedelta(seconds=60)) == Decimal("0.06")
    assert accrued_usd(hour, NOON, NOON + timedelta(seconds=60, microseconds=1)) == Decimal("0.061")


def test_the_ceiling_counts_the_slack_of_the_deadline_for_every_attempt() -> None:
    assert ceiling_usd(Decimal("3.6"), 1770, 2) == Decimal("3.6")


@pytest.mark.parametrize("nothing", ["0", "-1", "0.000001"])
def test_dollars_that_do_not_pay_a_minute_buy_no_time(nothing: str) -> None:
    assert ttl_within(Decimal(nothing), Decimal("3.6"), 1) == 0


def test_what_costs_nothing_may_run_as_long_as_any_machine_may() -> None:
    assert ttl_within(Decimal(0), Decimal(0), 1) == MAX_TTL_S
    assert ttl_within(Decimal(10**9), Decimal("0.01"), 1) == MAX_TTL_S


def test_money_is_made_of_text_and_whole_numbers_only() -> None:
    assert usd("1.50") == Decimal("1.50")
    assert usd(2) == 2
    assert usd(Decimal("0.1")) == Decimal("0.1")
    for wrong in ("NaN", "Infinity", "a dollar"):
        with pytest.raises(ValueError, match="not an amount of dollars"):
            usd(wrong)
    for inexact in (0.1, True):
        with pytest.raises(ValueError, match="not an exact amount"):
            usd(inexact)  # type: ignore[arg-type]


# --- the sheet ------------------------------------------------------------------------------------------------------


def test_the_price_of_a_machine_is_the_sum_of_all_that_is_billed() -> None:
    quote = SHEET.quote(L4, "us-central1", "spot", 73, external_ip=True)
    assert (quote.gpu, quote.machine) == (Decimal("0.2862"), Decimal("0.07502"))
    assert (quote.disk, quote.external_ip) == (Decimal("0.01"), Decimal("0.0025"))
    assert quote.usd_per_hour == Decimal("0.373720")
    assert quote.source == "catalog"
    assert SHEET.hourly(L4, "us-central1", "SPOT", 73, False) == Decimal("0.371220")
    assert SHEET.hourly(L4, "us-central1", "standard", 73, False) == Decimal("0.716830")


def test_a_larger_machine_of_a_series_costs_its_multiple() -> None:
    small = SHEET.quote(L4, "us-east4", "spot", 50, False)
    large = SHEET.quote(PricedMachine("g2-standard-16", "nvidia-l4", 1), "us-east4", "spot", 50, False)
    assert small is not None
    assert (large.machine, large.gpu) == (small.machine * 4, small.gpu)


def test_a_machine_without_a_gpu_costs_no_gpu() -> None:
    quote = SHEET.quote(PricedMachine("e2-standard-4"), "us-central1", "spot", 20, True)
    assert quote.gpu == 0
    assert quote.source == "recalled"


@pytest.mark.parametrize(
    ("spec", "region", "provisioning", "disk_type"),
    [
        (L4, "europe-west2", "spot", "pd-balanced"),
        (PricedMachine("g9-mega-1", "nvidia-l4", 1), "us-central1", "spot", "pd-balanced"),
        (PricedMachine("g2-standard-4", "nvidia-l5", 1), "us-central1", "spot", "pd-balanced"),
        (L4, "us-central1", "spot", "hyperdisk-extreme"),
    ],
    ids=["region", "machine", "accelerator", "disk"],
)
def test_a_price_with_an_unknown_part_is_no_price(
    spec: PricedMachine, region: str, provisioning: str, disk_type: str
) -> None:
    assert SHEET.hourly(spec, region, provisioning, 60, True, disk_type) is None


def test_every_price_is_the_one_that_the_embedded_cloud_charges() -> None:
    compared = 0
    for name, machine in TARIFF["machines"].items():
        for region, kinds in machine["regions"].items():
            for provisioning, figures in kinds.items():
                spec = PricedMachine(name, machine["gpu"], 1 if machine["gpu"] else 0)  # as the tariff: for one GPU
                quote = SHEET.quote(spec, region, provisioning, 60, external_ip=True)
                assert quote is not None, (name, region)
                assert quote.gpu == Decimal(figures["gpu"]), (name, region, provisioning)
                assert quote.machine == Decimal(figures["machine"]), (name, region, provisioning)
                assert quote.external_ip == Decimal(
                    TARIFF["external_ip"]["spot" if provisioning == "spot" else "standard"]["usd"]
                )
                disk = Decimal(TARIFF["disk_gib_month"]["pd-balanced"]["default"]["usd"])
                local = Decimal(TARIFF["disk_gib_month"]["local-ssd"]["default"]["usd"])
                gib_months = disk * 60 + local * TARIFF["local_ssd_gib"].get(name, 0)
                assert quote.disk == round_up(gib_months / Decimal(TARIFF["hours_per_month"]))
                compared += 1
    assert compared >= 60


def test_a_sheet_survives_being_written_and_read() -> None:
    assert PriceSheet.parse(SHEET.dump_yaml()) == SHEET


def test_a_sheet_is_stale_after_thirty_days_and_more_is_held_then() -> None:
    assert not SHEET.stale(SHEET.as_of + timedelta(days=30))
    assert SHEET.margin(SHEET.as_of + timedelta(days=30)) == 0
    assert SHEET.stale(SHEET.as_of + timedelta(days=31))
    assert SHEET.margin(SHEET.as_of + timedelta(days=31)) == Decimal("0.20")
    noon = datetime(SHEET.as_of.year, SHEET.as_of.month, SHEET.as_of.day, 12, tzinfo=UTC)
    assert not SHEET.stale(noon + timedelta(days=30))


def sheet(**changes: object) -> str:
    document: dict[str, object] = {
        "schema": 1,
        "currency": "USD",
        "as_of": "2026-11-21",
        "sources": {"x": "a test"},
        "disk_gib_month": {"pd-balanced": {"usd": "0.10", "source": "x"}},
        "external_ip": {"standard": "0.005", "spot": "0.0025", "source": "x"},
        "accelerators": {},
        "machines": {"m": {"us-east1": {"standard": "2", "spot": "1", "source": "x"}}},
    }
    return json.dumps(document | changes)


def test_a_sheet_of_the_least_content_is_read() -> None:
    least = PriceSheet.parse(sheet())
    assert least.as_of == date(2026, 11, 21)
    assert least.hourly(PricedMachine("m"), "us-east1", "spot", 0, False) == 1
    assert least.quote(PricedMachine("m"), "us-east1", "spot", 0, False).source == "x"  # type: ignore[union-attr]


def test_included_local_disks_are_paid_for_and_unpriced_ones_leave_no_price() -> None:
    disks = {"pd-balanced": {"usd": "0.10", "source": "x"}, "local-ssd": {"usd": "0.08", "source": "x"}}
    with_them = PriceSheet.parse(sheet(disk_gib_month=disks, local_ssd_gib={"m": 730}))
    assert with_them.hourly(PricedMachine("m"), "us-east1", "spot", 0, False) == Decimal("1.08")
    unknown = PriceSheet.parse(sheet(local_ssd_gib={"m": 730}))
    assert unknown.hourly(PricedMachine("m"), "us-east1", "spot", 0, False) is None
    h100 = SHEET.quote(PricedMachine("a3-highgpu-1g", "nvidia-h100-80gb", 1), "us-central1", "spot", 0, False)
    assert h100.disk == Decimal("0.082192")


def test_what_is_not_sold_has_no_price() -> None:
    spot_only = PriceSheet.parse(sheet(machines={"m": {"us-east1": {"spot": "1", "source": "x"}}}))
    assert spot_only.hourly(PricedMachine("m"), "us-east1", "standard", 0, False) is None
    without_address = PriceSheet.parse(sheet(external_ip={"standard": "0.005", "source": "x"}))
    assert without_address.hourly(PricedMachine("m"), "us-east1", "spot", 0, True) is None
    spot_gpu = {"g": {"us-east1": {"spot": "1", "source": "x"}}}
    no_gpu = PriceSheet.parse(sheet(accelerators=spot_gpu))
    assert no_gpu.hourly(PricedMachine("m", "g", 1), "us-east1", "standard", 0, False) is None


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"machines": {"m": {"us-east1": {"standard": "1", "spot": "1.01", "source": "x"}}}},
            "p.yaml:1: machines.m.us-east1: spot 1.01 is above on-demand 1: a wrong figure, not a price",
        ),
        (
            {"machines": {"m": {"us-east1": {"standard": "-1", "source": "x"}}}},
            "p.yaml:1: machines.m.us-east1.standard: Input should be greater than or equal to 0",
        ),
        ({"discount": "0.5"}, "p.yaml:1: discount: Extra inputs are not permitted"),
        ({"sources": {"y": "another"}}, "p.yaml:0: sources that are not explained: x"),
        (
            {"multiples": {"n": {"of": "k", "times": 2}}},
            "p.yaml:0: multiples of machines without a price: k",
        ),
    ],
    ids=["spot-above-standard", "negative", "unknown-key", "no-source", "multiple-of-nothing"],
)
def test_a_figure_that_cannot_be_a_price_is_refused(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PriceSheet.parse(sheet(**changes), source="p.yaml")
    assert str(caught.value) == complaint


def test_a_sheet_that_is_not_yaml_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^p.yaml:1: not YAML"):
        PriceSheet.parse("machines: [", source="p.yaml")


@given(st.fractions(min_value=0, max_value=1000))
def test_rounding_up_is_never_below_and_less_than_a_millionth_above(x: Fraction) -> None:
    assert x <= Fraction(round_up(x)) < x + Fraction(1, 10**6)
    assert math.ceil(x * 10**6) == int(round_up(x) * 10**6)
