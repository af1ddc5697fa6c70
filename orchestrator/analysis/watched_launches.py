"""How far our timers are from CUPTI's record of the very launches that they timed."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.analysis.samples import parse_cell
from orchestrator.core.text import count

WITHIN: Final = (0.01, 0.02, 0.05)
SLACK_US: Final = 0.5
"""A difference up to this is never an error of the timer: a twentieth of a call of a few microseconds is less than the
steps of a clock and an event come to."""
REGIMES: Final = ("burst", "graph", "sustained")


@dataclass(frozen=True, slots=True)
class Watched:
    """One implementation on one case in one regime: medians over samples, in microseconds a call. They are our time
    while CUPTI watched, our time in the ordinary measurement (NaN where not known), CUPTI's time from the start of the
    first kernel to the end of the last, and in burst CUPTI's time from the end of the work that covered the launch (NaN
    in other regimes). `skipped` says why nothing is known."""

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
        """The time in microseconds that our timer should show. In burst it includes the first event and the way to the
        first kernel, as ours does."""
        return self.cupti_us if math.isnan(self.covered_us) else self.covered_us

    @property
    def ratio(self) -> float:
        """Our time over CUPTI's."""
        return self.watched_us / self.theirs_us

    @property
    def convicts(self) -> bool:
        """Whether our time is farther from CUPTI's than that of a correct timer can be."""
        return abs(self.watched_us - self.theirs_us) > max(SLACK_US, WITHIN[-1] * self.theirs_us)


def read_watched(lines: Iterable[str]) -> tuple[Watched, ...]:
    """The rows of a file. Rows of old files and rows that make no sense are left out, as anybody may have written the
    file."""
    launches = []
    try:
        for row in csv.DictReader(lines):
            case_id, name, regime = row.get("case_id"), row.get("implementation"), row.get("regime")
            if not case_id or not name or regime not in REGIMES:
                continue
            ours, unwatched, theirs, covered = (
                positive_time(row.get(key)) for key in ("watched_us", "unwatched_us", "cupti_us", "cupti_covered_us")
            )
            if skipped := row.get("skipped"):
                launches.append(Watched(case_id, name, regime, unwatched_us=unwatched, skipped=skipped))
            elif not math.isnan(ours + theirs):
                launches.append(Watched(case_id, name, regime, ours, unwatched, theirs, covered))
    except csv.Error:
        pass
    return tuple(launches)


def positive_time(text: str | None) -> float:
    """A positive time; NaN for any other text."""
    value = parse_cell(text or "")
    return value if 0 < value < math.inf else math.nan


def by_regime(told: Sequence[Watched]) -> Mapping[str, list[Watched]]:
    """The rows that could be compared, by regime in the usual order."""
    timed_rows = [one for one in told if not one.skipped]
    rows_by_regime = {regime: [one for one in timed_rows if one.regime == regime] for regime in REGIMES}
    return {regime: own for regime, own in rows_by_regime.items() if own}


def count_within(told: Sequence[Watched], share: float) -> int:
    """The number of rows in which our median is within `share` of CUPTI's."""
    return sum(1 for one in told if abs(one.ratio - 1) <= share)


def describe_watched(told: Sequence[Watched]) -> str:
    """The agreement in one sentence; empty where CUPTI watched nothing."""
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
    """The agreement in one regime, in words."""
    near, close, _ = WITHIN
    worst = max(abs(one.ratio - 1) for one in own)
    return (
        f"{regime} is within {near:.0%} of it in {count_within(own, near)} and within {close:.0%} in "
        f"{count_within(own, close)} of "
        f"{count(len(own), 'cell')} (worst {worst:.1%})"
    )
