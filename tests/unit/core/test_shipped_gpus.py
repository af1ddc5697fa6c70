"""Every GPU of the catalog is planned at shipped prices, and a plan names what one person cannot buy."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

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
from orchestrator.core.market.pricing import PriceSheet, ceiling_usd
from orchestrator.core.names import ImageUrl
from orchestrator.core.naming import Mode
from orchestrator.core.plan.offered import PlanRefused
from orchestrator.core.plan.plan import Circumstances, LaunchPlan, plan_launch
from orchestrator.runs.launch import hold_request

CONFIGS = Path(__file__).parents[3] / "configs"
GRIDS: dict[str, Any] = yaml.safe_load((CONFIGS / "grids.yaml").read_text(encoding="utf-8"))
SHEET = PriceSheet.parse((CONFIGS / "prices.yaml").read_text(encoding="utf-8"))
NOW = datetime(2026, 6, 10, tzinfo=UTC)


def shipped(gpu: str, *overrides: str) -> Config:
    return load((CONFIGS / f"{gpu}.yaml").read_text(encoding="utf-8"), source=gpu, overrides=overrides, grids=GRIDS)


def planned(config: Config) -> LaunchPlan:
    image = ImageUrl("projects/deeplearning-platform-release/global/images/x-v20260626")
    around = Circumstances(
        mode=Mode.GCE, prices=SHEET, image=image, quotas=None, ledger=Ledger(), caps=Caps(run=config.budget.per_run_usd),
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
        each = SHEET.accelerators[gpu.accelerator][offer.region].under("spot")
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
    assert any(SHEET.sources["flexible"] in notice for notice in plan.notices)
    assert any("waiting costs nothing" in notice for notice in plan.notices)
    hold = hold_request(plan, "x")
    assert (hold.usd, hold.ttl_s) == (plan.ceiling_usd, plan.ttl_s + 7200), "it may wait before its time begins"


@pytest.mark.parametrize("gpu", ["l4", "a100-80gb", "h200", "b200"])
def test_flex_start_without_a_known_price_is_refused_with_what_reads_it(gpu: str) -> None:
    config = shipped(gpu, FLEX)
    around = Circumstances(
        mode=Mode.GCE, prices=SHEET, image=ImageUrl("projects/p/global/images/x"), quotas=None, ledger=Ledger(),
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
