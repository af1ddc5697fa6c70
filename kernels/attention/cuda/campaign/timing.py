"""Times several implementations of one computation against each other, in two regimes.

burst: one call at a time on a chip that was idle, cold L2 cache. A spin kernel runs before each call, so that the
host's latency is over before the first event; the calls of a round come in random order.
graph: calls back to back from a CUDA graph, a few milliseconds' worth, replayed in random order.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Call = Callable[[], object]

FLUSH_BYTES = 256 * 2**20
SPIN_CYCLES = 300_000
IDLE_S = 0.004
GRAPH_MS = 4.0
MAX_GRAPH_CALLS = 100


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds a call, one number a round."""

    burst_us: tuple[float, ...]
    graph_us: tuple[float, ...]

    @property
    def burst_median_us(self) -> float:
        return statistics.median(self.burst_us)

    @property
    def graph_median_us(self) -> float:
        return statistics.median(self.graph_us)


def between_events(call: Call) -> tuple[Any, Any]:
    """Enqueue a call between two events; read them after a synchronisation."""
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record()
    call()
    after.record()
    return before, after


def capture(call: Call, calls: int) -> Call:
    """A graph of `calls` calls in a row."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    replay: Call = graph.replay
    return replay


def compare(calls: Mapping[str, Call], *, burst_rounds: int, graph_rounds: int, seed: int) -> dict[str, Times]:
    """Time every call, interleaved. A call must be warm already, and launch on the current stream."""
    order, chance = list(calls), random.Random(seed)
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    single: dict[str, float] = {}
    for name, call in calls.items():
        call()
        before, after = between_events(call)
        torch.cuda.synchronize()
        single[name] = before.elapsed_time(after)
    burst: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(burst_rounds):
        chance.shuffle(order)
        events = []
        for name in order:
            flush.zero_()
            torch.cuda._sleep(SPIN_CYCLES)
            events.append((name, *between_events(calls[name])))
        torch.cuda.synchronize()
        for name, before, after in events:
            burst[name].append(before.elapsed_time(after) * 1e3)
        time.sleep(IDLE_S)
    counts = {name: max(1, min(MAX_GRAPH_CALLS, int(GRAPH_MS / max(ms, 1e-3)))) for name, ms in single.items()}
    graphs = {name: capture(call, counts[name]) for name, call in calls.items()} if graph_rounds else {}
    graph: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(graph_rounds + 1 if graph_rounds else 0):
        chance.shuffle(order)
        events = [(name, *between_events(graphs[name])) for name in order]
        torch.cuda.synchronize()
        for name, before, after in events:
            if round_:  # the first replay of a graph uploads it
                graph[name].append(before.elapsed_time(after) * 1e3 / counts[name])
    return {name: Times(tuple(burst[name]), tuple(graph[name])) for name in calls}
