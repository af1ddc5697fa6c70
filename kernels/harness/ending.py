"""The ends of processes: with those that started them, with what they started, and quickly."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

PDEATHSIG = 1


def end_with_parent() -> None:
    """Lets this process end when the one that started it ends. On other systems than Linux it does nothing."""
    try:
        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        pass


def close_files_except(*kept: int) -> None:
    """Closes all files of this process but its standard streams and these."""
    last = 2
    for number in (*sorted(kept), min(os.sysconf("SC_OPEN_MAX"), 1 << 16)):
        os.closerange(last + 1, number)
        last = number


def list_descendants(root: int | None, parents: Mapping[int, int] | None = None) -> list[int]:
    """The ids of all processes below `root`, by their parents now or as they were read; empty where there is no
    /proc."""
    parents = read_parents() if parents is None else parents
    descendants: list[int] = []
    front = [root] if root is not None else []
    while front:
        above = front.pop()
        below = [pid for pid, parent in parents.items() if parent == above]
        descendants += below
        front += below
    return descendants


def read_parents() -> dict[int, int]:
    """The parent of each process, from /proc."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
    return parents


def end_with_descendants(pid: int | None) -> None:
    """Ends a process and everything that it started."""
    for one in (*list_descendants(pid), *([] if pid is None else [pid])):
        with contextlib.suppress(OSError):
            os.kill(one, signal.SIGKILL)


def describe_exit(code: int) -> str:
    """How a process with this exit code ended (negative: the signal), in words that go on with when."""
    if code == -signal.SIGKILL:
        return "was killed (SIGKILL), as the operating system does when memory runs out,"
    return f"crashed ({signal.Signals(-code).name})" if code < 0 else f"ended its process with exit code {code}"


def fork_process(perform: Callable[[], int]) -> int:
    """Calls a function in a fork of this process, whose exit code is what it returns. Returns the fork's id."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = perform()
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else 1
    except BaseException:
        traceback.print_exc()
    leave_process(code)
    return None


def wait_for_fork(pid: int) -> int:
    """Waits for a fork. Returns its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def leave_process(code: int) -> NoReturn:
    """Ends this process with an exit code, without taking apart PyTorch's modules, which takes most of a second. Before
    that it does what Python does before it takes modules apart: it waits for threads that are not daemons, calls the
    exit handlers, and flushes the output."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
