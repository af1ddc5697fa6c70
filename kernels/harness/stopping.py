"""Rules for when a case is measured precisely enough or has cost enough. They are options; by default the number of
blocks is fixed."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

LEAST_BLOCKS = 20
EVERY = 10
LEAST_PAID_BLOCKS = 2
"""At least so many blocks are measured, however little may be spent: one order and its reverse."""
Z = statistics.NormalDist().inv_cdf(0.975)

REPEATS, PRECISION, DOLLARS, RACE = "repeats", "precision", "dollars", "race"
RACE_MARGINS, RACE_MARGIN = {3: 0.2, 5: 0.06, 7: 0.03}, 0.01
"""After so many blocks, and from the tenth on every fifth, a race is looked at. What is slower by less than the margin
stays in it, as looking often, and at few blocks, would else end it by chance."""

Enough = Callable[[Mapping[str, Sequence[float]]], str]
"""Judges the latencies so far: by implementation, in microseconds, one for each block in order. Returns the reason to
stop (`precision` or `dollars`), or an empty string to go on."""


def never_stop(_: Mapping[str, Sequence[float]]) -> str:
    """The rule that never stops: all blocks of the spec are measured."""
    return ""


def first_of(*rules: Enough) -> Enough:
    """A rule that stops as soon as one of `rules` does, with its reason."""
    return lambda latencies: next((reason for one in rules if (reason := one(latencies))), "")


def precision_rule(relative_ci: float | None) -> Enough:
    """A rule that stops when every implementation's median ratio to the first is known within `relative_ci` (0.01 is an
    interval of one per cent to each side) at two looks in a row. It looks every ten blocks from the twentieth on, and
    less often in long cases, so that looking stays cheaper than measuring. `never` for None.

    At a single look an interval may be narrow by luck, and a rule that stops there keeps the lucky ones: of intervals
    of 95 %, down to 92.3 % held. The blocks between two looks are no part of that choice, so that 95 % hold again."""
    if relative_ci is None:
        return never_stop
    tight: float = relative_ci
    was_precise = False

    def enough(latencies: Mapping[str, Sequence[float]]) -> str:
        nonlocal was_precise
        blocks = blocks_in(latencies)
        if blocks < LEAST_BLOCKS or blocks % (EVERY * max(1, blocks // 200)):
            return ""
        first, *other_series = latencies.values()
        series = [[math.log(b / a) for a, b in zip(first, other, strict=True)] for other in other_series]
        before = was_precise
        was_precise = all(half_width(one) <= math.log1p(tight) for one in series or [[math.log(us) for us in first]])
        return PRECISION if before and was_precise else ""

    return enough


def race_rule(beat: float | None) -> Enough:
    """A rule that stops when the last implementation is slower, with confidence, than what is to be beaten: the first
    one's time over its own. `never` for None."""
    if beat is None:
        return never_stop
    limit = math.log(beat)

    def enough(latencies: Mapping[str, Sequence[float]]) -> str:
        blocks = blocks_in(latencies)
        is_due = blocks in RACE_MARGINS or (blocks >= 10 and blocks % 5 == 0)
        if len(latencies) < 2 or not is_due:
            return ""
        margin = math.log1p(RACE_MARGINS.get(blocks, RACE_MARGIN))
        first, *_, last = latencies.values()
        logs = [math.log(a / b) for a, b in zip(first, last, strict=False)]
        return RACE if statistics.median(logs) + half_width(logs) < limit - margin else ""

    return enough


def time_rule(seconds: float | None, clock: Callable[[], float] = time.monotonic) -> Enough:
    """A rule that stops when `seconds` have passed from now, and with them the case's dollars. It stops only after
    whole pairs of an order and its reverse, so at the earliest after two blocks. `never` for None."""
    if seconds is None:
        return never_stop
    end = clock() + seconds

    def enough(latencies: Mapping[str, Sequence[float]]) -> str:
        blocks = blocks_in(latencies)
        return DOLLARS if blocks >= LEAST_PAID_BLOCKS and blocks % 2 == 0 and clock() >= end else ""

    return enough


def blocks_in(latencies: Mapping[str, Sequence[float]]) -> int:
    """How many blocks are complete."""
    return min((len(times) for times in latencies.values()), default=0)


def half_width(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of the median, from order statistics; it assumes no distribution."""
    ordered = sorted(values)
    reach = Z * math.sqrt(len(ordered)) / 2
    low = max(0, math.floor(len(ordered) / 2 - reach) - 1)
    high = min(len(ordered) - 1, math.ceil(len(ordered) / 2 + reach))
    return (ordered[high] - ordered[low]) / 2
