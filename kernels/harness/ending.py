"""The end of a process that has PyTorch: Python would take each of its modules apart, most of a second of a machine."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End this process with an exit code, after all that Python does before it takes modules apart: threads that are
    to be waited for end, what is registered for the end is called, and what was said is written."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
