"""How far our times are from CUPTI's: in files of today from its record of the very launches that we timed, in old ones
from its times of the same cases."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.analysis.samples import parse_cell
from orchestrator.analysis.study import Study
from orchestrator.core.text import count

CLOSE, NEAR = 0.02, 0.05
SHORT_US: Final = 10.0
"""Shorter times are compared in microseconds and not by ratio, as a replay takes half a microsecond or more between two
calls."""
LONG_US: Final = 200.0
"""Longer times are compared by ratio: what a call takes beyond its kernels is less than the chip's clock varies."""


@dataclass(frozen=True, slots=True)
class Told:
    """CUPTI's time of a call in microseconds, from the start of the first kernel to the end of the last. `cupti_us` is
    measured after a rest, and `busy_us`, for long calls only, on a device without rests (NaN where not known)."""

    case_id: str
    implementation: str
    cupti_us: float
    busy_us: float = math.nan

    @property
    def unrested_us(self) -> float:
        """CUPTI's time in microseconds for regimes in which the device has no rest."""
        return self.cupti_us if math.isnan(self.busy_us) else self.busy_us


@dataclass(frozen=True, slots=True)
class Agreement:
    """How our medians differ from CUPTI's times. In graph: `ratios` to them, and for calls below `SHORT_US` the
    differences `short_us`. In burst: the differences `added_us`, and from `LONG_US` on the ratios `long_ratios`."""

    ratios: tuple[float, ...] = ()
    short_us: tuple[float, ...] = ()
    added_us: tuple[float, ...] = ()
    long_ratios: tuple[float, ...] = ()

    def within(self, share: float) -> int:
        """The number of cells in which the median in graph is within `share` of CUPTI's time."""
        return sum(1 for one in self.ratios if abs(one - 1) <= share)

    @property
    def worst(self) -> float:
        """The largest distance of a ratio from 1; NaN without ratios."""
        return max((abs(one - 1) for one in self.ratios), default=math.nan)


def read_cupti_times(lines: Iterable[str]) -> tuple[Told, ...]:
    """The times in an old file. Rows that make no sense are left out, as anybody may have written the file."""
    times = []
    try:
        for row in csv.DictReader(lines):
            case_id, name, us = row.get("case_id"), row.get("implementation"), parse_cell(row.get("cupti_us") or "")
            busy_us = parse_cell(row.get("cupti_busy_us") or "")
            if case_id and name and 0 < us < math.inf and not row.get("regime"):
                times.append(Told(case_id, name, us, busy_us if 0 < busy_us < math.inf else math.nan))
    except csv.Error:
        pass
    return tuple(times)


def measure_agreement(study: Study, told: Sequence[Told]) -> Agreement | None:
    """Our medians compared with CUPTI's times, cell by cell; None where they have no cell in common. Warm caches are
    not compared, as CUPTI's times are with cold ones."""
    told_by_cell = {(cupti_time.case_id, cupti_time.implementation): cupti_time for cupti_time in told}
    ratios, short, added, long_ratios = [], [], [], []
    for case in study.cases:
        for timing in case.timings:
            cupti_time = told_by_cell.get((case.case_id, timing.implementation))
            if cupti_time is None or not timing.timed or case.setting.cache == "warm":
                continue
            ours = timing.median_us.mid
            if case.setting.regime == "graph" and cupti_time.cupti_us < SHORT_US:
                short.append(ours - cupti_time.cupti_us)
            elif case.setting.regime == "graph":
                ratios.append(ours / cupti_time.unrested_us)
            elif case.setting.regime == "burst" and cupti_time.cupti_us >= LONG_US:
                long_ratios.append(ours / cupti_time.cupti_us)
            elif case.setting.regime == "burst":
                added.append(ours - cupti_time.cupti_us)
    if not (ratios or short or added or long_ratios):
        return None
    return Agreement(tuple(ratios), tuple(short), tuple(added), tuple(long_ratios))


def describe_agreement(found: Agreement) -> str:
    """The agreement in one sentence."""
    parts = []
    if found.ratios:
        cells = len(found.ratios)
        parts.append(
            f"of calls over {SHORT_US:.0f} µs graph is within {NEAR:.0%} of it in {found.within(NEAR)} of {cells} "
            f"cells and within {CLOSE:.0%} in {found.within(CLOSE)} (worst {found.worst:.1%})"
        )
    if found.short_us:
        parts.append(f"of shorter ones it has {describe_overhead(found.short_us)}")
    if found.added_us:
        parts.append(
            f"burst has {describe_overhead(found.added_us)}, which is what the device takes to begin a call and to "
            "report its end"
        )
    if found.long_ratios:
        near = sum(1 for one in found.long_ratios if abs(one - 1) <= NEAR)
        parts.append(
            f"of calls over {LONG_US:.0f} µs burst is within {NEAR:.0%} of it in {near} of {len(found.long_ratios)}"
        )
    return f"A second clock, CUPTI's time of the kernels: {'; '.join(parts)}."


def describe_overhead(added_us: Sequence[float]) -> str:
    """The median, least and greatest of what is added to a time, in words."""
    middle, least, most = statistics.median(added_us), min(added_us), max(added_us)
    return f"{middle:.1f} µs more ({least:.1f} to {most:.1f} in {len(added_us)} cells)"


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
