"""Says what a step is at when it takes long, so that a person who waits knows which function runs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

FIRST_S = 5.0
TIMES = 3.0
"""A place is told after so many seconds, and again each time that so many times as many have passed."""


def say_nothing(place: str, seconds: float) -> None:
    """Tells nobody: no step has begun."""


@dataclass
class Progress:
    """How long the present step or case has taken, and whom that is told."""

    tell: Callable[[str, float], None] = say_nothing
    clock: Callable[[], float] = time.monotonic
    began: float = 0.0
    due_s: float = math.inf

    def begin(self, tell: Callable[[str, float], None]) -> None:
        """A step or a case begins; `tell` gets the place that it is at, and the seconds since now."""
        self.tell, self.began, self.due_s = tell, self.clock(), FIRST_S

    def wait_s(self) -> float:
        """The seconds until a place is to be told; 0 where it is due."""
        return max(0.0, self.began + self.due_s - self.clock())

    def note(self, place: str) -> None:
        """Tells the place if that is due."""
        seconds = self.clock() - self.began
        if seconds < self.due_s:
            return
        while self.due_s <= seconds:
            self.due_s *= TIMES
        self.tell(place, round(seconds, 1))


PROGRESS = Progress()
"""That of this process."""
