"""Runs one step of the harness and speaks its protocol: it reads facts and writes acknowledgements."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from startup.agent.child import ChildProcess
from startup.agent.clock import Patience
from startup.agent.diagnosis import timed_out
from startup.agent.host import LocalHost
from startup.agent.spec import PhaseTiming

# Removes what a harness that was killed has left in memory: folders with answers that nobody holds any more. The same
# as `kernels/harness/scratch.py` does before it makes one: the agent shares no code with what it runs.


MEMORY: Final = Path("/dev/shm")
PREFIX: Final = "bench-answers-"


def scratch_places(env: Mapping[str, str]) -> tuple[Path, ...]:
    """The places where a harness with this environment may have made its folder."""
    return MEMORY, Path(env.get("TMPDIR") or "/tmp")


def remove_abandoned(folders: tuple[Path, ...]) -> None:
    """Removes this user's folders that no process holds a lock on."""
    for path in (path for folder in folders for path in folder.glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError):  # held, another user's, or gone by now
            found = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(found).st_uid == os.getuid():
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(found)


STDERR_LINES = 20
LOOK_S = 0.5
"""How often the limit is checked, in seconds. The limit uses the host's clock, which may differ from this machine's."""
DONE, INCORRECT, NOT_BUILT, GATE_FAILED, BAD_SPEC = 0, 10, 20, 21, 22


@dataclass(frozen=True)
class HarnessExit:
    """How a step ended: its exit code (negative: the signal), and the last lines of its log."""

    code: int
    log_tail: str

    @property
    def how(self) -> str:
        """`exit code 1`, or `SIGKILL`."""
        return f"exit code {self.code}" if self.code >= 0 else signal.Signals(-self.code).name


class Harness:
    """`python -m kernels.harness STEP`, from the payload's root, for the spec that is in a file."""

    def __init__(self, host: LocalHost, spec_path: Path, out: Path, payload: Path, timing: PhaseTiming) -> None:
        self.host = host
        self.spec_path = spec_path
        self.out = out
        self.payload = payload
        self.timing = timing
        self.group_file = host.home / "harness"

    def run(self, step: str, limit: Patience, on_fact: Callable[[Mapping[str, Any]], None]) -> HarnessExit:
        """Runs a step to its end; `on_fact` has done all it has to before the harness is told to go on.

        Raises Halt when the limit passes or a stop is requested, and whatever `on_fact` raises. In every case no
        process of the step is left.
        """
        python = self.host.python
        command = [python, "-m", "kernels.harness", step, "--spec", str(self.spec_path), "--out", str(self.out)]
        child = ChildProcess(command, self.payload, self.host.env, self.host.stop)
        # The bootstrap ends this group should the agent be killed.
        self.group_file.write_text(str(child.pid))
        tail: deque[str] = deque(maxlen=STDERR_LINES)
        grace_s = self.timing.kill_grace_s
        try:
            while True:
                message = child.next(min(limit.left(), LOOK_S))
                if message is None and limit.left() > 0:
                    continue
                if message is None or message.source == "stop":
                    if message is not None:
                        grace_s = self.timing.hurried_grace_s
                    break
                if message.source == "exit":
                    break
                if message.source == "err":
                    tail.append(message.text)
                    self.host.log.say(f"{step}: {message.text}")
                    continue
                fact = self.understand(step, message.text)
                if fact is not None:
                    on_fact(fact)
                    if "path" in fact:
                        child.write(json.dumps({"ack": fact["path"]}))
        finally:
            code = child.close(grace_s)
            self.group_file.unlink()
            remove_abandoned(scratch_places(self.host.env))
        self.host.stop.check()
        if message is None:
            raise timed_out(f"the harness's step {step} took longer than the phase may")
        return HarnessExit(code, "\n".join(tail))

    def understand(self, step: str, line: str) -> dict[str, Any] | None:
        """The fact in a line; None for any other line, as libraries print to standard output too."""
        try:
            fact = json.loads(line)
        except ValueError:
            fact = None
        if isinstance(fact, dict) and isinstance(fact.get("fact"), str):
            return fact
        self.host.log.say(f"{step}: (not a fact) {line}")
        return None
