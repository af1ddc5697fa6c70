"""Times several implementations of one computation against each other.

burst: one call at a time on a chip that was idle, cold L2 cache. A spin kernel runs before each call, so that the
host's latency is over before the first event; the calls of a round come in random order.
graph: calls back to back from a CUDA graph, a few milliseconds' worth, replayed in random order.
sustained: calls back to back from the host for half a second, at the clocks that the power limit leaves.
"""

from __future__ import annotations

import importlib
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Call = Callable[[], object]

FLUSH_BYTES = 256 * 2**20
SPIN_CYCLES = 300_000
IDLE_S = 0.004
GRAPH_MS = 4.0
MAX_GRAPH_CALLS = 256


@dataclass(frozen=True, slots=True)
class Contender:
    """One implementation on one problem: a call for each set of inputs, and the context that pins its backend.

    The context is entered before a timed region begins, never inside.
    """

    name: str
    calls: tuple[Call, ...]
    pinned: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass(frozen=True, slots=True)
class Sustained:
    """Microseconds a call over `calls` calls back to back, and the chip's state while it was busy."""

    us: float
    calls: int
    state: Mapping[str, float]


class Stopwatch(Protocol):
    """What the campaign needs of a device: tests give it one whose time is simulated."""

    def now(self) -> float:
        """Seconds, from any start."""

    def burst(self, contenders: Sequence[Contender]) -> list[float]:
        """Microseconds of one call of each, one after the other, then a rest."""

    def capture(self, contender: Contender, calls: int, cold: bool) -> Call:
        """A graph of calls in a row, on one set of inputs or each on the next."""

    def replay(self, graphs: Sequence[Call]) -> list[float]:
        """Microseconds of each graph, one after the other."""

    def sustain(self, contender: Contender, seconds: float) -> Sustained:
        """Calls back to back for so long."""

    def state(self) -> dict[str, float]:
        """The chip's clocks, power and temperature at this moment, as far as the driver tells."""


class CudaStopwatch:
    """CUDA events on PyTorch's current stream."""

    def __init__(self) -> None:
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
        self.gauges = Gauges()

    def now(self) -> float:
        return time.perf_counter()

    def burst(self, contenders: Sequence[Contender]) -> list[float]:
        events = []
        for one in contenders:
            with one.pinned():
                self.flush.zero_()
                torch.cuda._sleep(SPIN_CYCLES)
                events.append(between_events(one.calls[0]))
        torch.cuda.synchronize()
        time.sleep(IDLE_S)
        return [before.elapsed_time(after) * 1e3 for before, after in events]

    def capture(self, contender: Contender, calls: int, cold: bool) -> Call:
        with contender.pinned():
            replay = capture(contender.calls if cold else contender.calls[:1], calls)
        replay()  # the first replay of a graph uploads it
        torch.cuda.synchronize()
        return replay

    def replay(self, graphs: Sequence[Call]) -> list[float]:
        events = [between_events(one) for one in graphs]
        torch.cuda.synchronize()
        return [before.elapsed_time(after) * 1e3 for before, after in events]

    def sustain(self, contender: Contender, seconds: float) -> Sustained:
        call = contender.calls[0]
        with contender.pinned():
            call()
            before, after = between_events(call)
            torch.cuda.synchronize()
            calls = max(10, int(seconds * 1e3 / max(before.elapsed_time(after), 1e-3)))
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            for _ in range(calls):
                call()
            after.record()
            state = self.state()  # the device is still some thousand launches behind the host
            torch.cuda.synchronize()
        return Sustained(before.elapsed_time(after) * 1e3 / calls, calls, state)

    def state(self) -> dict[str, float]:
        return self.gauges.read()


class Gauges:
    """The driver's management library, through its Python binding where there is one; else there are no gauges."""

    def __init__(self) -> None:
        self.library: Any = None
        try:
            library: Any = importlib.import_module("pynvml")
            library.nvmlInit()
            self.handle = library.nvmlDeviceGetHandleByIndex(torch.cuda.current_device())
            self.library = library
        except Exception:  # whatever is missing here, the times are as good without it
            self.library = None

    def read(self) -> dict[str, float]:
        if self.library is None:
            return {}
        nvml, one = self.library, self.handle
        try:
            return {
                "sm_mhz": float(nvml.nvmlDeviceGetClockInfo(one, nvml.NVML_CLOCK_SM)),
                "memory_mhz": float(nvml.nvmlDeviceGetClockInfo(one, nvml.NVML_CLOCK_MEM)),
                "power_w": nvml.nvmlDeviceGetPowerUsage(one) / 1e3,
                "celsius": float(nvml.nvmlDeviceGetTemperature(one, nvml.NVML_TEMPERATURE_GPU)),
            }
        except nvml.NVMLError:
            return {}


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


def capture(call: Call | Sequence[Call], calls: int) -> Call:
    """A graph of `calls` calls in a row, by turns where there are several."""
    turns = [call] if callable(call) else [*call]
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        for one in turns:
            one()
        torch.cuda.synchronize()
        # Not torch.cuda.graph, which empties PyTorch's memory cache each time.
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for number in range(calls):
                turns[number % len(turns)]()
        finally:
            graph.capture_end()
    replay: Call = graph.replay
    return replay


def graph_calls(single_us: float) -> int:
    """How many calls fill a graph of about 4 ms."""
    return max(1, min(MAX_GRAPH_CALLS, int(GRAPH_MS * 1e3 / max(single_us, 1.0))))


def compare(calls: Mapping[str, Call], *, burst_rounds: int, graph_rounds: int, seed: int) -> dict[str, Times]:
    """Time every call, interleaved. A call must be warm already, and launch on the current stream."""
    watch, chance = CudaStopwatch(), random.Random(seed)
    field = {name: Contender(name, (call,)) for name, call in calls.items()}
    burst: dict[str, list[float]] = {name: [] for name in calls}
    graph: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    single = dict(zip(order, watch.burst([field[name] for name in order]), strict=True))
    for _ in range(burst_rounds):
        chance.shuffle(order)
        for name, us in zip(order, watch.burst([field[name] for name in order]), strict=True):
            burst[name].append(us)
    counts = {name: graph_calls(us) for name, us in single.items()}
    graphs = {name: watch.capture(field[name], counts[name], False) for name in order} if graph_rounds else {}
    for _ in range(graph_rounds):
        chance.shuffle(order)
        for name, us in zip(order, watch.replay([graphs[name] for name in order]), strict=True):
            graph[name].append(us / counts[name])
    return {name: Times(tuple(burst[name]), tuple(graph[name])) for name in calls}
