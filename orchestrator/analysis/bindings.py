"""What two bindings of one implementation differ by within a run, beyond what their blocks show.

An implementation is bound to a case once: its graph is captured once, its workspace and its outputs lie where they lie.
What that does to its time is the same in every block, so that no interval over blocks has it. Each control is a second
binding of its implementation; the controls of a run together tell how far bindings are apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.analysis.case import Case, Contrast, Control
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.spread import LIMIT, NONE, Spread

LEAST: Final = 4
"""Fewer controls do not tell how far bindings are apart by themselves."""
USUAL: Final = 0.003
USUAL_US: Final = 0.15
"""What two graphs of the same calls differ by where nothing is known, as a share and in microseconds a call: standard
deviations, from the controls of an H200 and an H100 (docs/statistics.md). Other regimes hardly differ."""
WEIGHT: Final = 4.0
"""How many observations that counts for."""
NEAR: Final = 4.0
"""How many times longer or shorter a call may take for its control to tell something of another: what a binding
adds is a part of a microsecond."""
BEYOND: Final = 1.28
"""Bindings are apart where their controls are so many standard errors beyond what blocks alone would show."""


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

    def of_control(self, case: Case, control: Control) -> Spread:
        """What two bindings differ by, as the other cases' controls show."""
        return self._pair(case, control.implementation, besides=case.case_id)

    def of_contrast(self, case: Case, contrast: Contrast) -> Spread:
        """What a binding of the subject and one of the baseline add to the logarithm of their ratio: each half the
        variance of a pair of its own, with the degrees of freedom of their sum (Satterthwaite 1946)."""
        both = [self._pair(case, name) for name in (contrast.subject, contrast.baseline)]
        parts = [(one.size**2 / 2, one.free) for one in both]
        variance = sum(size for size, _ in parts)
        if not variance:
            return NONE
        return Spread(math.sqrt(variance), variance**2 / sum(size**2 / free for size, free in parts))

    def _pair(self, case: Case, implementation: str, besides: str = "") -> Spread:
        """The spread between two bindings of `implementation`, from its own controls in cases about as long, or from
        everybody's where it has too few."""
        timing = case.timing(implementation)
        if timing is None or not timing.timed:
            return NONE
        within = math.log(NEAR)
        near = [
            one
            for one in self.twins.get(case.setting, ())
            if one.case_id != besides and abs(math.log(one.median_us / timing.median_us.mid)) <= within
        ]
        own = [one for one in near if one.implementation == implementation]
        if len(near) < LEAST and case.setting.regime == "graph":
            return usual(near, timing.median_us.mid)
        return excess(own if len(own) >= LEAST else near)


def excess(twins: Sequence[Twin]) -> Spread:
    """The standard deviation that is left when the intervals' own part is taken off; none where the intervals alone
    would come by as much once in ten runs."""
    count = len(twins)
    if count < LEAST or sum((one.log_ratio / one.error) ** 2 for one in twins) <= by_chance(count):
        return NONE
    left = sum(one.log_ratio**2 - one.error**2 for one in twins) / count
    return Spread(math.sqrt(left), count) if left > 0 else NONE


def usual(twins: Sequence[Twin], median_us: float) -> Spread:
    """What is usual for calls of so many microseconds, leaning on the few controls that there are."""
    seen = sum(max(0.0, one.log_ratio**2 - one.error**2) for one in twins)
    free = WEIGHT + len(twins)
    return Spread(math.sqrt((WEIGHT * math.hypot(USUAL, USUAL_US / median_us) ** 2 + seen) / free), free)


def by_chance(count: int) -> float:
    """What the squares of so many standard normal values sum up to at most, nine times in ten: the quantile of the
    chi-squared distribution (Wilson and Hilferty 1931)."""
    return float(count * (1 - 2 / (9 * count) + BEYOND * math.sqrt(2 / (9 * count))) ** 3)


def bindings_of(cases: Iterable[Case]) -> Bindings:
    """Every control that has an interval."""
    found: dict[Setting, list[Twin]] = {}
    for case in cases:
        for one in case.controls:
            ratio, timing = one.paired.ratio, case.timing(one.implementation)
            if ratio.known and ratio.low < ratio.high and timing is not None:
                error = math.log(ratio.high / ratio.low) / (2 * LIMIT)
                twin = Twin(case.case_id, one.implementation, timing.median_us.mid, math.log(ratio.mid), error)
                found.setdefault(case.setting, []).append(twin)
    return Bindings(found)
