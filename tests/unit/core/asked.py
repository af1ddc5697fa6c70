"""Builders of what a user asks for, with defaults for what a test does not care about."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from orchestrator.core.config import load as configs
from orchestrator.core.config.model import Config
from orchestrator.core.ledger.budget import Caps, Ledger
from orchestrator.core.market.pricing import PriceSheet
from orchestrator.core.naming import Mode
from orchestrator.core.plan.offered import PlanRefused
from orchestrator.core.plan.plan import Circumstances, LaunchPlan, plan_launch

CONFIGS = Path(__file__).parents[3] / "configs"
GRIDS: dict[str, Any] = yaml.safe_load((CONFIGS / "grids.yaml").read_text(encoding="utf-8"))
SHEET = PriceSheet.parse((CONFIGS / "prices.yaml").read_text(encoding="utf-8"))
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
IMAGE = "projects/p/global/images/an-image-v1"
D = Decimal
TWO = "gpu: l4\nregions: [us-central1, us-east4]\n"
"""us-east4 is the cheaper of the two."""


def asked(text: str = "gpu: l4", *overrides: str, source: str = "my.yaml") -> Config:
    return configs.load(text, source=source, overrides=overrides, grids=GRIDS)


def shipped(name: str) -> Config:
    return asked((CONFIGS / f"{name}.yaml").read_text(encoding="utf-8"), source=f"{name}.yaml")


def planned(config: Config | None = None, **changes: Any) -> LaunchPlan | PlanRefused:
    config = config or asked()
    arguments: dict[str, Any] = {
        "mode": Mode.GCE,
        "prices": SHEET,
        "image": IMAGE,
        "quotas": None,
        "ledger": Ledger(),
        "caps": Caps(),
        "now": NOON,
    }
    return plan_launch(config, changes.pop("config_name", "my"), Circumstances(**(arguments | changes)))


def accepted(config: Config | None = None, **changes: Any) -> LaunchPlan:
    answer = planned(config, **changes)
    assert isinstance(answer, LaunchPlan), answer
    return answer


def refused(config: Config | None = None, **changes: Any) -> PlanRefused:
    answer = planned(config, **changes)
    assert isinstance(answer, PlanRefused)
    return answer


# Quotas that a project has.


@dataclass(frozen=True)
class Limit:
    metric: str
    limit: float
    usage: float = 0
    region: str = ""


def limits(**metrics: float) -> dict[str, tuple[Limit, ...]]:
    """The same limits in two regions; GPUS_ALL_REGIONS is the project's."""
    return {
        region: tuple(
            Limit(name, limit, region="" if name == "GPUS_ALL_REGIONS" else region) for name, limit in metrics.items()
        )
        for region in ("us-central1", "us-east4")
    }
