"""Intervals for medians by bootstrap over interleaving blocks.

A block holds one measurement of every implementation, so a drift between blocks affects all of them alike. That is why
blocks are resampled. The result is not random: it is the limit of infinitely many resamples. Where the values of
neighbouring blocks are alike, a first-order sieve (Bühlmann 1997) is fitted to their normal scores, and the limits move
out by as much as its median varies more than that of independent values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from orchestrator.analysis.ranks import distinct_order, two_sided

Vector = NDArray[np.float64]

LEVEL = 0.95
NORMAL_BEYOND = 2000
"""From this many values on, a normal distribution replaces the binomial. That moves the limits by less than a tenth of
a rank."""
ALIKE_BEYOND = 1.28
"""Neighbours are alike if their correlation is this many standard errors above 0. By chance alone that happens once in
ten."""
MOST_ALIKE = 0.97
LEAST_BLOCKS = 6
"""With fewer blocks no interval of level 0.95 exists for a median: 2 * 0.5**5 is more than 0.05."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its limits, in the unit of the values. `low` and `high` are NaN where there are too few
    values."""

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

    The same values always give the same limits. Raises `ValueError` for no values at all.
    """
    if values.size == 0:
        raise ValueError("there is no median of nothing")
    mid = median(values)
    if values.size < LEAST_BLOCKS:
        return Interval(math.nan, mid, math.nan)
    low, high = ideal_limits(values, level, interval_widening(autocorrelation(values), values.size, level))
    return Interval(min(low, mid), mid, max(high, mid))


def median(values: Vector) -> float:
    """The median of one value or more; of a dozen numbers in a tenth of numpy's time."""
    ordered = np.sort(values)
    half = values.size // 2
    if math.isnan(ordered[-1]):
        return math.nan
    middle = ordered[half] if values.size % 2 else (ordered[half - 1] + ordered[half]) / 2
    return float(middle) + 0.0  # and no negative zero


def autocorrelation(values: Vector) -> float:
    """How alike neighbouring blocks are: the lag-1 autocorrelation of the normal scores of `values` [blocks], corrected
    for its bias (Kendall 1954). Outliers hardly change it. It is 0 unless it is beyond chance."""
    count = values.size
    scores = normal_scores(values)
    power = float(scores @ scores)
    if power < 1e-9:  # all values are the same
        return 0.0
    correlation = float(scores[:-1] @ scores[1:]) / power
    correlation += (1 + 3 * max(correlation, 0.0)) / count
    return min(correlation, MOST_ALIKE) if correlation > ALIKE_BEYOND / math.sqrt(count) else 0.0


def normal_scores(values: Vector) -> Vector:
    """The normal quantile of the rank of each value; tied values get the mean of their quantiles."""
    summed = summed_quantiles(values.size)
    order = distinct_order(values)
    if order is not None:
        scores = np.empty(values.size)
        scores[order] = summed[1:] - summed[:-1]
        return scores
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means: Vector = (summed[ends] - summed[ends - counts]) / counts
    return means[inverse]


@lru_cache(maxsize=64)
def summed_quantiles(count: int) -> Vector:
    """The sums of the first 0, 1, ... of the normal quantiles."""
    return np.concatenate(([0.0], np.cumsum(normal_quantiles(count))))


@lru_cache(maxsize=64)
def normal_quantiles(count: int) -> Vector:
    """The normal quantiles of (i + 1/2) / count."""
    quantile = NormalDist().inv_cdf
    return np.array([quantile((i + 0.5) / count) for i in range(count)])


def interval_widening(alike: float, count: int, level: float = LEVEL) -> float:
    """The factor by which the limits of the median of `count` values are farther from the middle than those of
    independent values, if values correlate at lag k by alike**k.

    Half of the values lie below the median. Whether a value lies below it correlates at lag k by 2/pi asin(alike**k)
    (Sheppard 1899); the sum of these correlations gives the factor of the variance. The factor is an estimate, so
    Student's quantile replaces the normal one. Its degrees of freedom follow from the number of independent values that
    would have the same variance.
    """
    if alike <= 0:
        return 1.0
    lags = alike ** np.arange(1, count)
    variance = 1 + 4 / math.pi * float(np.arcsin(lags).sum())
    free = max(count * (1 - alike) / (1 + alike) - 1, 2.0)
    normal = NormalDist().inv_cdf((1 + level) / 2)
    return math.sqrt(variance) * student_quantile(normal, free) / normal


