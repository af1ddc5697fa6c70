"""Which zone next: offers in a fixed order, given prices, what is known of capacity, hints and what has run out.

The key is the expected dollars to a finished run,

    expected = price x hours / obtainable,    hours = T + t x r / (1 - r)

with T the hours that a run needs, t those that are lost each time a machine is taken back (boot, checks and build; what
was measured is kept), r the chance that a machine is taken back before it is done, and `obtainable` the chance that the
zone has one. A request that is refused costs no dollars but time: a zone that has a machine half of the time counts as
twice as dear. With nothing known, r = 0 and obtainable = 1, and the order is that of the prices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

WORK_S: Final = 900.0
"""What a run is taken to need of a machine where no run tells: T of the formula."""
START_S: Final = 240.0
"""What is lost with a machine where no run tells: t of the formula."""
HALF_LIFE_S: Final = 3600.0
"""A stock-out says half as much about a zone after an hour, a quarter after two."""
DRY: Final = 0.1
"""How obtainable a machine is in a zone that had none this moment."""
LEAST: Final = 0.01


@dataclass(frozen=True, slots=True)
class Work:
    """What a run is expected to need of machines, in seconds: T and t of the formula."""

    work_s: float = WORK_S
    start_s: float = START_S


USUAL: Final = Work()


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
    expected_usd: Decimal | None = None
    """Expected dollars to a finished run; None where nobody worked it out: then the price decides."""
    why: str = ""
    """What is known of capacity there, for a person."""
    host: str = ""
    """A machine of the user's own, as `user@name:port`; empty for one that is rented."""

    @property
    def pool(self) -> tuple[str, str, str]:
        """What runs out together."""
        return self.zone, self.machine_type, self.provisioning

    @property
    def key(self) -> Decimal:
        return self.usd_per_hour if self.expected_usd is None else self.expected_usd


@dataclass(frozen=True, slots=True)
class Advice:
    """What a cloud expects of spot machines in a zone. None: it does not say."""

    zone: str
    obtainable: float | None = None
    """How likely a request is granted, 0 to 1."""
    uptime_s: float | None = None
    """How long a machine lasts."""
    preemption_rate: float | None = None
    """The share of machines that ended because they were taken back, 0 to 1."""


def region_of(zone: str) -> str:
    """`us-central1` of `us-central1-a`."""
    return zone.rpartition("-")[0]


def rank(offers: Sequence[Offer], *, hints: Sequence[str] = (), last: Collection[str] = ()) -> tuple[Offer, ...]:
    """The offers, best first: hinted zones in the hint's order, then by expected dollars, then by zone name; zones in
    `last` after all others. The result does not depend on the order of `offers`."""
    place = {zone: index for index, zone in reversed(list(enumerate(hints)))}

    def key(offer: Offer) -> tuple[int, bool, Decimal, str, str, str]:
        late = offer.zone in last and offer.zone not in place
        hinted = place.get(offer.zone, len(hints))
        return hinted, late, offer.key, offer.zone, offer.machine_type, offer.provisioning

    return tuple(sorted(offers, key=key))


def blocked_by(scope: str, zone: str) -> Callable[[Offer], bool]:
    """Which offers a refusal in `zone` rules out: those of its `zone`, of its `region`, or `all`.
    A scope that is not known rules out the zone only: the next zone will say so itself."""
    if scope == "all":
        return lambda _: True
    if scope == "region":
        return lambda offer: offer.region == region_of(zone)
    return lambda offer: offer.zone == zone


def expected_hours(taken_back: float, work: Work = USUAL) -> float:
    """Machine hours until a run is done, when each machine is taken back with the chance `taken_back` (below 1)."""
    return (work.work_s + work.start_s * taken_back / (1 - taken_back)) / 3600


def after_stock_out(age_s: float) -> float:
    """How obtainable a machine is in a zone that had none `age_s` ago: `DRY` at once, half way to 1 after an hour."""
    return DRY + (1 - DRY) * (1 - 2 ** (-max(age_s, 0.0) / HALF_LIFE_S))


def weigh(
    offers: Sequence[Offer],
    *,
    advice: Sequence[Advice] = (),
    stock_outs: Mapping[tuple[str, str, str], datetime] | None = None,
    now: datetime,
    work: Work = USUAL,
) -> tuple[Offer, ...]:
    """The offers with their expected dollars for `work` and the reason for them. `stock_outs` has the last one of each
    pool (`Offer.pool`). Advice is on spot machines: it is not applied to others. A spot machine in a zone of which
    nothing is said is taken to be like those in the other zones."""
    advised = {found.zone: found for found in advice}
    elsewhere = _average(advice)
    dry = stock_outs or {}

    def known(offer: Offer) -> Advice | None:
        return advised.get(offer.zone, elsewhere) if offer.provisioning == "SPOT" else None

    return tuple(_weighed(offer, known(offer), dry.get(offer.pool), now, work) for offer in offers)


def _weighed(offer: Offer, advice: Advice | None, dry_at: datetime | None, now: datetime, work: Work) -> Offer:
    obtainable, taken_back = 1.0, 0.0
    why = []
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
    if dry_at is not None:
        age = (now - dry_at) / timedelta(seconds=1)
        obtainable *= after_stock_out(age)
        why.append(f"had none {_ago(age)} ago")
    hours = expected_hours(min(max(taken_back, 0.0), 0.99), work)
    dollars = float(offer.usd_per_hour) * hours / min(max(obtainable, LEAST), 1.0)
    return replace(offer, expected_usd=Decimal(f"{dollars:.6f}"), why=", ".join(why) or "price")


def _average(advice: Sequence[Advice]) -> Advice | None:
    """What is said of the zones on the whole, for a zone without a name; None when nothing is said."""
    obtainable = [found.obtainable for found in advice if found.obtainable is not None]
    rates = [found.preemption_rate for found in advice if found.preemption_rate is not None]
    if not obtainable and not rates:
        return None
    return Advice(
        "",
        obtainable=sum(obtainable) / len(obtainable) if obtainable else None,
        preemption_rate=sum(rates) / len(rates) if rates else None,
    )


def _ago(seconds: float) -> str:
    minutes = max(round(seconds / 60), 0)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"
