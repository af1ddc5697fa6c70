"""Why a comparison is not decided, whatever its numbers say: the measurement itself is in doubt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from orchestrator.analysis.case import Case
from orchestrator.analysis.timings import Timing

EXPOSED: Final = "launch not hidden"
DISAGREE: Final = "regimes disagree"
TIMER: Final = "below the timer's resolution"
MOST_APART: Final = 1.3
"""How far the burst median and the graph median of one implementation may differ: both time the device alone."""
LONG_ENOUGH_US: Final = 20.0
"""Shorter times may differ by what a single launch costs the device."""
BOTH: Final = ("burst", "graph")


def disagreements(cases: Sequence[Case]) -> Mapping[str, str]:
    """The cases of which some implementation takes more than `MOST_APART` times as long in one regime as in the other,
    with a sentence on the worst. Caches must be the same, as far as is known."""
    found: dict[str, tuple[float, str]] = {}
    graphs: dict[str, list[Case]] = {}
    for case in cases:
        if case.setting.regime == "graph":
            graphs.setdefault(case.case_id, []).append(case)
    for case in cases:
        for other in graphs.get(case.case_id, ()) if case.setting.regime == "burst" else ():
            if case.setting.cache and other.setting.cache and case.setting.cache != other.setting.cache:
                continue
            for timing in case.timings:
                twin = other.timing(timing.implementation)
                if twin is None or not timing.timed or not twin.timed:
                    continue
                burst, graph = timing.median_us.mid, twin.median_us.mid
                apart = max(burst / graph, graph / burst)
                if max(burst, graph) > LONG_ENOUGH_US and apart > max(
                    MOST_APART, found.get(case.case_id, (0.0, ""))[0]
                ):
                    words = f"{timing.implementation} takes {burst:.1f} µs in burst and {graph:.1f} µs in graph"
                    found[case.case_id] = apart, words
    return {case_id: words for case_id, (_, words) in found.items()}


def doubt(case: Case, one: Timing, other: Timing, disagreeing: Mapping[str, str]) -> str:
    """Why nothing is decided between two implementations of a case; empty where nothing speaks against it."""
    if one.group.exposed or other.group.exposed:
        return EXPOSED
    if case.case_id in disagreeing and case.setting.regime in BOTH:
        return DISAGREE
    timer = max(share(one) * one.median_us.mid, share(other) * other.median_us.mid)
    apart = abs(one.median_us.mid - other.median_us.mid)
    if max(share(one), share(other)) > 0.5 or timer > apart > 0.01 * one.median_us.mid:
        return TIMER
    return ""


def share(timing: Timing) -> float:
    """The timer's own part of a median; 0 where it is not known."""
    return 0.0 if math.isnan(timing.timer_share) else timing.timer_share
