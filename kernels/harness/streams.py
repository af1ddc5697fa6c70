"""What a timer needs of a device's stream, and its implementation by PyTorch's current CUDA stream. Tests use a
simulated stream."""

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
        """Enqueues the mark behind all work so far."""
        ...

    def query(self) -> bool:
        """Whether the device has reached the mark."""
        ...

    def synchronize(self) -> None:
        """Waits until the device has reached the mark."""
        ...


class Stream(Protocol):
    """A sequence of work on a device that runs in parallel with the host."""

    @property
    def gated(self) -> bool:
        """Whether there is a gate; without one only a spin can be used."""
        ...

    def event(self) -> Event:
        """A new mark."""
        ...

    def elapsed_us(self, start: Event, end: Event) -> float:
        """The device's time in microseconds between two marks that it has passed."""
        ...

    def spin(self, microseconds: float) -> None:
        """Keeps the device busy for at least this time."""
        ...

    def block(self) -> int:
        """Makes the device wait at a gate. Returns the ticket that opens it."""
        ...

    def unblock(self, ticket: int) -> None:
        """Opens the gate."""
        ...

    def expired(self, ticket: int) -> bool:
        """Whether the device passed the gate because it had waited too long."""
        ...

    def capture(self, plans: Sequence[Plan], calls: int) -> Callable[[], object]:
        """Captures a graph of `calls` calls, of the plans in turn. Returns the function that replays it. Raises
        `Unavailable`."""
        ...

    def now_us(self) -> float:
        """The host's clock, in microseconds."""
        ...


class CudaStream:
    """PyTorch's current stream on a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        gate = gate_of(torch.device("cuda", device.index or 0))
        self.gate: Gate | None = gate if isinstance(gate, Gate) else None
        self.why_no_gate = "" if isinstance(gate, Gate) else gate

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

    def block(self) -> int:
        assert self.gate is not None, "gated says whether there is one"
        return self.gate.block()

    def unblock(self, ticket: int) -> None:
        assert self.gate is not None
        self.gate.unblock(ticket)

    def expired(self, ticket: int) -> bool:
        assert self.gate is not None
        return self.gate.expired(ticket)

    def capture(self, plans: Sequence[Plan], calls: int) -> Callable[[], object]:
        replay: Callable[[], object] = capture_graph(plans, calls).replay
        return replay

    def now_us(self) -> float:
        return time.perf_counter_ns() / 1000


def spin_cycles(microseconds: float) -> int:
    """The clock cycles of a spin that lasts this long at 2 GHz, and longer with a slower clock."""
    return round(microseconds * 2000)


def capture_graph(plans: Sequence[Plan], calls: int) -> torch.cuda.CUDAGraph:
    """A graph of `calls` calls on the input sets in turn. The plans must have been called before, so that nothing is
    loaded or allocated for the first time during the capture. Raises `Unavailable`."""
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
    """Captures one trivial graph successfully after a capture that failed. PyTorch ends the capture mode of the
    device's default random generator only when a capture succeeds. Until then every later draw on the device fails with
    "Offset increment outside graph capture". Never raises: if the device is broken, the next call on it will report
    that, and the reason why the first capture failed must still be reported.
    """
    outer = torch.cuda.current_stream()
    try:
        scratch_tensor = torch.zeros(1, device="cuda")
        scratch_tensor.add_(1)  # loads what is needed before the capture, in which nothing may be allocated
        torch.cuda.synchronize()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            scratch_tensor.add_(1)
        torch.cuda.synchronize()
    except RuntimeError:
        torch.cuda.set_stream(outer)
