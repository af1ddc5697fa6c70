"""Runs steps of the harness and speaks its protocol: it reads facts and writes acknowledgements."""

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
from typing import Any, Final, Optional

from startup.agent.child import ChildProcess, Message
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
    return MEMORY, Path(env.get("TMPDIR") or "/tmp"), Path("/tmp")


def remove_abandoned(folders: tuple[Path, ...]) -> None:
    """Removes this user's folders that no process holds a lock on."""
    for path in (path for folder in folders for path in folder.glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError):  # held, another user's, or gone by now
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_uid == os.getuid():
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


OnFact = Callable[[Mapping[str, Any]], Optional[Mapping[str, Any]]]  # noqa: UP045 - it is made when it is loaded, by an old Python too
STDERR_LINES = 20
LOOK_S = 0.5
"""How often the limit is checked, in seconds. The limit uses the host's clock, which may differ from this machine's."""
ENDED: Final = "harness: the step has ended"
"""The last line of a step's log."""
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
    """`python -m kernels.harness serve`, from the payload's root, for the spec that is in a file. One process imports
    torch, and performs each step in a fork of itself."""

    def __init__(self, host: LocalHost, spec_path: Path, out: Path, payload: Path, timing: PhaseTiming) -> None:
        self.host = host
        self.spec_path = spec_path
        self.out = out
        self.payload = payload
        self.timing = timing
        self.group_file = host.home / "harness"
        self.server: ChildProcess | None = None
        self.python = ""

    def start(self) -> ChildProcess:
        """The process that performs steps, started with the present interpreter unless it runs already."""
        if self.server is None or self.python != self.host.python:
            self.close()
            self.python = self.host.python
            command = [self.python, "-m", "kernels.harness", "serve"]
            command += ["--spec", str(self.spec_path), "--out", str(self.out)]
            self.server = ChildProcess(command, self.payload, self.host.env, self.host.stop)
            # The bootstrap ends this group should the agent be killed.
            self.group_file.write_text(str(self.server.pid))
        return self.server

    def preloaded(self, limit: Patience) -> Mapping[str, Any] | None:
        """What the process that performs steps says of its torch; None where it could not import it, or has ended."""
        child = self.start()
        while limit.left() > 0:
            message = child.next(min(limit.left(), LOOK_S))
            if message is None or message.source == "err":
                continue
            fact = self.understand("serve", message.text) if message.source == "out" else {}
            if fact is not None:
                complete = {"torch", "cuda", "usable", "numpy", "exchange", "error"} <= fact.keys() and not fact[
                    "error"
                ]
                return {key: fact[key] for key in fact if key != "fact"} if complete else None
        return None

    def close(self, grace_s: float = 0.0) -> int:
        """Ends the process and everything that it started. Returns its exit code; 0 if there is none."""
        if self.server is None:
            return 0
        code, self.server = self.server.close(grace_s), None
        self.group_file.unlink()
        remove_abandoned(scratch_places(self.host.env))
        return code

    def run(self, step: str, limit: Patience, on_fact: OnFact) -> HarnessExit:
        """Runs a step to its end; `on_fact` has done all it has to before the harness is told to go on, and what it
        returns is the harness's next line.

        Raises Halt when the limit passes or a stop is requested, and whatever `on_fact` raises. In every case no
        process of the step is left.
        """
        self.start().write(json.dumps({"step": step}))
        tail: deque[str] = deque(maxlen=STDERR_LINES)
        code: int | None = None
        message: Message | None = None
        ended = 0
        try:
            code, message = self.hear(step, limit, on_fact, tail)
        finally:
            if code is None:
                stopped = message is not None and message.source == "stop"
                ended = self.close(self.timing.hurried_grace_s if stopped else self.timing.kill_grace_s)
            else:
                remove_abandoned(scratch_places(self.host.env))
        self.host.stop.check()
        if code is None and message is None:
            raise timed_out(f"the harness's step {step} took longer than the phase may")
        return HarnessExit(ended if code is None else code, "\n".join(tail))

    def hear(self, step: str, limit: Patience, on_fact: OnFact, tail: deque[str]) -> tuple[int | None, Message | None]:
        """Takes a step's facts and log until both have ended. Returns its exit code; None where the process ended or a
        stop was requested, with that message, and where the limit has passed."""
        child, code, is_log_complete = self.start(), None, False
        while code is None or not is_log_complete:
            message = child.next(min(limit.left(), LOOK_S))
            if message is None:
                if code is None and limit.left() > 0:
                    continue
                return code, None
            if message.source in ("stop", "exit"):
                return code, message
            if message.source == "err":
                is_log_complete = message.text == ENDED
                if not is_log_complete:
                    tail.append(message.text)
                    self.host.log.say(f"{step}: {message.text}")
                continue
            fact = self.understand(step, message.text)
            if fact is not None and fact["fact"] == "step_ended":
                code = int(fact["code"])
            elif fact is not None:
                answer = on_fact(fact)
                if answer is not None:
                    child.write(json.dumps(answer))
                if "path" in fact:
                    child.write(json.dumps({"ack": fact["path"]}))
        return code, None

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
