"""Which zone next: offers in a fixed order, given prices, hints and what has run out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class Offer:
    """One machine that could be asked for, where, and what it costs an hour (disk and address included)."""

    gpu: str
    region: str
    zone: str
    machine_type: str
    accelerator: str | None
    """The accelerator type to attach; None where the machine type brings its own GPU, or has none."""
    accelerator_count: int
    provisioning: str
    """`SPOT` or `STANDARD`."""
    usd_per_hour: Decimal


def region_of(zone: str) -> str:
    """`us-central1` of `us-central1-a`."""
    return zone.rpartition("-")[0]


def rank(offers: Sequence[Offer], *, exhausted: Collection[str] = (), hints: Sequence[str] = ()) -> tuple[Offer, ...]:
    """The offers left, best first: hinted zones in the hint's order, then by price, then by zone name. `exhausted`
    holds zone names. The result does not depend on the order of `offers`."""
    place = {zone: index for index, zone in reversed(list(enumerate(hints)))}
    left = [offer for offer in offers if offer.zone not in exhausted]
    return tuple(sorted(left, key=lambda o: (place.get(o.zone, len(hints)), o.usd_per_hour, o.zone, o.machine_type)))


def blocked_by(scope: str, zone: str) -> Callable[[Offer], bool]:
    """Which offers a refusal in `zone` rules out: those of its `zone`, of its `region`, or `all`.
    A scope that is not known rules out the zone only: the next zone will say so itself."""
    if scope == "all":
        return lambda _: True
    if scope == "region":
        return lambda offer: offer.region == region_of(zone)
    return lambda offer: offer.zone == zone
