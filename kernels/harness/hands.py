"""The harness's side of an implementation's process: requests to it, its timer, and what went wrong."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernels.harness.processes import Answered, Lost, Worker
from kernels.harness.progress import PROGRESS
from kernels.harness.spec import original_name
from kernels.harness.timers import Timed
from kernels.harness.workload import Call, Site, Unavailable

HANGS_ENOUGH = 1
UNKNOWN_LIMIT_S = 180.0
"""How long a request may take where no baseline has answered it yet, and how long loading may take."""
LEAST_LIMIT_S, LEAST_COMPILE_LIMIT_S = 10.0, 60.0
"""How long a request may take at least, and one in which something may be compiled."""
COMPILES = frozenset({"bind", "check", "spread", "timer"})
LIMIT_TIMES = 20.0
"""A request may take so many times as long as the slowest baseline."""


class AnswerLimits:
    """How long an implementation may take to answer: as long as is configured, or else by what the baselines take in
    the same case."""

    def __init__(self, configured_s: float | None) -> None:
        self.configured_s = configured_s
        self.slowest_s: dict[str, float] = {}
        """The longest time in seconds that a baseline took in this case, by request."""

    def limit_s(self, op: str) -> float:
        """The seconds that an answer to `op` may take."""
        if self.configured_s is not None:
            return self.configured_s
        if op == "load" or op not in self.slowest_s:
            return UNKNOWN_LIMIT_S
        return max(LEAST_COMPILE_LIMIT_S if op in COMPILES else LEAST_LIMIT_S, LIMIT_TIMES * self.slowest_s[op])

    def record_baseline(self, op: str, seconds: float) -> None:
        """Notes how long a baseline took."""
        self.slowest_s[op] = max(seconds, self.slowest_s.get(op, 0.0))

    def clear(self) -> None:
        """Forgets the times of the case before."""
        self.slowest_s.clear()


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


FIRST_BATCH = 32
MOST_RETAKEN = 2
"""How often a sample is taken again while something else uses the device."""


class Hand:
    """One implementation's process, and what is known of it. Without a name it is the judge's process."""

    def __init__(
        self, name: str, start: Callable[[], Worker], limits: AnswerLimits, *, is_baseline: bool = False
    ) -> None:
        self.name, self.start, self.limits, self.is_baseline = name, start, limits, is_baseline
        self.worker: Worker | None = None
        self.loading: Worker | None = None
        """The process until its answer to `load` is read."""
        self.due: tuple[str, ...] = ()
        """The requests that the loading process has got: `import`, `load`, or both."""
        self.hangs = 0
        self.load_failure: Lost | None = None
        """The failure of a process that hung while it was loaded. It is not loaded again."""
        self.record: Mapping[str, Any] | None = None
        self.sets = 1
        """How many sets of inputs the process has in this case."""
        self.answer_bytes = 1
        """The size of an answer in this case."""
        self.ahead = ""
        """The request that was sent and whose answer was not read yet."""
        self.fault: Lost | Answered | None = None
        """The first failure in this case."""
        self.seed = 0
        """The seed of the inputs that its timed calls get now."""
        self.collected = 0
        """The number of answers of timed calls that the process holds for the judge."""
        self.batch = FIRST_BATCH
        """How many of them are judged at once."""
        self.walls: list[tuple[float, float, float]] = []
        """For each sample: the seconds measured here, the seconds that the process reports for all calls, and those for
        one call."""

    def begin(self) -> None:
        """Starts the process, which loads while this one goes on, unless it runs already or has hung as it loaded."""
        if self.worker is None and self.loading is None and self.load_failure is None:
            self.loading, self.due = self.start(), ()
        if self.loading is not None and "load" not in self.due:
            self.loading.send("load", name=original_name(self.name) or None)
            self.due = (*self.due, "load")

    def begin_import(self) -> None:
        """Starts the process, which imports the workload. Until `begin` it leaves the device alone, and may still be
        given another name."""
        self.loading, self.due = self.start(), ("import",)
        self.loading.send("import", name=self.name)

    def imported(self, limit_s: float) -> Mapping[str, Any]:
        """The names of the workload's implementations and baselines, once it is imported. Raises `Lost` and
        `Answered`."""
        assert self.loading is not None, "it was begun"
        self.due = self.due[1:]
        return self.loading.receive("import", limit_s)

    def ready(self) -> Worker:
        """The process, started and loaded. Raises `Unavailable`, `Lost` or `Answered`."""
        if self.hangs >= HANGS_ENOUGH:
            raise Unavailable("not tried again: it hung in a case before")
        if self.load_failure is not None:
            raise self.load_failure
        self.begin()
        if self.loading is not None:
            worker, self.loading = self.loading, None
            try:
                *_, loaded = [worker.receive(op, self.limits.limit_s("load")) for op in self.due]
            except (Lost, Answered) as exc:
                worker.end()
                self.load_failure = exc if isinstance(exc, Lost) and exc.hung else None
                raise
            self.worker, self.record = worker, loaded.get("record")
        assert self.worker is not None, "it is loaded"
        return self.worker

    def send_ahead(self, op: str, /, **arguments: Any) -> None:
        """Sends a request whose answer the next `ask` reads, which is for the same. Until then other processes work
        too."""
        self.ready().send(op, **arguments)
        self.ahead = op

    def ask(self, op: str, /, **arguments: Any) -> Mapping[str, Any]:
        """The answer to one request. Raises `Lost` where the process is gone, and `Answered` where it reports a
        failure."""
        if op == "bind":
            self.fault = None
        elif self.fault is not None:
            raise self.fault
        PROGRESS.note(self.name or "reference")
        worker = self.ready()
        limit_s = self.limits.configured_s or UNKNOWN_LIMIT_S if self.is_baseline else self.limits.limit_s(op)
        sent, self.ahead = self.ahead, ""
        assert sent in ("", op), f"an answer to {sent} is due"
        began = time.monotonic()
        try:
            reply = worker.receive(op, limit_s) if sent else worker.ask(op, limit_s, **arguments)
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
        if self.is_baseline:
            waited_s = time.monotonic() - began
            self.limits.record_baseline(op, float(reply["seconds"]) if sent else waited_s)
        return reply

    def round_trip_s(self) -> float:
        """The seconds that a request takes for which there is nothing to do. On a busy machine it is longer."""
        began = time.perf_counter()
        self.ask("ping")
        return time.perf_counter() - began

    def kill(self) -> None:
        """Kills the process without waiting for its end, as before those of others are ended too."""
        for worker in filter(None, (self.worker, self.loading)):
            worker.kill()

    def end(self) -> None:
        """Ends the process; nothing of it is left."""
        for worker in (self.worker, self.loading):
            if worker is not None:
                worker.end()
        self.worker, self.loading, self.ahead = None, None, ""


def remark_on(hand: Hand) -> str:
    """The remark of the form of the workload on a wrong answer, to follow the reason; empty if there is none."""
    try:
        remark = str(hand.ask("remark")["words"])[:200]
    except (Lost, Answered, Unavailable):
        hand.fault = None
        return ""
    return f"; {remark}" if remark else ""


def waited_s(pid: int | None) -> float:
    """Seconds that a process's first thread has waited for a processor; 0 where the kernel does not count them."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


