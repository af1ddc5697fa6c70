"""Whether a file that is about to be loaded as code can be of nobody else's making.

A seal that lies beside a file shows that it is whole, not whose it is: whoever may write the one may write the other.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
REMEDY = "point $BENCH_KERNEL_CACHE at a folder that is yours"


def trusted() -> tuple[int, int]:
    """The users whose code may run here: root, and who we are."""
    return (0, os.geteuid())


def ours(path: Path) -> bool:
    """Whether a file and its folder belong to a trusted user, and nobody else may write them. False where either is
    not there."""
    return _closed(path.parent) and _closed(path)


def ready(folder: Path) -> bool:
    """Makes a folder that only its owner enters, or takes from others the right to write one that is our own; whether
    nobody else may write there now. Raises `OSError`."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = folder.stat()
    if found.st_mode & OTHERS_MAY_WRITE and found.st_uid == os.geteuid():
        folder.chmod(stat.S_IMODE(found.st_mode) & ~OTHERS_MAY_WRITE)
    return _closed(folder)


def close(path: Path) -> None:
    """Takes from others the right to write a file, whatever the umask is. Raises `OSError`."""
    path.chmod(stat.S_IMODE(path.stat().st_mode) & ~OTHERS_MAY_WRITE)


def sealed(file: Path, seal: Path) -> bool:
    """Whether a file is there, can be of nobody else's making, and is, byte for byte, what was kept with this seal."""
    if not (ours(file) and ours(seal)):
        return False
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest() == seal.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return False


def keep(fresh: Path, file: Path, seal: Path) -> None:
    """Moves a file that was made in a folder of its own to where it is kept, and its seal beside it, closed to others:
    whoever is interrupted here, or does the same, leaves no half a file behind. Raises `OSError`."""
    note = fresh.with_name(seal.name)
    note.write_text(hashlib.sha256(fresh.read_bytes()).hexdigest() + "\n", encoding="ascii")
    for made, final in ((fresh, file), (note, seal)):
        close(made)
        made.replace(final)


def _closed(path: Path) -> bool:
    try:
        found, named = path.stat(), path.lstat()
    except OSError:
        return False
    theirs = {found.st_uid, named.st_uid}.difference(trusted())  # of a link, who made it may turn it elsewhere
    return not theirs and not found.st_mode & OTHERS_MAY_WRITE
