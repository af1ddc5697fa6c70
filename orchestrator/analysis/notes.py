"""What a reader should know about a run's data before looking at the numbers: one sentence for each point."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from orchestrator.analysis.case import Case
from orchestrator.analysis.doubts import BOTH, DISAGREE, disagreements
from orchestrator.analysis.timings import Timing
from orchestrator.core.results import TIMER_SHARE, is_control
from orchestrator.core.text import count


def notes_of(cases: Sequence[Case]) -> list[str]:
    """The notes of a run, the gravest first."""
    timed = [timing for case in cases for timing in case.timings if timing.timed]
    if not cases:
        return ["The run has no rows: it measured nothing."]
    if not timed:
        return ["Every implementation was skipped in every case: there are reasons, but no times."]
    return [*_of_launches(cases, timed), *_of_controls(timed), *_of_timings(cases, timed), *_of_settings(cases)]


def _of_launches(cases: Sequence[Case], timed: Sequence[Timing]) -> Iterator[str]:
    disagreeing = disagreements(cases)
    if disagreeing:
        (worst, _), words = next(iter(disagreeing.items()))
        found, total = len({case_id for case_id, _ in disagreeing}), len({case.case_id for case in cases})
        names = ", ".join(dict.fromkeys(name for _, name in disagreeing))
        yield (
            f"In {found} of {count(total, 'case')} burst and graph disagree about {names}: no comparison with it is "
            f"decided there ({DISAGREE}). On {worst}, {words}."
        )
    exposed = [one for one in timed if one.group.exposed]
    if exposed:
        yield (
            f"In {len(exposed)} of {len(timed)} timings the launch could not be hidden: they include some of the "
            "host's time, so nothing is decided from them."
        )


def _of_controls(timed: Sequence[Timing]) -> Iterator[str]:
    if len({timing.implementation for timing in timed if not is_control(timing.implementation)}) == 1:
        yield "Only one implementation was timed: there is nothing to compare it with."
    if not any(is_control(timing.implementation) for timing in timed):
        yield (
            "There was no A/A control in this run. The noise floor comes from odd blocks against even ones, which does "
            "not show how much two bindings of one implementation differ."
        )


def _of_timings(cases: Sequence[Case], timed: Sequence[Timing]) -> Iterator[str]:
    both = [one for case in cases if case.setting.regime in BOTH for one in case.contrasts if one.ratio.known]
    if other := sum(1 for one in both if not math.isnan(one.elsewhere)):
        yield (
            f"In {other} of {count(len(both), 'comparison')} the intervals of burst and graph do not overlap: those "
            "rows also show the ratio of the other regime. Burst includes what a single launch costs the device, on a "
            "chip that has rested; a graph keeps the chip busy."
        )
    limits = sum(1 for timing in timed if timing.group.words.get("warmed") == "limit")
    if limits:
        yield (
            f"In {limits} of {len(timed)} timings the warm-up ended before times and clocks had settled: these times "
            "may include some of the warm-up."
        )
    if noticed := [one.timer_share for one in timed if one.timer_share > TIMER_SHARE]:
        yield (
            f"In {len(noticed)} of {len(timed)} timings the timer itself takes over {TIMER_SHARE:.0%} of the median "
            f"(up to {max(noticed):.0%}). It is not subtracted; the rows concerned are marked."
        )
    short = (case for case in cases if any(one.group.words.get("stopped") == "dollars" for one in case.timings))
    if spent := len({case.case_id for case in short}):
        total = count(len({case.case_id for case in cases}), "case")
        yield f"In {spent} of {total} the budget was spent before the last repeat."
    if len({timing.group.device for timing in timed}) > 1:
        yield "The rows name more than one device: times of different cases must not be compared."


def _of_settings(cases: Sequence[Case]) -> Iterator[str]:
    named = {case.setting.regime for case in cases if case.setting.cache}
    vague = sorted({case.setting.regime for case in cases if not case.setting.cache} & named)
    if vague:
        yield (
            f"Some rows of {' and '.join(vague)} come from an older version and do not say whether their caches were "
            "warm or cold: they are shown separately."
        )
