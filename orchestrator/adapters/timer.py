"""Installs a timer of the user's systemd that runs `bench reap`; without systemd, it prints a line for cron."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.adapters.files import write_atomically
from orchestrator.core.errors import LocalError

NAME: Final = "bench-reap"
MINUTES: Final = 15


@dataclass(frozen=True, slots=True)
class ReapTimer:
    """What the timer must know, because it starts with an environment of its own."""

    program: str
    project: str
    bucket: str
    home: str

    @property
    def environment(self) -> dict[str, str]:
        wanted = {"BENCH_PROJECT": self.project, "BENCH_BUCKET": self.bucket, "BENCH_HOME": self.home}
        return {name: value for name, value in wanted.items() if value}


@dataclass(frozen=True, slots=True)
class Installed:
    files: tuple[Path, ...]
    active: bool
    cron: str
    written: bool = True
    """Whether the files are there now; not after a look at what would be done."""


def service_unit(timer: ReapTimer) -> str:
    lines = [
        "[Unit]",
        "Description=Delete benchmark machines that no live run owns",
        "After=network-online.target",
        "",
        "[Service]",
        "Type=oneshot",
        *(f"Environment={_quoted(f'{name}={value}')}" for name, value in timer.environment.items()),
        f"ExecStart={_quoted(timer.program)} reap --yes",
    ]
    return "\n".join(lines) + "\n"


def timer_schedule() -> str:
    return (
        f"[Unit]\nDescription=Every {MINUTES} minutes: bench reap\n\n"
        f"[Timer]\nOnBootSec=5min\nOnUnitActiveSec={MINUTES}min\nPersistent=true\n\n"
        "[Install]\nWantedBy=timers.target\n"
    )


def cron_line(timer: ReapTimer) -> str:
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in timer.environment.items())
    command = f"{settings} {shlex.quote(timer.program)} reap --yes >/dev/null"
    return f"*/{MINUTES} * * * * " + command.replace("%", r"\%")


def install_timer_files(timer: ReapTimer, *, dry_run: bool = False) -> Installed:
    """Writes and starts the timer where the user has a systemd; else writes nothing, as with `dry_run`, which says what
    would be written. Raises `LocalError`."""
    if shutil.which("systemctl") is None:
        return Installed((), False, cron_line(timer))
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"
    files = (folder / f"{NAME}.service", folder / f"{NAME}.timer")
    if dry_run:
        return Installed(files, False, cron_line(timer), written=False)
    try:
        write_atomically(files[0], service_unit(timer).encode())
        write_atomically(files[1], timer_schedule().encode())
    except LocalError as exc:
        raise LocalError(str(exc), hint=f"or use cron: {cron_line(timer)}") from exc
    started = _systemctl("daemon-reload") and _systemctl("enable", "--now", f"{NAME}.timer")
    return Installed(files, started, cron_line(timer))


def _systemctl(*arguments: str) -> bool:
    try:
        done = subprocess.run(["systemctl", "--user", *arguments], capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _quoted(text: str) -> str:
    """As systemd reads it: percent signs are its own, spaces end a word."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"'