@dataclass
class RemoteTimer:
    """Times one implementation in its own process. The time that it reports is compared with the time measured here."""

    hand: Hand
    regime: str
    calls_made: int
    overhead_us: float
    turn: Turn
    watch: Callable[[], Callable[[], bool]] = lambda: lambda: False
    """Called before a sample; what it returns says after it whether anything else used the device meanwhile."""
    rest: float = 0.0
    waited: Callable[[int | None], float] = waited_s

    def __call__(self, plans: Sequence[Any]) -> Timed:
        """Takes one sample, and takes it again if anything else used the device meanwhile."""
        retaken = 0
        while True:
            was_disturbed = self.watch()
            timed = self.take_sample(plans[0].at)
            disturbed = was_disturbed()
            if not disturbed or retaken == MOST_RETAKEN:
                self.turn.collect = 0
                return replace(timed, retaken=retaken, shared=disturbed)
            retaken += 1

    def take_sample(self, first: int) -> Timed:
        """Takes one sample. Time in which one of the two processes waited for a processor is not counted here, as on a
        busy host an honest short sample may take long on this side."""
        queued = self.queued()
        began = time.perf_counter()
        try:
            reply = self.hand.ask("sample", regime=self.regime, first=first, **self.turn.asked())
        except (Lost, Answered) as exc:
            raise Unavailable(exc.reason(f"while it was timed ({self.regime})")) from exc
        wall = max(0.0, time.perf_counter() - began - (self.queued() - queued))
        self.hand.collected += self.turn.collect
        self.turn.collecting_s += min(wall, max(0.0, float(reply["collecting_s"])))
        timed = Timed(**reply["timed"])
        if not timed.latency_us >= 0:
            raise Unavailable("untrusted: it reports a negative time for a call")
        self.hand.walls.append((wall, timed.latency_us * self.calls_made / 1e6, timed.latency_us / 1e6))
        self.rest = float(reply["rest_s"])
        return timed

    def queued(self) -> float:
        """Seconds that this process and the implementation's have waited for a processor so far."""
        worker = self.hand.worker
        return self.waited(os.getpid()) + (0.0 if worker is None else self.waited(worker.process.pid))

    def rest_s(self, _latency_us: float) -> float:
        """The rest that the implementation's process asks for, within limits."""
        return min(self.rest, 0.1)


class Absent:
    """A placeholder for an implementation in another process."""

    def build(self, _site: Site) -> None:
        """Does nothing: the other process builds it."""

    def bind(self, _case: Any, _inputs: Any) -> Call:
        """Never called: the other process binds it."""
        raise Unavailable("it runs in a process of its own")


@dataclass
class Turn:
    """Which samples of one implementation are judged alone, on new inputs; that is drawn at random before each sample
    and kept secret. Other answers are collected, where that costs little."""

    answers: int = 0
    """How many answers of a sample can be collected."""
    alone: bool = False
    """Whether the answer that is judged alone is the only one of its sample."""
    wanted: bool = False
    collect: int = 0
    collecting_s: float = 0.0
    """The seconds for which the process has copied answers, as it reports them."""
    checked: int = 0

    def asked(self) -> dict[str, int | bool]:
        """What the next sample does with its answers."""
        return {"keep": self.wanted, "collect": self.collect, "at": secrets.randbelow(max(1, self.answers))}


def files_within(folder: str, answer: Mapping[str, Any]) -> list[Any]:
    """The places of an answer's tensors. Files are looked for only in `folder`. Raises `Answered`."""
    try:
        return [
            [place if isinstance(place, list) else str(Path(folder) / Path(place).name), *about]
            for place, *about in answer["files"]
        ]
    except (KeyError, TypeError, ValueError) as exc:
        raise Answered("raised", "untrusted: its process sent something that is not an answer") from exc
