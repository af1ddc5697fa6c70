"""Quotas that a project has."""

from __future__ import annotations

from dataclasses import dataclass


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
