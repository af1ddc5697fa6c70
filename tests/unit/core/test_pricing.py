"""Money and time: every rounding goes against us."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.config.load import load
from orchestrator.core.config.model import DTYPES, Config
from orchestrator.core.errors import ConfigError
from orchestrator.core.ledger.budget import Caps, Ledger
from orchestrator.core.market.catalog import (
    CATALOG,
    FRACTIONS,
    GPU_NAMES,
    Gpu,
    carrier_of,
    closest_word,
    find_gpu,
    suggest,
)
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
from orchestrator.core.names import ImageUrl
from orchestrator.core.naming import Mode
from orchestrator.core.plan.offered import PlanRefused
from orchestrator.core.plan.plan import Circumstances, LaunchPlan, plan_launch
from orchestrator.runs.launch import hold_request

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


# Every GPU of the catalog is planned at shipped prices, and a plan names what one person cannot buy.


CONFIGS = Path(__file__).parents[3] / "configs"
GRIDS: dict[str, Any] = yaml.safe_load((CONFIGS / "grids.yaml").read_text(encoding="utf-8"))
SHIPPED_SHEET = PriceSheet.parse((CONFIGS / "prices.yaml").read_text(encoding="utf-8"))
NOW = datetime(2026, 6, 10, tzinfo=UTC)


def shipped(gpu: str, *overrides: str) -> Config:
    return load((CONFIGS / f"{gpu}.yaml").read_text(encoding="utf-8"), source=gpu, overrides=overrides, grids=GRIDS)


def planned(config: Config) -> LaunchPlan:
    image = ImageUrl("projects/deeplearning-platform-release/global/images/x-v20260626")
    around = Circumstances(
        mode=Mode.GCE, prices=SHIPPED_SHEET, image=image, quotas=None, ledger=Ledger(), caps=Caps(run=config.budget.per_run_usd),
        now=NOW,
    )  # fmt: skip
    plan = plan_launch(config, config.gpu, around)
    assert isinstance(plan, LaunchPlan), plan
    return plan


@pytest.mark.parametrize("gpu", CATALOG, ids=lambda gpu: gpu.name)
def test_each_gpu_is_planned_at_shipped_prices_within_its_own_budget(gpu: Gpu) -> None:
    config = shipped(gpu.name)
    plan = planned(config)
    assert plan.attempts == config.run.attempts
    assert plan.ttl_s == 60 * config.run.max_minutes
    assert plan.ceiling_usd <= config.budget.per_run_usd


@pytest.mark.parametrize(
    "machine", [(gpu, size.name) for gpu in CATALOG for size in gpu.machine_types], ids=lambda m: m[1]
)
def test_each_machine_type_costs_at_least_its_gpus(machine: tuple[Gpu, str]) -> None:
    gpu, name = machine
    plan = planned(shipped(gpu.name, f"machine.type={name}", "budget.per_run_usd=200"))
    if gpu.accelerator is None:
        return
    for offer in plan.offers:
        each = SHIPPED_SHEET.accelerators[gpu.accelerator][offer.region].under("spot")
        assert each is not None
        assert offer.usd_per_hour > each * gpu.gpus_of(name)
    said = " ".join(plan.notices)
    assert (f"{name} has {gpu.gpus_of(name)} GPUs" in said) == (gpu.gpus_of(name) > 1)


@pytest.mark.parametrize("gpu", ["h100", "h200", "b200"])
def test_a_plan_names_what_is_not_sold_on_demand_to_one_person(gpu: str) -> None:
    plan = planned(shipped(gpu, "placement.on_demand_after=1", "budget.per_run_usd=100"))
    assert "on demand to no single person" in " ".join(plan.notices)
    assert {offer.provisioning for offer in plan.offers} == {"SPOT"}
    with pytest.raises(ConfigError, match="not sold on demand"):
        shipped(gpu, "machine.provisioning=standard")


@pytest.mark.parametrize("name", FRACTIONS)
def test_a_part_of_a_gpu_is_refused_with_its_reason(name: str) -> None:
    with pytest.raises(ConfigError, match="vGPU driver"):
        shipped("g4", f"machine.type={name}")


@pytest.mark.parametrize(("gpu", "disk"), [("g4", "pd-balanced"), ("l4", "hyperdisk-balanced")])
def test_a_disk_from_which_a_machine_does_not_boot_is_refused(gpu: str, disk: str) -> None:
    assert planned(shipped("g4")).config.disk_type == "hyperdisk-balanced"
    with pytest.raises(ConfigError, match="boots from"):
        shipped(gpu, f"machine.disk_type={disk}")


# What can be rented.


@pytest.mark.parametrize("gpu", CATALOG, ids=lambda gpu: gpu.name)
def test_every_entry_is_complete(gpu: Gpu) -> None:
    assert gpu.default_machine == gpu.machine_types[0].name
    assert gpu.zones
    assert len(set(gpu.zones)) == len(gpu.zones)
    assert set(gpu.regions) == {zone[:-2] for zone in gpu.zones}
    assert gpu.dtypes
    assert set(gpu.dtypes) <= set(DTYPES)
    assert gpu.quota_preemptible.startswith("PREEMPTIBLE_")
    assert (gpu.accelerator is None) == (gpu.compute_capability == "") == (gpu.memory_gb == 0)
    assert all(machine.vcpus > 0 and machine.memory_gb > 0 for machine in gpu.machine_types)


def test_no_machine_type_carries_two_kinds_of_gpu() -> None:
    names = [machine.name for gpu in CATALOG for machine in gpu.machine_types]
    assert len(set(names)) == len(names)


def test_a_gpu_is_found_by_any_of_its_names() -> None:
    assert find_gpu(" L4 ") is find_gpu("nvidia-l4") is find_gpu("l4") is CATALOG[0]
    assert find_gpu("nvidia-tesla-t4") is find_gpu("T4")
    assert find_gpu("l40") is None


def test_turing_has_no_bfloat16() -> None:
    t4 = find_gpu("t4")
    assert "bfloat16" not in t4.dtypes


def test_a_machine_type_says_what_it_carries() -> None:
    assert carrier_of("n1-standard-4") is find_gpu("t4")
    assert carrier_of("z9-mega-1") is None


def test_a_slip_of_the_pen_is_answered_with_the_closest_name() -> None:
    assert closest_word("A10", GPU_NAMES) == "a100"
    assert closest_word("quantum", GPU_NAMES) is None
    assert suggest("h10", GPU_NAMES) == "did you mean 'h100'? valid: l4, t4, a100, a100-80gb, h100, h200, b200, g4, cpu"
    assert suggest("quantum", GPU_NAMES) == "valid: l4, t4, a100, a100-80gb, h100, h200, b200, g4, cpu"


FLEX = "machine.provisioning=flex-start"


@pytest.mark.parametrize("gpu", ["t4", "g4", "cpu"])
def test_flex_start_is_refused_where_google_does_not_sell_it(gpu: str) -> None:
    with pytest.raises(ConfigError, match="is not sold flex-start; use spot"):
        shipped(gpu, FLEX)


@pytest.mark.parametrize(
    ("gpu", "usd", "regions"), [("h100", "4.8", {"us-central1"}), ("a100", "2.1", {"us-central1", "us-east1"})]
)
def test_flex_start_is_offered_where_its_price_is_known_with_its_source(gpu: str, usd: str, regions: set[str]) -> None:
    plan = planned(shipped(gpu, FLEX, "budget.per_run_usd=50"))
    assert {offer.provisioning for offer in plan.offers} == {"FLEX_START"}
    assert {offer.region for offer in plan.offers} == regions
    assert Decimal(usd) - Decimal("0.1") < plan.usd_per_hour < Decimal(usd) + Decimal("0.1")
    assert all("waits in a queue" in offer.why for offer in plan.offers)
    assert any(SHIPPED_SHEET.sources["flexible"] in notice for notice in plan.notices)
    assert any("waiting costs nothing" in notice for notice in plan.notices)
    hold = hold_request(plan, "x")
    assert (hold.usd, hold.ttl_s) == (plan.ceiling_usd, plan.ttl_s + 7200), "it may wait before its time begins"


@pytest.mark.parametrize("gpu", ["l4", "a100-80gb", "h200", "b200"])
def test_flex_start_without_a_known_price_is_refused_with_what_reads_it(gpu: str) -> None:
    config = shipped(gpu, FLEX)
    around = Circumstances(
        mode=Mode.GCE, prices=SHIPPED_SHEET, image=ImageUrl("projects/p/global/images/x"), quotas=None, ledger=Ledger(),
        caps=Caps(), now=NOW,
    )  # fmt: skip
    answer = plan_launch(config, gpu, around)
    assert isinstance(answer, PlanRefused)
    assert answer.message.startswith("no price is known for flex-start ")
    assert "bench prices --refresh" in answer.hint


def test_a_launch_that_waits_adds_the_queue_and_stays_within_its_limits() -> None:
    settings = ("budget.per_run_usd=50", "zones=[us-central1-a, us-central1-b, europe-west4-a]")
    plain = planned(shipped("a100", *settings))
    waits = planned(shipped("a100", *settings, "placement.wait_minutes=180"))
    assert {offer.provisioning for offer in plain.offers} == {"SPOT"}
    assert [offer.provisioning for offer in waits.offers].count("FLEX_START") == 2, "not in Europe: no price is known"
    assert (
        plain.ceiling_usd
        < waits.ceiling_usd
        == ceiling_usd(max(offer.usd_per_hour for offer in waits.offers), waits.ttl_s, waits.attempts)
    )
    cheap = planned(shipped("a100", *settings, "placement.wait_minutes=180", "placement.max_usd_per_hour=1.9"))
    assert {offer.provisioning for offer in cheap.offers} == {"SPOT"}
