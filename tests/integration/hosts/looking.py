"""What there is on a host, seen from outside: files below its home, processes of its runs."""

from __future__ import annotations

from pathlib import Path

from tests.support.sshd import Sshd


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


def outside_the_cache(host: Sshd) -> set[str]:
    """Every file below the host's home that is not in the cache folder."""
    inside = host.cache.relative_to(host.home).as_posix() + "/"
    return {name for name in files(host.home) if not name.startswith(inside)}


def processes(host: Sshd) -> list[str]:
    """The command lines of processes that have to do with the host's cache folder, or carry the mark of a run there."""
    wanted = str(host.cache).encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            if wanted in command or wanted in (entry / "environ").read_bytes():
                found.append(command.replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


def spooled(host: Sshd, part: str) -> list[Path]:
    """Files in any run's spool whose name has `part` in it."""
    return [path for path in host.cache.glob("runs/*/spool/**/*") if part in path.name and path.is_file()]


def in_phase(host: Sshd, phase: str) -> bool:
    return any(f'"phase": "{phase}"' in path.read_text() for path in spooled(host, "-phase_started"))
