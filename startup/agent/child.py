"""A subprocess that leads its own process group. Its output and its end come as one queue of messages."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TextIO

from startup.agent.stop import Stop

LAST_OUTPUT_S = 1.0


class Message(NamedTuple):
    """`source` is `out` or `err` (a line of text), `exit` (the last message), or `stop` (a stop was requested)."""

    source: str
    text: str = ""


class ChildProcess:
    """Starts a command. Its messages arrive in order; `exit` comes after all of its output.

    It has its own process group, but not its own session: whoever ends the session of the VM's run ends this too.
    """

    def __init__(self, command: Sequence[str], cwd: Path, env: Mapping[str, str], stop: Stop) -> None:
        self.messages: SimpleQueue[Message] = SimpleQueue()
        self.stop = stop
        self.process = start_process(command, cwd, env)
        self.pid = self.process.pid
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.stdin = self.process.stdin
        self.readers = [
            self.thread(self.read, "out", self.process.stdout),
            self.thread(self.read, "err", self.process.stderr),
        ]
        self.waiter = self.thread(self.wait)
        stop.listen(self.notice)

    def thread(self, target: Callable[..., None], *args: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, name="child", daemon=True)
        thread.start()
        return thread

    def notice(self) -> None:
        self.messages.put(Message("stop"))

    def read(self, source: str, stream: TextIO) -> None:
        with stream:
            for line in stream:
                self.messages.put(Message(source, line.rstrip("\n")))

    def wait(self) -> None:
        # While the leader is not reaped, the number of the group is not used again.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self.signal(signal.SIGKILL)
        # A grandchild that left the group may hold the pipes open for ever.
        until = time.monotonic() + LAST_OUTPUT_S
        for reader in self.readers:
            reader.join(timeout=max(0.0, until - time.monotonic()))
        self.process.wait()
        self.messages.put(Message("exit"))

    def next(self, timeout_s: float) -> Message | None:
        """The next message; None when there is none within the time."""
        try:
            return self.messages.get(timeout=max(0.0, timeout_s))
        except Empty:
            return None

    def write(self, line: str) -> None:
        """Writes one line to its standard input. If the child is gone, nothing happens."""
        try:
            self.stdin.write(line + "\n")
            self.stdin.flush()
        except (OSError, ValueError):
            pass

    def signal(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def close(self, grace_s: float) -> int:
        """Ends the whole group (TERM, a grace, KILL), if it has not ended, and returns its leader's exit code."""
        self.stop.forget(self.notice)
        if self.waiter.is_alive():
            self.signal(signal.SIGTERM)
            self.waiter.join(timeout=grace_s)
        if self.waiter.is_alive():
            self.signal(signal.SIGKILL)
            self.waiter.join()
        try:
            self.stdin.close()
        except OSError:
            pass
        return int(self.process.returncode)


def start_process(command: Sequence[str], cwd: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
    group: dict[str, Any] = {"process_group": 0}
    if sys.version_info < (3, 11):  # noqa: UP036  (the image's Python may be older than ours)
        # setpgrp is only a system call: it needs no lock that another thread could hold during the fork.
        group = {"preexec_fn": os.setpgrp}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=cwd, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace", **group
    )
