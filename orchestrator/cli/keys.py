"""Handles the keyboard while a live view is drawn."""

from __future__ import annotations

import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silent_keys() -> Iterator[None]:
    """Keeps the terminal from showing typed keys while a live view is drawn. Ctrl-C works as always. Does nothing if
    standard input is not a terminal."""
    try:
        keyboard = sys.stdin.fileno()
        before = termios.tcgetattr(keyboard)
    except (OSError, ValueError, termios.error):
        yield
        return
    quiet = [*before[:3], before[3] & ~(termios.ECHO | termios.ICANON), *before[4:]]
    termios.tcsetattr(keyboard, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcflush(keyboard, termios.TCIFLUSH)  # what was typed at the picture is no command for the shell
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
