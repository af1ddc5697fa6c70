"""Reasons against a verdict whatever the numbers are, and what a reader should know about the data of a run."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Final

from orchestrator.analysis.case import Case, CaseTiming
from orchestrator.analysis.regimes import Setting
from orchestrator.core.results import CONTROL, TIMER_SHARE, is_control
from orchestrator.core.text import count

EXPOSED: Final = "launch not hidden"
DISAGREE: Final = "regimes disagree"
DISTURBED: Final = "something else used the device"
MOST_DISTURBED: Final = 0.1
"""The largest share of an implementation's measurements in which something else may have used the device."""
TIMER: Final = "below the timer's resolution"
MOST_APART: Final = 1.3
"""How many times longer one regime may take than the other, burst or graph, for one implementation. Both time the
device alone."""
MOST_OF_IT: Final = 0.5
"""If the timer's share of a median is larger than this, the median says nothing."""
LONG_ENOUGH_US: Final = 20.0
"""Microseconds; shorter times may differ by what a single launch costs the device."""
BOTH: Final = ("burst", "graph")
MOST_MODES: Final = 4
"""The most timings with two modes that a note describes; others are counted."""


def find_disagreements(cases: Sequence[Case]) -> Mapping[tuple[str, str], str]:
    """The cases and implementations (or controls) that take more than `MOST_APART` times as long in one regime as in
    the other, each with a sentence, the worst first. Only settings are compared whose caches do not differ as far as is
    known."""
    graphs: dict[str, list[Case]] = {}
    for case in cases:
        if case.setting.regime == "graph":
            graphs.setdefault(case.case_id, []).append(case)
    disagreements: dict[tuple[str, str], tuple[float, str]] = {}
    for case in cases:
        for other in graphs.get(case.case_id, ()) if case.setting.regime == "burst" else ():
            if case.setting.cache and other.setting.cache and case.setting.cache != other.setting.cache:
                continue
            for timing in case.timings:
                if (twin := other.timing(timing.implementation)) is not None and (apart := _apart(timing, twin)):
                    key = case.case_id, timing.implementation.removesuffix(CONTROL)
                    disagreements[key] = max(disagreements.get(key, apart), apart)
    worst = sorted(disagreements.items(), key=lambda item: item[1], reverse=True)
    return {key: words for key, (_, words) in worst}


def _apart(burst: CaseTiming, graph: CaseTiming) -> tuple[float, str] | None:
    """How many times as long one regime takes as the other, with a sentence; None where that is within limits. The time
    that the timer is known to take is taken off first: a burst sample contains all of it, a graph sample almost
    nothing."""
    if not burst.timed or not graph.timed:
        return None
    burst_us, graph_us = _net(burst), _net(graph)
    apart = max(burst_us / graph_us, graph_us / burst_us)
    if max(burst_us, graph_us) <= LONG_ENOUGH_US or apart <= MOST_APART:
        return None
    medians = f"{burst.median_us.mid:.1f} µs in burst and {graph.median_us.mid:.1f} µs in graph"
    return apart, f"{burst.implementation} takes {medians}"


def _net(timing: CaseTiming) -> float:
    """A median in microseconds without the timer's part. At most half of it is taken off: a median with a larger
    timer's part is in doubt anyway."""
    return timing.median_us.mid * (1 - min(timer_share(timing), MOST_OF_IT))


def reason_for_doubt(case: Case, one: CaseTiming, other: CaseTiming, disagreeing: Container[tuple[str, str]]) -> str:
    """Why there is no verdict between two implementations of a case; empty where nothing prevents one."""
    if one.group.exposed or other.group.exposed:
        return EXPOSED
    if any(timing.group.disturbed > MOST_DISTURBED * timing.count for timing in (one, other)):
        return DISTURBED
    pair = ((case.case_id, timing.implementation) for timing in (one, other))
    if case.setting.regime in BOTH and any(each in disagreeing for each in pair):
        return DISAGREE
    timer = max(timer_share(one) * one.median_us.mid, timer_share(other) * other.median_us.mid)
    apart = abs(one.median_us.mid - other.median_us.mid)
    if max(timer_share(one), timer_share(other)) > MOST_OF_IT or timer > apart > 0.01 * one.median_us.mid:
        return TIMER
    return ""


def timer_share(timing: CaseTiming) -> float:
    """The timer's own part of a median; 0 where it is not known."""
    return 0.0 if math.isnan(timing.timer_share) else timing.timer_share


# Finds comparisons for which burst and graph give different ratios. Both regimes time the device alone, so a reader
# should see both numbers.


Place = tuple[Setting, str, str, str]
"""Setting, case id, subject and baseline of a comparison."""


