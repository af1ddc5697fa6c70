"""How much two runs of the same code differ, and when the state of a machine forbids a comparison.

Within a run the implementations are interleaved. Two runs are not: their clocks, placement of memory and other tenants
may differ. How much that matters is estimated from code that is the same in both runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from orchestrator.analysis.bootstrap import Spread, median
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.study import Case
from orchestrator.core.results import CONTROL, is_control

USUAL: Final = 0.01
"""The spread that is assumed where nothing is known of the two runs: the standard deviation of the logarithm of their
ratio."""
WEIGHT: Final = 4.0
"""How many observations `USUAL` counts for, or the spread of all cases where that of one case is estimated."""
LEAST: Final = 3
"""Fewer observations than this are not used by themselves."""
HELD: Final = "the device was throttled"
SAME_CODE: Final = "the same payload: only the machine differs"
MOST_HELD: Final = 0.25
"""The largest share of measurements that may be taken while the device throttles, in a regime that leaves it rests.
It is also the most by which this share may differ between two runs, in any regime."""


def spread_of(differences: Iterable[float]) -> Spread:
    """The spread that `differences` show. Each is the logarithm of the ratio of two runs, including its sampling error.
    If they show less than is usual, `USUAL` counts for `WEIGHT` of them; if they show more, they count alone."""
    squares = [difference**2 for difference in differences]
    count = len(squares)
    if count >= LEAST and sum(squares) > count * USUAL**2:
        return Spread(math.sqrt(sum(squares) / count), count)
    return Spread(_leaning(squares, USUAL), count + WEIGHT)


def _leaning(squares: Sequence[float], prior: float) -> float:
    return math.sqrt((WEIGHT * prior**2 + sum(squares)) / (WEIGHT + len(squares)))


Observed = Mapping[tuple[Setting, str], Sequence[float]]
"""By setting and case: the logarithms of the ratios of two runs' times, for code that did not change."""


def observe_controls(
    pairs: Iterable[tuple[Case, Case]], relative_to: str, subjects: Sequence[str], *, steady: bool = True
) -> Observed:
    """The differences of what is known to be the same code in both runs: each control against its implementation, and,
    where the libraries are the same (`steady`), every baseline that is none of `subjects`, against `relative_to` where
    it is given."""
    differences: dict[tuple[Setting, str], list[float]] = {}
    for before, after in pairs:
        of_case = differences.setdefault((before.setting, before.case_id), [])
        for name in (one.implementation for one in before.timings if one.timed):
            if is_control(name):
                base = name.removesuffix(CONTROL)
            elif steady and name not in subjects and name != relative_to:
                base = relative_to
            else:
                continue
            first, second = _log(before, name, base), _log(after, name, base)
            if first is not None and second is not None:
                of_case.append(second - first)
    return differences


def _log(case: Case, name: str, base: str) -> float | None:
    """The logarithm of the median latency, or the median logarithm of the ratio to `base` in the same blocks. None
    where one of the two was not timed."""
    timing, base_timing = case.timing(name), case.timing(base) if base else None
    if timing is None or not timing.timed or (base and (base_timing is None or not base_timing.timed)):
        return None
    if base_timing is None:
        return math.log(timing.median_us.mid)
    rows, base_rows = timing.group.shared(base_timing.group)
    if not rows.size:
        return None
    return median(np.log(timing.group.latency_us[rows]) - np.log(base_timing.group.latency_us[base_rows]))


def case_spreads(differences: Observed) -> Mapping[tuple[Setting, str], Spread]:
    """The spread of each case. It is drawn towards the spread of all cases of the setting, which is drawn towards
    `USUAL`."""
    spread = {}
    for setting in {setting for setting, _ in differences}:
        of_setting = {key: values for key, values in differences.items() if key[0] == setting}
        setting_spread = spread_of(value for values in of_setting.values() for value in values)
        for key, values in of_setting.items():
            spread[key] = Spread(_leaning([value**2 for value in values], setting_spread.size), setting_spread.free)
    return spread


def held_back(before: Case, after: Case, names: Iterable[str]) -> str:
    """Why the two runs cannot be compared because the device throttled; empty where they can."""
    for name in names:
        both = (before.timing(name), after.timing(name))
        first, second = (one.throttled if one is not None and one.timed else 0.0 for one in both)
        most = max(first, second) if before.setting.regime == "burst" else abs(first - second)
        if most > MOST_HELD:
            return HELD
    return ""
