"""Why a comparison gets no verdict, whatever its numbers say: the measurement itself is in doubt."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Final

from orchestrator.analysis.case import Case
from orchestrator.analysis.timings import Timing
from orchestrator.core.results import CONTROL

EXPOSED: Final = "launch not hidden"
DISAGREE: Final = "regimes disagree"
TIMER: Final = "below the timer's resolution"
MOST_APART: Final = 1.3
"""How many times longer one regime may take than the other, burst or graph, for one implementation. Both time the
device alone."""
MOST_OF_IT: Final = 0.5
"""If the timer's share of a median is larger than this, the median says nothing."""
LONG_ENOUGH_US: Final = 20.0
"""Microseconds; shorter times may differ by what a single launch costs the device."""
BOTH: Final = ("burst", "graph")


def disagreements(cases: Sequence[Case]) -> Mapping[tuple[str, str], str]:
    """The cases and implementations (or controls) that take more than `MOST_APART` times as long in one regime as in
    the other, each with a sentence, the worst first. Only settings are compared whose caches do not differ as far as is
    known."""
    graphs: dict[str, list[Case]] = {}
    for case in cases:
        if case.setting.regime == "graph":
            graphs.setdefault(case.case_id, []).append(case)
    found: dict[tuple[str, str], tuple[float, str]] = {}
    for case in cases:
        for other in graphs.get(case.case_id, ()) if case.setting.regime == "burst" else ():
            if case.setting.cache and other.setting.cache and case.setting.cache != other.setting.cache:
                continue
            for timing in case.timings:
                if (twin := other.timing(timing.implementation)) is not None and (one := _apart(timing, twin)):
                    key = case.case_id, timing.implementation.removesuffix(CONTROL)
                    found[key] = max(found.get(key, one), one)
    worst = sorted(found.items(), key=lambda item: item[1], reverse=True)
    return {key: words for key, (_, words) in worst}


def _apart(burst: Timing, graph: Timing) -> tuple[float, str] | None:
    """How many times as long one regime takes as the other, with a sentence; None where that is within limits. The time
    that the timer is known to take is taken off first: a burst sample contains all of it, a graph sample almost
    nothing."""
    if not burst.timed or not graph.timed:
        return None
    one, two = _net(burst), _net(graph)
    apart = max(one / two, two / one)
    if max(one, two) <= LONG_ENOUGH_US or apart <= MOST_APART:
        return None
    medians = f"{burst.median_us.mid:.1f} µs in burst and {graph.median_us.mid:.1f} µs in graph"
    return apart, f"{burst.implementation} takes {medians}"


def _net(timing: Timing) -> float:
    """A median in microseconds without the timer's part. At most half of it is taken off: a median with a larger
    timer's part is in doubt anyway."""
    return timing.median_us.mid * (1 - min(share(timing), MOST_OF_IT))


def doubt(case: Case, one: Timing, other: Timing, disagreeing: Container[tuple[str, str]]) -> str:
    """Why there is no verdict between two implementations of a case; empty where nothing prevents one."""
    if one.group.exposed or other.group.exposed:
        return EXPOSED
    pair = ((case.case_id, timing.implementation) for timing in (one, other))
    if case.setting.regime in BOTH and any(each in disagreeing for each in pair):
        return DISAGREE
    timer = max(share(one) * one.median_us.mid, share(other) * other.median_us.mid)
    apart = abs(one.median_us.mid - other.median_us.mid)
    if max(share(one), share(other)) > MOST_OF_IT or timer > apart > 0.01 * one.median_us.mid:
        return TIMER
    return ""


def share(timing: Timing) -> float:
    """The timer's own part of a median; 0 where it is not known."""
    return 0.0 if math.isnan(timing.timer_share) else timing.timer_share
