"""Ctrl-C raises `KeyboardInterrupt` in the main thread, but never within an import or a finaliser, and not twice within
two seconds.

An interrupted import leaves modules that cannot be imported again, and then nothing deletes the machine. Python prints
and drops what is raised in a finaliser. Both are finished first; the libraries loaded here take a second or more. What
Ctrl-C makes a command do (delete a machine, release a hold) is not interrupted by another one right after it."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, Never

IMPORTING: Final = "<frozen importlib._bootstrap>"
HURRY_S: Final = 2.0
"""Another Ctrl-C within so many seconds after one that was answered does nothing."""


def listen(seconds: Callable[[], float] = time.monotonic) -> None:
    """Lets Ctrl-C raise `KeyboardInterrupt`, from now on. To be called in the main thread."""
    signal.signal(signal.SIGINT, _Handler(seconds).handle)


def ignore(for_s: float, seconds: Callable[[], float] = time.monotonic) -> None:
    """Ctrl-C does nothing for `for_s` seconds. Then it raises `KeyboardInterrupt` again: every command can be left."""
    signal.signal(signal.SIGINT, _Handler(seconds, seconds() + for_s).handle)


@contextmanager
def held_back() -> Iterator[None]:
    """A Ctrl-C within it is answered at its end. Processes that are started within it never receive one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Handler:
    """Handles SIGINT, and ignores it before `ignore_until` on the clock `seconds`."""

    def __init__(self, seconds: Callable[[], float], ignore_until: float = 0.0) -> None:
        self._seconds = seconds
        self._ignore_until = ignore_until

    def handle(self, _number: int, frame: FrameType | None) -> None:
        if self._seconds() < self._ignore_until:
            return
        within = None
        while frame is not None:
            if frame.f_code.co_filename == IMPORTING or frame.f_code.co_name == "__del__":
                within = frame
            frame = frame.f_back
        if within is None or within.f_back is None:
            self._answer()
        else:
            self._answer_in(within.f_back)

    def _answer(self) -> Never:
        self._ignore_until = self._seconds() + HURRY_S
        raise KeyboardInterrupt

    def _answer_in(self, frame: FrameType) -> None:
        """Raises as soon as this frame, which waits for a call to return, goes on: as a debugger stops there."""
        before = sys.gettrace()
        if before is _trace_no_other:
            return  # it is the second Ctrl-C meanwhile

        def trace(frame: FrameType, _event: str, _argument: Any) -> Never:
            frame.f_trace, frame.f_trace_opcodes = None, False
            sys.settrace(before)
            self._answer()

        frame.f_trace, frame.f_trace_opcodes = trace, True
        sys.settrace(_trace_no_other)


def _trace_no_other(_frame: FrameType, _event: str, _argument: Any) -> None:
    """A frame that begins meanwhile is not stopped in."""
