"""When a case has been measured well enough: an option; the default is a fixed number of blocks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

LEAST_BLOCKS = 20
EVERY = 10
Z = statistics.NormalDist().inv_cdf(0.975)

Enough = Callable[[Mapping[str, Sequence[float]]], bool]
"""Judges the latencies so far: implementation to microseconds, one a block, in the order of blocks."""


def never(_: Mapping[str, Sequence[float]]) -> bool:
    """All blocks that were asked for are measured."""
    return False


def rule(relative_ci: float | None) -> Enough:
    """Enough is when every implementation's median ratio to the first is known within `relative_ci` (0.01: an interval
    of one per cent to each side), looked at every ten blocks from the twentieth on. None: `never`."""
    if relative_ci is None:
        return never
    tight: float = relative_ci

    def enough(latencies: Mapping[str, Sequence[float]]) -> bool:
        blocks = min((len(times) for times in latencies.values()), default=0)
        if blocks < LEAST_BLOCKS or blocks % EVERY:
            return False
        first, *others = latencies.values()
        series = [[math.log(b / a) for a, b in zip(first, other, strict=True)] for other in others]
        return all(half_width(one) <= math.log1p(tight) for one in series or [[math.log(time) for time in first]])

    return enough


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the median, from the order statistics that hold it (distribution-free)."""
    ordered = sorted(values)
    reach = Z * math.sqrt(len(ordered)) / 2
    low = max(0, math.floor(len(ordered) / 2 - reach) - 1)
    high = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + reach))
    return (ordered[high] - ordered[low]) / 2
