"""Finds times that fall into two groups, so that one median does not describe them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

LEAST_SHARE: Final = 0.1
"""Each mode has at least this share of the samples."""
LEAST_COUNT: Final = 5
LEAST_APART: Final = 1.05
"""The ratio of the medians of two modes is at least this."""
SEPARATION: Final = 6.0
"""Ashman's D of two modes is at least this (Ashman, Bird and Zepf 1994). The halves of a normal distribution have 2.7
and those of a uniform one 3.5; without their stragglers 3.3 and 4.3."""
EMPTY: Final = 0.4
"""At least this share of the way from one median to the other has hardly a sample."""
STRAGGLERS: Final = 0.1
"""Up to this share of a mode's samples at either end may lie anywhere: in the gap, or far away."""
LEAST_TRIMMED: Final = 20
"""In a mode of fewer samples all of them count."""


@dataclass(frozen=True, slots=True)
class TimingMode:
    """A group of samples: their median in microseconds, and their share of all samples, 0 to 1."""

    us: float
    share: float


def two_modes(latency_us: NDArray[np.float64]) -> tuple[TimingMode, ...]:
    """The two modes of the samples, the faster first; empty where there are not clearly two. The samples are divided
    where that leaves the least variance within the groups (Otsu 1979). Outliers have no weight: the division sees them
    at the edge of the others, and gap and spread are those without stragglers."""
    count = latency_us.size
    least = max(LEAST_COUNT, math.ceil(LEAST_SHARE * count))
    if count < 2 * least:
        return ()
    logs = np.sort(np.log(latency_us))
    at = least_variance_split(np.clip(logs, *np.quantile(logs, [LEAST_SHARE / 2, 1 - LEAST_SHARE / 2])), least)
    low, high = logs[:at], logs[at:]
    apart = float(np.median(high) - np.median(low))
    low_core, high_core = without_stragglers(low), without_stragglers(high)
    spread = math.sqrt((float(low_core.var()) + float(high_core.var())) / 2)
    gap = float(high_core[0] - low_core[-1])
    if apart < math.log(LEAST_APART) or apart < SEPARATION * spread or gap < EMPTY * apart:
        return ()
    return tuple(TimingMode(math.exp(float(np.median(part))), part.size / count) for part in (low, high))


def least_variance_split(values: NDArray[np.float64], least: int) -> int:
    """How many of the sorted values form the lower group, so that the variance within the two groups is least. Either
    group has at least `least` values."""
    count = values.size
    sizes = np.arange(1, count)
    sums, squares = np.cumsum(values)[:-1], np.cumsum(values**2)[:-1]
    total, total_squares = float(values.sum()), float((values**2).sum())
    within = squares - sums**2 / sizes + (total_squares - squares) - (total - sums) ** 2 / (count - sizes)
    return least + int(np.argmin(within[least - 1 : count - least]))


def without_stragglers(ordered: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sorted values without those that may lie anywhere; all values of a small group."""
    cut = int(STRAGGLERS * ordered.size) if ordered.size >= LEAST_TRIMMED else 0
    return ordered[cut : ordered.size - cut]
