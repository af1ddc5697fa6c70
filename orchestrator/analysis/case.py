"""One case in one setting: its timings, and the comparisons between them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from orchestrator.analysis.bootstrap import Interval
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.roofs import CountedWork, Roof
from orchestrator.analysis.spread import NONE, Spread
from orchestrator.analysis.timings import CaseTiming
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
    """The p-value, corrected by Holm's method within the contrast's family: the case's comparisons with baselines, in
    all settings, or those between its kernels."""
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
    between_kernels: bool = False
    """Whether both are kernels: such comparisons are corrected for each other, apart from those with baselines."""

    @property
    def ratio(self) -> Interval:
        """The estimate, with limits for the blocks and for the bindings."""
        return self.bindings.widened(self.paired.ratio)

    @property
    def said(self) -> str:
        """The verdict in words: `faster`, `inconclusive: regimes disagree`."""
        return f"{self.verdict.value}: {self.doubt}" if self.doubt else self.verdict.value

    @property
    def inverse(self) -> Contrast:
        """The same comparison seen from the baseline."""
        paired = replace(self.paired, ratio=invert(self.paired.ratio), test=self.paired.test.negated)
        verdict = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}.get(self.verdict, self.verdict)
        return replace(
            self, subject=self.baseline, baseline=self.subject, paired=paired, order_shift=1 / self.order_shift,
            verdict=verdict, elsewhere=1 / self.elsewhere,
        )  # fmt: skip


def invert(ratio: Interval) -> Interval:
    """The interval of the inverse ratio."""
    return Interval(1 / ratio.high, 1 / ratio.mid, 1 / ratio.low)


@dataclass(frozen=True, slots=True)
class Rank:
    """The place of a kernel among the kernels of a case, 1 for the fastest. Kernels that cannot be told apart share the
    places from `first` to `last`."""

    implementation: str
    first: int
    last: int

    @property
    def text(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first} to {self.last}"


@dataclass(frozen=True, slots=True)
class ControlPair:
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
    """One case in one setting. `contrasts` has each kernel against each baseline, `beside` each pair of kernels once;
    both are in the order of definition."""

    case_id: str
    setting: Setting
    axes: Mapping[str, str]
    work: CountedWork | None
    roof: Roof | None
    timings: tuple[CaseTiming, ...]
    contrasts: tuple[Contrast, ...]
    controls: tuple[ControlPair, ...]
    beside: tuple[Contrast, ...] = ()

    def timing(self, implementation: str) -> CaseTiming | None:
        return next((one for one in self.timings if one.implementation == implementation), None)

    def against_fastest(self, kernel: str) -> Contrast | None:
        """The contrast of a kernel with the fastest baseline; None where there is none."""
        medians = {timing.implementation: timing.median_us.mid for timing in self.timings if timing.timed}
        contrasts = [one for one in self.contrasts if one.subject == kernel]
        return min(contrasts, key=lambda one: medians[one.baseline], default=None)

    @property
    def best(self) -> tuple[Contrast, ...]:
        """Each kernel's contrast with the fastest baseline."""
        kernels = dict.fromkeys(one.subject for one in self.contrasts)
        return tuple(one for name in kernels if (one := self.against_fastest(name)) is not None)

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """The places of the kernels that were timed, the fastest first; empty for a single kernel."""
        faster: dict[str, int] = {}
        slower: dict[str, int] = {}
        for one in (*self.beside, *(one.inverse for one in self.beside)):
            faster[one.subject] = faster.get(one.subject, 0) + (one.verdict is Verdict.SLOWER)
            slower[one.subject] = slower.get(one.subject, 0) + (one.verdict is Verdict.FASTER)
        ranks = [Rank(name, 1 + faster[name], len(faster) - slower[name]) for name in faster]
        medians = {timing.implementation: timing.median_us.mid for timing in self.timings}
        return tuple(sorted(ranks, key=lambda one: (one.first, one.last, medians[one.implementation])))
