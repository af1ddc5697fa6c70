"""Wilcoxon's signed-rank test, which assumes no distribution, and Holm's correction for several tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
EXACT_UP_TO = 100


@dataclass(frozen=True, slots=True)
class SignedRanks:
    """The result of a test. `p` is two-sided. `effect` is the matched-pairs rank-biserial correlation, -1 to 1 (Kerby
    2014): the share of the rank sum above zero minus the share below."""

    p: float
    effect: float

    @property
    def negated(self) -> SignedRanks:
        """The result for the differences with the other sign."""
        return SignedRanks(self.p, -self.effect)


def signed_ranks(differences: Vector) -> SignedRanks:
    """Wilcoxon's signed-rank test that `differences` are symmetric about 0. Zeros are left out (Wilcoxon 1945).

    It is exact for up to 100 differences without ties. Otherwise it uses the normal approximation, corrected for ties
    and continuity.
    """
    kept = differences[differences != 0]
    count = kept.size
    if count == 0:
        return SignedRanks(1.0, 0.0)
    ranks, ties = mid_ranks(np.abs(kept))
    above = float(ranks[kept > 0].sum())
    total = count * (count + 1) / 2
    effect = (2 * above - total) / total
    less = min(above, total - above)
    if count <= EXACT_UP_TO and not ties:
        return SignedRanks(min(1.0, 2 * float(cumulative_ranks(count)[round(less)])), effect)
    variance = count * (count + 1) * (2 * count + 1) / 24 - ties / 48
    z = max(0.0, total / 2 - less - 0.5) / math.sqrt(variance)
    return SignedRanks(two_sided(z), effect)


def two_sided(z: float) -> float:
    """The chance that a standard normal value lies at least `z` from 0, on either side."""
    return math.erfc(z / math.sqrt(2))


def mid_ranks(values: Vector) -> tuple[Vector, float]:
    """The ranks from 1, where tied values get their mean rank, and the sum of t**3 - t over groups of t tied values."""
    order = distinct_order(values)
    if order is not None:
        ranks = np.empty(values.size)
        ranks[order] = np.arange(1, values.size + 1)
        return ranks, 0.0
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    shared = ends - (counts - 1) / 2
    ties = float((counts.astype(np.float64) ** 3 - counts).sum())
    return shared[inverse], ties


def distinct_order(values: Vector) -> NDArray[np.intp] | None:
    """The places of `values` from the least to the greatest; None where two are the same, or one is NaN."""
    order = values.argsort()
    ordered = values[order]
    return order if (ordered[1:] > ordered[:-1]).all() else None


@lru_cache(maxsize=128)
def cumulative_ranks(count: int) -> Vector:
    """P(W <= w) for w = 0, 1, ..., where W is the sum of the ranks 1..count, each taken with probability one half."""
    ways = np.zeros(count * (count + 1) // 2 + 1)
    ways[0] = 1.0
    for rank in range(1, count + 1):
        shifted = np.zeros_like(ways)
        shifted[rank:] = ways[:-rank]
        ways = (ways + shifted) / 2
    result: Vector = np.cumsum(ways)
    return result


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """The p-values adjusted so that the chance of any false rejection among all stays below the level (Holm 1979)."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = largest
    return tuple(adjusted)
