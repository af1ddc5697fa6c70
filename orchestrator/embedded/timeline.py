"""Time as an interface, so that an hour in the cloud takes an hour, or no time in a test.

Everything in the cloud that waits, lasts or costs uses a `Timeline`. `RealTimeline` follows the wall clock on its own
thread. The timeline of the tests stands still until a test advances it or waits on it.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from typing import Protocol

log = logging.getLogger(__name__)


class Alarm:
    """A callback that is due at one time, in seconds on the timeline's clock, until it is called or cancelled."""

    __slots__ = ("callback", "cancelled", "due")

    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """Cancels the callback. It has no effect after the callback was called."""
        self.cancelled = True

    def fire(self) -> None:
        """Calls the callback unless it was cancelled. Its errors are logged, because no caller can catch them."""
        if self.cancelled:
            return
        try:
            self.callback()
        except Exception:
            log.exception("a callback on the timeline failed")


class Timeline(Protocol):
    """A clock, and a schedule of callbacks."""

    simulated: bool
    closed: bool

    def now(self) -> datetime:
        """The present time in UTC, with its zone."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Alarm:
        """Schedules `callback()` in `seconds`. Callbacks run one at a time, in the order of their due times."""

    def wait_until(self, true: Callable[[], bool], timeout_s: float) -> bool:
        """Waits until `true()` or until `timeout_s` is over. Returns the value of `true()` then."""

    def sleep(self, seconds: float) -> None:
        """Waits for `seconds`."""

    def close(self) -> None:
        """Drops all scheduled callbacks."""


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
            seconds_left = end - time.monotonic()
            if seconds_left <= 0 or self.closed:
                return true()
            time.sleep(min(seconds_left, 0.02))
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
                seconds_left = self.alarms[0][0] - time.monotonic() if self.alarms else None
                if seconds_left is None or seconds_left > 0:
                    self.wake.wait(seconds_left)
                    continue
                alarm = heapq.heappop(self.alarms)[2]
            alarm.fire()
