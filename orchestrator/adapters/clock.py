"""The local clock, and the clock that all clients share: the server's, read from the `Date` of its answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import Final

from orchestrator.core.errors import LocalError
from orchestrator.core.text import count
from orchestrator.ports import INTERRUPTION, Clock

NOTABLE: Final = timedelta(seconds=60)
"""If the local clock is off by more than this, the user is told."""
RESOLUTION: Final = timedelta(seconds=1)
"""Of the `Date` header (RFC 9110, section 5.6.7)."""
FLAG_READ_S: Final = 0.2
"""How often a wait reads whether Ctrl-C was pressed."""
YEARS: Final = range(2020, 2200)
"""In which a server can be: no clock is moved to the end of time."""


def steady_s() -> float:
    """Seconds by a clock that nobody sets; where the system has such a one, the time that it sleeps is counted."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


BEGUN: Final = (datetime.now(UTC), steady_s())
"""When this process began, by the clock on the wall and by the steady one."""


class SystemClock:
    """Implements `orchestrator.ports.Clock`. It is the clock on the wall as it was when the process began, and what has
    passed since: one that is set while a run is watched makes no run overdue and no machine older. That it was wrong
    to begin with is `ServerClock`'s affair."""

    def __init__(self, passed: Callable[[], float] = steady_s, begun: tuple[datetime, float] = BEGUN) -> None:
        self._passed = passed
        self._begun = begun

    def now(self) -> datetime:
        wall, then = self._begun
        return wall + timedelta(seconds=self._passed() - then)

    def sleep(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        INTERRUPTION.check()
        while (remaining_s := end_s - time.monotonic()) > 0:
            time.sleep(min(remaining_s, FLAG_READ_S))
            INTERRUPTION.check()


class Offset:
    """What to add to a local clock for a server's time, narrowed down by every answer that has a `Date`.

    An answer sent and received at local times s and r with date d was made when the server's time was in [d, d + 1 s),
    so the offset lies in [d - r, d + 1 s - s]. Answers are intersected; one that contradicts those before it (somebody
    has set the clock) replaces them.
    """

    def __init__(self) -> None:
        self._bounds: tuple[timedelta, timedelta] | None = None
        self._lock = Lock()

    @property
    def known(self) -> bool:
        return self._bounds is not None

    def learn(self, date: str, sent: datetime, received: datetime) -> None:
        """Uses the `date` of one answer; ignores one that is not a date."""
        try:
            at = parsedate_to_datetime(date)
        except ValueError:
            return
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        if at.year not in YEARS:
            return
        low, high = at - received, at + RESOLUTION - sent
        with self._lock:
            if self._bounds is not None:
                narrower = max(low, self._bounds[0]), min(high, self._bounds[1])
                low, high = narrower if narrower[0] <= narrower[1] else (low, high)
            self._bounds = (low, high)

    @property
    def value(self) -> timedelta:
        """The smallest correction that agrees with what the server said; none while it has said nothing."""
        if self._bounds is None:
            return timedelta(0)
        low, high = self._bounds
        return min(max(timedelta(0), low), high)


@dataclass
class ServerClock:
    """Implements `orchestrator.ports.Clock`: `local`, corrected by what `offset` says. Windows of money and ages of
    machines are judged by it, so that a client whose clock is wrong neither overspends nor deletes what is young.
    `say` is told once of a local clock that is off by more than a minute. Raises `LocalError` for a time that cannot
    be: what is written under it is found by nobody."""

    local: Clock
    offset: Callable[[], timedelta]
    say: Callable[[str], None] = lambda _: None
    _said: bool = False

    def now(self) -> datetime:
        offset = self.offset()
        if abs(offset) > NOTABLE and not self._said:
            self._said = True
            way = "behind" if offset > timedelta(0) else "ahead of"
            self.say(
                f"this machine's clock is {_span(abs(offset))} {way} the bucket's: the bucket's time is used "
                "(`timedatectl` shows what sets the clock here)"
            )
        now = self.local.now() + offset
        if now.year not in YEARS:
            raise LocalError(
                f"this machine's clock says {now:%Y-%m-%d}, and no server has told the time to compare it with",
                hint="sudo timedatectl set-ntp true",
            )
        return now

    def sleep(self, seconds: float) -> None:
        self.local.sleep(seconds)


def _span(time: timedelta) -> str:
    seconds = time.total_seconds()
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * 86400 else count(round(seconds / 86400), "day")
