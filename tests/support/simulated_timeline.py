"""A timeline of the embedded cloud on which an hour takes no time."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count

from orchestrator.embedded.timeline import Alarm

EPOCH = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)


class SimulatedTimeline:
    """A clock that moves only when told to, and then fires what is due in order, on the thread that moved it."""

    simulated = True

    def __init__(self, start: datetime = EPOCH) -> None:
        self.start = start
        self.elapsed = 0.0
        self.closed = False
        self.alarms: list[tuple[float, int, Alarm]] = []
        self.order = count()
        self.lock = threading.Lock()
        self.moving = threading.RLock()

    def now(self) -> datetime:
        return self.start + timedelta(seconds=self.elapsed)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Alarm:
        with self.lock:
            alarm = Alarm(self.elapsed + max(seconds, 0.0), callback)
            heapq.heappush(self.alarms, (alarm.due, next(self.order), alarm))
        return alarm

    def advance(self, seconds: float) -> None:
        """Move `seconds` on, firing all that falls due on the way, each at its own moment."""
        with self.moving:
            end = self.elapsed + seconds
            while self._step(end):
                pass
            self.elapsed = max(self.elapsed, end)

    def wait_until(self, true: Callable[[], bool], timeout_s: float) -> bool:
        # Whoever waits lets time pass. A waiter that is itself called from a callback must not wait for the thread that
        # runs the callback, so it gets today's answer.
        if true() or not self.moving.acquire(blocking=False):
            return true()
        try:
            end = self.elapsed + timeout_s
            while not true():
                if not self._step(end):
                    self.elapsed = max(self.elapsed, end)
                    return true()
            return True
        finally:
            self.moving.release()

    def sleep(self, seconds: float) -> None:
        self.wait_until(lambda: False, seconds)

    def close(self) -> None:
        with self.lock:
            self.closed = True
            self.alarms.clear()

    def _step(self, end: float) -> bool:
        """Fire the next alarm due by `end`; whether there was one."""
        with self.lock:
            if not self.alarms or self.alarms[0][0] > end:
                return False
            due, _, alarm = heapq.heappop(self.alarms)
            self.elapsed = max(self.elapsed, due)
        alarm.fire()
        return True
