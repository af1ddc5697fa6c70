"""How far our timers are from CUPTI's record of the very launches that they timed."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.analysis.samples import number
from orchestrator.core.wording import count

WITHIN: Final = (0.01, 0.02, 0.05)
SLACK_US: Final = 0.5
"""A twentieth of a call of few microseconds is less than what a clock's own steps and an event come to."""
REGIMES: Final = ("burst", "graph", "sustained")


@dataclass(frozen=True, slots=True)
class Watched:
    """One implementation on one case in one regime, in microseconds a call, medians over samples: ours while CUPTI
    looked on, ours of the ordinary measurement (NaN where not known), CUPTI's from the first kernel's start to the last
    one's end, and in burst from the end of what covered the launch (NaN otherwise). `skipped`: why nothing is known."""

    case_id: str
    implementation: str
    regime: str
    watched_us: float = math.nan
    unwatched_us: float = math.nan
    cupti_us: float = math.nan
    covered_us: float = math.nan
    skipped: str = ""

    @property
    def theirs_us(self) -> float:
        """What our timer should say: in burst the first event and the way to the first kernel are in both."""
        return self.cupti_us if math.isnan(self.covered_us) else self.covered_us

    @property
    def ratio(self) -> float:
        """Ours over theirs."""
        return self.watched_us / self.theirs_us

    @property
    def convicts(self) -> bool:
        """Whether ours is farther from theirs than a right timer's can be."""
        return abs(self.watched_us - self.theirs_us) > max(SLACK_US, WITHIN[-1] * self.theirs_us)


def read(lines: Iterable[str]) -> tuple[Watched, ...]:
    """What a file says; rows that make no sense are left out, as it may be anybody's, and so are those of old files."""
    found = []
    try:
        for row in csv.DictReader(lines):
            case_id, name, regime = row.get("case_id"), row.get("implementation"), row.get("regime")
            if not case_id or not name or regime not in REGIMES:
                continue
            ours, unwatched, theirs, covered = (
                positive(row.get(key)) for key in ("watched_us", "unwatched_us", "cupti_us", "cupti_covered_us")
            )
            if skipped := row.get("skipped"):
                found.append(Watched(case_id, name, regime, unwatched_us=unwatched, skipped=skipped))
            elif not math.isnan(ours + theirs):
                found.append(Watched(case_id, name, regime, ours, unwatched, theirs, covered))
    except csv.Error:
        pass
    return tuple(found)


def positive(text: str | None) -> float:
    """A time; NaN for what is none."""
    found = number(text or "")
    return found if 0 < found < math.inf else math.nan


def by_regime(told: Sequence[Watched]) -> Mapping[str, list[Watched]]:
    """What could be compared, by regime in their usual order."""
    known = [one for one in told if not one.skipped]
    found = {regime: [one for one in known if one.regime == regime] for regime in REGIMES}
    return {regime: own for regime, own in found.items() if own}


def within(told: Sequence[Watched], share: float) -> int:
    """In how many our median is no farther from CUPTI's than this."""
    return sum(1 for one in told if abs(one.ratio - 1) <= share)


def sentence(told: Sequence[Watched]) -> str:
    """The agreement in words; empty where nobody was asked."""
    parts = [regime_words(regime, own) for regime, own in by_regime(told).items()]
    if added := [one.watched_us - one.cupti_us for one in told if one.regime == "burst" and not one.skipped]:
        middle, least, most = statistics.median(added), min(added), max(added)
        parts.append(
            f"burst has {middle:.1f} µs ({least:.1f} to {most:.1f}) more than the kernels take from the first one's "
            "start, which is what the device takes to begin a call and to report its end"
        )
    slowed = [one.watched_us / one.unwatched_us for one in told if not math.isnan(one.watched_us / one.unwatched_us)]
    if slowed:
        parts.append(
            f"watched, medians are {statistics.median(slowed):.3f} times ({min(slowed):.3f} to {max(slowed):.3f}) "
            "those of the ordinary measurement"
        )
    if missed := sum(1 for one in told if one.skipped):
        parts.append(f"{missed} of {count(len(told), 'cell')} could not be compared")
    return f"A second clock, CUPTI's record of the very launches that were timed: {'; '.join(parts)}." if parts else ""


def regime_words(regime: str, own: Sequence[Watched]) -> str:
    """One regime's agreement."""
    near, close, _ = WITHIN
    worst = max(abs(one.ratio - 1) for one in own)
    return (
        f"{regime} is within {near:.0%} of it in {within(own, near)} and within {close:.0%} in {within(own, close)} of "
        f"{count(len(own), 'cell')} (worst {worst:.1%})"
    )
