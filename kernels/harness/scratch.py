"""The folder for answers on their way to the judge. It is in memory where there is room, and removed with its owner.

Its owner holds a lock on it. A harness that is killed cannot remove its folder, which would keep gigabytes of memory on
a user's machine. So a folder that nobody holds is removed by the next harness, and also by the agent
(`startup/agent/harness.py` has the same rule in its own package).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from kernels.harness.view import closed_at

MEMORY: Final = Path("/dev/shm")
TEMPORARY: Final = (Path("/tmp"), Path("/var/tmp"))
ROOM_BYTES: Final = 8 << 30
PREFIX: Final = "bench-answers-"


class Scratch:
    """A new folder in `place` (by default where there is room), held until it is closed or this process has ended."""

    def __init__(self, place: Path | None = None, prefix: str = PREFIX) -> None:
        place = place or roomy_folder()
        remove_abandoned(place, prefix)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
            with contextlib.suppress(FileNotFoundError):  # somebody may have found it before it was held
                self.held = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
                fcntl.flock(self.held, fcntl.LOCK_EX)
                if self.path.exists():
                    return
                os.close(self.held)

    def folder_of(self, name: str, owners: tuple[int, int] | None = None) -> Path:
        """The folder for the answers of an implementation, made if need be. With `owners` it belongs to the first, a
        user, and the second, a group, may read what is there; else to this process's user."""
        folder = self.path / folder_name(name)
        if not folder.exists():
            folder.mkdir(mode=0o700)
            if owners is not None:
                self.path.chmod(0o711)
                os.chown(folder, *owners)
                folder.chmod(0o2750)  # files there get the group of the folder
        return folder

    def remove_folder(self, name: str) -> None:
        """Removes the folder for the answers of an implementation."""
        shutil.rmtree(self.path / folder_name(name), ignore_errors=True)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self.held)


def folder_name(name: str) -> str:
    """The name of what an implementation has of its own in a folder: its own name may hold anything."""
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def roomy_folder(*, for_all: bool = False) -> Path:
    """A folder in memory, or on disk where there is little memory; with `for_all` one that every user may enter."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage(MEMORY).free >= ROOM_BYTES and os.access(MEMORY, os.W_OK):
            return MEMORY
    return open_temporary_folder() if for_all else Path(tempfile.gettempdir())


def open_temporary_folder() -> Path:
    """A temporary folder that every user may enter. Raises `OSError`."""
    for place in (Path(tempfile.gettempdir()), *TEMPORARY):
        with contextlib.suppress(OSError):
            if closed_at(place) is None:
                return place
    raise OSError("no temporary folder that every user may enter")


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
