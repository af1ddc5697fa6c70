"""The results of one run: times, comparisons of the kernel with each baseline, and how far they can be trusted.

Each result is for one case in one setting (regime, and caches where known). No number combines two settings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from orchestrator.analysis.bindings import bindings_of
from orchestrator.analysis.bootstrap import median
from orchestrator.analysis.case import Case as Case
from orchestrator.analysis.case import Contrast as Contrast
from orchestrator.analysis.case import Control as Control
from orchestrator.analysis.doubts import disagreements, doubt, notes_of, other_ratios
from orchestrator.analysis.ranks import holm
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.roofs import roof_of, work_of
from orchestrator.analysis.samples import Group, Key
from orchestrator.analysis.spread import Spread
from orchestrator.analysis.timings import Timing, timing_of
from orchestrator.analysis.verdicts import (
    SIGNIFICANT,
    Mean,
    Noise,
    Paired,
    Verdict,
    control_noise,
    decide,
    halves_noise,
    mean_of,
    paired,
)
from orchestrator.core.bundled import DEFAULT, IMPLEMENTATIONS, KERNEL, with_pass
from orchestrator.core.results import CONTROL, case_order, is_control
from orchestrator.core.text import count

OWN_KERNEL = "kernel_"
ORDER = IMPLEMENTATIONS
"""The order in which implementations are shown; the rows of a file come in random order."""


@dataclass(frozen=True, slots=True)
class Study:
    """The results of one run. `cases` has an entry for each case in each setting, setting by setting. `faults` says
    what was wrong with the files, and `notes` what a reader should know about the data."""

    run_id: str
    device: str
    settings: tuple[Setting, ...]
    subject: str
    baselines: tuple[str, ...]
    cases: tuple[Case, ...]
    measurements: int
    faults: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def regime(self) -> str:
        """The regimes in words: `burst`, `burst and sustained`."""
        return " and ".join(dict.fromkeys(one.regime for one in self.settings if one.regime))

    def parts(self) -> tuple[Study, ...]:
        """A study for each setting alone; the verdicts stay those of the whole run."""
        if len(self.settings) < 2:
            return (self,)
        return tuple(self.only(one) for one in self.settings)

    def only(self, setting: Setting) -> Study:
        cases = tuple(case for case in self.cases if case.setting == setting)
        measurements = sum(timing.count for case in cases for timing in case.timings)
        return replace(self, settings=(setting,), cases=cases, measurements=measurements)

    @property
    def case_ids(self) -> tuple[str, ...]:
        """Each case id once, whatever settings it was timed in."""
        return tuple(sorted(dict.fromkeys(case.case_id for case in self.cases), key=case_order))

    @property
    def contrasts(self) -> tuple[Contrast, ...]:
        return tuple(one for case in self.cases for one in case.contrasts)

    @property
    def controls(self) -> tuple[Control, ...]:
        return tuple(one for case in self.cases for one in case.controls)

    @property
    def answers(self) -> int:
        """The number of contrasts with a conclusion."""
        return sum(1 for one in self.contrasts if one.verdict is not Verdict.INCONCLUSIVE)

    def against(self, baseline: str) -> tuple[Contrast, ...]:
        """Every contrast with one baseline."""
        return tuple(one for one in self.contrasts if one.baseline == baseline)

    def mean(self, baseline: str) -> Mean | None:
        """The geometric mean against `baseline` over the cases that were compared with it; None without an interval."""
        return mean_of([(one.ratio, one.noise, one.verdict) for one in self.against(baseline)])


def study(groups: Sequence[Group], faults: Sequence[str] = ()) -> Study:
    """The results that `groups` hold. Of several runs only the one with the most measurements is studied, and a note
    says so."""
    sizes: dict[str, int] = {}
    for group in groups:
        sizes[group.key.run_id] = sizes.get(group.key.run_id, 0) + group.count
    run_id = max(sizes, key=lambda name: sizes[name], default="")
    notes = []
    if others := sorted(set(sizes) - {run_id}):
        notes.append(
            f"The file holds {count(len(sizes), 'run')}; this is {run_id}, and {', '.join(others)} are left out."
        )
    of_run = everywhere([group for group in groups if group.key.run_id == run_id])
    names = list(
        dict.fromkeys(group.key.implementation for group in of_run if not is_control(group.key.implementation))
    )
    names.sort(key=standing)
    subject = next((name for name in (KERNEL, DEFAULT) if name in names), "") or own_kernel(of_run, names)
    by_case: dict[tuple[Setting, str], list[Group]] = {}
    for group in of_run:
        by_case.setdefault((group.key.setting, group.key.case_id), []).append(group)
    keys = sorted(by_case, key=lambda key: (key[0].order, case_order(key[1])))
    cases = _judged([_case(case_id, setting, by_case[setting, case_id], subject) for setting, case_id in keys])
    baselines = tuple(name for name in names if name != subject)
    return Study(
        run_id=run_id,
        device=", ".join(dict.fromkeys(group.device for group in of_run if group.device)),
        settings=tuple(dict.fromkeys(setting for setting, _ in keys)),
        subject=subject,
        baselines=baselines,
        cases=tuple(cases),
        measurements=sizes.get(run_id, 0),
        faults=tuple(faults),
        notes=(*notes, *notes_of(cases)),
    )


def own_kernel(groups: Sequence[Group], names: Sequence[str]) -> str:
    """The subject of a run over a workload of the user's own: the first of the user's kernels, which are known by their
    backend. Without one it is the first implementation."""
    kernels = [one.key.implementation for one in groups if one.backend.startswith(OWN_KERNEL)]
    return next((name for name in kernels if not is_control(name)), names[0] if names else "")


def standing(implementation: str) -> tuple[int, str, bool]:
    """A key to sort by: the order of `ORDER`, then others by name, and each control right after its implementation."""
    name = implementation.removesuffix(CONTROL)
    return ORDER.index(name) if name in ORDER else len(ORDER), name, is_control(implementation)


def everywhere(groups: Sequence[Group]) -> list[Group]:
    """The groups, where a skip that names no regime or no caches is repeated for every setting of the case that matches
    it: an implementation that was wrong is timed in none of them. Other groups are unchanged."""
    timed: dict[str, dict[Setting, None]] = {}
    for group in groups:
        if group.count:
            timed.setdefault(group.key.case_id, {})[group.key.setting] = None
    kept: list[Group] = []
    skips: dict[Key, Group] = {}
    for group in groups:
        skipped_in = group.key.setting
        fitting = [
            one
            for one in timed.get(group.key.case_id, {})
            if skipped_in.regime in ("", one.regime) and skipped_in.cache in ("", one.cache) and one != skipped_in
        ]
        if group.skipped and fitting:
            for setting in fitting:
                key = replace(group.key, setting=setting)
                skips[key] = replace(group, key=key)
        else:
            kept.append(group)
    return [*(one for one in kept if one.key not in skips), *skips.values()]


def _case(case_id: str, setting: Setting, groups: Sequence[Group], subject: str) -> Case:
    axes = with_pass(case_id, groups[0].axes)
    work, roof = work_of(axes), roof_of(groups[0].device, axes.get("dtype", ""))
    ordered = sorted(groups, key=lambda group: standing(group.key.implementation))
    timings = {group.key.implementation: timing_of(group, work, roof) for group in ordered}
    timed = {name: one.group for name, one in timings.items() if one.timed}
    controls = []
    for name in timed:
        twin = timed.get(name + CONTROL)
        if twin is not None and (once := _paired(timed[name], twin)) is not None:
            controls.append(Control(case_id, setting, name, once, Verdict.INCONCLUSIVE))
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
                contrasts.append(Contrast(case_id, setting, subject, name, pair, pair.test.p, noise, shift, undecided))
    return Case(case_id, setting, axes, work, roof, tuple(timings.values()), tuple(contrasts), tuple(controls))


def _judged(cases: Sequence[Case]) -> list[Case]:
    """The cases with their verdicts. They need the whole run: how much bindings differ, and how many tests were
    made."""
    bindings = bindings_of(cases)
    widened = [
        replace(case, contrasts=tuple(_widened(one, bindings.of_contrast(case, one)) for one in case.contrasts))
        for case in cases
    ]
    corrected = iter(holm([one.p for case in widened for one in case.contrasts]))
    disagreeing, other_regime = disagreements(widened), other_ratios(widened)
    judged = []
    for case in widened:
        decided = []
        timings = {one.implementation: one for one in case.timings}
        for one in case.contrasts:
            p = next(corrected)
            why = doubt(case, timings[one.subject], timings[one.baseline], disagreeing)
            verdict = Verdict.INCONCLUSIVE if why else decide(one.ratio, p, one.noise)
            other = other_regime.get((case.setting, case.case_id, one.baseline), math.nan)
            decided.append(replace(one, p=p, verdict=verdict, doubt=why, elsewhere=other))
        controls = tuple(
            _control_with_verdict(one, timings[one.implementation], bindings.of_control(case, one))
            for one in case.controls
        )
        judged.append(replace(case, contrasts=tuple(decided), controls=controls))
    return judged


def _widened(one: Contrast, bindings: Spread) -> Contrast:
    """The contrast with limits and p-value for the spread of bindings; the p-value is not corrected yet."""
    return replace(one, bindings=bindings, p=_p(one.paired, bindings))


def _control_with_verdict(control: Control, timing: Timing, bindings: Spread) -> Control:
    """The control with the verdict that a baseline with its times would get in a run with only the other cases'
    controls."""
    wide = replace(control, bindings=bindings)
    noise = halves_noise(timing.group.latency_us)
    return replace(wide, verdict=decide(wide.ratio, _p(control.paired, bindings), noise))


def _p(once: Paired, bindings: Spread) -> float:
    """The larger p-value of two: that of the blocks, and that of the spread of bindings."""
    return max(once.test.p, bindings.chance(once.ratio)) if bindings.size else once.test.p


def _noise(controls: Sequence[Control], measured: Sequence[Group]) -> Noise | None:
    """The largest floor of the controls of this case; without a control, the larger floor of the two implementations'
    halves."""
    floors = [noise for one in controls if (noise := control_noise(one.paired)) is not None]
    if not floors:
        floors = [noise for group in measured if (noise := halves_noise(group.latency_us)) is not None]
    return max(floors, key=lambda noise: noise.floor, default=None)


def _paired(subject: Group, baseline: Group) -> Paired | None:
    """The two groups compared in their common blocks; None where they share none."""
    left, right = subject.shared(baseline)
    return paired(subject.latency_us[left], baseline.latency_us[right]) if left.size else None


def order_shift(subject: Group, baseline: Group) -> float:
    """The value of `Contrast.order_shift`; NaN where the order is not known or did not vary enough."""
    left, right = subject.shared(baseline)
    ahead = baseline.sensors["position"][right] - subject.sensors["position"][left]
    if np.isnan(ahead).all():
        ahead = baseline.at[right] - subject.at[left]
    logs = np.log(baseline.latency_us[right]) - np.log(subject.latency_us[left])
    first, last = logs[ahead > 0], logs[ahead < 0]
    if min(first.size, last.size) < 5:
        return math.nan
    return math.exp(median(first) - median(last))


def false_verdicts(controls: Sequence[Control]) -> int:
    """How many comparisons of an implementation with itself would have been called faster or slower."""
    return sum(1 for one in controls if one.verdict in (Verdict.FASTER, Verdict.SLOWER))


__all__ = [
    "DEFAULT", "KERNEL", "SIGNIFICANT", "Case", "Contrast", "Control", "Study", "Timing", "false_verdicts", "study",
]  # fmt: skip
