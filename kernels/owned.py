"""Whether a file that is about to be loaded as code can only have been made by a trusted user.

A seal beside a file shows that the file is complete, but not who made it: a user who can write one can write the other.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
BUILD = ".bench-build-"
ABANDONED_S = 86_400.0
"""Seconds after which a build's folder is taken for one that was killed: far more than a compiler may take."""
REMEDY = "point $BENCH_KERNEL_CACHE at a folder that is yours"


def trusted_ids() -> tuple[int, int]:
    """The ids of the users whose code may run here: root and the current user."""
    return (0, os.geteuid())


def is_ours(path: Path) -> bool:
    """Whether a file and its folder belong to a trusted user and nobody else may write them. False where one of them
    does not exist."""
    return _closed(path.parent) and _closed(path)


def make_private_folder(folder: Path) -> bool:
    """Makes a folder that only its owner may enter, or removes the right of others to write a folder of ours. Returns
    whether nobody else may write there now. Raises `OSError`."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if status.st_mode & OTHERS_MAY_WRITE and status.st_uid == os.geteuid():
        folder.chmod(stat.S_IMODE(status.st_mode) & ~OTHERS_MAY_WRITE)
    return _closed(folder)


@contextlib.contextmanager
def open_build_folder(folder: Path) -> Iterator[Path]:
    """A new folder in `folder` for what a compiler writes, removed at the end. What a killed build has left there for a
    day is removed too. Raises `OSError`."""
    for path in folder.glob(f"{BUILD}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > ABANDONED_S:
                shutil.rmtree(path)
    with tempfile.TemporaryDirectory(prefix=BUILD, dir=folder) as scratch:
        yield Path(scratch)


def remove_others_rights(path: Path) -> None:
    """Removes the right of others to write a file, whatever the umask is. Raises `OSError`."""
    path.chmod(stat.S_IMODE(path.stat().st_mode) & ~OTHERS_MAY_WRITE)


def is_sealed(file: Path, seal: Path) -> bool:
    """Whether a file exists, can only have been made by a trusted user, and has the same bytes as when it was
    sealed."""
    if not (is_ours(file) and is_ours(seal)):
        return False
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest() == seal.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return False


def seal_file(fresh: Path, file: Path, seal: Path) -> None:
    """Moves a new file from a folder of its own to its place, with its seal beside it; others cannot write them. No
    incomplete file is left if this is interrupted or another process does the same. Raises `OSError`."""
    note = fresh.with_name(seal.name)
    note.write_text(hashlib.sha256(fresh.read_bytes()).hexdigest() + "\n", encoding="ascii")
    for made, final in ((fresh, file), (note, seal)):
        remove_others_rights(made)
        made.replace(final)


def _closed(path: Path) -> bool:
    try:
        target, named = path.stat(), path.lstat()
    except OSError:
        return False
    theirs = {target.st_uid, named.st_uid}.difference(trusted_ids())  # of a link, who made it may turn it elsewhere
    return not theirs and not target.st_mode & OTHERS_MAY_WRITE
