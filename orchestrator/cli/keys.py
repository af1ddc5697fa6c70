"""Handles the keyboard while a live view is drawn, and leaves the terminal as it was however that ends."""

from __future__ import annotations

import os
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

ENDINGS: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals that end a program without another word."""
SHOW_CURSOR: Final = b"\x1b[?25h"


@contextmanager
def silent_keys() -> Iterator[None]:
    """Keeps the terminal from showing typed keys while a live view is drawn, and shows the cursor again where a signal
    ends the view. Ctrl-C works as always. No key is kept back if standard input is not a terminal."""
    before = _modes()

    def put_back() -> None:
        if before is not None:
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, before)
        if sys.stdout.isatty():
            os.write(sys.stdout.fileno(), SHOW_CURSOR)

    with _last(put_back):
        if before is None:
            yield
            return
        keyboard = sys.stdin.fileno()
        try:
            quiet = [*before[:3], before[3] & ~(termios.ECHO | termios.ICANON), *before[4:]]
            termios.tcsetattr(keyboard, termios.TCSADRAIN, quiet)
            yield
        finally:
            try:
                termios.tcflush(keyboard, termios.TCIFLUSH)  # what was typed at the picture is no command for the shell
            finally:
                termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _modes() -> list[Any] | None:
    try:
        return termios.tcgetattr(sys.stdin.fileno())
    except (OSError, ValueError, termios.error):
        return None


@contextmanager
def _last(act: Callable[[], None]) -> Iterator[None]:
    """Within it, a signal that ends the program has this done first. One that is ignored, or heard by somebody else,
    stays so."""

    def end(number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        try:
            act()
        finally:
            os.kill(os.getpid(), number)

    ours = [number for number in ENDINGS if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
