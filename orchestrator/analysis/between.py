"""How much two runs of the same code differ, and when a machine was in no state to be compared.

Within a run everything is interleaved; between runs nothing is: clocks, placement of memory, other tenants. What both
runs measured of code that did not change tells how much that is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from orchestrator.analysis.bootstrap import LEVEL, Interval, students
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.study import Case
from orchestrator.core.results import CONTROL, is_control

LIMIT: Final = NormalDist().inv_cdf((1 + LEVEL) / 2)
USUAL: Final = 0.01
"""The spread between two runs of which nothing is known: the standard deviation of the logarithm of their ratio."""
WEIGHT: Final = 4.0
"""How many observations that, or the spread of all cases in the place of one, counts for."""
LEAST: Final = 3
"""Fewer observations tell nothing by themselves."""
HELD: Final = "the device was held back"
SAME_CODE: Final = "the same payload: what differs is the machine"
MOST_HELD: Final = 0.25
STEPS: Final = 60
"""The share of measurements that may be taken while the device is held back, in a regime that leaves it rests; and by
how much this share may differ between two runs in any regime."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The standard deviation of the logarithm of a ratio of two runs of the same code, from `free` observations."""

    size: float
    free: float

    def widened(self, ratio: Interval) -> Interval:
        """`ratio` of two runs, each with its own interval, with limits that hold for what differs between runs too."""
        reach = students(LIMIT, self.free) * self.size
        low, high = (math.log(ratio.mid / ratio.low), math.log(ratio.high / ratio.mid)) if ratio.known else (0.0, 0.0)
        if not ratio.known:
            return ratio
        mid = math.log(ratio.mid)
        return Interval(math.exp(mid - math.hypot(low, reach)), ratio.mid, math.exp(mid + math.hypot(high, reach)))

    def chance(self, ratio: Interval) -> float:
        """A two-sided p-value for `ratio` (not widened) being 1; 1 where it has no interval."""
        if not ratio.known:
            return 1.0
        own = abs(math.log(ratio.mid / (ratio.low if ratio.mid > 1 else ratio.high))) / LIMIT
        deviation = math.hypot(own, self.size)
        if deviation == 0:
            return 0.0 if ratio.mid != 1 else 1.0
        # Welch and Satterthwaite: what is known well adds to the degrees of freedom of what is not.
        free = self.free * (deviation / self.size) ** 4 if self.size else math.inf
        return math.erfc(normal(abs(math.log(ratio.mid)) / deviation, free) / math.sqrt(2))


def normal(t: float, free: float) -> float:
    """The normal quantile whose tail is that of Student's `t`: what `students` undoes. Newton's steps from above, where
    it rises ever faster, so that none steps over what is looked for."""
    found = t
    for _ in range(STEPS if math.isfinite(free) else 0):
        step = (students(found, free) - t) / slope(found, free)
        found -= step
        if step <= found * 1e-14:
            break
    return found


def slope(z: float, free: float) -> float:
    """How fast `students` rises at `z`."""
    first = (3 * z**2 + 1) / 4
    second = (25 * z**4 + 48 * z**2 + 3) / 96
    third = (21 * z**6 + 95 * z**4 + 51 * z**2 - 15) / 384
    fourth = (711 * z**8 + 5432 * z**6 + 7410 * z**4 - 5760 * z**2 - 945) / 92160
    return 1 + first / free + second / free**2 + third / free**3 + fourth / free**4


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
    _, left, right = np.intersect1d(own.group.block, other.group.block, assume_unique=True, return_indices=True)
    if not left.size:
        return None
    return float(np.median(np.log(own.group.latency_us[left]) - np.log(other.group.latency_us[right])))


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