def student_quantile(z: float, free: float) -> float:
    """The quantile of Student's distribution with `free` degrees of freedom at the level at which the normal quantile
    is `z` (Abramowitz and Stegun 1964, 26.7.5)."""
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    fourth = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    return z + first / free + second / free**2 + third / free**3 + fourth / free**4


def ideal_limits(values: Vector, level: float = LEVEL, wider: float = 1.0) -> tuple[float, float]:
    """Percentile limits for the median in the limit of infinitely many resamples. They are `wider` times as far from
    the middle as those of independent values, but never beyond the least and the greatest value.

    The h-th smallest value of a resample is at most x_(k) with probability P(Binomial(n, k/n) >= h) (Efron 1979). So
    the limits are order statistics, interpolated between the two nearest. For even n each limit is the mean of the
    limits for the two middle values.
    """
    positions = np.arange(values.size, dtype=np.float64)
    middle = (values.size - 1) / 2
    lower, upper = ideal_ranks(values.size, level)
    wanted = [middle + wider * (rank - middle) for rank in (*lower, *upper)]
    limits = np.interp(wanted, positions, np.sort(values)).tolist()
    return sum(limits[: len(lower)]) / len(lower), sum(limits[len(lower) :]) / len(upper)


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
        # The midpoints of the steps, so that the interpolation treats both neighbours of a step alike.
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


LIMIT: Final = NormalDist().inv_cdf((1 + LEVEL) / 2)
STEPS: Final = 60


@dataclass(frozen=True, slots=True)
class Spread:
    """The standard deviation of the logarithm of a ratio of two measurements of the same code, beyond what their own
    intervals show, from `free` observations."""

    size: float
    free: float

    def widened(self, ratio: Interval) -> Interval:
        """`ratio` with limits that hold for this spread besides what its own interval shows."""
        if not self.size or not ratio.known:
            return ratio
        reach = student_quantile(LIMIT, self.free) * self.size
        mid, low, high = math.log(ratio.mid), math.log(ratio.mid / ratio.low), math.log(ratio.high / ratio.mid)
        return Interval(math.exp(mid - math.hypot(low, reach)), ratio.mid, math.exp(mid + math.hypot(high, reach)))

    def chance(self, ratio: Interval) -> float:
        """A two-sided p-value for `ratio` (not widened) being 1; 1 where it has no interval."""
        if not ratio.known:
            return 1.0
        log_ratio = abs(math.log(ratio.mid / (ratio.low if ratio.mid > 1 else ratio.high))) / LIMIT
        deviation = math.hypot(log_ratio, self.size)
        if deviation == 0:
            return 0.0 if ratio.mid != 1 else 1.0
        # Welch and Satterthwaite: the better known variance adds to the degrees of freedom of the other.
        free = self.free * (deviation / self.size) ** 4 if self.size else math.inf
        return two_sided(normal_quantile(abs(math.log(ratio.mid)) / deviation, free))


NONE: Final = Spread(0.0, math.inf)


def normal_quantile(t: float, free: float) -> float:
    """The normal quantile with the same tail probability as Student's `t` with `free` degrees of freedom: the inverse
    of `students`. Newton's method starts above the root, where the function is convex, so no step passes the root."""
    quantile = t
    for _ in range(STEPS if math.isfinite(free) else 0):
        step = (student_quantile(quantile, free) - t) / quantile_slope(quantile, free)
        quantile -= step
        if step <= quantile * 1e-14:
            break
    return quantile


def quantile_slope(z: float, free: float) -> float:
    """How fast `students` rises at `z`."""
    first = (3 * z**2 + 1) / 4
    second = (25 * z**4 + 48 * z**2 + 3) / 96
    third = (21 * z**6 + 95 * z**4 + 51 * z**2 - 15) / 384
    fourth = (711 * z**8 + 5432 * z**6 + 7410 * z**4 - 5760 * z**2 - 945) / 92160
    return 1 + first / free + second / free**2 + third / free**3 + fourth / free**4
