"""Decides which zone is tried next: it orders offers by prices, by what is known of capacity, and by hints.

The sort key is the expected cost of a finished run in dollars,

expected = price x hours / obtainable,    hours = T + t x r / (1 - r)

T are the hours that a run needs. t are the hours that are lost each time a machine is preempted (boot, checks and
build; measurements are kept). r is the probability that a machine is preempted before it is done, and `obtainable` is
the probability that the zone has a machine. A refused request costs time but no dollars: a zone that has a machine half
of the time counts as twice as expensive. If nothing is known, r = 0 and obtainable = 1, and the order is that of the
prices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Final

from orchestrator.core.bounds import Usd
from orchestrator.core.names import MachineType, Region, Zone

WORK_S: Final = 900.0
"""T of the formula in seconds, if no earlier run shows it."""
START_S: Final = 240.0
"""t of the formula in seconds, if no earlier run shows it."""
HALF_LIFE_S: Final = 3600.0
"""A stock-out counts half as much after an hour, and a quarter after two."""
DRY: Final = 0.1
"""`obtainable` of a zone that had no machine just now."""
FLEX_START: Final = "FLEX_START"
"""Google's name of machines that wait in its queue, at no cost, until there is capacity, and are then not preempted."""
LEAST: Final = 0.01
"""The least value of `obtainable` in the formula."""


@dataclass(frozen=True, slots=True)
class ExpectedWork:
    """How much machine time a run is expected to need, in seconds: T and t of the formula."""

    work_s: float = WORK_S
    start_s: float = START_S


USUAL: Final = ExpectedWork()


@dataclass(frozen=True, slots=True)
class Offer:
    """One machine that could be requested, its zone, and its price per hour (with disk and address)."""

    gpu: str
    region: Region
    zone: Zone
    machine_type: MachineType
    accelerator: str | None
    """The accelerator type to attach; None if the machine type includes its GPU, or has none."""
    accelerator_count: int
    provisioning: str
    """`SPOT`, `FLEX_START` or `STANDARD`."""
    usd_per_hour: Usd
    expected_usd: Usd | None = None
    """The expected cost of a finished run; None if it was not computed, and then the price decides."""
    why: str = ""
    """What is known of capacity in the zone, as text for the user."""
    host: str = ""
    """The address of the user's own machine, as `user@name:port`; empty for a rented machine."""

    def __post_init__(self) -> None:
        """Raises `ValueError` for a name that is none: an offer may come from a plan in the bucket."""
        for name, kind in (("region", Region), ("zone", Zone), ("machine_type", MachineType)):
            object.__setattr__(self, name, kind(getattr(self, name)))

    @property
    def pool(self) -> tuple[str, str, str]:
        """(zone, machine type, provisioning). Offers of one pool run out together."""
        return self.zone, self.machine_type, self.provisioning

    @property
    def key(self) -> Decimal:
        return self.usd_per_hour if self.expected_usd is None else self.expected_usd


@dataclass(frozen=True, slots=True)
class ZoneAdvice:
    """What a cloud expects of spot machines in a zone. A value is None if the cloud does not say."""

    zone: str
    obtainable: float | None = None
    """The probability that a request is granted, 0 to 1."""
    uptime_s: float | None = None
    """How long a machine lasts."""
    preemption_rate: float | None = None
    """The share of machines that ended by preemption, 0 to 1."""
    list_usd: Decimal | None = None
    """The list price of a spot machine in dollars per hour."""
    list_since: date | None = None
    """Since when it is the list price."""
    list_was_usd: Decimal | None = None
    """The list price before that."""


def model_of(provisioning: str) -> str:
    """Google's name of a provisioning: `FLEX_START` for `flex-start`."""
    return provisioning.upper().replace("-", "_")


def provisioning_of(model: str) -> str:
    """A provisioning as a configuration spells it: `flex-start` for `FLEX_START`."""
    return model.lower().replace("_", "-")


def region_of(zone: str) -> str:
    """The region of a zone: `us-central1` for `us-central1-a`."""
    return zone.rpartition("-")[0]


def rank_offers(offers: Sequence[Offer], *, hints: Sequence[str] = (), last: Collection[str] = ()) -> tuple[Offer, ...]:
    """The offers, best first: the zones in `hints` in that order, then by expected dollars, then by zone name. Zones in
    `last` that are not in `hints` come after all others. The result does not depend on the order of `offers`."""
    place = {zone: index for index, zone in reversed(list(enumerate(hints)))}

    def key(offer: Offer) -> tuple[int, bool, Decimal, str, str, str]:
        late = offer.zone in last and offer.zone not in place
        hinted = place.get(offer.zone, len(hints))
        return hinted, late, offer.key, offer.zone, offer.machine_type, offer.provisioning

    return tuple(sorted(offers, key=key))


