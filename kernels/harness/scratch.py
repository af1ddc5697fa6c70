"""The folder for answers on their way to the judge. It is in memory where there is room, and removed with its owner.

Its owner holds a lock on it. A harness that is killed cannot remove its folder, which would keep gigabytes of memory on
a user's machine. So a folder that nobody holds is removed by the next harness, and also by the agent
(`startup/agent/harness.py` has the same rule in its own package).
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
ROOM_BYTES: Final = 8 << 30
PREFIX: Final = "bench-answers-"


class Scratch:
    """A new folder in `place` (by default where there is room), held until it is closed or this process has ended."""

    def __init__(self, place: Path | None = None, prefix: str = PREFIX) -> None:
        place = place or roomy_folder()
        remove_abandoned(place, prefix)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
            self.held = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self.held, fcntl.LOCK_EX)
            if self.path.exists():  # else somebody found it before it was held
                return
            os.close(self.held)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.held)


def roomy_folder() -> Path:
    """A folder in memory, or on disk where there is little memory."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage(MEMORY).free >= ROOM_BYTES and os.access(MEMORY, os.W_OK):
            return MEMORY
    return Path(tempfile.gettempdir())


def remove_abandoned(place: Path, prefix: str = PREFIX) -> None:
    """Removes this user's folders in `place` that nobody holds any more."""
    for path in place.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # held, another user's, or gone by now
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_uid == os.getuid():
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
