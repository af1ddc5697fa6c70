"""The temporary files of a whole test session in memory, where the machine has room for them there.

A session writes, syncs and deletes a hundred thousand small files. On a disk each is waited for, an fsync for some
milliseconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")
PREFIX: Final = "tests-"
ROOM: Final = 6 << 30
"""Bytes that must be free there: many times what a session has there at a time."""


def install() -> Path | None:
    """A folder in memory, for this process's temporary files and its children's. Returns the folder to remove at the
    end; None where somebody has said where temporary files go, or memory has no room for them. A session that is killed
    removes nothing: the next one removes what nobody holds."""
    if "TMPDIR" in os.environ or not is_roomy(MEMORY):
        return None
    for left in MEMORY.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            os.close(held(left))
            shutil.rmtree(left, ignore_errors=True)
    made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=MEMORY))
    held(made)
    os.environ["TMPDIR"], tempfile.tempdir = str(made), None
    return made


def held(folder: Path) -> int:
    """A lock on the folder for as long as this process lives, or its handle is open. Raises `BlockingIOError`."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


def is_roomy(folder: Path) -> bool:
    """Whether files have room in `folder`, and programs among them may be run."""
    try:
        about = os.statvfs(folder)
    except OSError:
        return False
    may_run = not about.f_flag & os.ST_NOEXEC
    return may_run and os.access(folder, os.W_OK | os.X_OK) and about.f_bavail * about.f_frsize >= ROOM
