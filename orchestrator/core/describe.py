"""A plan as one JSON document, for `bench plan --json` and for readers of the bucket."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from orchestrator.core.plan import LaunchPlan


def plan_document(plan: LaunchPlan) -> dict[str, Any]:
    """Stable: keys are added, never renamed. Dollars are decimal strings."""
    return {
        "schema": 1,
        "config": plan.config_name,
        "gpu": plan.config.gpu,
        "mode": plan.mode,
        "ceiling_usd": str(plan.ceiling_usd),
        "usd_per_hour": str(plan.usd_per_hour),
        "ttl_s": plan.ttl_s,
        "attempts": plan.attempts,
        "image": plan.image,
        "cases": list(plan.cases),
        "measurements_per_implementation": plan.measurements_per_implementation,
        "implementations": list(plan.harness["implementations"]),
        "offers": [{**asdict(offer), "usd_per_hour": str(offer.usd_per_hour)} for offer in plan.offers],
        "headroom_usd": {window: str(left) for window, left in plan.headroom.items()},
        "notices": list(plan.notices),
    }
