"""How far our medians are from CUPTI's times of the same cases, in old files. In newer files CUPTI watches the launches
that are timed (`watched_launches.py`)."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.analysis.samples import parse_cell
from orchestrator.analysis.study import Study

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
