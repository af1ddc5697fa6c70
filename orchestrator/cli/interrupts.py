"""Ctrl-C: `KeyboardInterrupt` in the main thread, though never within an import or a finaliser, and not twice for one
hurried hand.

An import that is cut in two leaves modules that cannot be imported again, and then nothing deletes the machine; what is
raised in a finaliser is printed and lost. Both are finished first. The libraries loaded here take a second or more.
What Ctrl-C makes a command do (delete a machine, release a hold) is not cut short by a second one right after it."""

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
"""A Ctrl-C so soon after one that was answered is the same wish."""


def listen(seconds: Callable[[], float] = time.monotonic) -> None:
    """Lets Ctrl-C raise `KeyboardInterrupt`, from now on. To be called in the main thread."""
    signal.signal(signal.SIGINT, _Ear(seconds).hear)


def ignore(for_s: float, seconds: Callable[[], float] = time.monotonic) -> None:
    """Ctrl-C does nothing for so long. Then it raises `KeyboardInterrupt` again: no command is without an end."""
    signal.signal(signal.SIGINT, _Ear(seconds, seconds() + for_s).hear)


@contextmanager
def held_back() -> Iterator[None]:
    """Ctrl-C is answered at its end. Processes that are started within it never hear it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Ear:
    """Hears Ctrl-C, but not before `deaf_until`, in `seconds`."""

    def __init__(self, seconds: Callable[[], float], deaf_until: float = 0.0) -> None:
        self._seconds = seconds
        self._deaf_until = deaf_until

    def hear(self, _number: int, frame: FrameType | None) -> None:
        if self._seconds() < self._deaf_until:
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
        self._deaf_until = self._seconds() + HURRY_S
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
