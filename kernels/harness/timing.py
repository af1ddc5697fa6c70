"""Times implementations against each other: each runs once a block, in random order, so drift falls on all alike."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch

from kernels.attention.interface import Plan
from kernels.harness.clocks import Clocks, Reading
from kernels.harness.host import Host, HostReading
from kernels.harness.stamps import now
from kernels.harness.stopping import Enough, never

SUSTAINED_S = {"cuda": 0.05, "cpu": 0.02}
"""How long one sustained measurement keeps the device busy; its second half is what counts."""

GRAPH_S = 0.001
"""How much work one captured graph holds, so that the gaps between replays do not matter."""

SPIN_MARGIN_US = 30.0
L2_FLUSH_FLOOR = 64 << 20


@dataclass(frozen=True, slots=True)
class Contender:
    """One implementation bound to the inputs of a case. `scope` is entered around each call, outside what is timed."""

    implementation: str
    plan: Plan
    scope: Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement: microseconds per call, in which block and at which place in it (from 1), what the device's
    sensors said right after, and the host before the block. `energy_j` is of the whole measurement of `calls` calls."""

    implementation: str
    block: int
    repeat: int
    latency_us: float
    reading: Reading
    started_at: str
    position: int
    calls: int
    energy_j: float | None
    host: HostReading


class Timer(Protocol):
    """Microseconds per call of a plan."""

    @property
    def calls_made(self) -> int:
        """How often one measurement calls the plan, timed or not."""
        ...

    def __call__(self, plan: Plan) -> float:
        """Measure once; the caller has entered the plan's scope."""
        ...


def measure(
    contenders: Sequence[Contender],
    *,
    blocks: int,
    warmup: int,
    timer: Callable[[Contender], Timer],
    rng: random.Random,
    clocks: Clocks,
    enough: Enough = never,
    host: Host | None = None,
) -> list[Sample]:
    """`blocks` samples of each contender, interleaved, after `warmup` untimed calls of each.

    The order is random in every odd block and turned around in the block after it, so that whatever a place in the
    order does to a time, it does to all alike. `enough` may end the measuring before the last block.
    """
    host = host or Host()
    timers: dict[str, Timer] = {}
    for contender in contenders:
        with contender.scope():
            for _ in range(warmup):
                contender.plan()
            timers[contender.implementation] = timer(contender)
    samples = []
    latencies: dict[str, list[float]] = {contender.implementation: [] for contender in contenders}
    order = list(contenders)
    for block in range(1, blocks + 1):
        order = rng.sample(order, len(order)) if block % 2 else order[::-1]
        around = host.read()
        for position, contender in enumerate(order, start=1):
            name = contender.implementation
            started_at, before = now(), clocks.energy_j()
            with contender.scope():
                latency_us = timers[name](contender.plan)
            after = clocks.energy_j()
            used = None if before is None or after is None else after - before
            reading, calls = clocks.read(), timers[name].calls_made
            samples.append(Sample(name, block, block, latency_us, reading, started_at, position, calls, used, around))
            latencies[name].append(latency_us)
        if enough(latencies):
            break
    return samples


def timer_for(device: torch.device, regime: str) -> Callable[[Contender], Timer]:
    """How `regime` is timed on `device`. Raises `ValueError` for a regime that the device does not have."""
    if device.type == "cuda":
        flush = torch.empty(flush_bytes(device), dtype=torch.int8, device=device)
        return lambda contender: CudaTimer(regime, contender, flush)
    if regime == "graph":
        raise ValueError("the graph regime replays a CUDA graph and needs a CUDA device")
    return lambda contender: CpuTimer(regime, contender)


class CpuTimer:
    """perf_counter_ns around one call (`burst`), or around calls back to back (`sustained`). Caches are not flushed."""

    def __init__(self, regime: str, contender: Contender) -> None:
        self.calls = 0 if regime == "burst" else calls_for(SUSTAINED_S["cpu"], host_us(contender.plan))

    @property
    def calls_made(self) -> int:
        """One, or the warm half and the timed half."""
        return max(1, self.calls)

    def __call__(self, plan: Plan) -> float:
        """Microseconds per call."""
        for _ in range(self.calls // 2):
            plan()
        timed = max(1, self.calls - self.calls // 2)
        began = time.perf_counter_ns()
        for _ in range(timed):
            plan()
        return (time.perf_counter_ns() - began) / 1000 / timed


class CudaTimer:
    """CUDA events around one call (`burst`), calls back to back (`sustained`), or a captured graph (`graph`).

    Burst is cold: the L2 cache is overwritten first, and a spin kernel keeps the device busy until the host has
    enqueued the call, so that launch latency is hidden. Sustained and graph run warm.
    """

    def __init__(self, regime: str, contender: Contender, flush: torch.Tensor) -> None:
        self.regime, self.flush = regime, flush
        self.start = torch.cuda.Event(enable_timing=True)
        self.end = torch.cuda.Event(enable_timing=True)
        self.host_us = host_us(contender.plan)
        once_us = self.events_us(contender.plan, 1)
        self.calls = 1
        self.graph: torch.cuda.CUDAGraph | None = None
        if regime == "sustained":
            self.calls = calls_for(SUSTAINED_S["cuda"], once_us)
        elif regime == "graph":
            self.calls = calls_for(GRAPH_S, once_us)
            self.graph = captured(contender.plan, self.calls)

    @property
    def calls_made(self) -> int:
        """One, or all that one graph or one sustained stretch holds."""
        return self.calls

    def __call__(self, plan: Plan) -> float:
        """Microseconds per call."""
        if self.graph is not None:
            return self.events_us(self.graph.replay, 1) / self.calls
        if self.regime == "sustained":
            for _ in range(self.calls // 2):
                plan()
            return self.events_us(plan, max(1, self.calls - self.calls // 2))
        self.flush.zero_()
        torch.cuda._sleep(spin_cycles(self.host_us + SPIN_MARGIN_US))
        return self.events_us(plan, 1)

    def events_us(self, call: Callable[[], object], times: int) -> float:
        """Device time per call between two events, in microseconds."""
        self.start.record()
        for _ in range(times):
            call()
        self.end.record()
        self.end.synchronize()
        return float(self.start.elapsed_time(self.end)) * 1000 / times


def captured(plan: Plan, calls: int) -> torch.cuda.CUDAGraph:
    """A graph of `calls` calls. Everything that loads or allocates for the first time must have happened before."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        plan()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            plan()
    graph.replay()
    torch.cuda.synchronize()
    return graph


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
    return max(2, min(2000, round(seconds * 1e6 / max(once_us, 1e-3))))


def spin_cycles(microseconds: float) -> int:
    """Clock cycles of a spin that lasts this long at 2 GHz, longer on a slower clock."""
    return round(microseconds * 2000)


def flush_bytes(device: torch.device) -> int:
    """Twice the L2 cache, and no less than 64 MiB."""
    return max(L2_FLUSH_FLOOR, 2 * int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)))


def clock_overhead_ns() -> float:
    """What two readings of the CPU clock cost, the median of 1001. It is recorded, not subtracted."""
    gaps = []
    for _ in range(1001):
        began = time.perf_counter_ns()
        gaps.append(time.perf_counter_ns() - began)
    return float(statistics.median(gaps))
