"""Shows a process the folders that it needs although other users may not enter a folder above them, as /root or a
private temporary folder. It gets a mount namespace of its own, in which such a folder is an empty one with only what is
needed at the usual paths. What it may read or write there is decided by the files themselves, as before."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

CLONE_NEWNS: Final = 0x20000
NOSUID, NODEV, BIND, RECURSIVE, PRIVATE = 2, 4, 0x1000, 0x4000, 1 << 18
MOST_REPLACED: Final = 16


def closed_at(path: Path) -> Path | None:
    """The first folder on the way to a folder, or that folder itself, which other users may not enter; None if there is
    none. Raises `OSError`."""
    for place in (*reversed(path.parents), path):
        needed = stat.S_IXOTH | (stat.S_IROTH if place == path else 0)
        if place.stat().st_mode & needed != needed:
            return place
    return None


def show_folders(folders: Sequence[Path]) -> None:
    """Makes folders accessible at their paths to this process, whatever user it becomes. Raises `OSError` where that
    needs a right that this process lacks."""
    wanted = sorted({*folders, *(folder.resolve() for folder in folders)})
    for number in range(MOST_REPLACED):
        closed = sorted({place for folder in wanted if (place := closed_at(folder)) is not None})
        if not closed:
            return
        if not number:
            leave_mount_namespace(closed[0])
        replace_folder(closed[0], [folder for folder in wanted if folder.is_relative_to(closed[0])])
    raise OSError(f"{closed[0]} is one of more than {MOST_REPLACED} folders that other users may not enter")


def leave_mount_namespace(closed: Path) -> None:
    """Gives this process a mount namespace of its own because of a folder. Raises `OSError`."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS):
        reason = f"{os.strerror(ctypes.get_errno())} (a mount namespace)"
        raise OSError(f"other users may not enter {closed}, and it cannot be replaced for them: {reason}")
    mount("none", Path("/"), "", RECURSIVE | PRIVATE)


def replace_folder(place: Path, inside: Sequence[Path]) -> None:
    """Puts an empty folder in the place of one, and into it what is in that one at the paths `inside`. Raises
    `OSError`."""
    shown = [path for path in inside if not any(path != other and path.is_relative_to(other) for other in inside)]
    if place in shown:
        shown = sorted(place.iterdir())
    links = {path: path.readlink() for path in shown if path.is_symlink() and path.parent == place}
    opened = [(path, path.is_dir(), os.open(path, os.O_PATH)) for path in shown if path not in links]
    mount("tmpfs", place, "tmpfs", NOSUID | NODEV, b"mode=755,size=16m")
    for link, target in links.items():
        link.symlink_to(target)
    for path, is_folder, descriptor in opened:
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_folder:
            path.mkdir()
        else:
            path.touch()
        mount(f"/proc/self/fd/{descriptor}", path, "", BIND | RECURSIVE)
        os.close(descriptor)


def mount(source: str, target: Path, kind: str, flags: int, data: bytes | None = None) -> None:
    """Mounts a file system, or what is at another path. Raises `OSError`."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data):
        raise OSError(ctypes.get_errno(), f"cannot mount {target}")