def blocked_by(scope: str, zone: str) -> Callable[[Offer], bool]:
    """A function that says whether a refusal in `zone` rules out an offer. The `scope` of the refusal is `zone`,
    `region` or `all`; an unknown scope counts as `zone`, because a request in the next zone shows whether it is refused
    too."""
    if scope == "all":
        return lambda _: True
    if scope == "region":
        return lambda offer: offer.region == region_of(zone)
    return lambda offer: offer.zone == zone


def expected_hours(taken_back: float, work: ExpectedWork = USUAL) -> float:
    """The expected machine hours until a run is done, if each machine is preempted with the probability `taken_back`
    (below 1): `hours` of the formula."""
    return (work.work_s + work.start_s * taken_back / (1 - taken_back)) / 3600


def after_stock_out(age_s: float) -> float:
    """`obtainable` of a zone that had no machine `age_s` seconds ago: `DRY` at once, half way to 1 after an hour."""
    return DRY + (1 - DRY) * (1 - 2 ** (-max(age_s, 0.0) / HALF_LIFE_S))


def weigh_offers(
    offers: Sequence[Offer],
    *,
    advice: Sequence[ZoneAdvice] = (),
    stock_outs: Mapping[tuple[str, str, str], datetime] | None = None,
    now: datetime,
    work: ExpectedWork = USUAL,
) -> tuple[Offer, ...]:
    """The offers with their expected dollars for `work` and the reason for them. `stock_outs` has the time of the last
    stock-out of each pool (`Offer.pool`). Advice is about spot machines and is applied only to them. A spot machine in
    a zone without advice gets the average of the other zones."""
    by_zone = {found.zone: found for found in advice}
    average = _average(advice)
    dry_pools = stock_outs or {}

    def advice_on(offer: Offer) -> ZoneAdvice | None:
        return by_zone.get(offer.zone, average) if offer.provisioning == "SPOT" else None

    return tuple(_weighed(offer, advice_on(offer), dry_pools.get(offer.pool), now, work) for offer in offers)


def _weighed(
    offer: Offer, advice: ZoneAdvice | None, dry_at: datetime | None, now: datetime, work: ExpectedWork
) -> Offer:
    obtainable, taken_back = 1.0, 0.0
    why = ["waits in a queue, not preempted"] if offer.provisioning == FLEX_START else []
    if advice is not None and not advice.zone:
        obtainable = advice.obtainable if advice.obtainable is not None else 1.0
        taken_back = advice.preemption_rate or 0.0
        why.append("as elsewhere")
    elif advice is not None:
        if advice.obtainable is not None:
            obtainable = advice.obtainable
            why.append(f"obtainable {advice.obtainable:.2f}")
        if advice.preemption_rate is not None:
            taken_back = advice.preemption_rate
            why.append(f"{advice.preemption_rate:.0%} preempted")
        if advice.uptime_s is not None and advice.uptime_s > 0:
            taken_back = max(taken_back, 1 - math.exp(-work.work_s / advice.uptime_s))
            why.append(f"lasts {advice.uptime_s / 3600:.1f} h")
        if advice.list_usd is not None:
            since = f" since {advice.list_since}" if advice.list_since else ""
            was = f", ${advice.list_was_usd:.4f} before" if advice.list_was_usd else ""
            why.append(f"listed at ${advice.list_usd:.4f}/h{since}{was}")
    if dry_at is not None:
        age = (now - dry_at) / timedelta(seconds=1)
        obtainable *= after_stock_out(age)
        why.append(f"had none {_ago(age)} ago")
    hours = expected_hours(min(max(taken_back, 0.0), 0.99), work)
    dollars = float(offer.usd_per_hour) * hours / min(max(obtainable, LEAST), 1.0)
    return replace(offer, expected_usd=Decimal(f"{dollars:.6f}"), why=", ".join(why) or "price")


def _average(advice: Sequence[ZoneAdvice]) -> ZoneAdvice | None:
    """The average advice over the zones, with an empty zone; None if there is no advice."""
    obtainable = [found.obtainable for found in advice if found.obtainable is not None]
    rates = [found.preemption_rate for found in advice if found.preemption_rate is not None]
    if not obtainable and not rates:
        return None
    return ZoneAdvice(
        "",
        obtainable=sum(obtainable) / len(obtainable) if obtainable else None,
        preemption_rate=sum(rates) / len(rates) if rates else None,
    )


def _ago(seconds: float) -> str:
    minutes = max(round(seconds / 60), 0)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"
