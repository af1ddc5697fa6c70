"""Ctrl-C raises `KeyboardInterrupt` at once; within `deferred()` it sets a flag, which waiting and stepping read
(`ports.INTERRUPTION`), so that paid work is never cut in the middle of an import, a lock or a request.

What Ctrl-C makes a command do (delete a machine, release a hold) is not interrupted by another one right after it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from orchestrator.ports import INTERRUPTION

HURRY_S: Final = 2.0
"""Another Ctrl-C within so many seconds after one does nothing."""


class Insisted(KeyboardInterrupt):
    """A second Ctrl-C, while the first one was only a flag yet."""


def listen(seconds: Callable[[], float] = time.monotonic, *, at_once: bool = False) -> None:
    """Lets Ctrl-C interrupt, from now on; `at_once` also within `deferred()`. To be called in the main thread."""
    signal.signal(signal.SIGINT, _Handler(seconds, at_once=at_once).handle)


def ignore(for_s: float, seconds: Callable[[], float] = time.monotonic) -> None:
    """Ctrl-C does nothing for `for_s` seconds. Then it interrupts again: every command can be left."""
    signal.signal(signal.SIGINT, _Handler(seconds, seconds() + for_s).handle)


@contextmanager
def deferred() -> Iterator[None]:
    """A Ctrl-C within it raises `KeyboardInterrupt` from the next wait or step of the main thread, at the latest at its
    end. Another one after `HURRY_S` raises `Insisted` at once: a library that hangs can be left."""
    before, INTERRUPTION.deferred = INTERRUPTION.deferred, True
    try:
        yield
        INTERRUPTION.check()
    finally:
        INTERRUPTION.deferred, INTERRUPTION.requested = before, False


@contextmanager
def limited(for_s: float) -> Iterator[None]:
    """Raises `KeyboardInterrupt` in a block of the main thread once it has taken this long, whatever it waits for."""

    def leave(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, leave)
    signal.setitimer(signal.ITIMER_REAL, for_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def held_back() -> Iterator[None]:
    """A Ctrl-C within it is answered at its end. Processes that are started within it never receive one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Handler:
    """Handles SIGINT, and ignores it before `ignore_until` on the clock `seconds`. It takes no lock: the interrupted
    thread may hold it."""

    def __init__(self, seconds: Callable[[], float], ignore_until: float = 0.0, *, at_once: bool = False) -> None:
        self._seconds = seconds
        self._ignore_until = ignore_until
        self._at_once = at_once

    def handle(self, _number: int, _frame: FrameType | None) -> None:
        if self._seconds() < self._ignore_until:
            return
        self._ignore_until = self._seconds() + HURRY_S
        insisted = INTERRUPTION.requested
        INTERRUPTION.requested = INTERRUPTION.deferred and not insisted and not self._at_once
        if not INTERRUPTION.requested:
            raise Insisted if insisted else KeyboardInterrupt
