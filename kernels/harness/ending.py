"""Ends a process that has loaded PyTorch without taking its modules apart, which would cost most of a second."""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import threading
from typing import NoReturn

PDEATHSIG = 1


def end_with_parent() -> None:
    """Lets this process end when the one that started it ends. On other systems than Linux it does nothing."""
    try:
        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        pass


def leave(code: int) -> NoReturn:
    """Ends this process with an exit code. Before that it does what Python does before it takes modules apart: it waits
    for threads that are not daemons, calls the exit handlers, and flushes the output."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
