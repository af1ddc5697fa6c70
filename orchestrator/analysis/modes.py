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
"""Ashman's D of two modes is at least this. The halves of a normal distribution have 2.7, those of a uniform one 3.5
(Ashman, Bird and Zepf 1994)."""
EMPTY: Final = 0.4
"""At least this share of the way from one median to the other has no sample."""


@dataclass(frozen=True, slots=True)
class TimingMode:
    """A group of samples: their median in microseconds, and their share of all samples, 0 to 1."""

    us: float
    share: float


def two_modes(latency_us: NDArray[np.float64]) -> tuple[TimingMode, ...]:
    """The two modes of the samples, the faster first; empty where there are not clearly two. The samples are divided
    where that leaves the least variance within the groups (Otsu 1979)."""
    count = latency_us.size
    least = max(LEAST_COUNT, math.ceil(LEAST_SHARE * count))
    if count < 2 * least:
        return ()
    logs = np.sort(np.log(latency_us))
    sizes = np.arange(1, count)
    sums, squares = np.cumsum(logs)[:-1], np.cumsum(logs**2)[:-1]
    total, total_squares = float(logs.sum()), float((logs**2).sum())
    within = squares - sums**2 / sizes + (total_squares - squares) - (total - sums) ** 2 / (count - sizes)
    at = least + int(np.argmin(within[least - 1 : count - least]))
    low, high = logs[:at], logs[at:]
    spread = math.sqrt((float(low.var()) + float(high.var())) / 2)
    apart = float(np.median(high) - np.median(low))
    if apart < math.log(LEAST_APART) or apart < SEPARATION * spread or float(high[0] - low[-1]) < EMPTY * apart:
        return ()
    return tuple(TimingMode(math.exp(float(np.median(part))), part.size / count) for part in (low, high))
