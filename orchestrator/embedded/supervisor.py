"""Runs one command, and makes sure that no process that the command started remains after the supervisor.

Run as a script: `supervisor.py [--stay] COMMAND...`. It adopts orphaned descendants (PR_SET_CHILD_SUBREAPER), so that a
process that left its session is still found. It is controlled through standard input: a line `term` sends SIGTERM to
all descendants. End of file, which also comes if the parent is killed, sends SIGKILL until no descendant is left, and
ends the supervisor. Without `--stay` it ends with the command. It uses only the standard library, because it runs with
`-I -S`.
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


def call_prctl(option: int, value: int) -> None:
    """Calls prctl(2), which only Linux has. On other systems only standard input ends the processes."""
    call = getattr(ctypes.CDLL(None), "prctl", None)
    if call is not None:
        call(option, value, 0, 0, 0)


def list_descendants(root: int) -> list[int]:
    """The ids of all living descendants of `root`, from /proc. Zombies are left out."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208 - pathlib costs a third of this script's start
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:  # noqa: PTH123
                    state, parent = file.read().rpartition(b") ")[2].split()[:2]
            except OSError:
                continue  # the process has ended
            if state not in (b"Z", b"X"):
                children.setdefault(int(parent), []).append(int(entry))
    process_ids: list[int] = []
    layer = [root]
    while layer:
        layer = [child for parent in layer for child in children.get(parent, ())]
        process_ids += layer
    return process_ids


def signal_descendants(number: int) -> int:
    """Sends a signal to all descendants. Returns how many there were."""
    targets = list_descendants(os.getpid())
    for pid in targets:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
    return len(targets)


def reap_children(main: int) -> int | None:
    """Reaps ended children. Returns the exit code of the process `main` if it is among them, else None."""
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
    """Sends SIGKILL until no descendant is left, for at most ten seconds: a process may be stuck in the kernel."""
    end = time.monotonic() + 10
    while signal_descendants(signal.SIGKILL) and time.monotonic() < end:
        time.sleep(0.002)
        reap_children(main)
    reap_children(main)


def start_session(command: list[str]) -> int:
    """Starts the command in its own session, with no standard input. It is killed if the supervisor dies. Returns its
    process id. A SIGTERM that comes before the command runs ends it as it would later: until then it is blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return pid
    try:
        os.setsid()
        call_prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.execvp(command[0], command)
    except OSError as exc:
        os.write(2, f"{command[0]}: {exc}\n".encode())
    os._exit(127)


def main(arguments: list[str]) -> int:
    stay = arguments[:1] == ["--stay"]
    command = arguments[1:] if stay else arguments
    call_prctl(PR_SET_CHILD_SUBREAPER, 1)
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: end_signals.append(number))
    pid = start_session(command)
    code: int | None = None
    while True:
        ready, _, _ = select.select([0, read_end], [], [])
        if read_end in ready:
            os.read(read_end, 4096)
            ended = reap_children(pid)
            code = ended if ended is not None else code
        supervisor_command = os.read(0, 4096) if 0 in ready else b"-"
        if not supervisor_command or end_signals or (code is not None and not stay):
            kill_all(pid)
            return 0 if code is None else code & 0xFF
        if b"term" in supervisor_command:
            signal_descendants(signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
