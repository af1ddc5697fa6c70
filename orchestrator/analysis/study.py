"""All that one run says: times, what the kernel is against each baseline, and how far that can be trusted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from orchestrator.analysis.bootstrap import Interval, median_interval
from orchestrator.analysis.ranks import holm
from orchestrator.analysis.roofs import Roof, Work, roof_of, share, work_of
from orchestrator.analysis.samples import Group, Vector
from orchestrator.analysis.verdicts import (
    SIGNIFICANT,
    Noise,
    Paired,
    Verdict,
    control_noise,
    decide,
    halves_noise,
    paired,
)
from orchestrator.core.results import CONTROL, case_order, is_control

KERNEL = "bench"
DEFAULT = "sdpa:default"
ORDER = (KERNEL, DEFAULT, "sdpa:flash", "sdpa:efficient", "sdpa:cudnn", "sdpa:math")
"""How implementations stand beside each other; the rows of a file come in random order."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One implementation on one case. Latencies in microseconds a call; what is not known is NaN."""

    implementation: str
    backend: str
    count: int
    median_us: Interval
    p5_us: float
    p95_us: float
    min_us: float
    tflops: float
    roof_percent: float
    """Of the data sheet's rate."""
    held_percent: float
    """Of what the data sheet's rate would be at the clock that was held."""
    clock_mhz: float
    throttled: float
    """The share of measurements taken while the device was held back, 0 to 1."""
    joules: float
    """A call's energy, of the whole device."""
    max_abs_error: float
    skipped: str
    group: Group

    @property
    def timed(self) -> bool:
        return self.count > 0


@dataclass(frozen=True, slots=True)
class Contrast:
    """The subject against one baseline on one case. A ratio over 1: the subject is faster by that factor."""

    case_id: str
    subject: str
    baseline: str
    paired: Paired
    p: float
    """Corrected by Holm's method for every contrast of the run."""
    noise: Noise | None
    order_shift: float
    """The ratio where the subject ran before the baseline, over that where it ran after: 1 is no effect of order."""
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Control:
    """An implementation against itself. A verdict other than same or inconclusive is a false one."""

    case_id: str
    implementation: str
    paired: Paired
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Case:
    case_id: str
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


@dataclass(frozen=True, slots=True)
class Study:
    """One run, read. `faults` are what was wrong with the files, `notes` what a reader should know of the data."""

    run_id: str
    device: str
    regime: str
    subject: str
    baselines: tuple[str, ...]
    cases: tuple[Case, ...]
    measurements: int
    faults: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def contrasts(self) -> tuple[Contrast, ...]:
        return tuple(one for case in self.cases for one in case.contrasts)

    @property
    def controls(self) -> tuple[Control, ...]:
        return tuple(one for case in self.cases for one in case.controls)

    @property
    def answers(self) -> int:
        """Contrasts that came to a conclusion."""
        return sum(1 for one in self.contrasts if one.verdict is not Verdict.INCONCLUSIVE)

    def geomean(self, baseline: str) -> tuple[float, int]:
        """The geometric mean of the ratios against `baseline`, and over how many cases."""
        logs = [math.log(one.paired.ratio.mid) for one in self.contrasts if one.baseline == baseline]
        return (math.exp(sum(logs) / len(logs)), len(logs)) if logs else (math.nan, 0)


