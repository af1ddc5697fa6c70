"""Writes local files atomically, and keeps paths inside their folder."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

from orchestrator.core.errors import LocalError
from orchestrator.core.text import clean_line

# Runs another program in this terminal until it ends.


def is_installed(program: str) -> bool:
    return shutil.which(program) is not None


def run_attached(command: Sequence[str]) -> int:
    """Runs a command that has this terminal to itself; its exit code. Raises `LocalError` when it is not there."""
    try:
        return subprocess.run(command, check=False).returncode
    except OSError as exc:
        raise LocalError(f"{command[0]} cannot be run: {exc.strerror}", hint=f"install {command[0]}") from exc
    except KeyboardInterrupt:
        return 130


def start_bench(arguments: Sequence[str], settings: Mapping[str, str], log: Path) -> int:
    """Start another process of this tool in a session of its own that outlives this one, and return its id. It has the
    `settings` that are not empty in its environment, and its output goes to `log`. Raise `LocalError`."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH", "")) if part)
    environment = os.environ | {"PYTHONPATH": path} | {name: value for name, value in settings.items() if value}
    command = [sys.executable, "-m", "orchestrator.cli", *arguments]
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
    except OSError as exc:
        hint = "run it without --detach, in tmux or with nohup"
        raise LocalError(f"nothing can go on in the background: {exc.strerror}", hint=hint) from exc
    return process.pid


LONGEST: Final = 1000


def safe_path(root: Path, relative: str) -> Path:
    """`root/relative`, for a `relative` that came from a bucket. Raises `LocalError` if it would leave `root`.

    Names in a bucket are written by machines that may be anyone's: `../../.ssh/config` is a legal object name.
    Names that begin with a dot are refused, for programs obey such files (`.git/config`, `.envrc`), and so is what
    would steer a terminal. A link inside `root` that points out of it is refused too.
    """
    parts = PurePosixPath(relative).parts
    legal = bool(parts) and not relative.startswith("/") and not any(part.startswith(".") for part in parts)
    if not legal or "\\" in relative or clean_line(relative, LONGEST) != relative or max(map(len, parts)) > 200:
        raise LocalError(
            f"the object name {clean_line(repr(relative), 300)} does not name a file under {root}",
            hint="nothing was written; bench does not make such names: find out who wrote the object before you go on",
        )
    path = root.joinpath(*parts)
    if not path.resolve().is_relative_to(root.resolve()):
        raise LocalError(
            f"{path} is outside of {root}, because of a link",
            hint="nothing was written; remove the link, or fetch to another folder",
        )
    return path


def write_atomically(
    path: Path, data: bytes | Iterable[bytes], *, durable: bool = False, private: bool = False
) -> None:
    """Replaces `path` with `data`, which may come in pieces, in one step, making folders as needed. What is `durable`
    is on the disk, name and all, when this returns: some milliseconds, for what a power failure must not take or empty.
    What is `private` nobody but the user can read. Raises `LocalError`."""
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:80]}.", suffix=".part", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.writelines([data] if isinstance(data, bytes) else data)
            os.fchmod(file.fileno(), 0o600 if private else 0o666 & ~_umask())
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            _keep_names(path.parent)
    except BaseException as exc:  # Ctrl-C too leaves no half of a file
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if not isinstance(exc, OSError):
            raise
        raise LocalError(
            f"cannot write {path}: {exc.strerror or exc}",
            hint="check that the folder can be written, that the disk is not full, and that no folder has that name",
        ) from exc


def _keep_names(folder: Path) -> None:
    """Has the disk keep what the files of a folder are called, where its file system can."""
    with suppress(OSError):
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def crc32c(data: bytes) -> str:
    """The checksum in the notation of object metadata: base64 of the big-endian crc32c."""
    import google_crc32c

    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()
