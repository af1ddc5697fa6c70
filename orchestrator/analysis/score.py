"""The score of a GPU MODE problem: one time for each implementation, from its cases as the problem ranks them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.study import Study
from orchestrator.core.results import is_control

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
