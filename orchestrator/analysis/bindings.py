"""How much two bindings of one implementation differ within a run, beyond what their blocks show.

An implementation is bound to a case once: its graph is captured once, and its workspace and outputs stay at one
address. The effect on its time is the same in every block, so an interval over blocks does not contain it. Each control
is a second binding of its implementation; all controls of a run together show how much bindings differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.analysis.bootstrap import LIMIT, NONE, Spread
from orchestrator.analysis.case import Case, Contrast, ControlPair
from orchestrator.analysis.regimes import Setting

LEAST: Final = 4
"""With fewer controls than this the spread of bindings is not estimated from them alone."""
USUAL: Final = 0.003
USUAL_US: Final = 0.15
"""What two graphs of the same calls are assumed to differ by where too little is known, as a share and in microseconds
a call. Both are standard deviations, from the controls of an H200 and an H100 (docs/statistics.md). In other regimes
bindings hardly differ."""
WEIGHT: Final = 4.0
"""How many observations `USUAL` and `USUAL_US` count for."""
NEAR: Final = 4.0
"""A control is used for another call only if its call takes at most this many times longer or shorter, because a
binding adds a part of a microsecond."""
BEYOND: Final = 1.28
"""Bindings differ if their controls are this many standard errors beyond what blocks alone would show."""


@dataclass(frozen=True, slots=True)
class Twin:
    """A control: the logarithm of the ratio of an implementation to its second binding, with its standard error."""

    case_id: str
    implementation: str
    median_us: float
    log_ratio: float
    error: float


@dataclass(frozen=True, slots=True)
class Bindings:
    """The controls of a run, by setting."""

    twins: Mapping[Setting, Sequence[Twin]]

    def of_control(self, case: Case, control: ControlPair) -> Spread:
        """How much two bindings differ, from the controls of the other cases."""
        return self._pair(case, control.implementation, besides=case.case_id)

    def of_contrast(self, case: Case, contrast: Contrast) -> Spread:
        """What a binding of the subject and one of the baseline add to the logarithm of their ratio. Each adds half of
        the variance of a pair of its own bindings; the degrees of freedom are those of a sum (Satterthwaite 1946)."""
        spreads = [self._pair(case, name) for name in (contrast.subject, contrast.baseline)]
        parts = [(spread.size**2 / 2, spread.free) for spread in spreads]
        variance = sum(size for size, _ in parts)
        if not variance:
            return NONE
        return Spread(math.sqrt(variance), variance**2 / sum(size**2 / free for size, free in parts))

    def _pair(self, case: Case, implementation: str, besides: str = "") -> Spread:
        """The spread between two bindings of `implementation`: from its own controls in cases that take about as long,
        or from those of all implementations where it has too few."""
        timing = case.timing(implementation)
        if timing is None or not timing.timed:
            return NONE
        within = math.log(NEAR)
        near = [
            one
            for one in self.twins.get(case.setting, ())
            if one.case_id != besides and abs(math.log(one.median_us / timing.median_us.mid)) <= within
        ]
        same_implementation = [one for one in near if one.implementation == implementation]
        if len(near) < LEAST and case.setting.regime == "graph":
            return usual_spread(near, timing.median_us.mid)
        return excess_spread(same_implementation if len(same_implementation) >= LEAST else near)


def excess_spread(twins: Sequence[Twin]) -> Spread:
    """The standard deviation between bindings, without the part that the intervals explain. There is none where the
    intervals alone would show as much in one of ten runs."""
    count = len(twins)
    if count < LEAST or sum((one.log_ratio / one.error) ** 2 for one in twins) <= by_chance(count):
        return NONE
    variance = sum(one.log_ratio**2 - one.error**2 for one in twins) / count
    return Spread(math.sqrt(variance), count) if variance > 0 else NONE


def usual_spread(twins: Sequence[Twin], median_us: float) -> Spread:
    """The usual spread for calls of `median_us` microseconds, adjusted by the few controls that there are."""
    observed = sum(max(0.0, one.log_ratio**2 - one.error**2) for one in twins)
    free = WEIGHT + len(twins)
    return Spread(math.sqrt((WEIGHT * math.hypot(USUAL, USUAL_US / median_us) ** 2 + observed) / free), free)


def by_chance(count: int) -> float:
    """The value that the sum of the squares of `count` standard normal values exceeds once in ten: the 0.9 quantile of
    the chi-squared distribution (Wilson and Hilferty 1931)."""
    return float(count * (1 - 2 / (9 * count) + BEYOND * math.sqrt(2 / (9 * count))) ** 3)


def bindings_of(cases: Iterable[Case]) -> Bindings:
    """The controls of all cases that have an interval."""
    twins: dict[Setting, list[Twin]] = {}
    for case in cases:
        for one in case.controls:
            ratio, timing = one.paired.ratio, case.timing(one.implementation)
            if ratio.known and ratio.low < ratio.high and timing is not None:
                error = math.log(ratio.high / ratio.low) / (2 * LIMIT)
                twin = Twin(case.case_id, one.implementation, timing.median_us.mid, math.log(ratio.mid), error)
                twins.setdefault(case.setting, []).append(twin)
    return Bindings(twins)
