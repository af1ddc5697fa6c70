"""One measurement of one implementation: by CUDA events, by a captured graph, or by the processor's clock.

Every CUDA sample of `burst` and `graph` is enqueued behind a gate. The host opens the gate once both events and the
work between them are enqueued, so a slow host does not affect the sample. Without a gate a spin is used, and it is
checked that the spin lasted until then.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from kernels.harness.streams import CudaStream, Stream
from kernels.harness.turns import Contender
from kernels.harness.workload import Plan, Unavailable

SUSTAINED_S = {"cuda": 0.05, "cpu": 0.02}
"""How long one sustained measurement keeps the device busy, in seconds; only its second half counts."""
SUSTAINED_PARTS = 16

GRAPH_S = 0.001
"""The seconds of work in one captured graph, so that the gaps between replays do not matter."""

REST_TIMES = 9
REST_MOST_S = 0.05
"""After a single call the chip rests nine times as long, but at most this many seconds. At a tenth of its load no power
limit slows it. Power is averaged over tens of milliseconds, so a longer rest would change nothing."""

LEAST_BLOCK_US = 100.0
"""A gate stays closed for at least this time, so that the chip, which has just rested, is in the same state for all
implementations."""
SPIN_MARGIN_US = 100.0
MOST_SPIN_US = 100_000.0
TRIES = 12
"""How often a sample that was not hidden is taken again at most. A spin lasts twice as long each time."""
TRIES_AT_THE_GATE = 3
"""If the device gave up waiting at this many gates in a row, something within the call waits for the device."""
MOST_CALLS = 2000

GATE, SPIN = "gate", "spin"
NEVER_HIDDEN = "its launch cannot be hidden: the device comes to its first event before the call has been enqueued"


@dataclass(frozen=True, slots=True)
class Timed:
    """One measurement, in microseconds per call. `host_us` is the time in which the host enqueued all of it. `cover` is
    what kept the device busy meanwhile (`gate`, `spin`, or empty), and `cover_us` for how long: a gate from its launch
    until the host opened it, a spin as long as it was set to. `hidden` says whether it is certain that the device never
    waited for the host; None where no device runs in parallel with the host. `tries` is how often it was enqueued until
    it was hidden. `retaken` is how often it was taken again because something else used the device, and `shared`
    whether that was so the last time too; only processes of users' implementations are watched for it."""

    latency_us: float
    host_us: float | None = None
    cover: str = ""
    hidden: bool | None = None
    tries: int = 1
    cover_us: float | None = None
    retaken: int = 0
    shared: bool = False


class Timer(Protocol):
    """Times one implementation."""

    @property
    def calls_made(self) -> int:
        """How many calls one measurement takes, timed or not."""
        ...

    @property
    def overhead_us(self) -> float:
        """The part of a result that the timer itself takes, in microseconds. It is recorded but not subtracted."""
        ...

    def __call__(self, plans: Sequence[Plan]) -> Timed:
        """Takes one measurement, with these `calls_made` calls in turn. The caller has entered the plans' scope. Raises
        `Unavailable` where no sample can be hidden."""
        ...

    def rest_s(self, latency_us: float) -> float:
        """The seconds that the device has to rest after a measurement of `latency_us` a call."""
        ...


def timer_for(device: torch.device, regime: str, *, exposed: bool = False) -> Callable[[Contender], Timer]:
    """The function that makes a timer for `regime` on `device`; `exposed` is as in `CudaTimer`. Raises `ValueError` for
    a regime that the device does not have."""
    if device.type == "cuda":
        stream = CudaStream(device)
        overhead_us = empty_pair_us(stream)
        return lambda contender: CudaTimer(regime, contender, overhead_us, stream, exposed=exposed)
    if regime == "graph":
        raise ValueError("the graph regime replays a CUDA graph and needs a CUDA device")
    overhead_us = clock_overhead_ns() / 1000
    return lambda contender: CpuTimer(regime, contender, overhead_us)


