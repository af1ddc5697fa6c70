"""The energy of a call, from the device's counter while the device makes only such calls.

The counter moves in steps of some hundredths of a second, which are longer than a sample. So energy is measured in a
stretch of its own after the last sample of a regime: the power in watts between the first and the last step that were
seen, times the seconds of a call. The counter is not read while anything is timed.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LEAD_S = 0.1
"""For this many seconds calls are made before the counter is read, so that the power is that of these calls."""
STRETCH_S = 0.6
LONGEST_S = 3.0
"""The most seconds for which the counter is read until it has moved often enough."""
LEAST_STEPS = 4
LOOK_EVERY_S = 0.001

Counter = Callable[[], "float | None"]
"""Returns joules since some moment in the past; None where they are not known."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """The energy of one call in joules, of the whole device, and for how many seconds the counter was followed."""

    joules_per_call: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the counter: when it was seen, in seconds, and the value of the counter then, in joules."""

    at: float
    joules: float


def measure_energy(
    work: Callable[[], int], counter: Counter, clock: Callable[[], float] = time.monotonic, patience_s: float = 1e9
) -> Drawn | None:
    """The energy of a call, where `work` makes some calls and returns how many. None where the counter does not answer,
    does not move, or `patience_s` is too short for it; then nothing was called."""
    if counter() is None or patience_s < LEAD_S + STRETCH_S:
        return None
    began = clock()
    while clock() - began < LEAD_S:
        work()
    follower = Follower(counter, clock)
    calls, began = 0, clock()
    each: list[float] = []
    with follower:
        while clock() - began < STRETCH_S or (
            len(follower.steps) <= LEAST_STEPS and clock() - began < min(LONGEST_S, patience_s)
        ):
            before = clock()
            made = work()
            each.append((clock() - before) / made)
            calls += made
    return between_steps(follower.steps, statistics.fmean(each)) if calls else None


def between_steps(steps: Sequence[Step], seconds_per_call: float) -> Drawn | None:
    """The energy of a call, from the first step to the last. None where there are too few steps, or where the counter
    was set back because the driver was loaded again."""
    if len(steps) <= LEAST_STEPS or any(b.joules < a.joules for a, b in itertools.pairwise(steps)):
        return None
    seconds = steps[-1].at - steps[0].at
    return Drawn((steps[-1].joules - steps[0].joules) / seconds * seconds_per_call, seconds) if seconds > 0 else None


class Follower:
    """A thread that reads the counter every millisecond while calls are made, and keeps the steps."""

    def __init__(self, counter: Counter, clock: Callable[[], float]) -> None:
        self.counter, self.clock = counter, clock
        self.steps: list[Step] = []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.follow, daemon=True)

    def __enter__(self) -> Follower:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    def follow(self) -> None:
        last = self.counter()
        while not self.over.wait(LOOK_EVERY_S):
            now = self.counter()
            if now is not None and now != last:
                self.steps.append(Step(self.clock(), now))
                last = now
