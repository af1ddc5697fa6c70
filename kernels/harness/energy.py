"""What a call costs in energy: the device's counter followed while it makes such calls and no others.

The counter moves in steps of some hundredths of a second, longer than any sample. So energy has stretches of its own,
after the last sample of a regime, and is taken from step to step: watts between the first step and the last that were
seen, times the seconds of a call. No counter is looked at while anything is timed.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LEAD_S = 0.1
"""Calls before the counter is followed: its power is what these calls take, and not what came before them."""
STRETCH_S = 0.6
LONGEST_S = 3.0
"""So long the counter is given to move often enough."""
LEAST_STEPS = 4
LOOK_EVERY_S = 0.001

Counter = Callable[[], "float | None"]
"""Joules since some moment in the past; None where they are not given."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What one call takes, in joules of the whole device, and for how many seconds the counter was followed."""

    joules_per_call: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Step:
    """A moment at which the counter was seen to have moved, in seconds, and where it stood then."""

    at: float
    joules: float


def drawn(
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
    """The energy of a call from the first step to the last; None where there are too few to tell. A counter that was
    set back (a driver loaded anew) tells nothing."""
    if len(steps) <= LEAST_STEPS or any(b.joules < a.joules for a, b in itertools.pairwise(steps)):
        return None
    seconds = steps[-1].at - steps[0].at
    return Drawn((steps[-1].joules - steps[0].joules) / seconds * seconds_per_call, seconds) if seconds > 0 else None


class Follower:
    """Looks at the counter every millisecond, beside whoever makes the calls, and keeps the moments when it moved."""

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