class CpuTimer:
    """A timer with perf_counter_ns around one call (`burst`), or around calls back to back (`sustained`)."""

    def __init__(self, regime: str, contender: Contender, overhead_us: float = 0.0) -> None:
        once_us = host_us(contender.plans[0])
        self.calls_made = 1 if regime == "burst" else calls_for(SUSTAINED_S["cpu"], once_us)
        self.warm = self.calls_made // 2
        self.overhead_us = overhead_us / (self.calls_made - self.warm)

    def __call__(self, plans: Sequence[Plan]) -> Timed:
        """Microseconds per call."""
        for plan in plans[: self.warm]:
            plan()
        timed = plans[self.warm :]
        began = time.perf_counter_ns()
        for plan in timed:
            plan()
        return Timed((time.perf_counter_ns() - began) / 1000 / len(timed))

    def rest_s(self, latency_us: float) -> float:
        """0: a CPU needs no rest, which would only let others use its caches."""
        del latency_us
        return 0.0


class CudaTimer:
    """CUDA events around one call (`burst`), calls back to back (`sustained`), or a captured graph (`graph`).

    Raises `Unavailable` for what cannot be captured, and in burst for what cannot be hidden; where `exposed` is true,
    a call that waits for the device within itself is timed in burst with the host's part in it, and says so.
    """

    def __init__(
        self, regime: str, contender: Contender, overhead_us: float, stream: Stream, *, exposed: bool = False
    ) -> None:
        self.regime, self.stream, self.exposed, self.waits = regime, stream, exposed, False
        self.start, self.end = stream.event(), stream.event()
        self.cover = GATE if stream.gated else SPIN
        self.spin_us = SPIN_MARGIN_US + 2 * host_us(contender.plans[0], stream.now_us)
        self.calls_made = 1
        self.replay: Callable[[], object] | None = None
        once_us = self.once_us(contender)
        if regime == "sustained":
            self.calls_made = calls_for(SUSTAINED_S["cuda"], once_us)
        elif regime == "graph":
            self.calls_made = whole_turns(calls_for(GRAPH_S, once_us), len(contender.plans))
            self.replay = stream.capture(contender.plans, self.calls_made)
        self.warm = self.calls_made // 2 if regime == "sustained" else 0
        timed = self.calls_made - self.warm
        self.overhead_us = overhead_us / timed
        ends = [i * timed // SUSTAINED_PARTS for i in range(SUSTAINED_PARTS + 1)]
        self.parts = [range(*pair) for pair in itertools.pairwise(ends)]
        self.marks = [stream.event() for _ in self.parts] if regime == "sustained" else []

    def once_us(self, contender: Contender) -> float:
        """The approximate time of a call in microseconds. Raises `Unavailable` in burst, which has no other way to time
        it."""
        try:
            return self.covered(contender.plans[:1]).latency_us
        except Unavailable:
            if self.regime == "burst":
                raise
        return self.between_events(contender.plans[:1])

    def __call__(self, plans: Sequence[Plan]) -> Timed:
        """Microseconds per call."""
        if self.replay is not None:
            return self.covered([self.replay], self.calls_made)
        return self.back_to_back(plans) if self.regime == "sustained" else self.covered(plans)

    def covered(self, work: Sequence[Callable[[], object]], calls: int | None = None) -> Timed:
        """The device time per call of work that was all enqueued before the device began it, thanks to the gate, or
        else to a spin that had not ended by then. Where neither works it takes the time between the events if that is
        allowed; otherwise it raises `Unavailable`."""
        if self.waits:
            return self.uncovered(work)
        expired = 0
        for tries in range(1, TRIES + 1):
            taken = self.behind_gate(work) if self.cover == GATE else self.behind_spin(work)
            if taken.hidden:
                return replace(taken, latency_us=taken.latency_us / (calls or len(work)), tries=tries)
            if self.cover == SPIN:
                if self.spin_us >= MOST_SPIN_US:
                    break
                self.spin_us = min(MOST_SPIN_US, 2 * self.spin_us)
            elif (expired := expired + 1) == TRIES_AT_THE_GATE:
                self.cover = SPIN
        if not (self.exposed and self.regime == "burst"):
            raise Unavailable(NEVER_HIDDEN)
        self.waits = True
        return self.uncovered(work)

    def uncovered(self, work: Sequence[Callable[[], object]]) -> Timed:
        """Microseconds per call between two events, on a device that has nothing else to do."""
        self.enqueue(())
        self.end.synchronize()
        host = self.enqueue(work)
        self.end.synchronize()
        return Timed(self.stream.elapsed_us(self.start, self.end) / len(work), host, "", False)

    def behind_gate(self, work: Sequence[Callable[[], object]]) -> Timed:
        """One try. It is always hidden, unless the device gave up waiting."""
        began = self.stream.now_us()
        ticket = self.stream.block()
        try:
            host = self.enqueue(work)
            while self.stream.now_us() - began < LEAST_BLOCK_US:
                pass
        finally:
            self.stream.unblock(ticket)
        covered_us = self.stream.now_us() - began
        self.end.synchronize()
        hidden = not self.stream.expired(ticket)
        return Timed(self.stream.elapsed_us(self.start, self.end), host, GATE, hidden, cover_us=covered_us)

    def behind_spin(self, work: Sequence[Callable[[], object]]) -> Timed:
        """One try. It is hidden if the device had not reached the first event when everything was enqueued."""
        self.stream.spin(self.spin_us)
        host = self.enqueue(work)
        hidden = not self.start.query()
        self.end.synchronize()
        elapsed = self.stream.elapsed_us(self.start, self.end)
        return Timed(elapsed, host, SPIN, hidden, cover_us=self.spin_us)

    def enqueue(self, work: Sequence[Callable[[], object]]) -> float:
        """Enqueues both events with the work between them. Returns the microseconds that the host took."""
        began = self.stream.now_us()
        self.start.record()
        for call in work:
            call()
        self.end.record()
        return self.stream.now_us() - began

    def between_events(self, work: Sequence[Callable[[], object]]) -> float:
        """Microseconds per call, including the time of the host."""
        self.enqueue(work)
        self.end.synchronize()
        return self.stream.elapsed_us(self.start, self.end) / len(work)

    def back_to_back(self, plans: Sequence[Plan]) -> Timed:
        """The device time per call, after a first half as a warm-up. It is hidden if each sixteenth was enqueued before
        the device had finished the one before it: then the device always had work."""
        for plan in plans[: self.warm]:
            plan()
        timed, hidden, before = plans[self.warm :], True, self.start
        began = self.stream.now_us()
        self.start.record()
        for part, mark in zip(self.parts, self.marks, strict=True):
            for number in part:
                timed[number]()
            hidden = hidden and not (part and before.query())
            mark.record()
            before = mark
        self.end.record()
        host = self.stream.now_us() - began
        self.end.synchronize()
        return Timed(self.stream.elapsed_us(self.start, self.end) / len(timed), host / len(timed), "", hidden)

    def rest_s(self, latency_us: float) -> float:
        """The rest in seconds. Only burst has one, as the other regimes show what a busy chip does."""
        return min(REST_MOST_S, REST_TIMES * latency_us / 1e6) if self.regime == "burst" else 0.0


def host_us(plan: Plan, now_us: Callable[[], float] = lambda: time.perf_counter_ns() / 1000) -> float:
    """The time for which one call keeps the caller busy, in microseconds: the median of five."""
    times = []
    for _ in range(5):
        began = now_us()
        plan()
        times.append(now_us() - began)
    return statistics.median(times)


def calls_for(seconds: float, once_us: float) -> int:
    """How many calls fill `seconds`; at least 2, at most 2000."""
    return max(2, min(MOST_CALLS, round(seconds * 1e6 / max(once_us, 1e-3))))


def whole_turns(calls: int, sets: int) -> int:
    """The least number of calls, at least `calls`, that uses each of `sets` input sets equally often. So a replay never
    begins with the inputs that the last one left in the cache."""
    return -(-calls // sets) * sets


def timer_overhead_us(device: torch.device) -> float:
    """The time between two time stamps with nothing between them, in microseconds: the median of many."""
    return empty_pair_us(CudaStream(device)) if device.type == "cuda" else clock_overhead_ns() / 1000


def empty_pair_us(stream: Stream, pairs: int = 101) -> float:
    """The time between two events with nothing between them, behind the usual cover, in microseconds: the median of
    101."""
    timer = CudaTimer("burst", Contender("nothing", (torch.Tensor,), nullcontext), 0.0, stream)
    return statistics.median(timer.covered([], 1).latency_us for _ in range(pairs))


def clock_overhead_ns() -> float:
    """The time of two readings of the CPU clock in nanoseconds: the median of 1001."""
    gaps = []
    for _ in range(1001):
        began = time.perf_counter_ns()
        gaps.append(time.perf_counter_ns() - began)
    return float(statistics.median(gaps))
