"""Runs that never happened: latencies of known truth, with what goes wrong on rented machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Latencies = NDArray[np.float64]


@dataclass(frozen=True)
class Trouble:
    """What disturbs a run. Shares are of measurements, sizes are relative."""

    noise: float = 0.01
    drift: float = 0.0
    """How much slower the machine is at the end of the run."""
    throttling: float = 0.0
    """How much slower it is while it is held back, which happens in episodes of 5 to 60 measurements."""
    outliers: float = 0.0
    """The share that takes up to five times as long."""


CALM = Trouble()
ROUGH = Trouble(noise=0.01, drift=0.10, throttling=0.20, outliers=0.03)


def runs(count: int, blocks: int, speeds: tuple[float, ...], trouble: Trouble, seed: int) -> Latencies:
    """Microseconds [count, implementation, blocks] of implementations whose true latency is 100 / speed, measured one
    after another in random order within each block, so that an episode may begin in the middle of one."""
    rng = np.random.default_rng(seed)
    many = len(speeds)
    steps = blocks * many
    pace = 1 + trouble.drift * np.linspace(0, 1, steps) * rng.uniform(-1, 1, size=(count, 1))
    for run in range(count if trouble.throttling else 0):
        for _ in range(rng.integers(0, 5)):
            begin, length = rng.integers(0, steps), rng.integers(5, 61)
            pace[run, begin : begin + length] *= 1 + trouble.throttling
    shaken = pace * np.exp(trouble.noise * rng.standard_normal((count, steps)))
    hit = rng.random((count, steps)) < trouble.outliers
    shaken *= np.where(hit, rng.uniform(1.2, 5.0, size=(count, steps)), 1.0)
    order = np.argsort(rng.random((count, blocks, many)), axis=2)
    place = np.argsort(order, axis=2)
    found: Any = np.take_along_axis(shaken.reshape(count, blocks, many), place, axis=2)
    return np.ascontiguousarray(np.swapaxes(found, 1, 2)) * (100.0 / np.asarray(speeds)[None, :, None])
