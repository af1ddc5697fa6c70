"""The energy of calls: the mean of each implementation over the cases that all have, and the change between two
runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

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
