"""Numbers over all cases of a run: the energy of calls, KernelBench's fast_p, and the score of a GPU MODE problem."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.analysis.across import match_cases
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.study import Study
from orchestrator.core.results import is_control


@dataclass(frozen=True, slots=True)
class Energy:
    """Joules a call of each implementation in one setting: the geometric mean over the cases where all have it."""

    setting: Setting
    joules: dict[str, float]
    cases: int


@dataclass(frozen=True, slots=True)
class Shift:
    """Joules a call of one implementation on one case, in two runs."""

    case_id: str
    setting: Setting
    implementation: str
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """The later energy over the earlier: under 1 a call takes less than before."""
        return self.after / self.before


def find_energies(study: Study) -> tuple[Energy, ...]:
    """The energies of each setting in which the energy of some implementation is known."""
    energy_list = []
    for part in study.parts():
        by_case = [
            {t.implementation: t.joules for t in case.timings if t.joules > 0 and not is_control(t.implementation)}
            for case in part.cases
        ]
        names = dict.fromkeys(name for one in by_case for name in one)
        complete = [one for one in by_case if len(one) == len(names)]
        if names and complete:
            means = {name: math.exp(sum(math.log(one[name]) for one in complete) / len(complete)) for name in names}
            energy_list.append(Energy(part.settings[0], means, len(complete)))
    return tuple(energy_list)


def energy_shifts(before: Study, after: Study) -> Iterator[Shift]:
    """A shift for each case, setting and implementation whose energy both runs have; controls are left out."""
    for case, other in match_cases(before, after):
        for timing in case.timings:
            later = other.timing(timing.implementation)
            if later is not None and timing.joules > 0 and later.joules > 0 and not is_control(timing.implementation):
                yield Shift(case.case_id, case.setting, timing.implementation, timing.joules, later.joules)


EAGER: Final = "eager"
BASELINES: Final = (EAGER, "compiled")
THRESHOLDS: Final = (0.0, 1.0, 1.5, 2.0)


@dataclass(frozen=True, slots=True)
class FastP:
    """One kernel in one setting over `problems` problems: for each of `THRESHOLDS`, how many it solves more than that
    many times as fast. At threshold 0 that is how many it solves correctly."""

    implementation: str
    setting: Setting
    problems: int
    solved: tuple[int, ...]

    def share(self, at: int) -> float:
        """The share of problems, 0 to 1, at the threshold with index `at`."""
        return self.solved[at] / self.problems if self.problems else 0.0


def fast_p(study: Study) -> tuple[FastP, ...]:
    """The measure of each kernel of a run in KernelBench's form, in which the baseline is `eager`; empty for other
    runs. Without a kernel it is the measure of `compiled`, as such a run compares PyTorch's two modes. A problem on
    which a kernel was wrong or was not timed counts as not solved."""
    shares = []
    for part in study.parts():
        timings = [timing for case in part.cases for timing in case.timings]
        if not any(one.implementation == EAGER and one.backend == f"baseline_{EAGER}" for one in timings):
            continue
        names = dict.fromkeys(one.implementation for one in timings if ":" not in one.implementation)
        kernels = [one for one in names if one not in BASELINES]
        for name in kernels or [one for one in names if one != EAGER]:
            ratios = []
            for case in part.cases:
                medians = {one.implementation: one.median_us.mid for one in case.timings if one.timed}
                if EAGER in medians and name in medians:
                    ratios.append(medians[EAGER] / medians[name])
            solved = tuple(sum(1 for ratio in ratios if ratio > p) for p in THRESHOLDS)
            shares.append(FastP(name, part.settings[0], len(part.cases), solved))
    return tuple(shares)


RANKINGS: Final[Mapping[str, Callable[[Sequence[float]], float]]] = {
    "last": lambda times: times[-1],
    "mean": lambda times: math.fsum(times) / len(times),
    "geom": lambda times: math.exp(math.fsum(map(math.log, times)) / len(times)),
}


@dataclass(frozen=True, slots=True)
class Score:
    """The scores of one setting in microseconds, the best first. An implementation that was not timed in every case
    that counts has none and is in `unranked`."""

    setting: Setting
    ranking: str
    cases: int
    us: Mapping[str, float]
    unranked: tuple[str, ...]


def scores_of(study: Study) -> tuple[Score, ...]:
    """The scores of each setting of a run; empty for a workload without a ranking."""
    scores = []
    for part in study.parts():
        counted: dict[str, str] = {}
        times: dict[str, list[float]] = {}
        for case in part.cases:
            for timing in case.timings:
                ranking = timing.group.words.get("ranking", "")
                if ranking in RANKINGS and not is_control(timing.implementation):
                    counted[case.case_id] = ranking
                    medians = times.setdefault(timing.implementation, [])
                    medians += [timing.median_us.mid] if timing.timed else []
        if counted:
            ranking = next(iter(counted.values()))
            complete = {name: RANKINGS[ranking](us) for name, us in times.items() if len(us) == len(counted)}
            us = dict(sorted(complete.items(), key=lambda item: item[1]))
            unranked = tuple(name for name in times if name not in us)
            scores.append(Score(part.settings[0], ranking, len(counted), us, unranked))
    return tuple(scores)
