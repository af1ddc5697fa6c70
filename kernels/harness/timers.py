"""One measurement of one implementation: by CUDA events, by a captured graph, or by the processor's clock."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from kernels.attention.interface import Plan, Unavailable
from kernels.harness.turns import Contender

SUSTAINED_S = {"cuda": 0.05, "cpu": 0.02}
"""How long one sustained measurement keeps the device busy; its second half is what counts."""

GRAPH_S = 0.001
"""How much work one captured graph holds, so that the gaps between replays do not matter."""

REST_TIMES = 9
REST_MOST_S = 0.05
"""After a single call the chip rests nine times as long: at a tenth of its load no power limit holds it back. Power is
averaged over tens of milliseconds, so that more rest than this changes nothing."""

SPIN_MARGIN_US = 30.0
MOST_CALLS = 2000


class Timer(Protocol):
    """Microseconds per call of one implementation."""

    @property
    def calls_made(self) -> int:
        """How many calls one measurement takes, timed or not."""
        ...

    @property
    def overhead_us(self) -> float:
        """What of a result is the timer's own. It is recorded, not subtracted."""
        ...

    @property
    def host_us(self) -> float:
        """How long the host is busy with one call."""
        ...

    def __call__(self, plans: Sequence[Plan]) -> float:
        """Measure once, with these `calls_made` calls in turn; the caller has entered the plans' scope."""
        ...

    def rest_s(self, latency_us: float) -> float:
        """How long the device has to rest after a measurement of `latency_us` a call."""
        ...


def timer_for(device: torch.device, regime: str) -> Callable[[Contender], Timer]:
    """How `regime` is timed on `device`. Raises `ValueError` for a regime that the device does not have."""
    overhead_us = timer_overhead_us(device)
    if device.type == "cuda":
        return lambda contender: CudaTimer(regime, contender, overhead_us)
    if regime == "graph":
        raise ValueError("the graph regime replays a CUDA graph and needs a CUDA device")
    return lambda contender: CpuTimer(regime, contender, overhead_us)


class CpuTimer:
    """perf_counter_ns around one call (`burst`), or around calls back to back (`sustained`)."""

    def __init__(self, regime: str, contender: Contender, overhead_us: float = 0.0) -> None:
        self.host_us = host_us(contender.plans[0])
        self.calls_made = 1 if regime == "burst" else calls_for(SUSTAINED_S["cpu"], self.host_us)
        self.warm = self.calls_made // 2
        self.overhead_us = overhead_us / (self.calls_made - self.warm)

    def __call__(self, plans: Sequence[Plan]) -> float:
        """Microseconds per call."""
        for plan in plans[: self.warm]:
            plan()
        timed = plans[self.warm :]
        began = time.perf_counter_ns()
        for plan in timed:
            plan()
        return (time.perf_counter_ns() - began) / 1000 / len(timed)

    def rest_s(self, latency_us: float) -> float:
        """A processor's clock does not wait for a call to end: resting would only let its caches be taken."""
        del latency_us
        return 0.0


class CudaTimer:
    """CUDA events around one call (`burst`), calls back to back (`sustained`), or a captured graph (`graph`).

    In burst, a spin kernel keeps the device busy until the host has enqueued the call, so that launch latency is
    hidden. Raises `Unavailable` for what cannot be captured.
    """

    def __init__(self, regime: str, contender: Contender, overhead_us: float) -> None:
        self.regime = regime
        self.start = torch.cuda.Event(enable_timing=True)
        self.end = torch.cuda.Event(enable_timing=True)
        self.host_us = host_us(contender.plans[0])
        once_us = self.events_us(contender.plans[:1])
        self.calls_made = 1
        self.graph: torch.cuda.CUDAGraph | None = None
        if regime == "sustained":
            self.calls_made = calls_for(SUSTAINED_S["cuda"], once_us)
        elif regime == "graph":
            self.calls_made = whole_turns(calls_for(GRAPH_S, once_us), len(contender.plans))
            self.graph = captured(contender, self.calls_made)
        self.warm = self.calls_made // 2 if regime == "sustained" else 0
        self.overhead_us = overhead_us / (self.calls_made - self.warm)

    def __call__(self, plans: Sequence[Plan]) -> float:
        """Microseconds per call."""
        if self.graph is not None:
            return self.events_us([self.graph.replay]) / self.calls_made
        if self.regime == "sustained":
            for plan in plans[: self.warm]:
                plan()
            return self.events_us(plans[self.warm :])
        torch.cuda._sleep(spin_cycles(self.host_us + SPIN_MARGIN_US))
        return self.events_us(plans)

    def events_us(self, calls: Sequence[Callable[[], object]]) -> float:
        """Device time per call between two events, in microseconds."""
        self.start.record()
        for call in calls:
            call()
        self.end.record()
        self.end.synchronize()
        return float(self.start.elapsed_time(self.end)) * 1000 / len(calls)

    def rest_s(self, latency_us: float) -> float:
        """Burst alone rests: the other regimes are there to show what a busy chip does."""
        return min(REST_MOST_S, REST_TIMES * latency_us / 1e6) if self.regime == "burst" else 0.0


