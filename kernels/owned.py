"""Whether a file that is about to be loaded as code can be of nobody else's making.

A seal that lies beside a file shows that it is whole, not whose it is: whoever may write the one may write the other.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
REMEDY = "point $BENCH_KERNEL_CACHE at a folder that is yours"


def trusted() -> tuple[int, int]:
    """The users whose code may run here: root, and who we are."""
    return (0, os.geteuid())


def ours(path: Path, users: Iterable[int] | None = None) -> bool:
    """Whether a file and its folder belong to one of `users`, and nobody else may write them. False where either is
    not there."""
    return all(_closed(one, users) for one in (path.parent, path))


def ready(folder: Path, users: Iterable[int] | None = None) -> bool:
    """Makes a folder that only its owner enters, or takes from others the right to write one that is our own; whether
    nobody else may write there now. Raises `OSError`."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.stat()
    if found.st_mode & OTHERS_MAY_WRITE and found.st_uid == os.geteuid():
        folder.chmod(stat.S_IMODE(found.st_mode) & ~OTHERS_MAY_WRITE)
    return _closed(folder, users)


def close(path: Path) -> None:
    """Takes from others the right to write a file, whatever the umask is. Raises `OSError`."""
    path.chmod(stat.S_IMODE(path.stat().st_mode) & ~OTHERS_MAY_WRITE)


def _closed(path: Path, users: Iterable[int] | None) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return found.st_uid in (trusted() if users is None else users) and not found.st_mode & OTHERS_MAY_WRITE
