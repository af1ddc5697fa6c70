"""Whether an implementation is faster on inputs that it has seen before than on new ones: then the work was not timed.

A processor learns the branches that depend on the inputs: an honest `argmax` of 49,152 numbers that were seen before
was measured to take 0.92 of its time. Therefore on a CPU the inputs that were seen are compared with the same inputs
times 63/64, which have the same order: whoever keeps answers by their inputs has to compute them again, and almost no
branch changes.
"""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Callable
from functools import partial

import torch

from kernels.harness.hands import Hand
from kernels.harness.timers import Timed

REGIME = "burst"
REMEMBERED = 1.03
"""A call on inputs that were seen before may be at most this many times faster than one on others."""
REMEMBERED_PAIRS = (9, 25, 25)
"""So many pairs are compared; further ones only if those before accuse."""
REMEMBERED_OFTEN = 0.85
"""In such a share of the pairs the second call must be the faster one. Of equal calls 8 of 9 are in one series of 50,
22 of 25 in one of 10,000."""
LEARNED = 2.0
"""On a CPU, the limit for inputs without floating-point numbers, which cannot be scaled."""
SCALE = 1 - 2.0**-6


def remembering_fault(hand: Hand, device: torch.device) -> str:
    """Why an implementation is not trusted; empty where it is. Values are written before every call, so that all find
    the caches alike. A random number of samples comes between two that are compared, so that a machine that is busy at
    intervals accuses nobody. Raises `Lost` and `Answered`."""
    hand.ask("timer", regime=REGIME)
    ratio = speed_up(partial(time_seen, hand))
    if ratio and device.type == "cpu":
        can_scale = hand.ask("renew", seed=secrets.randbits(62), sets=1, scale=SCALE)["scaled"]
        is_learned = not speed_up(partial(time_scaled, hand)) if can_scale else ratio < LEARNED
        if is_learned:
            return ""
    return f"untrusted: {ratio:.2f} times as fast on inputs that it has seen before as on new ones" if ratio else ""


def speed_up(time_pair: Callable[[], tuple[float, float]]) -> float:
    """How many times as fast the second call of a pair is as the first, by medians; 0 if that may be chance."""
    ratio = 0.0
    for pairs in REMEMBERED_PAIRS:
        times = [time_pair() for _ in range(pairs)]
        ratio = statistics.median(a for a, _ in times) / max(statistics.median(b for _, b in times), 1e-9)
        if ratio < REMEMBERED or sum(b < a for a, b in times) < REMEMBERED_OFTEN * pairs:
            return 0.0
    return ratio


def time_seen(hand: Hand) -> tuple[float, float]:
    """The microseconds of a call on new inputs, and of one on the same inputs some calls later."""
    seed = secrets.randbits(62)
    times = [time_call(hand, seed) for _ in range(2 + secrets.randbelow(5))]
    return times[0], times[-1]


def time_scaled(hand: Hand) -> tuple[float, float]:
    """The microseconds of a call on the inputs of the calls before it times `SCALE`, and of one on those themselves. As
    much is computed to write either."""
    seed = secrets.randbits(62)
    seen = [time_call(hand, seed, 1.0) for _ in range(2 + secrets.randbelow(5))]
    return time_call(hand, seed, SCALE), seen[-1]


def time_call(hand: Hand, seed: int, scale: float | None = None) -> float:
    """The microseconds of a call on the inputs of a seed, multiplied by `scale` if it is given."""
    hand.ask("renew", seed=seed, sets=1, scale=scale)
    return Timed(**hand.ask("sample", regime=REGIME, first=0, keep=False)["timed"]).latency_us
