"""The verdict on a ratio: faster, slower, same, or inconclusive.

Same is what lies within 1 % of 1 with its whole interval, even where the interval excludes 1. Faster or slower needs
three things at once: the interval of the ratio excludes 1, the signed-rank test agrees after correction for all
comparisons of the case, and the ratio is farther from 1 than what the run shows for one implementation against itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from orchestrator.analysis.bootstrap import Interval, median_interval
from orchestrator.analysis.ranks import SignedRanks, signed_ranks

Vector = NDArray[np.float64]

SIGNIFICANT = 0.05
MARGIN = 0.01
"""Ratios within 1 % of 1 do not matter in practice, and equal code differs by some tenths of a per cent from one place
in memory to another. Where the noise floor is wider, it replaces this margin."""
WIDEST_SAME = 0.03
"""However noisy the machine was, the verdict is not `same` where the two may differ by more than 3 %."""


class Verdict(StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"


class NoiseSource(StrEnum):
    CONTROL = "control"
    """The same implementation was measured under a second name in the same blocks."""
    HALVES = "halves"
    """There was no control: odd blocks of each implementation are compared with even ones."""


@dataclass(frozen=True, slots=True)
class Noise:
    """How far from 1 the ratio of an implementation to itself may come: 0.01 is one per cent."""

    floor: float
    source: NoiseSource


@dataclass(frozen=True, slots=True)
class Paired:
    """Two implementations on one case, compared block by block. A ratio over 1 means that the subject is faster."""

    blocks: int
    ratio: Interval
    test: SignedRanks


def compare_pairs(subject_us: Vector, baseline_us: Vector) -> Paired:
    """Compares `baseline_us` [blocks] with `subject_us` [blocks]: positive latencies of the same blocks, in order. The
    ratio is baseline over subject. Raises `ValueError` for no blocks."""
    logs = np.log(baseline_us) - np.log(subject_us)
    middle = median_interval(logs)
    ratio = Interval(math.exp(middle.low), math.exp(middle.mid), math.exp(middle.high))
    return Paired(logs.size, ratio, signed_ranks(logs))


def control_noise(once: Paired) -> Noise | None:
    """The noise floor that a comparison of an implementation with itself shows: the limit of its interval that is
    farther from 1. None when that is not known."""
    return Noise(distance_from_one(once.ratio), NoiseSource.CONTROL) if once.ratio.known else None


def halves_noise(latency_us: Vector) -> Noise | None:
    """The noise floor from the latencies [blocks] of one implementation, odd blocks against even ones; None when there
    are too few."""
    count = latency_us.size // 2 * 2
    if count < 2:
        return None
    once = compare_pairs(latency_us[0:count:2], latency_us[1:count:2])
    return Noise(distance_from_one(once.ratio), NoiseSource.HALVES) if once.ratio.known else None


def distance_from_one(ratio: Interval) -> float:
    """The distance from 1 of the farther limit of an interval of ratios; one half is as far from 1 as 2."""
    return math.exp(max(abs(math.log(ratio.low)), abs(math.log(ratio.high)))) - 1


def decide_verdict(ratio: Interval, p: float, noise: Noise | None, margin: float = MARGIN) -> Verdict:
    """The verdict on a ratio with its interval, its corrected p-value, and the noise floor that it must exceed. A ratio
    whose interval lies within `margin` of 1 is the same, however certain a smaller difference is; so is one within the
    noise floor, up to `WIDEST_SAME`. Without a noise floor or an interval the verdict is inconclusive."""
    if noise is None or not ratio.known:
        return Verdict.INCONCLUSIVE
    if distance_from_one(ratio) <= margin:
        return Verdict.SAME
    beyond = abs(math.log(ratio.mid)) > math.log1p(noise.floor)
    if ratio.excludes(1.0) and beyond and p < SIGNIFICANT:
        return Verdict.FASTER if ratio.mid > 1 else Verdict.SLOWER
    if distance_from_one(ratio) <= min(noise.floor, WIDEST_SAME):
        return Verdict.SAME
    return Verdict.INCONCLUSIVE


@dataclass(frozen=True, slots=True)
class Mean:
    """The geometric mean of the ratios of several cases, and for how many of them there is a verdict."""

    ratio: Interval
    cases: int
    decided: int


def mean_of(ratios: Sequence[tuple[Interval, Noise | None, Verdict]]) -> Mean | None:
    """The mean of several cases, which are independent, with its interval; None where one of them has no interval.

    The distance of each limit from the mean has two parts. One combines the cases' own limits: the root of the sum of
    squares, divided by the number of cases (Zou and Donner 2008). The other is the mean noise, which the cases may have
    in common.
    """
    if not ratios or not all(one.known and noise is not None for one, noise, _ in ratios):
        return None
    count = len(ratios)
    mids = [math.log(one.mid) for one, _, _ in ratios]
    mid = sum(mids) / count
    shared = sum(math.log1p(noise.floor) for _, noise, _ in ratios if noise is not None) / count
    low = math.hypot(*(at - math.log(one.low) for at, (one, _, _) in zip(mids, ratios, strict=True))) / count
    high = math.hypot(*(math.log(one.high) - at for at, (one, _, _) in zip(mids, ratios, strict=True))) / count
    limits = Interval(math.exp(mid - math.hypot(low, shared)), math.exp(mid), math.exp(mid + math.hypot(high, shared)))
    return Mean(limits, count, sum(1 for *_, verdict in ratios if verdict is not Verdict.INCONCLUSIVE))