def captured(contender: Contender, calls: int) -> torch.cuda.CUDAGraph:
    """A graph of `calls` calls on the input sets in turn. What loads or allocates for the first time must have happened
    before. Raises `Unavailable`."""
    outer = torch.cuda.current_stream()
    try:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for plan in contender.plans:
                plan()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for plan in itertools.islice(itertools.cycle(contender.plans), calls):
                plan()
        graph.replay()
        torch.cuda.synchronize()
    except RuntimeError as exc:
        # A capture that fails may leave its own stream the current one.
        torch.cuda.set_stream(outer)
        end_capture_mode()
        first = next(iter(str(exc).strip().splitlines()), type(exc).__name__)
        raise Unavailable(f"its calls cannot be captured in a graph: {first[:160]}") from exc
    return graph


def end_capture_mode() -> None:
    """Captures one trivial graph that succeeds, after a capture that did not. PyTorch tells the device's default random
    generator of a capture's end only once that has succeeded: until the next one does, every later draw on the device
    fails with "Offset increment outside graph capture". Never raises: on a device that is beyond help, whatever comes
    next says so itself, and why the first capture failed is still to be told.
    """
    outer = torch.cuda.current_stream()
    try:
        one = torch.zeros(1, device="cuda")
        one.add_(1)  # what loads for the first time does so here, and nothing is allocated in the capture
        torch.cuda.synchronize()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            one.add_(1)
        torch.cuda.synchronize()
    except RuntimeError:
        torch.cuda.set_stream(outer)


def host_us(plan: Plan) -> float:
    """How long the caller is busy with one call, in microseconds: the median of five."""
    times = []
    for _ in range(5):
        began = time.perf_counter_ns()
        plan()
        times.append((time.perf_counter_ns() - began) / 1000)
    return statistics.median(times)


def calls_for(seconds: float, once_us: float) -> int:
    """How many calls fill `seconds`; at least 2, at most 2000."""
    return max(2, min(MOST_CALLS, round(seconds * 1e6 / max(once_us, 1e-3))))


def whole_turns(calls: int, sets: int) -> int:
    """At least `calls`, and each of `sets` input sets as often: a replay must not begin with what the last one left."""
    return -(-calls // sets) * sets


def spin_cycles(microseconds: float) -> int:
    """Clock cycles of a spin that lasts this long at 2 GHz, longer on a slower clock."""
    return round(microseconds * 2000)


def timer_overhead_us(device: torch.device) -> float:
    """What a pair of time stamps with nothing between them says, in microseconds: the median of many."""
    return event_overhead_us() if device.type == "cuda" else clock_overhead_ns() / 1000


def event_overhead_us(pairs: int = 101) -> float:
    """An empty pair of CUDA events, enqueued behind a spin so that the host is not in it."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    gaps = []
    for _ in range(pairs):
        torch.cuda._sleep(spin_cycles(SPIN_MARGIN_US))
        start.record()
        end.record()
        end.synchronize()
        gaps.append(float(start.elapsed_time(end)) * 1000)
    return statistics.median(gaps)


def clock_overhead_ns() -> float:
    """What two readings of the CPU clock cost, the median of 1001."""
    gaps = []
    for _ in range(1001):
        began = time.perf_counter_ns()
        gaps.append(time.perf_counter_ns() - began)
    return float(statistics.median(gaps))
