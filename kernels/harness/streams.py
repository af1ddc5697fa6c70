"""What a timer needs of a device's stream, and PyTorch's current CUDA stream as one: tests bring a simulated one."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from kernels.harness.gate import Gate, gate_of
from kernels.harness.workload import Plan, Unavailable


class Event(Protocol):
    """A mark in a stream."""

    def record(self) -> None:
        """Put it behind all that was enqueued so far."""
        ...

    def query(self) -> bool:
        """Whether the device has come to it."""
        ...

    def synchronize(self) -> None:
        """Wait until it has."""
        ...


class Stream(Protocol):
    """Work in order, on a device that runs beside the host."""

    @property
    def gated(self) -> bool:
        """Whether there is a gate; without one there is only the spin."""
        ...

    def event(self) -> Event:
        """A new mark."""
        ...

    def elapsed_us(self, start: Event, end: Event) -> float:
        """The device's time between two marks that it has passed."""
        ...

    def spin(self, microseconds: float) -> None:
        """Keep the device busy for at least so long."""
        ...

    def hold(self) -> int:
        """Let the device wait at a gate; the ticket that opens it."""
        ...

    def release(self, ticket: int) -> None:
        """Open the gate."""
        ...

    def expired(self, ticket: int) -> bool:
        """Whether the device, which has passed the gate, did so because it had waited too long."""
        ...

    def capture(self, plans: Sequence[Plan], calls: int) -> Callable[[], object]:
        """A graph of so many calls, of the plans in turn. Raises `Unavailable`."""
        ...

    def now_us(self) -> float:
        """The host's clock."""
        ...


class CudaStream:
    """PyTorch's current stream on a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        found = gate_of(torch.device("cuda", device.index or 0))
        self.gate: Gate | None = found if isinstance(found, Gate) else None
        self.why_no_gate = "" if isinstance(found, Gate) else found

    @property
    def gated(self) -> bool:
        return self.gate is not None

    def event(self) -> Event:
        made: Event = torch.cuda.Event(enable_timing=True)
        return made

    def elapsed_us(self, start: Any, end: Any) -> float:
        return float(start.elapsed_time(end)) * 1000

    def spin(self, microseconds: float) -> None:
        torch.cuda._sleep(spin_cycles(microseconds))

    def hold(self) -> int:
        assert self.gate is not None, "gated says whether there is one"
        return self.gate.hold()

    def release(self, ticket: int) -> None:
        assert self.gate is not None
        self.gate.release(ticket)

    def expired(self, ticket: int) -> bool:
        assert self.gate is not None
        return self.gate.expired(ticket)

    def capture(self, plans: Sequence[Plan], calls: int) -> Callable[[], object]:
        replay: Callable[[], object] = captured(plans, calls).replay
        return replay

    def now_us(self) -> float:
        return time.perf_counter_ns() / 1000


def spin_cycles(microseconds: float) -> int:
    """Clock cycles of a spin that lasts this long at 2 GHz, longer on a slower clock."""
    return round(microseconds * 2000)


def captured(plans: Sequence[Plan], calls: int) -> torch.cuda.CUDAGraph:
    """A graph of `calls` calls on the input sets in turn. What loads or allocates for the first time must have happened
    before. Raises `Unavailable`."""
    outer = torch.cuda.current_stream()
    try:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for plan in plans:
                plan()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for plan in itertools.islice(itertools.cycle(plans), calls):
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
