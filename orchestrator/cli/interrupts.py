"""Ctrl-C: `KeyboardInterrupt` in the main thread, though never within an import or a finaliser.

An import that is cut in two leaves modules that cannot be imported again, and then nothing deletes the machine; what is
raised in a finaliser is printed and lost. Both are finished first. The libraries loaded here take a second or more."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any, Final, Never

IMPORTING: Final = "<frozen importlib._bootstrap>"


def listen() -> None:
    """Lets Ctrl-C raise `KeyboardInterrupt`. To be called in the main thread."""
    signal.signal(signal.SIGINT, _interrupt)


def ignore() -> None:
    """Ctrl-C does nothing from here on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _interrupt(_number: int, frame: FrameType | None) -> None:
    within = None
    while frame is not None:
        if frame.f_code.co_filename == IMPORTING or frame.f_code.co_name == "__del__":
            within = frame
        frame = frame.f_back
    if within is None or within.f_back is None:
        raise KeyboardInterrupt
    _raise_back_in(within.f_back)


def _raise_back_in(frame: FrameType) -> None:
    """Raises as soon as this frame, which waits for a call to return, goes on: as a debugger stops there."""
    before = sys.gettrace()
    if before is _trace_no_other:
        return  # it is the second Ctrl-C meanwhile

    def trace(frame: FrameType, _event: str, _argument: Any) -> Never:
        frame.f_trace, frame.f_trace_opcodes = None, False
        sys.settrace(before)
        raise KeyboardInterrupt

    frame.f_trace, frame.f_trace_opcodes = trace, True
    sys.settrace(_trace_no_other)


def _trace_no_other(_frame: FrameType, _event: str, _argument: Any) -> None:
    """A frame that begins meanwhile is not stopped in."""
