"""Where things are on a host, and in what words it says that something stands in the way.

Everything stays below one cache folder:

    lock              held (flock) by the steward of the run that measures now, and holds its name
    payloads/         what runs, named by its sha256
    incoming/         uploads under way
    build/            kernels that were built and CUDA's own cache; emptied when the host has changed
    runs/<vm>/        run.json state.json alive serial.log spool/<object name>; while it runs, scratch/ and steward/ too
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MOST_BYTES = 32 * 1024 * 1024
"""Above any document that we write here: a run's names every case that is measured already."""
SCHEMA = 1
"""Of every document that we write here. What has none is of the first; keys that are added change nothing; of a larger
one than this nothing is read, and it is not replaced."""
MOST = 1e11
"""Above any time in seconds."""


NEWER = "was written by a newer version of bench"


class Trouble(Exception):
    """What stands in the way, for the client to put into words: `kind`, and the path that it is about."""

    def __init__(self, kind: str, message: str, path: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.path = path


def cache_folder(named: str) -> Path:
    """The cache folder: as named, else below $XDG_CACHE_HOME or ~/.cache."""
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "spotbench"


def run_folder(cache: Path, vm: str) -> Path:
    if not vm or "/" in vm or vm.startswith("."):
        raise Trouble("unknown", f"{vm!r} is not the name of a run's machine")
    return cache / "runs" / vm


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Replaces `path` whole, or leaves it as it was, whether the disk is full or the power fails. Raises `OSError`,
    also where a newer version's document is."""
    if inspect_document(path)[1] == NEWER:
        raise PermissionError(errno.EPERM, NEWER, str(path))
    fresh = path.with_name(path.name + ".new")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(json.dumps({"schema": SCHEMA, **document}))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        keep_names(path.parent)
    except OSError:
        if fresh.exists():
            fresh.unlink()
        raise


def keep_names(folder: Path) -> None:
    """Has the disk keep what the files of a folder are called: the contents of one may be there after a power failure,
    and its name not. A file system that cannot is taken as it is."""
    try:
        opened = os.open(str(folder), os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
    except OSError:
        pass


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None where there is no such file, or anything else in it."""
    return inspect_document(path)[0]


def inspect_document(path: Path) -> tuple[dict[str, Any] | None, str]:
    """The object in a file and no words, or None and what is wrong with the file."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            return None, f"has more than {MOST_BYTES // 1024**2} MB"
        document = json.loads(data.decode("utf-8"))
    except FileNotFoundError:
        return None, "is not there"
    except OSError as error:
        return None, f"cannot be read ({error.strerror})"
    except (ValueError, RecursionError):
        return None, "is not JSON: it was cut off or overwritten"
    if not isinstance(document, dict):
        return None, "is not a JSON object"
    schema = document.get("schema", 1)
    if isinstance(schema, bool) or not isinstance(schema, int) or schema < 1:
        return None, "has a schema that is not a number"
    return (None, NEWER) if schema > SCHEMA else (document, "")


def read_known_keys(path: Path, kinds: Mapping[str, type]) -> tuple[dict[str, Any], str]:
    """Of the object in a file what a run's record has, by key and kind (`float` is any number that a time may be), and
    what is wrong with the file, in words. What has another kind is left out, and what is new to this version."""
    status, why = inspect_document(path)
    kept = (
        {key: status[key] for key, kind in kinds.items() if key in status and _is(status[key], kind)} if status else {}
    )
    odd = [key for key in kinds if status and key in status and key not in kept]
    why = why or (f"has no usable value for {', '.join(odd)}" if odd else "")
    return kept, f"{path} {why}" if why else ""


def _is(value: object, kind: type) -> bool:
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MOST
    return isinstance(value, kind)


def boot_seconds() -> float:
    """Seconds since this machine booted, those that it slept included: nobody sets this clock, and every process reads
    the same."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """What the kernel calls the time since it booted; empty where it does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def make_private(folder: Path) -> None:
    """Makes a folder, and those above it that are not there, for this user alone, whatever the umask lets others do."""
    for one in (*reversed(folder.parents), folder):
        try:
            one.mkdir(exist_ok=True, mode=0o700)
        except FileExistsError:  # a file in the way
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(one)) from None


OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def own_folder(folder: Path) -> None:
    """Makes a folder, or takes from others the right to write one that is this user's. What runs is kept below it:
    raises `Trouble` where it is another user's."""
    make_private(folder)
    status = folder.stat()
    if not {status.st_uid, folder.lstat().st_uid} <= {0, os.geteuid()}:  # of a link, who made it may turn it elsewhere
        raise Trouble("not_writable", "another user's folder: files that they put there would run as you", str(folder))
    if status.st_mode & OTHERS_MAY_WRITE:
        folder.chmod(stat.S_IMODE(status.st_mode) & ~OTHERS_MAY_WRITE)