def study(groups: Sequence[Group], faults: Sequence[str] = ()) -> Study:
    """What `groups` say. Of several runs only the one with the most measurements is studied, and that is noted."""
    sizes: dict[str, int] = {}
    for group in groups:
        sizes[group.key.run_id] = sizes.get(group.key.run_id, 0) + group.count
    run_id = max(sizes, key=lambda name: sizes[name], default="")
    notes = []
    if others := sorted(set(sizes) - {run_id}):
        notes.append(f"The file holds {len(sizes)} runs; this is {run_id}, and {', '.join(others)} are left out.")
    own = [group for group in groups if group.key.run_id == run_id]
    names = list(dict.fromkeys(group.key.implementation for group in own if not is_control(group.key.implementation)))
    names.sort(key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    subject = next((name for name in (KERNEL, DEFAULT) if name in names), names[0] if names else "")
    by_case: dict[str, list[Group]] = {}
    for group in own:
        by_case.setdefault(group.key.case_id, []).append(group)
    cases = [_case(case_id, by_case[case_id], subject) for case_id in sorted(by_case, key=case_order)]
    cases = _judged(cases)
    baselines = tuple(name for name in names if name != subject)
    return Study(
        run_id=run_id,
        device=", ".join(dict.fromkeys(group.device for group in own if group.device)),
        regime=", ".join(dict.fromkeys(group.regime for group in own if group.regime)),
        subject=subject,
        baselines=baselines,
        cases=tuple(cases),
        measurements=sizes.get(run_id, 0),
        faults=tuple(faults),
        notes=(*notes, *_notes(cases, baselines)),
    )


def _notes(cases: Sequence[Case], baselines: Sequence[str]) -> list[str]:
    timed = [timing for case in cases for timing in case.timings if timing.timed]
    if not cases:
        return ["There is not a single row: the run measured nothing."]
    if not timed:
        return ["Every implementation was skipped on every case: there are reasons below, and no times."]
    notes = []
    if not baselines:
        notes.append("Only one implementation was measured: there is nothing to compare it with.")
    if not any(is_control(timing.implementation) for timing in timed):
        notes.append(
            "There was no A/A control in this run. The noise floor comes from odd blocks against even ones, which does "
            "not see what differs between two instances of one implementation."
        )
    if len({timing.group.device for timing in timed}) > 1:
        notes.append("The rows name more than one device: times of different cases must not be compared.")
    return notes


def _case(case_id: str, groups: Sequence[Group], subject: str) -> Case:
    axes = groups[0].axes
    work, roof = work_of(axes), roof_of(groups[0].device, axes.get("dtype", ""))
    timings = {group.key.implementation: _timing(group, work, roof) for group in groups}
    timed = {name: one.group for name, one in timings.items() if one.timed}
    controls = []
    for name in timed:
        twin = timed.get(name + CONTROL)
        if twin is not None and (once := _paired(timed[name], twin)) is not None:
            word = decide(once.ratio, once.test.p, halves_noise(timed[name].latency_us))
            controls.append(Control(case_id, name, once, word))
    contrasts = []
    if subject in timed:
        for name in timed:
            if name == subject or is_control(name):
                continue
            pair = _paired(timed[subject], timed[name])
            if pair is not None:
                noise = _noise(controls, (timed[subject], timed[name]))
                shift = order_shift(timed[subject], timed[name])
                undecided = Verdict.INCONCLUSIVE
                contrasts.append(Contrast(case_id, subject, name, pair, pair.test.p, noise, shift, undecided))
    return Case(case_id, axes, work, roof, tuple(timings.values()), tuple(contrasts), tuple(controls))


def _judged(cases: Sequence[Case]) -> list[Case]:
    """The cases with their contrasts decided: only the whole run knows how many questions were asked."""
    corrected = iter(holm([one.paired.test.p for case in cases for one in case.contrasts]))
    judged = []
    for case in cases:
        decided = []
        for one in case.contrasts:
            p = next(corrected)
            decided.append(replace(one, p=p, verdict=decide(one.paired.ratio, p, one.noise)))
        judged.append(replace(case, contrasts=tuple(decided)))
    return judged


def _noise(controls: Sequence[Control], measured: Sequence[Group]) -> Noise | None:
    """The largest floor of the controls of this case; without a control, of the two implementations' own halves."""
    floors = [noise for one in controls if (noise := control_noise(one.paired)) is not None]
    if not floors:
        floors = [noise for group in measured if (noise := halves_noise(group.latency_us)) is not None]
    return max(floors, key=lambda noise: noise.floor, default=None)


def _paired(subject: Group, baseline: Group) -> Paired | None:
    """The two by their common blocks; None where they share none."""
    _, left, right = np.intersect1d(subject.block, baseline.block, assume_unique=True, return_indices=True)
    return paired(subject.latency_us[left], baseline.latency_us[right]) if left.size else None


def order_shift(subject: Group, baseline: Group) -> float:
    """See `Contrast.order_shift`. NaN where the order is not known or did not vary enough."""
    _, left, right = np.intersect1d(subject.block, baseline.block, assume_unique=True, return_indices=True)
    ahead = baseline.sensors["position"][right] - subject.sensors["position"][left]
    if np.isnan(ahead).all():
        ahead = baseline.at[right] - subject.at[left]
    logs = np.log(baseline.latency_us[right]) - np.log(subject.latency_us[left])
    first, last = logs[ahead > 0], logs[ahead < 0]
    if min(first.size, last.size) < 5:
        return math.nan
    return math.exp(float(np.median(first)) - float(np.median(last)))


def _timing(group: Group, work: Work | None, roof: Roof | None) -> Timing:
    nothing = math.nan
    times = group.latency_us
    if not group.count:
        empty = Interval(nothing, nothing, nothing)
        return Timing(
            group.key.implementation, group.backend, 0, empty, nothing, nothing, nothing, nothing, nothing, nothing,
            nothing, nothing, nothing, group.max_abs_error, group.skipped, group,
        )  # fmt: skip
    middle = median_interval(times)
    p5, p95 = (float(value) for value in np.quantile(times, [0.05, 0.95]))
    clock = _middle(group.sensors["sm_clock_mhz"])
    tflops = work.tflops(middle.mid) if work else nothing
    top = roof.tflops if roof else nothing
    return Timing(
        implementation=group.key.implementation,
        backend=group.backend,
        count=group.count,
        median_us=middle,
        p5_us=p5,
        p95_us=p95,
        min_us=float(times.min()),
        tflops=tflops,
        roof_percent=share(tflops, top),
        held_percent=share(tflops, top * clock / roof.clock_mhz if roof else nothing),
        clock_mhz=clock,
        throttled=float(group.throttled.mean()),
        joules=_joules(group),
        max_abs_error=group.max_abs_error,
        skipped="",
        group=group,
    )


def _middle(values: Vector) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else math.nan


def _joules(group: Group) -> float:
    """Energy over calls, summed before divided: the device's counter moves in steps longer than a measurement."""
    energy, calls = group.sensors["energy_j"], group.sensors["calls"]
    known = ~np.isnan(energy) & (calls > 0)
    total = float(calls[known].sum())
    return float(energy[known].sum()) / total if total else math.nan


def false_verdicts(controls: Sequence[Control]) -> int:
    """How many comparisons of an implementation with itself would have been called faster or slower."""
    return sum(1 for one in controls if one.verdict in (Verdict.FASTER, Verdict.SLOWER))


__all__ = [
    "DEFAULT", "KERNEL", "SIGNIFICANT", "Case", "Contrast", "Control", "Study", "Timing", "false_verdicts", "study",
]  # fmt: skip
