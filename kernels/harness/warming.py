"""When a warm-up may end: when neither the times nor the clocks of two windows in a row differ."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WINDOW_BLOCKS = 4
"""Two orders, each with its reverse. In the sustained regime two windows of a handful of implementations are some two
seconds of load, which is what a chip takes to come to its power limit."""
TIME_TOLERANCE = 0.02
CLOCK_TOLERANCE = 0.01
MOST_WINDOWS = 25
LIMIT_S = {"cuda": 10.0, "cpu": 1.0}
"""Seconds after which a device that is not steady is measured all the same, and its rows say so."""

LIMIT, FIXED = "limit", "fixed"
"""The ends of a warm-up other than `steady`."""
SD_OF_MEDIAN = 1.2533
MAD_TO_SD = 1.4826


@dataclass(frozen=True, slots=True)
class Window:
    """Some blocks: microseconds by implementation, and the SM clocks that were read (empty where they are not
    known)."""

    times: Mapping[str, Sequence[float]]
    clocks: Sequence[float]


@dataclass(frozen=True, slots=True)
class Warming:
    """How a warm-up went: calls of each implementation, and `steady`, `limit` or `fixed`."""

    calls: Mapping[str, int]
    ended: str


def is_steady(before: Window, after: Window) -> bool:
    """Whether nothing changed from one window to the next beyond their noise."""
    times = all(medians_agree(before.times[name], after.times[name]) for name in after.times if name in before.times)
    if not before.clocks or not after.clocks:
        return times
    was, now = statistics.median(before.clocks), statistics.median(after.clocks)
    return times and abs(now - was) <= CLOCK_TOLERANCE * max(was, now)


def medians_agree(before: Sequence[float], after: Sequence[float]) -> bool:
    """Whether two medians agree within `TIME_TOLERANCE`, or within twice the standard error of their difference."""
    was, now = statistics.median(before), statistics.median(after)
    noise = 2 * math.hypot(error_of_median(before), error_of_median(after))
    return abs(now - was) <= max(TIME_TOLERANCE * min(was, now), noise)


def error_of_median(values: Sequence[float]) -> float:
    """The standard error of the median for normal values, from the median absolute deviation, on which outliers have no
    effect."""
    middle = statistics.median(values)
    deviation = statistics.median(abs(value - middle) for value in values)
    return SD_OF_MEDIAN * MAD_TO_SD * deviation / math.sqrt(len(values))
