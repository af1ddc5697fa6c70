"""Limits and p-values for a ratio that varies by more than its own interval shows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

from orchestrator.analysis.bootstrap import LEVEL, Interval, student_quantile
from orchestrator.analysis.ranks import two_sided

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
