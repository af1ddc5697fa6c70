"""This machine as a host: the same operations as over SSH, by a process of its own."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.adapters.host_operations import answer_in, command, no_answer
from orchestrator.core.errors import HostUnfit, Unavailable
from orchestrator.core.hosts import Target


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

    def __init__(self, target: Target) -> None:
        self.target = target

    def ask(
        self, operation: str, arguments: Mapping[str, Any], *, python: str = "", timeout_s: float = 60
    ) -> Mapping[str, Any]:
        self._is_here()
        code, out, err = _ran(command(operation, arguments, python), timeout_s, f"to {operation}")
        answer = answer_in(out, self.target)
        if answer is None:
            raise no_answer(self.target, code, out.strip(), err.strip(), python or "python3")
        return answer

    def run(self, line: str, *, timeout_s: float = 15) -> tuple[int, str, str]:
        """One command line: exit code, standard output, standard error."""
        self._is_here()
        return _ran(["sh", "-c", line], timeout_s, "to look")

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

    def _is_here(self) -> None:
        if self.target.machine != this_machine():
            raise Unavailable(
                f"the run is on {self.target.machine}, which measures for itself (`--host local`)",
                hint=f"run the same command on {self.target.machine}; its results wait there",
            )


def _ran(argv: list[str], timeout_s: float, doing: str) -> tuple[int, str, str]:
    """A session of its own, so that Ctrl-C here does not reach it."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("BENCH_")}
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, start_new_session=True,
            env=environment, cwd=Path.home() if Path.home().is_dir() else "/",
        )  # fmt: skip
    except subprocess.TimeoutExpired as exc:
        raise Unavailable(f"this machine took over {timeout_s:g} s {doing}", hint="`top` shows what keeps it") from exc
    except OSError as exc:
        shell = shutil.which("sh") or "sh"
        raise HostUnfit(f"this machine does not run {shell}: {exc.strerror}", hint="a POSIX shell is needed") from exc
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
