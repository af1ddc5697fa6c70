"""How much two runs of the same code differ, and when a machine was in no state to be compared.

Within a run everything is interleaved; between runs nothing is: clocks, placement of memory, other tenants. What both
runs measured of code that did not change tells how much that is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from orchestrator.analysis.bootstrap import median
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.spread import Spread
from orchestrator.analysis.study import Case
from orchestrator.core.results import CONTROL, is_control

USUAL: Final = 0.01
"""The spread between two runs of which nothing is known: the standard deviation of the logarithm of their ratio."""
WEIGHT: Final = 4.0
"""How many observations that, or the spread of all cases in the place of one, counts for."""
LEAST: Final = 3
"""Fewer observations tell nothing by themselves."""
HELD: Final = "the device was throttled"
SAME_CODE: Final = "the same payload: only the machine differs"
MOST_HELD: Final = 0.25
"""The share of measurements that may be taken while the device is held back, in a regime that leaves it rests; and by
how much this share may differ between two runs in any regime."""


def spread_of(differences: Iterable[float]) -> Spread:
    """The spread that `differences` show, each the logarithm of the ratio of two runs, sampling error and all. Where
    they show less than is usual, `USUAL` counts for `WEIGHT` of them; where they show more, they count alone."""
    squares = [found**2 for found in differences]
    count = len(squares)
    if count >= LEAST and sum(squares) > count * USUAL**2:
        return Spread(math.sqrt(sum(squares) / count), count)
    return Spread(_leaning(squares, USUAL), count + WEIGHT)


def _leaning(squares: Sequence[float], prior: float) -> float:
    return math.sqrt((WEIGHT * prior**2 + sum(squares)) / (WEIGHT + len(squares)))


Observed = Mapping[tuple[Setting, str], Sequence[float]]
"""By setting and case: the logarithms of the ratios of what code that did not change took in two runs."""


def observed(
    pairs: Iterable[tuple[Case, Case]], relative_to: str, subjects: Sequence[str], *, steady: bool = True
) -> Observed:
    """What is known to be the same code in both runs: each control against its own implementation, and, where the
    libraries are the same (`steady`), every baseline that is not asked about, against `relative_to` where given."""
    found: dict[tuple[Setting, str], list[float]] = {}
    for before, after in pairs:
        seen = found.setdefault((before.setting, before.case_id), [])
        for name in (one.implementation for one in before.timings if one.timed):
            if is_control(name):
                base = name.removesuffix(CONTROL)
            elif steady and name not in subjects and name != relative_to:
                base = relative_to
            else:
                continue
            first, second = _log(before, name, base), _log(after, name, base)
            if first is not None and second is not None:
                seen.append(second - first)
    return found


def _log(case: Case, name: str, base: str) -> float | None:
    """The logarithm of a median latency, or the median of its ratio to `base` in the same blocks; None where there is
    none."""
    own, other = case.timing(name), case.timing(base) if base else None
    if own is None or not own.timed or (base and (other is None or not other.timed)):
        return None
    if other is None:
        return math.log(own.median_us.mid)
    left, right = own.group.shared(other.group)
    if not left.size:
        return None
    return median(np.log(own.group.latency_us[left]) - np.log(other.group.latency_us[right]))


def spreads(seen: Observed) -> Mapping[tuple[Setting, str], Spread]:
    """For each case its own spread, leaning on that of all cases of its setting, and that on what is usual."""
    found = {}
    for setting in {setting for setting, _ in seen}:
        own = {key: values for key, values in seen.items() if key[0] == setting}
        whole = spread_of(value for values in own.values() for value in values)
        for key, values in own.items():
            found[key] = Spread(_leaning([value**2 for value in values], whole.size), whole.free)
    return found


def held_back(before: Case, after: Case, names: Iterable[str]) -> str:
    """Whether the device was held back in a way that two runs cannot be compared; empty where it was not."""
    for name in names:
        both = (before.timing(name), after.timing(name))
        first, second = (one.throttled if one is not None and one.timed else 0.0 for one in both)
        most = max(first, second) if before.setting.regime == "burst" else abs(first - second)
        if most > MOST_HELD:
            return HELD
    return ""
