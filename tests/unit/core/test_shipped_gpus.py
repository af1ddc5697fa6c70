"""Every GPU of the catalog is planned at shipped prices, and a plan names what one person cannot buy."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.core.config.load import load
from orchestrator.core.config.model import Config
from orchestrator.core.errors import ConfigError
from orchestrator.core.ledger.budget import Caps, Ledger
from orchestrator.core.market.catalog import CATALOG, FRACTIONS, Gpu
from orchestrator.core.market.pricing import PriceSheet
from orchestrator.core.mode import Mode
from orchestrator.core.names import ImageUrl
from orchestrator.core.plan.plan import Circumstances, LaunchPlan, plan_launch

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
    assert config.budget.per_run_usd is not None
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
