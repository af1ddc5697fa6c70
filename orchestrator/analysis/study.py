"""The results of one run: times, comparisons of the kernel with each baseline, and how far they can be trusted.

Each result is for one case in one setting (regime, and caches where known). No number combines two settings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Final

import numpy as np

from orchestrator.analysis.bindings import bindings_of
from orchestrator.analysis.bootstrap import Spread, median
from orchestrator.analysis.case import Case as Case
from orchestrator.analysis.case import CaseTiming, timing_of
from orchestrator.analysis.case import Contrast as Contrast
from orchestrator.analysis.case import ControlPair as ControlPair
from orchestrator.analysis.doubts import Place, find_disagreements, notes_of, other_ratios, reason_for_doubt
from orchestrator.analysis.ranks import holm
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.roofs import measured_roof, roof_of, work_of
from orchestrator.analysis.samples import Group, Key
from orchestrator.analysis.verdicts import (
    SIGNIFICANT,
    Mean,
    Noise,
    Paired,
    Verdict,
    compare_pairs,
    control_noise,
    decide_verdict,
    halves_noise,
    mean_of,
)
from orchestrator.core.bundled import DEFAULT, IMPLEMENTATIONS, KERNEL, with_named_axes
from orchestrator.core.results import CONTROL, case_order, is_control
from orchestrator.core.text import count

OWN_KERNEL, OWN_BASELINE = "kernel_", "baseline_"
ORDER = IMPLEMENTATIONS
"""The order in which implementations are shown; the rows of a file come in random order."""


@dataclass(frozen=True, slots=True)
class Study:
    """The results of one run. `cases` has an entry for each case in each setting, setting by setting. `faults` says
    what was wrong with the files, and `notes` what a reader should know about the data."""

    run_id: str
    device: str
    settings: tuple[Setting, ...]
    kernels: tuple[str, ...]
    """The implementations in question, in the order of definition: all that are no baselines."""
    baselines: tuple[str, ...]
    cases: tuple[Case, ...]
    measurements: int
    faults: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def subject(self) -> str:
        """The first kernel; empty without any implementation."""
        return self.kernels[0] if self.kernels else ""

    @property
    def names(self) -> tuple[str, ...]:
        """All implementations but controls: kernels, then baselines."""
        return (*self.kernels, *self.baselines)

    def of_kernels(self) -> tuple[Study, ...]:
        """A study for each kernel, which has only the comparisons of this kernel with baselines."""
        return tuple(
            replace(
                self,
                kernels=(name,),
                cases=tuple(
                    replace(case, contrasts=tuple(one for one in case.contrasts if one.subject == name), beside=())
                    for case in self.cases
                ),
            )
            for name in self.kernels
        )

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
    def controls(self) -> tuple[ControlPair, ...]:
        return tuple(one for case in self.cases for one in case.controls)

    @property
    def answers(self) -> int:
        """The number of contrasts with a conclusion."""
        return sum(1 for one in self.contrasts if one.verdict is not Verdict.INCONCLUSIVE)

    def against(self, baseline: str) -> tuple[Contrast, ...]:
        """Every contrast of the first kernel with one baseline."""
        return tuple(one for one in self.contrasts if one.baseline == baseline and one.subject == self.subject)

    def mean(self, baseline: str) -> Mean | None:
        """The geometric mean of the first kernel against `baseline` over the cases that were compared with it; None
        without an interval."""
        return mean_of([(one.ratio, one.noise, one.verdict) for one in self.against(baseline)])


def study(groups: Sequence[Group], faults: Sequence[str] = ()) -> Study:
    """The results that `groups` hold. Of several runs only the one with the most measurements is studied, and a note
    says so."""
    sizes: dict[str, int] = {}
    for group in groups:
        sizes[group.key.run_id] = sizes.get(group.key.run_id, 0) + group.count
    run_id = max(sizes, key=lambda name: (sizes[name], name), default="")
    notes = []
    if others := sorted(set(sizes) - {run_id}):
        notes.append(
            f"The file holds {count(len(sizes), 'run')}; this is {run_id}, and {', '.join(others)} are left out."
        )
    of_run = repeat_skips([group for group in groups if group.key.run_id == run_id])
    names = in_order(of_run)
    kernels = kernels_of(of_run, names)
    baselines = tuple(name for name in names if name not in kernels)
    by_case: dict[tuple[Setting, str], list[Group]] = {}
    for group in of_run:
        by_case.setdefault((group.key.setting, group.key.case_id), []).append(group)
    keys = sorted(by_case, key=lambda key: (key[0].order, case_order(key[1])))
    cases = _judged([_case(case_id, setting, by_case[setting, case_id], (kernels, names)) for setting, case_id in keys])
    return Study(
        run_id=run_id,
        device=", ".join(sorted({group.device for group in of_run if group.device})),
        settings=tuple(dict.fromkeys(setting for setting, _ in keys)),
        kernels=kernels,
        baselines=baselines,
        cases=tuple(cases),
        measurements=sizes.get(run_id, 0),
        faults=tuple(faults),
        notes=(*notes, *notes_of(cases)),
    )


def in_order(groups: Sequence[Group]) -> list[str]:
    """The implementations without controls: known ones in the order of `ORDER`, then others as the workload defines
    them, then by name. The order of the rows, in which each block is shuffled, has no effect."""
    defined: dict[str, int] = {}
    for group in groups:
        name, place = group.key.implementation, group.words.get("definition", "")
        if not is_control(name):
            known = defined.get(name, UNDEFINED)
            defined[name] = min(known, int(place)) if place.isdecimal() and len(place) < 9 else known
    return sorted(defined, key=lambda name: (sort_rank(name)[0], defined[name], name))


UNDEFINED: Final = 1 << 40
"""The place of an implementation of which a file does not say where it is defined: after all others."""


def kernels_of(groups: Sequence[Group], names: Sequence[str]) -> tuple[str, ...]:
    """The implementations in question, from `names` in order: the bundled kernel, or those that the workload defines as
    kernels. Older files show that by the backend. Without any, it is the first implementation by name."""
    for name in (KERNEL, DEFAULT):
        if name in names:
            return (name,)
    kernels = {
        group.key.implementation
        for group in groups
        if group.words.get("role") == "kernel" or group.backend.startswith(OWN_KERNEL)
    }
    baselines = any(group.words.get("role") == "baseline" or group.backend.startswith(OWN_BASELINE) for group in groups)
    if baselines and kernels:  # a kernel that was timed nowhere has no backend, and old files have no role
        kernels |= {group.key.implementation for group in groups if not group.words.get("role") and not group.backend}
    return tuple(name for name in names if name in kernels) or tuple(sorted(names)[:1])


def sort_rank(implementation: str) -> tuple[int, str, bool]:
    """A key to sort by: the order of `ORDER`, then others by name, and each control right after its implementation."""
    name = implementation.removesuffix(CONTROL)
    return ORDER.index(name) if name in ORDER else len(ORDER), name, is_control(implementation)


def repeat_skips(groups: Sequence[Group]) -> list[Group]:
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


def _case(case_id: str, setting: Setting, groups: Sequence[Group], order: tuple[Sequence[str], Sequence[str]]) -> Case:
    """One case with its comparisons; `order` has the kernels, and all implementations, as tables show them."""
    kernels, names = order
    groups = sorted(groups, key=lambda group: group.key.implementation)
    axes = with_named_axes(case_id, groups[0].axes)
    words = max((dict(group.words) for group in groups), key=lambda one: (len(one), sorted(one.items())))
    work, measured = work_of(axes, words), measured_roof(words)
    roof = measured or roof_of(groups[0].device, axes.get("dtype", ""))

    def place(group: Group) -> tuple[int, bool]:
        name = group.key.implementation
        original = name.removesuffix(CONTROL)
        return names.index(original) if original in names else len(names), is_control(name)

    ordered = sorted(groups, key=place)
    timings = {group.key.implementation: timing_of(group, work, roof) for group in ordered}
    timed = {name: one.group for name, one in timings.items() if one.timed}
    controls = []
    for name in timed:
        twin = timed.get(name + CONTROL)
        if twin is not None and (once := _paired(timed[name], twin)) is not None:
            controls.append(ControlPair(case_id, setting, name, once, Verdict.INCONCLUSIVE))

    def contrasts(pairs: Iterator[tuple[str, str]], *, between_kernels: bool) -> tuple[Contrast, ...]:
        made = []
        for subject, baseline in pairs:
            if (pair := _paired(timed[subject], timed[baseline])) is not None:
                noise = _noise(controls, (timed[subject], timed[baseline]))
                shift = order_shift(timed[subject], timed[baseline])
                contrast = Contrast(
                    case_id, setting, subject, baseline, pair, pair.test.p, noise, shift, Verdict.INCONCLUSIVE
                )
                made.append(replace(contrast, between_kernels=between_kernels))
        return tuple(made)

    mine = [name for name in kernels if name in timed]
    others = [name for name in timed if name not in kernels and not is_control(name)]
    return Case(
        case_id, setting, axes, work, roof, tuple(timings.values()),
        contrasts(product(mine, others), between_kernels=False), tuple(controls),
        contrasts(combinations(mine, 2), between_kernels=True),
    )  # fmt: skip


def _judged(cases: Sequence[Case]) -> list[Case]:
    """The cases with their verdicts. How much bindings differ is estimated from the run. A case's comparisons with
    baselines, in all its settings, are one family of tests, those between its kernels another."""
    bindings = bindings_of(cases)
    widened = [
        replace(
            case,
            contrasts=tuple(_widened(one, bindings.of_contrast(case, one)) for one in case.contrasts),
            beside=tuple(_widened(one, bindings.of_contrast(case, one)) for one in case.beside),
        )
        for case in cases
    ]
    corrected = correct_families(widened)
    disagreeing, other_regime = find_disagreements(widened), other_ratios(widened)
    judged = []
    for case in widened:
        timings = {one.implementation: one for one in case.timings}

        def decided(one: Contrast, case: Case = case, timings: dict[str, CaseTiming] = timings) -> Contrast:
            p = corrected[case.setting, case.case_id, one.subject, one.baseline]
            why = reason_for_doubt(case, timings[one.subject], timings[one.baseline], disagreeing)
            verdict = Verdict.INCONCLUSIVE if why else decide_verdict(one.ratio, p, one.noise)
            other = other_regime.get((case.setting, case.case_id, one.subject, one.baseline), math.nan)
            return replace(one, p=p, verdict=verdict, doubt=why, elsewhere=other)

        controls = tuple(
            _control_with_verdict(one, timings[one.implementation], bindings.of_control(case, one))
            for one in case.controls
        )
        contrasts, beside = tuple(map(decided, case.contrasts)), tuple(map(decided, case.beside))
        judged.append(replace(case, contrasts=contrasts, controls=controls, beside=beside))
    return judged


def correct_families(cases: Sequence[Case]) -> dict[Place, float]:
    """The p-value of each comparison, corrected by Holm's method within its family. Other cases have no part in it, as
    each case is a question of its own: with more of them, none becomes harder to answer."""
    families: dict[tuple[str, bool], list[tuple[Place, float]]] = {}
    for case in cases:
        for one in (*case.contrasts, *case.beside):
            place = case.setting, case.case_id, one.subject, one.baseline
            families.setdefault((case.case_id, one.between_kernels), []).append((place, one.p))
    return {
        place: p
        for family in families.values()
        for (place, _), p in zip(family, holm([p for _, p in family]), strict=True)
    }


def _widened(one: Contrast, bindings: Spread) -> Contrast:
    """The contrast with limits and p-value for the spread of bindings; the p-value is not corrected yet."""
    return replace(one, bindings=bindings, p=_p(one.paired, bindings))


def _control_with_verdict(control: ControlPair, timing: CaseTiming, bindings: Spread) -> ControlPair:
    """The control with the verdict that a baseline with its times would get in a run with only the other cases'
    controls."""
    wide = replace(control, bindings=bindings)
    noise = halves_noise(timing.group.latency_us)
    return replace(wide, verdict=decide_verdict(wide.ratio, _p(control.paired, bindings), noise))


def _p(once: Paired, bindings: Spread) -> float:
    """The larger p-value of two: that of the blocks, and that of the spread of bindings."""
    return max(once.test.p, bindings.chance(once.ratio)) if bindings.size else once.test.p


def _noise(controls: Sequence[ControlPair], measured: Sequence[Group]) -> Noise | None:
    """The largest floor of the controls of this case; without a control, the larger floor of the two implementations'
    halves."""
    floors = [noise for one in controls if (noise := control_noise(one.paired)) is not None]
    if not floors:
        floors = [noise for group in measured if (noise := halves_noise(group.latency_us)) is not None]
    return max(floors, key=lambda noise: noise.floor, default=None)


def _paired(subject: Group, baseline: Group) -> Paired | None:
    """The two groups compared in their common blocks; None where they share none."""
    left, right = subject.shared(baseline)
    return compare_pairs(subject.latency_us[left], baseline.latency_us[right]) if left.size else None


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


def false_verdicts(controls: Sequence[ControlPair]) -> int:
    """How many comparisons of an implementation with itself would have been called faster or slower."""
    return sum(1 for one in controls if one.verdict in (Verdict.FASTER, Verdict.SLOWER))


__all__ = [
    "DEFAULT",
    "KERNEL",
    "SIGNIFICANT",
    "Case",
    "CaseTiming",
    "Contrast",
    "ControlPair",
    "Study",
    "false_verdicts",
    "study",
]  # fmt: skip
