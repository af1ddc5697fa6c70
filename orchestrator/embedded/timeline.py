"""Time as an interface, so that an hour of cloud takes an hour, or no time at all.

Everything in the cloud that waits, lasts or costs asks a `Timeline`. `RealTimeline` follows the wall clock on one
thread of its own; `SimulatedTimeline` stands still until someone advances it, or waits on it.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Protocol

log = logging.getLogger(__name__)

EPOCH = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)


class Alarm:
    """A callback that is due at one moment, until it fires or is cancelled."""

    __slots__ = ("callback", "cancelled", "due")

    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """Idempotent; cancelling what has fired does nothing."""
        self.cancelled = True

    def fire(self) -> None:
        """Run the callback unless cancelled; its errors are logged, because nobody is there to catch them."""
        if self.cancelled:
            return
        try:
            self.callback()
        except Exception:
            log.exception("a callback on the timeline failed")


class Timeline(Protocol):
    """What time it is, and what happens when."""

    simulated: bool

    def now(self) -> datetime:
        """The present, aware, in UTC."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Alarm:
        """Arrange for `callback()` in `seconds`; callbacks run one at a time, in the order of their due times."""

    def wait_until(self, true: Callable[[], bool], timeout_s: float) -> bool:
        """Let time pass until `true()` or `timeout_s` is over; returns what `true()` says then."""

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""

    def close(self) -> None:
        """Forget what is due."""


class RealTimeline:
    """The wall clock."""

    simulated = False

    def __init__(self) -> None:
        self.wake = threading.Condition()
        self.alarms: list[tuple[float, int, Alarm]] = []
        self.order = count()
        self.closed = False
        self.thread = threading.Thread(target=self._run, name="timeline", daemon=True)
        self.thread.start()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Alarm:
        alarm = Alarm(time.monotonic() + max(seconds, 0.0), callback)
        with self.wake:
            heapq.heappush(self.alarms, (alarm.due, next(self.order), alarm))
            self.wake.notify()
        return alarm

    def wait_until(self, true: Callable[[], bool], timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        while not true():
            left = end - time.monotonic()
            if left <= 0 or self.closed:
                return true()
            time.sleep(min(left, 0.02))
        return True

    def sleep(self, seconds: float) -> None:
        self.wait_until(lambda: False, seconds)

    def close(self) -> None:
        with self.wake:
            self.closed = True
            self.alarms.clear()
            self.wake.notify()
        if threading.current_thread() is not self.thread:
            self.thread.join(timeout=5)

    def _run(self) -> None:
        while True:
            with self.wake:
                if self.closed:
                    return
                left = self.alarms[0][0] - time.monotonic() if self.alarms else None
                if left is None or left > 0:
                    self.wake.wait(left)
                    continue
                alarm = heapq.heappop(self.alarms)[2]
            alarm.fire()


class SimulatedTimeline:
    """A clock that moves only when told to, and then fires what is due in order, on the thread that moved it."""

    simulated = True

    def __init__(self, start: datetime = EPOCH) -> None:
        self.start = start
        self.elapsed = 0.0
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