def other_ratios(cases: Sequence[Case]) -> Mapping[Place, float]:
    """The ratio in the other of the two regimes, with the same caches, for each comparison whose two intervals do not
    overlap. They may differ for these reasons: a burst includes what a single launch costs the device, for both
    implementations alike, and runs on a chip that has rested; in a graph the power limit slows long calls."""
    ratios = {
        (case.setting, case.case_id, one.subject, one.baseline): one.ratio
        for case in cases
        if case.setting.regime in BOTH
        for one in (*case.contrasts, *case.beside)
        if one.ratio.known
    }
    in_other_regime = {}
    for (setting, case_id, subject, baseline), ratio in ratios.items():
        (regime,) = (one for one in BOTH if one != setting.regime)
        other = ratios.get((Setting(regime, setting.cache), case_id, subject, baseline), ratio)
        if min(ratio.high, other.high) < max(ratio.low, other.low):
            in_other_regime[setting, case_id, subject, baseline] = other.mid
    return in_other_regime


# What a reader should know about a run's data before looking at the numbers: one sentence for each point.


def notes_of(cases: Sequence[Case]) -> list[str]:
    """The notes of a run, the gravest first."""
    timed = [timing for case in cases for timing in case.timings if timing.timed]
    if not cases:
        return ["The run has no rows: it measured nothing."]
    if not timed:
        return ["Every implementation was skipped in every case: there are reasons, but no times."]
    return [
        *_of_launches(cases, timed),
        *_of_others(timed),
        *_of_controls(timed),
        *_of_timings(cases, timed),
        *_of_settings(cases),
    ]


def _of_launches(cases: Sequence[Case], timed: Sequence[CaseTiming]) -> Iterator[str]:
    disagreeing = find_disagreements(cases)
    if disagreeing:
        (worst, _), sentence = next(iter(disagreeing.items()))
        number, total = len({case_id for case_id, _ in disagreeing}), len({case.case_id for case in cases})
        names = ", ".join(dict.fromkeys(name for _, name in disagreeing))
        yield (
            f"In {number} of {count(total, 'case')} burst and graph disagree about {names}: no comparison with it is "
            f"decided there ({DISAGREE}). On {worst}, {sentence}."
        )
    exposed = [one for one in timed if one.group.exposed]
    if exposed:
        yield (
            f"In {len(exposed)} of {len(timed)} timings the launch could not be hidden: they include some of the "
            "host's time, so nothing is decided from them."
        )


def _of_others(timed: Sequence[CaseTiming]) -> Iterator[str]:
    disturbed = [one for one in timed if one.group.disturbed]
    if disturbed:
        samples = sum(one.group.disturbed for one in disturbed)
        yield (
            f"In {count(samples, 'measurement')} of {len(disturbed)} of {len(timed)} timings something else used the "
            f"device, each time that they were taken again. Where that is over {MOST_DISTURBED:.0%} nothing is decided "
            f"({DISTURBED})."
        )


def _of_controls(timed: Sequence[CaseTiming]) -> Iterator[str]:
    if len({timing.implementation for timing in timed if not is_control(timing.implementation)}) == 1:
        yield "Only one implementation was timed: there is nothing to compare it with."
    if not any(is_control(timing.implementation) for timing in timed):
        yield (
            "There was no A/A control in this run. The noise floor comes from odd blocks against even ones, which does "
            "not show how much two bindings of one implementation differ."
        )


def _of_timings(cases: Sequence[Case], timed: Sequence[CaseTiming]) -> Iterator[str]:
    both = [one for case in cases if case.setting.regime in BOTH for one in case.contrasts if one.ratio.known]
    if other := sum(1 for one in both if not math.isnan(one.elsewhere)):
        yield (
            f"In {other} of {count(len(both), 'comparison')} the intervals of burst and graph do not overlap: those "
            "rows also show the ratio of the other regime. Burst includes what a single launch costs the device, on a "
            "chip that has rested; a graph keeps the chip busy."
        )
    bimodal = [
        f"{one.implementation} on {case.case_id}{f', {case.setting.name}' if case.setting.name else ''}: "
        f"{one.modes_text} of the samples"
        for case in cases
        for one in case.timings
        if one.modes and not is_control(one.implementation)
    ]
    if bimodal:
        and_more = f"; and {count(len(bimodal) - MOST_MODES, 'more')}" if len(bimodal) > MOST_MODES else ""
        yield (
            f"Two modes in {len(bimodal)} of {len(timed)} timings: {'; '.join(bimodal[:MOST_MODES])}{and_more}. Such a "
            "median is that of a mixture, so read its ratio with care."
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
