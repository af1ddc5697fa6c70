"""Removes what a harness that was killed has left in memory: folders with answers that nobody holds any more.

The same as `kernels/harness/scratch.py` does before it makes one: the agent shares no code with what it runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")
PREFIX: Final = "bench-answers-"


def places(env: Mapping[str, str]) -> tuple[Path, ...]:
    """The places where a harness with this environment may have made its folder."""
    return MEMORY, Path(env.get("TMPDIR") or "/tmp")


def remove_abandoned(folders: tuple[Path, ...]) -> None:
    """Removes this user's folders that no process holds a lock on."""
    for path in (path for folder in folders for path in folder.glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError):  # held, another user's, or gone by now
            found = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(found).st_uid == os.getuid():
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(found)
