"""This side of an implementation's process: what it is asked, how it is timed, and what became of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.harness.processes import Answered, Lost, Worker
from kernels.harness.spec import original
from kernels.harness.timers import Timed
from kernels.harness.workload import Call, Site, Unavailable

HANGS_ENOUGH = 1


@dataclass(frozen=True, slots=True)
class Place:
    """A call on one of a worker's input sets."""

    hand: Hand
    at: int

    def __call__(self) -> None:
        try:
            self.hand.ask("call", at=self.at)
        except (Lost, Answered) as exc:
            raise Unavailable(exc.reason("while it was warmed up")) from exc


class Hand:
    """One implementation's process, and what is known of it; without a name it is the judge's."""

    def __init__(self, name: str, start: Callable[[], Worker], limit_s: float) -> None:
        self.name, self.start, self.limit_s = name, start, limit_s
        self.worker: Worker | None = None
        self.hangs = 0
        self.record: Mapping[str, Any] | None = None
        self.fault: Lost | Answered | None = None
        """What went wrong in this case, first of all."""
        self.walls: list[tuple[float, float, float]] = []
        """Of each sample: seconds on this side, seconds that its process says all calls took, and those of one."""

    def ready(self) -> Worker:
        """The process, started and loaded. Raises `Unavailable`, `Lost` or `Answered`."""
        if self.hangs >= HANGS_ENOUGH:
            raise Unavailable("not tried again: it hung in a case before")
        if self.worker is None:
            worker = self.start()
            try:
                loaded = worker.ask("load", self.limit_s, name=original(self.name) or None)
            except (Lost, Answered):
                worker.end()
                raise
            self.worker, self.record = worker, loaded.get("record")
        return self.worker

    def ask(self, op: str, /, **given: Any) -> Mapping[str, Any]:
        """One answer. Raises `Lost` where the process is gone, and `Answered` with what it says is wrong."""
        if op == "bind":
            self.fault = None
        elif self.fault is not None:
            raise self.fault
        worker = self.ready()
        try:
            return worker.ask(op, self.limit_s, **given)
        except Lost as exc:
            self.worker, self.fault = None, exc
            self.hangs += exc.hung
            raise
        except Answered as exc:
            self.fault = exc
            if exc.sticky:
                worker.end()
                self.worker = None
            raise

    def end(self) -> None:
        """Nothing of it is left."""
        if self.worker is not None:
            self.worker.end()
            self.worker = None


def waited_s(pid: int | None) -> float:
    """Seconds that a process's first thread has waited for a processor; 0 where the kernel does not count them."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


@dataclass
class RemoteTimer:
    """Times one implementation in its own process. Its word is compared with the time that went by on this side."""

    hand: Hand
    regime: str
    calls_made: int
    overhead_us: float
    turn: Turn
    rest: float = 0.0
    waited: Callable[[int | None], float] = waited_s

    def __call__(self, plans: Sequence[Any]) -> Timed:
        """One sample. The time that went by is that in which both processes had a processor or asked for none: on a
        busy host a short sample may take long on this side and be honest."""
        queued = self.queued()
        began = time.perf_counter()
        try:
            told = self.hand.ask("sample", regime=self.regime, first=plans[0].at, keep=self.turn.wanted)
        except (Lost, Answered) as exc:
            raise Unavailable(exc.reason(f"while it was timed ({self.regime})")) from exc
        wall = max(0.0, time.perf_counter() - began - (self.queued() - queued))
        timed = Timed(**told["timed"])
        if not timed.latency_us >= 0:
            raise Unavailable("untrusted: it reports a negative time for a call")
        self.hand.walls.append((wall, timed.latency_us * self.calls_made / 1e6, timed.latency_us / 1e6))
        self.rest = float(told["rest_s"])
        return timed

    def queued(self) -> float:
        """Seconds that this process and the implementation's have waited for a processor so far."""
        worker = self.hand.worker
        return self.waited(os.getpid()) + (0.0 if worker is None else self.waited(worker.process.pid))

    def rest_s(self, _latency_us: float) -> float:
        """As its own process says, within reason."""
        return min(self.rest, 0.1)


class Absent:
    """Stands here for an implementation that is in another process."""

    def build(self, _site: Site) -> None:
        """It is built there."""

    def bind(self, _case: Any, _inputs: Any) -> Call:
        """Never here."""
        raise Unavailable("it runs in a process of its own")


@dataclass
class Turn:
    """Which samples of one implementation are checked: drawn at random before each block, known to nobody else."""

    wanted: bool = False
    checked: int = 0
