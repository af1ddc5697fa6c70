"""When a case has been measured well enough, or has cost enough: options; the default is a fixed number of blocks."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

LEAST_BLOCKS = 20
EVERY = 10
LEAST_PAID_BLOCKS = 2
"""However little may be spent, an order and the same turned around are measured."""
Z = statistics.NormalDist().inv_cdf(0.975)

REPEATS, PRECISION, DOLLARS = "repeats", "precision", "dollars"

Enough = Callable[[Mapping[str, Sequence[float]]], str]
"""Judges the latencies so far: implementation to microseconds, one a block, in the order of blocks. The reason to stop
(`precision` or `dollars`), or nothing to go on."""


def never(_: Mapping[str, Sequence[float]]) -> str:
    """All blocks that were asked for are measured."""
    return ""


def first_of(*rules: Enough) -> Enough:
    """Stops as soon as one of the rules does, and says which."""
    return lambda latencies: next((reason for one in rules if (reason := one(latencies))), "")


def rule(relative_ci: float | None) -> Enough:
    """Enough is when every implementation's median ratio to the first is known within `relative_ci` (0.01: an interval
    of one per cent to each side). Looked at every ten blocks from the twentieth on, less often in long cases, so that
    looking stays cheaper than measuring. None: `never`."""
    if relative_ci is None:
        return never
    tight: float = relative_ci

    def enough(latencies: Mapping[str, Sequence[float]]) -> str:
        blocks = blocks_in(latencies)
        if blocks < LEAST_BLOCKS or blocks % (EVERY * max(1, blocks // 200)):
            return ""
        first, *others = latencies.values()
        series = [[math.log(b / a) for a, b in zip(first, other, strict=True)] for other in others]
        known = (half_width(one) <= math.log1p(tight) for one in series or [[math.log(time) for time in first]])
        return PRECISION if all(known) else ""

    return enough


def spent(seconds: float | None, clock: Callable[[], float] = time.monotonic) -> Enough:
    """Enough is when `seconds` from now have gone by, which is when the case's dollars have; at the earliest after two
    blocks, and after whole pairs of an order and its reverse only. None: `never`."""
    if seconds is None:
        return never
    end = clock() + seconds

    def enough(latencies: Mapping[str, Sequence[float]]) -> str:
        blocks = blocks_in(latencies)
        return DOLLARS if blocks >= LEAST_PAID_BLOCKS and blocks % 2 == 0 and clock() >= end else ""

    return enough


def blocks_in(latencies: Mapping[str, Sequence[float]]) -> int:
    """How many blocks are complete."""
    return min((len(times) for times in latencies.values()), default=0)


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the median, from the order statistics that hold it (distribution-free)."""
    ordered = sorted(values)
    reach = Z * math.sqrt(len(ordered)) / 2
    low = max(0, math.floor(len(ordered) / 2 - reach) - 1)
    high = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + reach))
    return (ordered[high] - ordered[low]) / 2
