"""The temporary files of a whole test session in memory, where the machine has room for them there.

A session writes, syncs and deletes a hundred thousand small files. On a disk each is waited for, an fsync for some
milliseconds.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from kernels.harness.scratch import MEMORY, Scratch

ROOM: Final = 6 << 30
"""Bytes that must be free there: many times what a session has there at a time."""


def install() -> Path | None:
    """A folder in memory, for this process's temporary files and its children's. Returns the folder to remove at the
    end; None where somebody has said where temporary files go, or memory has no room for them. A session that is killed
    removes nothing: the next one removes what nobody holds."""
    if "TMPDIR" in os.environ or not is_roomy(MEMORY):
        return None
    made = Scratch(MEMORY, "tests-").path
    os.environ["TMPDIR"], tempfile.tempdir = str(made), None
    return made


def is_roomy(folder: Path) -> bool:
    """Whether files have room in `folder`, and programs among them may be run."""
    try:
        about = os.statvfs(folder)
    except OSError:
        return False
    may_run = not about.f_flag & os.ST_NOEXEC
    return may_run and os.access(folder, os.W_OK | os.X_OK) and about.f_bavail * about.f_frsize >= ROOM
