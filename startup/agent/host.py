"""The machine that the agent runs on: its PATH, its Python, its disk, and how to run a command on it."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from startup.agent.child import ChildProcess, Message
from startup.agent.clock import AgentClock, Patience
from startup.agent.diagnosis import timed_out
from startup.agent.logs import Log
from startup.agent.stop import Stop

KEPT_LINES = 200


@dataclass(frozen=True)
class CompletedCommand:
    """The result of a command: its exit code (127: not found), and the last lines that it printed."""

    code: int
    output: str

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def last_line(self) -> str:
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {self.code}"


class LocalHost:
    """The machine, with `env` and `python`. Heals change these two, and every later command and the harness use
    them."""

    def __init__(
        self, home: Path, env: Mapping[str, str], python: str, clock: AgentClock, stop: Stop, log: Log
    ) -> None:
        self.home = home
        self.env = dict(env)
        self.python = python
        self.clock = clock
        self.stop = stop
        self.log = log
        self.kill_grace_s = 2.0

    def which(self, name: str) -> str | None:
        return shutil.which(name, path=self.env.get("PATH", ""))

    def prepend(self, variable: str, directory: Path) -> None:
        """Puts a directory first in PATH or a variable like it."""
        present_value = self.env.get(variable, "")
        self.env[variable] = f"{directory}:{present_value}" if present_value else str(directory)

    def free_gb(self) -> float:
        """Free space where the run works, in GB (10^9 bytes)."""
        return shutil.disk_usage(self.home).free / 1e9

    def run(self, *command: str, patience: Patience, timeout_s: float | None = None) -> CompletedCommand:
        """Runs a command to its end; one that outlasts `timeout_s` has exit code 124.

        Raises Halt on a stop, and when the patience, which is the phase's, is used up.
        """
        program = self.which(command[0])
        if program is None:
            return CompletedCommand(127, f"{command[0]}: not found")
        lines: deque[str] = deque(maxlen=KEPT_LINES)
        own_patience = Patience(self.clock, patience.left() if timeout_s is None else timeout_s)
        try:
            child = ChildProcess([program, *command[1:]], self.home, self.env, self.stop)
        except OSError as error:
            return CompletedCommand(126, f"{command[0]}: {error}")
        message: Message | None = None
        try:
            child.stdin.close()
            while True:
                message = child.next(min(own_patience.left(), patience.left()))
                if message is None or message.source in ("stop", "exit"):
                    break
                lines.append(message.text)
        finally:
            code = child.close(self.kill_grace_s)
        self.stop.check()
        if message is None and patience.left() <= 0:
            raise timed_out(f"{Path(command[0]).name} took longer than the phase may")
        return CompletedCommand(124 if message is None else code, "\n".join(lines))
