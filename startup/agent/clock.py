"""Time on a VM whose own clock may be wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone


def since_boot() -> float:
    """Seconds since the machine booted, including the time that it slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class AgentClock:
    """The time, corrected by an offset once one is known, and the monotonic clock. The wall clock is read only once: if
    somebody corrected it later, the time would be corrected twice."""

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = since_boot) -> None:
        self.offset = timedelta(0)
        self.steady = steady
        self.began_s = steady()
        self.began = datetime.fromtimestamp(wall(), timezone.utc)  # noqa: UP017  (datetime.UTC needs Python 3.11)

    def now(self) -> datetime:
        """The corrected time, UTC."""
        return self.began + timedelta(seconds=self.steady() - self.began_s) + self.offset

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never goes back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Patience:
    """How long a caller goes on trying: until a time is up, or until an event interrupts it."""

    def __init__(self, clock: AgentClock, seconds: float, interrupt: threading.Event | None = None) -> None:
        self.clock = clock
        self.until = clock.monotonic() + seconds
        self.interrupt = interrupt

    def left(self) -> float:
        """Seconds left; 0 when the time is up or the wait was interrupted."""
        if self.interrupt is not None and self.interrupt.is_set():
            return 0.0
        return max(0.0, self.until - self.clock.monotonic())

    def pause(self, seconds: float) -> bool:
        """Waits, and returns whether any time is left afterwards."""
        wait = min(seconds, self.left())
        if self.interrupt is not None:
            self.interrupt.wait(wait)
        else:
            self.clock.sleep(wait)
        return self.left() > 0


def iso_time(moment: datetime) -> str:
    """`2026-11-21T04:05:06.000001Z`."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def name_stamp(moment: datetime) -> str:
    """`20261121T040506.000001Z`: fixed width, so that names sort by time."""
    return moment.strftime("%Y%m%dT%H%M%S.%fZ")
