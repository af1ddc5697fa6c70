"""Intervals for medians by bootstrap over interleaving blocks.

A block holds one measurement of every implementation, so whatever drifts between blocks falls on all alike and blocks
are what is resampled. Where the values of neighbouring blocks are alike, runs of blocks are resampled together (Künsch
1989, circular as in Politis and Romano 1992).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Indices = NDArray[np.int64]

LEVEL = 0.95
SEED = 20261121
RESAMPLES = 2000
NORMAL_BEYOND = 2000
"""From so many values on, the binomial is taken for normal: the limits move by less than a tenth of a rank."""
LEAST_BLOCKS = 6
"""With fewer, no interval of level 0.95 exists for a median: 2 * 0.5**5 is more than 0.05."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its limits, in the unit of the values. `low` and `high` are NaN where there are too few."""

    low: float
    mid: float
    high: float

    @property
    def known(self) -> bool:
        return not (math.isnan(self.low) or math.isnan(self.high))

    def excludes(self, value: float) -> bool:
        return self.known and not self.low <= value <= self.high


def median_interval(values: Vector, level: float = LEVEL) -> Interval:
    """The median of `values` [blocks], in the order measured, with its bootstrap percentile interval.

    The same values always give the same limits: for independent blocks the limit of infinitely many resamples is
    taken, otherwise a fixed seed. Raises `ValueError` for no values at all.
    """
    if values.size == 0:
        raise ValueError("there is no median of nothing")
    mid = float(np.median(values))
    if values.size < LEAST_BLOCKS:
        return Interval(math.nan, mid, math.nan)
    together = run_length(values)
    low, high = ideal_limits(values, level) if together == 1 else resampled_limits(values, together, level)
    return Interval(min(low, mid), mid, max(high, mid))


def run_length(values: Vector) -> int:
    """How many neighbouring blocks to resample together: 1 unless neighbours are alike beyond chance.

    Carlstein's rule (1986) with the lag-1 autocorrelation of the ranks, which outliers cannot sway.
    """
    count = values.size
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.float64)
    centred = ranks - ranks.mean()
    alike = float(centred[:-1] @ centred[1:] / (centred @ centred))
    if alike <= 1.645 / math.sqrt(count):
        return 1
    alike = min(alike, 0.97)
    length = (math.sqrt(6) * alike / (1 - alike**2)) ** (2 / 3) * count ** (1 / 3)
    return int(min(max(math.ceil(length), 2), max(count // 4, 2)))


def ideal_limits(values: Vector, level: float = LEVEL) -> tuple[float, float]:
    """Percentile limits for the median of independent values in the limit of infinitely many resamples.

    A resample's h-th smallest is at most x_(k) with probability P(Binomial(n, k/n) >= h) (Efron 1979), so the limits
    are order statistics, interpolated between the two nearest. For even n they are the means of those of the two
    middle values.
    """
    ordered = np.sort(values)
    below, above = ideal_ranks(values.size, level)
    positions = np.arange(values.size, dtype=np.float64)
    return (
        float(np.mean([np.interp(rank, positions, ordered) for rank in below])),
        float(np.mean([np.interp(rank, positions, ordered) for rank in above])),
    )


@lru_cache(maxsize=256)
def ideal_ranks(count: int, level: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Fractional ranks (from 0) of the lower and the upper limit, for each of the middle order statistics."""
    middle = ((count + 1) // 2,) if count % 2 else (count // 2, count // 2 + 1)
    tail = (1 - level) / 2
    if count > NORMAL_BEYOND:
        reach = NormalDist().inv_cdf(1 - tail) * math.sqrt(count) / 2
        return tuple(rank - 1 - reach for rank in middle), tuple(rank - 1 + reach for rank in middle)
    spread = int(6 * math.sqrt(count)) + 2
    first, last = max(1, count // 2 - spread), min(count, count // 2 + spread)
    candidates = np.arange(first, last + 1)
    lower, upper = [], []
    for rank in middle:
        reached = np.array([at_least(rank, count, k / count) for k in candidates])
        # Midpoints of the steps, so that the interpolation is fair to both neighbours of a step.
        halfway = reached - np.diff(reached, prepend=0.0) / 2
        lower.append(float(np.interp(tail, halfway, candidates - 1)))
        upper.append(float(np.interp(1 - tail, halfway, candidates - 1)))
    return tuple(lower), tuple(upper)


def at_least(least: int, count: int, chance: float) -> float:
    """P(Binomial(count, chance) >= least)."""
    if chance >= 1:
        return 1.0
    k = np.arange(least, count + 1, dtype=np.float64)
    terms = log_choose(count)[least:] + k * math.log(chance) + (count - k) * math.log1p(-chance)
    return float(np.exp(terms).sum())


@lru_cache(maxsize=256)
def log_choose(count: int) -> Vector:
    """The logarithms of the binomial coefficients of `count` over 0..count."""
    factorials = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, count + 1, dtype=np.float64)))))
    result: Vector = factorials[-1] - factorials - factorials[::-1]
    return result


def resampled_limits(values: Vector, together: int, level: float = LEVEL) -> tuple[float, float]:
    """Percentile limits for the median, resampling circular runs of `together` neighbouring values."""
    medians = np.concatenate([np.median(values[chosen], axis=1) for chosen in resamples(values.size, together)])
    low, high = np.quantile(medians, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def resamples(count: int, together: int) -> Iterator[Indices]:
    """Indices [resamples, count], piece by piece of bounded size; fewer resamples the more values there are."""
    total = int(min(RESAMPLES, max(400, 2_000_000 // count)))
    piece = max(1, 2_000_000 // count)
    rng = np.random.default_rng(SEED)
    runs = -(-count // together)
    for begin in range(0, total, piece):
        starts = rng.integers(0, count, size=(min(piece, total - begin), runs, 1))
        chosen = (starts + np.arange(together)) % count
        yield chosen.reshape(len(chosen), -1)[:, :count]
