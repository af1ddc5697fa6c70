"""Runs one command and outlives it, so that nothing the command started can outlive us.

Run as a script: `supervisor.py [--stay] COMMAND...`. It adopts orphaned descendants (PR_SET_CHILD_SUBREAPER), so that a
process that left its session is still found. Standard input is its life line: a line `term` sends SIGTERM to every
descendant; end of file, which also comes when the parent is killed, sends SIGKILL until none is left, and ends the
supervisor.
Without `--stay` it ends with the command. Standard library only: it runs with `-I -S`.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> None:
    """Linux's own; elsewhere the life line alone must do."""
    call = getattr(ctypes.CDLL(None), "prctl", None)
    if call is not None:
        call(option, value, 0, 0, 0)


def descendants(root: int) -> list[int]:
    """Every living process below `root`, from /proc; zombies are not alive."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - pathlib costs a third of this script's start
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:  # noqa: PTH123
                    state, parent = file.read().rpartition(b") ")[2].split()[:2]
            except OSError:
                continue  # it ended while we looked
            if state not in (b"Z", b"X"):
                children.setdefault(int(parent), []).append(int(entry))
    found: list[int] = []
    layer = [root]
    while layer:
        layer = [child for parent in layer for child in children.get(parent, ())]
        found += layer
    return found


def send(number: int) -> int:
    """Signal every descendant; how many there were."""
    targets = descendants(os.getpid())
    for pid in targets:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
    return len(targets)


def reap(main: int) -> int | None:
    """Bury the dead; the exit code of `main` when it is among them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == main:
            code = os.waitstatus_to_exitcode(status)


def kill_all(main: int) -> None:
    """SIGKILL until nothing is left; a process in the kernel's hands gets ten seconds."""
    end = time.monotonic() + 10
    while send(signal.SIGKILL) and time.monotonic() < end:
        time.sleep(0.002)
        reap(main)
    reap(main)


def start(command: list[str]) -> int:
    """The command in a session of its own, deaf on standard input, dying with us."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as exc:
        os.write(2, f"{command[0]}: {exc}\n".encode())
    os._exit(127)


def main(arguments: list[str]) -> int:
    stay = arguments[:1] == ["--stay"]
    command = arguments[1:] if stay else arguments
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    ears, mouth = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    asked_to_end: list[int] = []
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: asked_to_end.append(number))
    pid = start(command)
    code: int | None = None
    while True:
        ready, _, _ = select.select([0, ears], [], [])
        if ears in ready:
            os.read(ears, 4096)
            ended = reap(pid)
            code = ended if ended is not None else code
        words = os.read(0, 4096) if 0 in ready else b"-"
        if not words or asked_to_end or (code is not None and not stay):
            kill_all(pid)
            return 0 if code is None else code & 0xFF
        if b"term" in words:
            send(signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
