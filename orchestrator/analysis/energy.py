"""What calls take in energy: an implementation's over the cases that all have, and two runs' beside each other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.analysis.across import matched
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
        """Under 1: a call takes less than before."""
        return self.after / self.before


def energies(study: Study) -> tuple[Energy, ...]:
    """Of every setting in which some implementation's energy is known."""
    found = []
    for part in study.parts():
        known = [
            {t.implementation: t.joules for t in case.timings if t.joules > 0 and not is_control(t.implementation)}
            for case in part.cases
        ]
        names = dict.fromkeys(name for one in known for name in one)
        whole = [one for one in known if len(one) == len(names)]
        if names and whole:
            means = {name: math.exp(sum(math.log(one[name]) for one in whole) / len(whole)) for name in names}
            found.append(Energy(part.settings[0], means, len(whole)))
    return tuple(found)


def shifts(before: Study, after: Study) -> Iterator[Shift]:
    """Every case, setting and implementation whose energy both runs have."""
    for case, other in matched(before, after):
        for timing in case.timings:
            later = other.timing(timing.implementation)
            if later is not None and timing.joules > 0 and later.joules > 0 and not is_control(timing.implementation):
                yield Shift(case.case_id, case.setting, timing.implementation, timing.joules, later.joules)
