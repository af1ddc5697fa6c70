"""One case in one setting: the timing of each implementation, whether its times fall into two modes, and the
comparisons between implementations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from orchestrator.analysis.bootstrap import NONE, Interval, Spread, median, median_interval
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.roofs import CountedWork, Roof, share_of_roof
from orchestrator.analysis.samples import PEAK, Group, Vector
from orchestrator.analysis.verdicts import Noise, Paired, Verdict

LEAST_SHARE: Final = 0.1
"""Each mode has at least this share of the samples."""
LEAST_COUNT: Final = 5
LEAST_APART: Final = 1.05
"""The ratio of the medians of two modes is at least this."""
SEPARATION: Final = 6.0
"""Ashman's D of two modes is at least this (Ashman, Bird and Zepf 1994). The halves of a normal distribution have 2.7
and those of a uniform one 3.5; without their stragglers 3.3 and 4.3."""
EMPTY: Final = 0.4
"""At least this share of the way from one median to the other has hardly a sample."""
STRAGGLERS: Final = 0.1
"""Up to this share of a mode's samples at either end may lie anywhere: in the gap, or far away."""
LEAST_TRIMMED: Final = 20
"""In a mode of fewer samples all of them count."""


@dataclass(frozen=True, slots=True)
class TimingMode:
    """A group of samples: their median in microseconds, and their share of all samples, 0 to 1."""

    us: float
    share: float


def two_modes(latency_us: NDArray[np.float64]) -> tuple[TimingMode, ...]:
    """The two modes of the samples, the faster first; empty where there are not clearly two. The samples are divided
    where that leaves the least variance within the groups (Otsu 1979). Outliers have no weight: the division sees them
    at the edge of the others, and gap and spread are those without stragglers."""
    count = latency_us.size
    least = max(LEAST_COUNT, math.ceil(LEAST_SHARE * count))
    if count < 2 * least:
        return ()
    logs = np.sort(np.log(latency_us))
    at = least_variance_split(np.clip(logs, *np.quantile(logs, [LEAST_SHARE / 2, 1 - LEAST_SHARE / 2])), least)
    low, high = logs[:at], logs[at:]
    apart = float(np.median(high) - np.median(low))
    low_core, high_core = without_stragglers(low), without_stragglers(high)
    spread = math.sqrt((float(low_core.var()) + float(high_core.var())) / 2)
    gap = float(high_core[0] - low_core[-1])
    if apart < math.log(LEAST_APART) or apart < SEPARATION * spread or gap < EMPTY * apart:
        return ()
    return tuple(TimingMode(math.exp(float(np.median(part))), part.size / count) for part in (low, high))


def least_variance_split(values: NDArray[np.float64], least: int) -> int:
    """How many of the sorted values form the lower group, so that the variance within the two groups is least. Either
    group has at least `least` values."""
    count = values.size
    sizes = np.arange(1, count)
    sums, squares = np.cumsum(values)[:-1], np.cumsum(values**2)[:-1]
    total, total_squares = float(values.sum()), float((values**2).sum())
    within = squares - sums**2 / sizes + (total_squares - squares) - (total - sums) ** 2 / (count - sizes)
    return least + int(np.argmin(within[least - 1 : count - least]))


def without_stragglers(ordered: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sorted values without those that may lie anywhere; all values of a small group."""
    cut = int(STRAGGLERS * ordered.size) if ordered.size >= LEAST_TRIMMED else 0
    return ordered[cut : ordered.size - cut]


@dataclass(frozen=True, slots=True)
class CaseTiming:
    """One implementation on one case in one setting. Latencies are in microseconds a call; unknown values are NaN."""

    implementation: str
    backend: str
    count: int
    median_us: Interval
    p5_us: float
    p95_us: float
    min_us: float
    tflops: float
    roof_percent: float
    """The rate in per cent of the data sheet's rate."""
    held_percent: float
    """The rate in per cent of the data sheet's rate at the clock that the device held."""
    clock_mhz: float
    throttled: float
    """The share of measurements taken while the device throttled, 0 to 1."""
    joules: float
    """The energy of a call, of the whole device."""
    peak_bytes: float
    """The most device memory that a call held beyond its inputs."""
    timer_share: float
    """The timer's share of the median, 0 to 1; it is not taken off the median."""
    host_us: float
    """The time in which the host enqueues a call, in microseconds."""
    max_abs_error: float
    skipped: str
    group: Group
    modes: tuple[TimingMode, ...] = ()
    """The two groups into which the times fall; empty where there are not clearly two."""

    @property
    def timed(self) -> bool:
        return self.count > 0

    @property
    def modes_text(self) -> str:
        """`300 µs (52 %) and 520 µs (48 %)`; empty without two modes."""
        return " and ".join(f"{mode.us:.4g} µs ({mode.share:.0%})".replace("%", " %") for mode in self.modes)


def timing_of(group: Group, work: CountedWork | None, roof: Roof | None) -> CaseTiming:
    """The timing of a group; rates need `work`, and shares of peaks need `roof` too."""
    nothing = math.nan
    times = group.latency_us
    middle = median_interval(times) if group.count else Interval(nothing, nothing, nothing)
    least, p5, p95 = (float(q) for q in np.quantile(times, [0, 0.05, 0.95])) if group.count else (nothing,) * 3
    clock = _middle(group.sensors["sm_clock_mhz"])
    tflops = work.tflops(middle.mid) if work else nothing
    top = roof.tflops if roof else nothing
    peaks = group.sensors[PEAK]
    return CaseTiming(
        implementation=group.key.implementation,
        backend=group.backend,
        count=group.count,
        median_us=middle,
        p5_us=p5,
        p95_us=p95,
        min_us=least,
        tflops=tflops,
        roof_percent=share_of_roof(tflops, top),
        held_percent=share_of_roof(tflops, top * clock / roof.clock_mhz if roof else nothing),
        clock_mhz=clock,
        throttled=float(group.throttled.mean()) if group.count else nothing,
        joules=_joules(group),
        peak_bytes=float(np.fmax.reduce(peaks)) if peaks.size else nothing,
        timer_share=_middle(group.sensors["timer_overhead_us"]) / middle.mid,
        host_us=_middle(group.sensors["host_us"]),
        max_abs_error=group.max_abs_error,
        skipped=group.skipped,
        group=group,
        modes=two_modes(times),
    )


def _middle(values: Vector) -> float:
    valid_values = values[~np.isnan(values)]
    return median(valid_values) if valid_values.size else math.nan


def _joules(group: Group) -> float:
    """The energy of a call in joules, as the harness measured it in a stretch of its own. Older files have the
    counter's difference around each sample. These are summed before they are divided, as the counter moves in steps
    longer than a sample."""
    followed = _middle(group.sensors["joules_per_call"])
    if not math.isnan(followed):
        return followed
    energy, calls = group.sensors["energy_j"], group.sensors["calls"]
    has_energy = ~np.isnan(energy) & (calls > 0)
    total = float(calls[has_energy].sum())
    return float(energy[has_energy].sum()) / total if total else math.nan


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
