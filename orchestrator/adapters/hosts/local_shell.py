"""This machine as a host: the same operations as over SSH, by a process of its own."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from orchestrator.adapters.hosts.host_operations import (
    MOST_BYTES,
    Endless,
    answer_in,
    build_command,
    no_answer,
    said_too_much,
)
from orchestrator.core.doctor.here import lacks_for_practice
from orchestrator.core.errors import HostUnfit, Unavailable
from orchestrator.core.hosts import HostTarget

# What this machine has: interpreter, libraries, folders, compiler, and the embedded cloud's traces on disk.


DISTRIBUTION: Final = "spotbench"
COMPILERS: Final = ("g++", "c++", "clang++")


def requirements() -> Sequence[str]:
    """What this distribution needs, as it was installed; nothing where it runs from a bare checkout."""
    try:
        return tuple(importlib.metadata.requires(DISTRIBUTION) or ())
    except importlib.metadata.PackageNotFoundError:
        return ()


def installed_versions(needed: Sequence[str]) -> Mapping[str, str]:
    """The version of each of the distributions that `needed` names and that is there."""
    versions: dict[str, str] = {}
    for text in needed:
        name = re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0]
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def torch_version() -> str:
    """PyTorch's version, and cuDNN's, without importing it, which takes seconds; empty where there is none."""
    if importlib.util.find_spec("torch") is None:
        return ""
    try:
        cudnn = installed_versions(("nvidia-cudnn-cu13", "nvidia-cudnn-cu12")).values()
        return ", cuDNN ".join([importlib.metadata.version("torch"), *cudnn][:2])
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def compiler() -> str:
    """The path of a C++ compiler, or nothing."""
    wished = os.environ.get("CXX", "")
    return next((path for name in (wished, *COMPILERS) if name and (path := shutil.which(name))), "")


def practice_lacks(*, compiler_needed: bool) -> tuple[tuple[str, str], ...]:
    """What this machine lacks for practice, each with the command that installs it."""
    return lacks_for_practice(torch_version(), compiler(), compiler_needed=compiler_needed)


def writable(folder: Path) -> tuple[str, int]:
    """Why nothing can be written to a folder (or its nearest parent, where it is not made yet), and the bytes free.
    The first is empty where all is well."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        if not there.is_dir():
            return "a file is in the way", 0
        with tempfile.TemporaryFile(dir=there):
            pass
        return "", shutil.disk_usage(there).free
    except OSError as exc:
        return exc.strerror or type(exc).__name__, 0


def newest_source(folder: Path) -> float:
    """When the last of the modules in a folder was written, in seconds since the epoch."""
    return max((path.stat().st_mtime for path in folder.glob("*.py")), default=0.0)


PIECE: Final = 1 << 16


def this_machine() -> str:
    """A name for this machine that no other has: its host name, and six digits of its identity's hash."""
    name = re.sub(r"[^a-z0-9]+", "-", platform.node().lower()).strip("-")[:24] or "machine"
    identity = ""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            identity = Path(path).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        break
    return f"{name}-{hashlib.sha256(f'{identity} {platform.node()}'.encode()).hexdigest()[:6]}"


class LocalShell:
    """The `RemoteShell` of the machine that this process runs on. A run that was started on another machine by its
    `local` is out of reach here: `Unavailable`."""

    def __init__(self, target: HostTarget, python: str = sys.executable) -> None:
        """`python` is the interpreter that runs this process: it is looked at too where one with torch is sought."""
        self.target, self.python = target, python

    def ask(
        self, operation: str, arguments: Mapping[str, Any], *, python: str = "", timeout_s: float = 60
    ) -> Mapping[str, Any]:
        self._is_here()
        operands = {"pythons": [self.python], **arguments}
        code, out, err = self._ran(build_command(operation, operands, python), timeout_s, f"asked for {operation}")
        answer = answer_in(out, self.target)
        if answer is None:
            raise no_answer(self.target, code, out.strip(), err.strip(), python or "python3")
        return answer

    def run(self, line: str, *, timeout_s: float = 15) -> tuple[int, str, str]:
        """One command line: exit code, standard output, standard error."""
        self._is_here()
        return self._ran(["sh", "-c", line], timeout_s, "looked at")

    def put(self, data: bytes, path: str) -> None:
        self._is_here()
        try:
            with Path(path).open("wb") as file:
                file.write(data)
        except OSError as exc:
            raise HostUnfit(f"{path} cannot be written: {exc.strerror}", hint=f"`df -h {path}`") from exc

    def get(self, path: str, *, limit: int) -> bytes | None:
        self._is_here()
        try:
            with Path(path).open("rb") as file:
                return file.read(limit + 1)
        except FileNotFoundError:
            return None
        except OSError as exc:
            raise Unavailable(f"{path} cannot be read: {exc.strerror}", hint=f"`ls -l {path}`") from exc

    def close(self) -> None:
        """Nothing is kept open."""

    def _ran(self, argv: list[str], timeout_s: float, when: str) -> tuple[int, str, str]:
        """A session of its own, so that Ctrl-C here does not reach it, and that it ends with all that it began."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("BENCH_")}
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True, env=environment, cwd=Path.home() if Path.home().is_dir() else "/",
            )  # fmt: skip
        except OSError as exc:
            shell = shutil.which("sh") or "sh"
            raise HostUnfit(
                f"this machine does not run {shell}: {exc.strerror}", hint="a POSIX shell is needed"
            ) from exc
        with process:
            try:
                out, err = _heard(process, timeout_s)
            except TimeoutError as exc:
                raise Unavailable(
                    f"this machine took over {timeout_s:g} s when it was {when}", hint="`top` shows what keeps it busy"
                ) from exc
            except Endless as exc:
                raise said_too_much(self.target, when) from exc
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
        return process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")

    def _is_here(self) -> None:
        if self.target.machine != this_machine():
            raise Unavailable(
                f"the run is on {self.target.machine} itself (`--host local`), not on this machine",
                hint=f"run the same command on {self.target.machine}, where its results are",
            )


def _heard(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[bytes, bytes]:
    """What it prints until it ends, on standard output and error. Raises `TimeoutError`, `Endless`."""
    assert process.stdout is not None
    assert process.stderr is not None
    until = time.monotonic() + timeout_s
    out, err = bytearray(), bytearray()
    with selectors.DefaultSelector() as speaking:
        speaking.register(process.stdout, selectors.EVENT_READ, out)
        speaking.register(process.stderr, selectors.EVENT_READ, err)
        while speaking.get_map():
            for key, _ in speaking.select(max(0.0, until - time.monotonic())):
                piece = os.read(key.fd, PIECE)
                key.data.extend(piece)
                if not piece:
                    speaking.unregister(key.fileobj)
            if len(out) + len(err) > MOST_BYTES:
                raise Endless
            if time.monotonic() > until:
                raise TimeoutError
    try:
        process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired as exc:
        raise TimeoutError from exc
    return bytes(out), bytes(err)
