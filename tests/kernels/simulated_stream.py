"""A device beside a host, on one timeline: what is enqueued, and when, decides what the device's events say.

The host's clock is simulated, or the machine's own, so that a real thread, a low priority or a sleep can slow it.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from kernels.attention.interface import Plan, Unavailable
from kernels.harness.cupti import Activity

LATENCY_US = 3.0
"""From the host's call to the device's first look at what was enqueued."""
EVENT_US = 0.6
"""What an event takes of the device."""
MOST_HOLD_US = 200_000.0


class Host(Protocol):
    """The side that enqueues."""

    def now_us(self) -> float: ...

    def spend(self, microseconds: float) -> None:
        """Work for so long, or longer where the host is slow."""

    def wait_until(self, moment_us: float) -> None: ...


class SimulatedHost:
    """Time that passes only when it is spent. `slowness` gives a factor each time."""

    def __init__(self, slowness: Callable[[], float] = lambda: 1.0) -> None:
        self.at, self.slowness = 0.0, slowness

    def now_us(self) -> float:
        self.at += 0.05
        return self.at

    def spend(self, microseconds: float) -> None:
        self.at += microseconds * self.slowness()

    def wait_until(self, moment_us: float) -> None:
        self.at = max(self.at, moment_us)


class RealHost:
    """This machine, with everything else that runs on it."""

    def now_us(self) -> float:
        return time.perf_counter_ns() / 1000

    def spend(self, microseconds: float) -> None:
        until = self.now_us() + microseconds
        while self.now_us() < until:
            pass

    def wait_until(self, moment_us: float) -> None:
        while (left := moment_us - self.now_us()) > 0:
            time.sleep(left / 1e6 if left > 1000 else 0)


def phases(seed: int) -> Callable[[], float]:
    """A host with fast and slow phases of some hundred calls, a fast one first, and now and then a stop: what was seen on a real one."""
    chance, state = random.Random(seed), {"left": 60.0, "factor": 1.0}

    def factor() -> float:
        if state["left"] == 0:
            state["left"], state["factor"] = chance.randrange(50, 400), chance.choice((1.0, 3.0, 4.0, 8.0))
        state["left"] -= 1
        stop = chance.expovariate(1 / 200) if chance.random() < 0.01 else 0.0
        return state["factor"] * chance.uniform(0.8, 1.4) + stop

    return factor


@dataclass
class Mark:
    """An event: the device's time at which it came to it, once that is settled."""

    stream: SimulatedStream
    at: float | None = None

    def record(self) -> None:
        self.at = None
        self.stream.host.spend(0.8)
        self.stream.put(Op("mark", EVENT_US, mark=self))

    def query(self) -> bool:
        self.stream.run(self.stream.host.now_us())
        return self.at is not None

    def synchronize(self) -> None:
        self.stream.run(float("inf"), until=self)
        assert self.at is not None, "it was recorded"
        self.stream.host.wait_until(self.at)


@dataclass
class Op:
    kind: str
    lasts_us: float
    mark: Mark | None = None
    ticket: int = 0
    enqueued: float = 0.0
    begun: float | None = None
    parts: tuple[float, ...] = ()
    """How long each of its kernels takes, of work that is several in one."""


@dataclass
class SimulatedStream:
    """A stream of `depth` places: a host that is further ahead waits. `spin_speed`: how much longer a spin lasts."""

    host: Host
    gated: bool = True
    spin_speed: float = 1.0
    depth: int = 1024
    queue: deque[Op] = field(default_factory=deque)
    free: float = 0.0
    ticket: int = 0
    opened: dict[int, float] = field(default_factory=dict)
    given_up: set[int] = field(default_factory=set)
    record: list[Activity] = field(default_factory=list)
    """All kernels that have ended, as a tracer has them."""
    captured: list[Op] = field(default_factory=list)
    """All that was enqueued since the last capture began."""

    def event(self) -> Mark:
        return Mark(self)

    def elapsed_us(self, start: Mark, end: Mark) -> float:
        assert start.at is not None
        assert end.at is not None
        return end.at - start.at

    def now_us(self) -> float:
        return self.host.now_us()

    def spin(self, microseconds: float) -> None:
        self.host.spend(2.0)
        self.put(Op("spin_kernel", microseconds * self.spin_speed))

    def block(self) -> int:
        self.host.spend(4.0)
        self.ticket += 1
        self.put(Op("gate", 0.0, ticket=self.ticket))
        return self.ticket

    def unblock(self, ticket: int) -> None:
        self.opened[ticket] = self.host.now_us()

    def expired(self, ticket: int) -> bool:
        return ticket in self.given_up

    def capture(self, plans: Sequence[Plan], calls: int) -> Callable[[], object]:
        """The work of one call of the first plan, as often: what a graph keeps of a plan. Its replay costs the host."""
        self.captured.clear()
        plans[0]()
        parts = tuple(op.lasts_us for op in self.captured if op.kind != "mark") * calls
        if not parts:
            raise Unavailable("its calls cannot be captured in a graph")

        def replay() -> None:
            self.host.spend(30.0)
            self.put(Op("work", sum(parts), parts=parts))

        return replay

    def put(self, op: Op) -> None:
        self.run(self.host.now_us())
        if len(self.queue) >= self.depth:
            self.run(float("inf"), room=self.depth - 1)
            self.host.wait_until(self.free)
        op.enqueued = self.host.now_us()
        self.captured.append(op)
        self.queue.append(op)

    def run(self, now: float, until: Mark | None = None, room: int = 0) -> None:
        """Let the device go on as far as it can be known at host time `now`, or to a mark, or to so long a queue."""
        while len(self.queue) > room and (until is None or until.at is None):
            op = self.queue[0]
            begin = max(self.free, op.enqueued + LATENCY_US)
            if op.kind == "gate":
                opened = self.opened.get(op.ticket)
                end = begin + MOST_HOLD_US
                if opened is not None and opened <= end:
                    end = max(begin, opened) + 1.0
                elif end <= now:
                    self.given_up.add(op.ticket)
            else:
                end = begin + op.lasts_us
            if end > now:
                return
            self.queue.popleft()
            self.free = end
            self.keep(op, begin, end)
            if op.mark is not None:
                op.mark.at = end

    def keep(self, op: Op, begin: float, end: float) -> None:
        """Its kernels in the record, one after the other; a mark is none."""
        at = begin
        for lasts in () if op.kind == "mark" else op.parts or (end - begin,):
            self.record.append(Activity(op.kind, round(at * 1000), round(lasts * 1000)))
            at += lasts

    def traced(self, work: Callable[[], None]) -> list[Activity]:
        """What the device did for `work`, by its own record."""
        seen = len(self.record)
        work()
        self.run(float("inf"))
        return self.record[seen:]


def call(stream: SimulatedStream, host_us: float, device_us: float, *, waits: bool = False, kernels: int = 1) -> Plan:
    """An implementation: what it costs its caller and the device. `waits`: it waits for the device within the call."""

    def plan() -> torch.Tensor:
        for _ in range(kernels):
            stream.host.spend(host_us / kernels)
            stream.put(Op("work", device_us / kernels))
        if waits:
            mark = stream.event()
            mark.record()
            mark.synchronize()
            stream.host.spend(host_us)
            stream.put(Op("work", device_us))
        return torch.empty(0)

    return plan
