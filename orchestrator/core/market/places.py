"""The locations of buckets, and which zones can read from a bucket without charges for the distance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from orchestrator.core.market.offers import region_of

CONTINENTS: Final = {
    "US": ("us-", "northamerica-"),
    "NAM4": ("us-",),
    "EU": ("europe-",),
    "EUR4": ("europe-",),
    "ASIA": ("asia-",),
    "ASIA1": ("asia-",),
}
"""Multi-regions and dual regions, and the beginnings of the names of the regions that they serve."""


def near(location: str, zones: Iterable[str]) -> tuple[str, ...]:
    """The regions of `zones` that a bucket in `location` is in."""
    regions = tuple(dict.fromkeys(region_of(zone) for zone in zones))
    prefixes = CONTINENTS.get(location.upper())
    if prefixes is None:
        return tuple(region for region in regions if region == location.lower())
    return tuple(region for region in regions if region.startswith(prefixes))


def continent(place: str) -> str:
    """The continent of a location: `europe` for `europe-west4`, `EU` and `EUR4`."""
    serves = CONTINENTS.get(place.upper())
    word = (serves[0] if serves else place.lower()).partition("-")[0]
    return "us" if word == "northamerica" else word
