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
    """The subject against one baseline on one case in one setting. A ratio over 1: the subject is faster by that
    factor."""

    case_id: str
    setting: Setting
    subject: str
    baseline: str
    paired: Paired
    p: float
    """Corrected by Holm's method for every contrast of the run."""
    noise: Noise | None
    order_shift: float
    """The ratio where the subject ran before the baseline, over that where it ran after: 1 is no effect of order."""
    verdict: Verdict
    doubt: str = ""
    """Why nothing is decided here whatever the numbers say (`orchestrator.analysis.doubts`)."""
    bindings: Spread = NONE
    """What the two bindings that were timed add to the ratio (`orchestrator.analysis.bindings`)."""
    elsewhere: float = math.nan
    """The ratio in the other of burst and graph, where the two intervals do not meet."""

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
    """An implementation against itself. A verdict other than same or inconclusive is a false one."""

    case_id: str
    setting: Setting
    implementation: str
    paired: Paired
    verdict: Verdict
    bindings: Spread = NONE
    """What two of its bindings differ by in the other cases."""

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
