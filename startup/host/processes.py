"""Locks, and the processes of a run on a host."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "BENCH_HOST_VM"
"""The environment variable that every process of a run carries."""


def try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock on `path`, or None when another process does."""
    descriptor = os.open(str(path), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def lock_patiently(path: Path) -> int | None:
    """The same, when whoever only looked at the lock has let go of it."""
    for _ in range(20):
        descriptor = try_lock(path)
        if descriptor is not None:
            return descriptor
        time.sleep(0.02)
    return None


def is_held(path: Path) -> bool:
    """Whether some process holds the lock on `path`."""
    if not path.exists():
        return False
    descriptor = try_lock(path)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def list_processes() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            yield int(entry.name)


def run_processes(vm: str, scratch: Path, ancestor: int = 0) -> set[int]:
    """The processes of a run, wherever they have got to: by the mark that they inherited; by where they work, for a
    program may write over its environment, as `setproctitle` does, or leave it behind; and whatever those have started,
    or process `ancestor`."""
    mark, scratch = f"{MARK}={vm}".encode(), scratch.resolve()
    parents: dict[int, int] = {}
    process_ids = {ancestor} if ancestor else set()
    for pid in list_processes():
        try:
            parents[pid], terminal = parent_and_terminal(pid)
            marked = mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            place = Path(os.readlink(f"/proc/{pid}/cwd"))  # noqa: PTH115  (Path has it from 3.9 on)
        except OSError:
            continue  # somebody else's, or gone
        # Somebody who looks around there has a terminal.
        if marked or (not terminal and scratch in (place, *place.parents)):
            process_ids.add(pid)
    while children := {pid for pid, parent in parents.items() if parent in process_ids and pid not in process_ids}:
        process_ids |= children
    return process_ids - {ancestor, os.getpid()}


def parent_and_terminal(pid: int) -> tuple[int, int]:
    """Who started a process, or has it now, and its terminal; 0 for none."""
    cells = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return int(cells[1]), int(cells[4])


def kill_run(vm: str, scratch: Path, ancestor: int = 0, within_s: float = 5.0) -> int:
    """Kills every process of a run; how many there were. One that forks while it is killed is met on the next round."""
    killed = set()
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        pids = [pid for pid in run_processes(vm, scratch, ancestor) if is_alive(pid)]
        if not pids:
            break
        for pid in pids:
            killed.add(pid)
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.05)
    return len(killed)


def find_supervisors(folder: Path) -> list[int]:
    """The stewards of a run, whatever they could write down of themselves."""
    wanted = [b"-m", b"startup.host.supervisor", os.fsencode(folder)]
    process_ids = []
    for pid in list_processes():
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[-4:-1] == wanted:
                process_ids.append(pid)
        except OSError:
            continue
    return process_ids


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that is dead and not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def measuring_machine(cache: Path) -> str:
    """The machine of the run that measures here now; empty when none does."""
    path = cache / "lock"
    if not is_held(path):
        return ""
    try:
        return path.read_text(encoding="utf-8").strip() or "another run"
    except OSError:
        return "another run"
