"""faster, slower, same, or inconclusive: when a difference is worth a word.

A win needs three things at once: the interval of the ratio excludes 1, the signed-rank test agrees after correction
for every question asked of the run, and the ratio is farther from 1 than what the run shows for one implementation
against itself.
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
"""Ratios within 1 % of 1 are of no practical consequence; wider where the noise floor is."""
WIDEST_SAME = 0.03
"""What may differ by more than 3 % for all that is known is not the same, however noisy the machine was."""


class Verdict(StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    INCONCLUSIVE = "inconclusive"


class NoiseSource(StrEnum):
    CONTROL = "control"
    """The same implementation was measured under a second name in the same blocks."""
    HALVES = "halves"
    """There was no control: odd blocks of each implementation against even ones."""


@dataclass(frozen=True, slots=True)
class Noise:
    """How far from 1 the ratio of an implementation to itself may come: 0.01 is one per cent."""

    floor: float
    source: NoiseSource


@dataclass(frozen=True, slots=True)
class Paired:
    """Two implementations on one case, block by block. A ratio over 1 means that the subject is faster."""

    blocks: int
    ratio: Interval
    test: SignedRanks


def paired(subject_us: Vector, baseline_us: Vector) -> Paired:
    """`baseline_us` [blocks] over `subject_us` [blocks], latencies of the same blocks in order, all positive.
    Raises `ValueError` for no blocks."""
    logs = np.log(baseline_us) - np.log(subject_us)
    middle = median_interval(logs)
    ratio = Interval(math.exp(middle.low), math.exp(middle.mid), math.exp(middle.high))
    return Paired(logs.size, ratio, signed_ranks(logs))


def control_noise(once: Paired) -> Noise | None:
    """The floor that an A/A comparison sets: the far end of its interval. None when that is not known."""
    return Noise(distance(once.ratio), NoiseSource.CONTROL) if once.ratio.known else None


def halves_noise(latency_us: Vector) -> Noise | None:
    """The floor that neighbouring blocks [blocks] of one implementation set; None when there are too few."""
    count = latency_us.size // 2 * 2
    if count < 2:
        return None
    once = paired(latency_us[0:count:2], latency_us[1:count:2])
    return Noise(distance(once.ratio), NoiseSource.HALVES) if once.ratio.known else None


def distance(ratio: Interval) -> float:
    """How far the far end of an interval of ratios is from 1; a half and a double are equally far."""
    return math.exp(max(abs(math.log(ratio.low)), abs(math.log(ratio.high)))) - 1


def decide(ratio: Interval, p: float, noise: Noise | None, margin: float = MARGIN) -> Verdict:
    """The word for a ratio with its interval, its p-value (corrected), and the noise that it must exceed. Within
    `margin` of 1 (or the noise, up to `WIDEST_SAME`) it is the same. Without a noise floor or an interval nothing is
    decided."""
    if noise is None or not ratio.known:
        return Verdict.INCONCLUSIVE
    beyond = abs(math.log(ratio.mid)) > math.log1p(noise.floor)
    if ratio.excludes(1.0) and beyond and p < SIGNIFICANT:
        return Verdict.FASTER if ratio.mid > 1 else Verdict.SLOWER
    if distance(ratio) <= max(margin, min(noise.floor, WIDEST_SAME)):
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

    Each limit is as far from the mean as the cases' own limits are together (the root of the sum of squares, over the
    number of cases: Zou and Donner 2008) and their mean noise, which cases may have in common, besides.
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
