"""One measurement of one implementation: by CUDA events, by a captured graph, or by the processor's clock.

Every CUDA sample of `burst` and `graph` stands behind a gate that the host opens once both events and what lies between
them are enqueued (or behind a spin that is shown to have lasted until then), so that no slowness of the host is in it.
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
"""How long one sustained measurement keeps the device busy; its second half is what counts."""
SUSTAINED_PARTS = 16

GRAPH_S = 0.001
"""How much work one captured graph holds, so that the gaps between replays do not matter."""

REST_TIMES = 9
REST_MOST_S = 0.05
"""After a single call the chip rests nine times as long: at a tenth of its load no power limit holds it back. Power is
averaged over tens of milliseconds, so that more rest than this changes nothing."""

LEAST_HOLD_US = 100.0
"""A gate stays shut at least so long: a chip that has just rested finds all implementations equally awake."""
SPIN_MARGIN_US = 100.0
MOST_SPIN_US = 100_000.0
TRIES = 12
"""How often a sample is taken that was not hidden. A spin doubles each time."""
TRIES_AT_THE_GATE = 3
"""After so many gates in a row that the device gave up waiting at, something within the call waits for the device."""
MOST_CALLS = 2000

GATE, SPIN = "gate", "spin"
NEVER_HIDDEN = "its launch cannot be hidden: the device comes to its first event before the call has been enqueued"


@dataclass(frozen=True, slots=True)
class Timed:
    """One measurement: microseconds per call. `host_us` is how long the host took to enqueue it all; `cover` is what
    kept the device busy meanwhile (`gate`, `spin`, or nothing), and `cover_us` how long: a gate from its launch until
    the host opened it, a spin as it was asked for. `hidden` says whether the device provably never waited for the host;
    None where no device runs beside the host. `tries`: how often it was enqueued until it was."""

    latency_us: float
    host_us: float | None = None
    cover: str = ""
    hidden: bool | None = None
    tries: int = 1
    cover_us: float | None = None


class Timer(Protocol):
    """Times one implementation."""

    @property
    def calls_made(self) -> int:
        """How many calls one measurement takes, timed or not."""
        ...

    @property
    def overhead_us(self) -> float:
        """What of a result is the timer's own. It is recorded, not subtracted."""
        ...

    def __call__(self, plans: Sequence[Plan]) -> Timed:
        """Measure once, with these `calls_made` calls in turn; the caller has entered the plans' scope. Raises
        `Unavailable` where no sample can be hidden."""
        ...

    def rest_s(self, latency_us: float) -> float:
        """How long the device has to rest after a measurement of `latency_us` a call."""
        ...


def timer_for(device: torch.device, regime: str, *, exposed: bool = False) -> Callable[[Contender], Timer]:
    """How `regime` is timed on `device`; `exposed` as in `CudaTimer`. Raises `ValueError` for a regime that the device
    does not have."""
    if device.type == "cuda":
        stream = CudaStream(device)
        overhead_us = empty_pair_us(stream)
        return lambda contender: CudaTimer(regime, contender, overhead_us, stream, exposed=exposed)
    if regime == "graph":
        raise ValueError("the graph regime replays a CUDA graph and needs a CUDA device")
    overhead_us = clock_overhead_ns() / 1000
    return lambda contender: CpuTimer(regime, contender, overhead_us)


class CpuTimer:
    """perf_counter_ns around one call (`burst`), or around calls back to back (`sustained`)."""

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
        """A processor's clock does not wait for a call to end: resting would only let its caches be taken."""
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
        """About what a call takes. Raises `Unavailable` in burst, which has no other way to time it."""
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
        """Device time per call of work that was all enqueued before the device came to it: by the gate, else by a spin
        that had not ended by then. Where neither can be had, what goes by between the events, if that may be; else it
        raises `Unavailable`."""
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
        """One try. Hidden by construction, unless the device gave up waiting."""
        began = self.stream.now_us()
        ticket = self.stream.hold()
        try:
            host = self.enqueue(work)
            while self.stream.now_us() - began < LEAST_HOLD_US:
                pass
        finally:
            self.stream.release(ticket)
        held = self.stream.now_us() - began
        self.end.synchronize()
        hidden = not self.stream.expired(ticket)
        return Timed(self.stream.elapsed_us(self.start, self.end), host, GATE, hidden, cover_us=held)

    def behind_spin(self, work: Sequence[Callable[[], object]]) -> Timed:
        """One try. Hidden if, with all enqueued, the device had not yet come to the first event."""
        self.stream.spin(self.spin_us)
        host = self.enqueue(work)
        hidden = not self.start.query()
        self.end.synchronize()
        elapsed = self.stream.elapsed_us(self.start, self.end)
        return Timed(elapsed, host, SPIN, hidden, cover_us=self.spin_us)

    def enqueue(self, work: Sequence[Callable[[], object]]) -> float:
        """Both events with the work between them; the host's microseconds."""
        began = self.stream.now_us()
        self.start.record()
        for call in work:
            call()
        self.end.record()
        return self.stream.now_us() - began

    def between_events(self, work: Sequence[Callable[[], object]]) -> float:
        """Microseconds per call with the host's in them."""
        self.enqueue(work)
        self.end.synchronize()
        return self.stream.elapsed_us(self.start, self.end) / len(work)

    def back_to_back(self, plans: Sequence[Plan]) -> Timed:
        """Device time per call after a warm half. Hidden if each sixteenth was enqueued before the device had done with
        the one ahead of it: then there was always work for it."""
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
        """Burst alone rests: the other regimes are there to show what a busy chip does."""
        return min(REST_MOST_S, REST_TIMES * latency_us / 1e6) if self.regime == "burst" else 0.0


def host_us(plan: Plan, now_us: Callable[[], float] = lambda: time.perf_counter_ns() / 1000) -> float:
    """How long the caller is busy with one call, in microseconds: the median of five."""
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
    """At least `calls`, and each of `sets` input sets as often: a replay must not begin with what the last one left."""
    return -(-calls // sets) * sets


def timer_overhead_us(device: torch.device) -> float:
    """What a pair of time stamps with nothing between them says, in microseconds: the median of many."""
    return empty_pair_us(CudaStream(device)) if device.type == "cuda" else clock_overhead_ns() / 1000


def empty_pair_us(stream: Stream, pairs: int = 101) -> float:
    """An empty pair of events behind the same cover as everything else: the median of 101."""
    timer = CudaTimer("burst", Contender("nothing", (torch.Tensor,), nullcontext), 0.0, stream)
    return statistics.median(timer.covered([], 1).latency_us for _ in range(pairs))


def clock_overhead_ns() -> float:
    """What two readings of the CPU clock cost, the median of 1001."""
    gaps = []
    for _ in range(1001):
        began = time.perf_counter_ns()
        gaps.append(time.perf_counter_ns() - began)
    return float(statistics.median(gaps))
