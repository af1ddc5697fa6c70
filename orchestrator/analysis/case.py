"""One case in one setting: its timings, and the comparisons between them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.analysis.bootstrap import Interval
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.roofs import Roof, Work
from orchestrator.analysis.spread import NONE, Spread
from orchestrator.analysis.timings import Timing
from orchestrator.analysis.verdicts import Noise, Paired, Verdict


@dataclass(frozen=True, slots=True)
class Contrast:
    """The subject against one baseline on one case in one setting. A ratio over 1 means that the subject is faster by
    that factor."""

    case_id: str
    setting: Setting
    subject: str
    baseline: str
    paired: Paired
    p: float
    """The p-value, corrected by Holm's method for all contrasts of the run."""
    noise: Noise | None
    order_shift: float
    """The ratio in blocks where the subject ran before the baseline, divided by that in blocks where it ran after: 1
    means that the order has no effect."""
    verdict: Verdict
    doubt: str = ""
    """Why there is no verdict, whatever the numbers say (`orchestrator.analysis.doubts`); empty where nothing prevents
    one."""
    bindings: Spread = NONE
    """What the two bindings that were timed add to the ratio (`orchestrator.analysis.bindings`)."""
    elsewhere: float = math.nan
    """For burst the ratio in graph, for graph that in burst, where the two intervals do not overlap; NaN otherwise."""

    @property
    def ratio(self) -> Interval:
        """The estimate, with limits for the blocks and for the bindings."""
        return self.bindings.widened(self.paired.ratio)

    @property
    def said(self) -> str:
        """The verdict in words: `faster`, `inconclusive: regimes disagree`."""
        return f"{self.verdict.value}: {self.doubt}" if self.doubt else self.verdict.value


@dataclass(frozen=True, slots=True)
class Control:
    """An implementation against itself. Any verdict but same or inconclusive is false."""

    case_id: str
    setting: Setting
    implementation: str
    paired: Paired
    verdict: Verdict
    bindings: Spread = NONE
    """What two bindings of the implementation differ by in the other cases."""

    @property
    def ratio(self) -> Interval:
        """The estimate, with limits for the blocks and for the bindings."""
        return self.bindings.widened(self.paired.ratio)


@dataclass(frozen=True, slots=True)
class Case:
    """One case in one setting."""

    case_id: str
    setting: Setting
    axes: Mapping[str, str]
    work: Work | None
    roof: Roof | None
    timings: tuple[Timing, ...]
    contrasts: tuple[Contrast, ...]
    controls: tuple[Control, ...]

    def timing(self, implementation: str) -> Timing | None:
        return next((one for one in self.timings if one.implementation == implementation), None)

    @property
    def best(self) -> Contrast | None:
        """The contrast with the fastest baseline."""
        medians = {timing.implementation: timing.median_us.mid for timing in self.timings if timing.timed}
        return min(self.contrasts, key=lambda one: medians[one.baseline], default=None)
