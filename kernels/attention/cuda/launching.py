"""Steps, and a call with its tensors bound: what is left of a plan when it runs."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from kernels.attention.cuda.driver import LaunchAttribute, LaunchConfig, driver
from kernels.attention.cuda.engine import Engine
from kernels.attention.cuda.planning import Problem
from kernels.attention.cuda.variants import Entry


@dataclass(frozen=True, slots=True)
class Step:
    """One launch: a kernel, its grid in blocks, and its arguments, each passed by value.

    `dependent` lets it begin while the launch before it on the stream is ending (programmatic dependent launch); its
    kernel must then wait for that launch by itself.
    """

    entry: Entry
    grid: tuple[int, int, int]
    arguments: tuple[ctypes.Structure, ...]
    dependent: bool = False


@dataclass(slots=True)
class Buffers:
    """Device memory beside q, k, v and out, by address. What is made here lives as long as the buffers do."""

    engine: Engine
    lse: int = 0
    kept: list[Any] = field(default_factory=list)

    def scratch(self, size: int) -> int:
        """`size` bytes, not initialised."""
        memory = torch.empty(size, dtype=torch.uint8, device=self.engine.device)
        self.kept.append(memory)
        address: int = memory.data_ptr()
        return address

    def counter(self, size: int = 32) -> int:
        """`size` zero bytes of this call's own, which its kernels leave zero."""
        slot = Slot(self.engine, size)
        self.kept.append(slot)
        return slot.address


class Slot:
    """A counter's slot, given back when nobody holds it any more."""

    def __init__(self, engine: Engine, size: int) -> None:
        self.counters = engine.counters
        self.address = engine.counters.take(size)
        weakref.finalize(self, self.counters.give_back, self.address, size)


class Way(Protocol):
    """One way of computing a problem."""

    @property
    def name(self) -> str:
        """E.g. `fa2-128x64w4s2`."""

    def steps(self, problem: Problem, scale: float, buffers: Buffers) -> list[Step]:
        """The launches, in order."""


class Bound:
    """A call with its tensors bound: all that is left at each call is the launch, on PyTorch's current stream.

    Not for use by two threads at once, nor by two streams. Keeps its tensors alive.
    """

    def __init__(self, engine: Engine, way: str, steps: Sequence[Step], kept: Sequence[object]) -> None:
        self.way = way
        self.kept = kept
        self.plan = steps
        self.steps: list[tuple[LaunchConfig, int, int, int]] = []
        self.held: list[object] = []
        for step in steps:
            self.steps.append(self.prepare(step, engine.function(step.entry).handle))
        self.device_index: int = engine.device.index
        self.launch_kernel: Callable[[int, int, int, None], int] = driver().library.cuLaunchKernelEx
        self.current_stream: Callable[[int], int] = engine.host.current_stream

    def prepare(self, step: Step, function: int) -> tuple[LaunchConfig, int, int, int]:
        """The launch's configuration, its address, the function and the address of the arguments' addresses."""
        entry = step.entry
        config = LaunchConfig(*step.grid, entry.threads, 1, 1, entry.shared_bytes, None, None, 0)
        if step.dependent:
            attribute = LaunchAttribute.programmatic_stream_serialization()
            config.attributes, config.attribute_count = ctypes.addressof(attribute), 1
            self.held.append(attribute)
        pointers = (ctypes.c_void_p * len(step.arguments))(*(ctypes.addressof(one) for one in step.arguments))
        self.held.append(pointers)
        return config, ctypes.addressof(config), function, ctypes.addressof(pointers)

    def __call__(self) -> None:
        stream = self.current_stream(self.device_index)
        for config, address, function, arguments in self.steps:
            config.stream = stream
            code = self.launch_kernel(address, function, arguments, None)
            if code:
                self.fail(code)

    def fail(self, code: int) -> None:
        """Raise what a launch's code says."""
        driver().check(code, f"launching {self.way}")
