"""How far our medians are from what CUPTI says of the same cases: a number, not a promise."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.analysis.samples import number
from orchestrator.analysis.study import Study

CLOSE, NEAR = 0.02, 0.05
LONG_US: Final = 200.0
"""From here on what a call takes beyond its kernels is lost in how much the chip's clock moves."""


@dataclass(frozen=True, slots=True)
class Told:
    """CUPTI's microseconds of a call, from the first kernel's start to the last one's end."""

    case_id: str
    implementation: str
    cupti_us: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """`ratios` are our medians in graph over CUPTI's; `added_us` is what our medians in burst have beyond CUPTI's in
    short calls, and `long_ratios` are theirs over CUPTI's in long ones."""

    ratios: tuple[float, ...]
    added_us: tuple[float, ...]
    long_ratios: tuple[float, ...] = ()

    def within(self, share: float) -> int:
        """In how many cells the graph's median is no farther from CUPTI's than this."""
        return sum(1 for one in self.ratios if abs(one - 1) <= share)

    @property
    def worst(self) -> float:
        """How far the farthest is; NaN for none."""
        return max((abs(one - 1) for one in self.ratios), default=math.nan)


def read(lines: Iterable[str]) -> tuple[Told, ...]:
    """What a file says; rows that make no sense are left out, as it may be anybody's."""
    found = []
    try:
        for row in csv.DictReader(lines):
            case_id, name, us = row.get("case_id"), row.get("implementation"), number(row.get("cupti_us") or "")
            if case_id and name and 0 < us < math.inf:
                found.append(Told(case_id, name, us))
    except csv.Error:
        pass
    return tuple(found)


def agreement(study: Study, told: Sequence[Told]) -> Agreement | None:
    """Ours against theirs, cell by cell; None where nothing is in both. Warm caches are not compared: CUPTI is asked
    about cold ones."""
    known = {(one.case_id, one.implementation): one.cupti_us for one in told}
    ratios, added, long_ratios = [], [], []
    for case in study.cases:
        for timing in case.timings:
            cupti_us = known.get((case.case_id, timing.implementation))
            if cupti_us is None or not timing.timed or case.setting.cache == "warm":
                continue
            if case.setting.regime == "graph":
                ratios.append(timing.median_us.mid / cupti_us)
            elif case.setting.regime == "burst" and cupti_us >= LONG_US:
                long_ratios.append(timing.median_us.mid / cupti_us)
            elif case.setting.regime == "burst":
                added.append(timing.median_us.mid - cupti_us)
    found = Agreement(tuple(ratios), tuple(added), tuple(long_ratios))
    return found if ratios or added or long_ratios else None


def sentence(found: Agreement) -> str:
    """The agreement in words."""
    parts = []
    if found.ratios:
        cells = len(found.ratios)
        parts.append(
            f"graph is within {NEAR:.0%} of it in {found.within(NEAR)} of {cells} cells and within {CLOSE:.0%} in "
            f"{found.within(CLOSE)} (worst {found.worst:.1%})"
        )
    if found.added_us:
        middle, least, most = statistics.median(found.added_us), min(found.added_us), max(found.added_us)
        parts.append(
            f"burst has {middle:.1f} µs more ({least:.1f} to {most:.1f} in {len(found.added_us)} cells), which is what "
            "the device takes to begin a call and to report its end"
        )
    if found.long_ratios:
        near = sum(1 for one in found.long_ratios if abs(one - 1) <= NEAR)
        parts.append(
            f"of calls over {LONG_US:.0f} µs burst is within {NEAR:.0%} of it in {near} of {len(found.long_ratios)}"
        )
    return f"A second clock, CUPTI's time of the kernels: {'; '.join(parts)}."
