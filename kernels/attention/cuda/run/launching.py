"""The steps of a call, and a call with its tensors bound: the parts of a plan that run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import torch

from kernels.attention.cuda.plan.planning import Problem
from kernels.attention.cuda.plan.variants import Entry
from kernels.attention.cuda.run.counters import Counters
from kernels.attention.cuda.run.driver import (
    COOPERATIVE,
    PROGRAMMATIC_STREAM_SERIALIZATION,
    LaunchAttribute,
    LaunchConfig,
    cuda_driver,
)
from kernels.attention.cuda.run.engine import Engine


@dataclass(frozen=True, slots=True)
class Step:
    """One launch: a kernel, its grid in blocks, and its arguments, each passed by value.

    `dependent` lets it begin while the launch before it on the stream is ending (programmatic dependent launch); its
    kernel must then wait for that launch by itself. `cooperative`: all of its blocks run at the same time; the driver
    refuses a grid for which they cannot. A launch is at most one of the two.
    """

    entry: Entry
    grid: tuple[int, int, int]
    arguments: tuple[ctypes.Structure, ...]
    dependent: bool = False
    cooperative: bool = False

    @property
    def attribute(self) -> int:
        """The `CUlaunchAttributeID` of the attribute that is switched on for the launch; 0 for none."""
        return PROGRAMMATIC_STREAM_SERIALIZATION if self.dependent else COOPERATIVE if self.cooperative else 0


@dataclass(slots=True)
class Buffers:
    """Device memory beside q, k, v and out, by address, for launches on one stream. What is made here lives as long as
    the buffers do; counters live on.

    While the stream is being captured the memory is good for one launch of each step: counters are that launch's own
    for good, and scratch memory is the graph's, like any tensor made during its capture.
    """

    engine: Engine
    lse: int = 0
    stream: int = 0
    capturing: bool = False
    kept: list[torch.Tensor] = field(default_factory=list)
    counters: list[int] = field(default_factory=list)

    @classmethod
    def now(cls, engine: Engine) -> Buffers:
        """The buffers for the stream that is PyTorch's current one on the engine's device now."""
        host = engine.host
        return cls(engine, stream=host.current_stream(engine.device.index), capturing=bool(host.capturing()))

    def scratch(self, size: int) -> int:
        """The address of `size` bytes that are not initialised."""
        memory = torch.empty(size, dtype=torch.uint8, device=self.engine.device)
        self.kept.append(memory)
        address: int = memory.data_ptr()
        return address

    def counter(self, size: int = Counters.SLOT_BYTES) -> int:
        """The address of `size` bytes that are zero whenever no launch uses them; kernels leave them zero."""
        of = self.engine.counters
        made = of.take(size) if self.capturing else of.of_stream(self.stream, len(self.counters), size)
        self.counters.append(made)
        return made

    @property
    def has_state(self) -> bool:
        """Whether launches with these buffers must follow each other on their stream."""
        return bool(self.kept or self.counters)


class Way(Protocol):
    """One way of computing a problem."""

    @property
    def name(self) -> str:
        """E.g. `fa2-128x64w4s2`."""

    def steps(self, problem: Problem, scale: float, buffers: Buffers) -> list[Step]:
        """The launches, in order."""


class Bound:
    """A call with its tensors bound: all that is left at each call is the launch, on PyTorch's current stream.

    Not for use by two threads at once. Keeps its tensors alive, which a graph that captured it does not. `make` gives
    the launches for given buffers: on another stream, and for each captured launch, they are made anew with buffers of
    their own if they have any.
    """

    def __init__(
        self, way: str, make: Callable[[Buffers], Sequence[Step]], buffers: Buffers, kept: Sequence[object]
    ) -> None:
        engine = buffers.engine
        self.way, self.make, self.engine = way, make, engine
        self.kept = kept
        self.lse = buffers.lse
        self.device_index: int = engine.device.index
        self.launch_kernel: Callable[[int, int, int, None], int] = cuda_driver().library.cuLaunchKernelEx
        self.current_stream: Callable[[int], int] = engine.host.current_stream
        self.use(buffers)

    @classmethod
    def of(cls, way: Way, problem: Problem, scale: float, buffers: Buffers, kept: Sequence[object]) -> Bound:
        """A way of computing a problem."""
        return cls(way.name, partial(way.steps, problem, scale), buffers, kept)

    def use(self, buffers: Buffers) -> None:
        """Uses these buffers for launches from now on."""
        self.buffers = buffers
        self.plan: Sequence[Step] = self.make(buffers)
        self.held: list[object] = []
        self.steps = [self.prepare(step, self.engine.function(step.entry).handle) for step in self.plan]
        self.has_state, self.is_fresh = buffers.has_state, True

    def renew(self, stream: int) -> None:
        """Makes buffers for the next launch, if the present ones cannot be used for it."""
        capturing = bool(self.engine.host.capturing())
        served = self.buffers.stream == stream and self.buffers.capturing == capturing
        if not served or (capturing and not self.is_fresh):
            self.use(Buffers(self.engine, self.lse, stream, capturing))
        self.is_fresh = False

    def prepare(self, step: Step, function: int) -> tuple[LaunchConfig, int, int, int]:
        """The launch's configuration, its address, the function and the address of the arguments' addresses."""
        entry = step.entry
        config = LaunchConfig(*step.grid, entry.threads, 1, 1, entry.shared_bytes, None, None, 0)
        if step.attribute:
            attribute = LaunchAttribute.switched_on(step.attribute)
            config.attributes, config.attribute_count = ctypes.addressof(attribute), 1
            self.held.append(attribute)
        pointers = (ctypes.c_void_p * len(step.arguments))(*(ctypes.addressof(one) for one in step.arguments))
        self.held.append(pointers)
        return config, ctypes.addressof(config), function, ctypes.addressof(pointers)

    @property
    def kernels(self) -> str:
        """The entry points that a call launches, each once, in order: `fa90_bf16_d64_full_256x64s4p`."""
        return "+".join(dict.fromkeys(step.entry.name for step in self.plan))

    def __call__(self) -> None:
        stream = self.current_stream(self.device_index)
        if self.has_state:
            self.renew(stream)
        for config, address, function, arguments in self.steps:
            config.stream = stream
            code = self.launch_kernel(address, function, arguments, None)
            if code:
                self.fail(code)

    def fail(self, code: int) -> None:
        """Raises the error for the code of a launch."""
        cuda_driver().check(code, f"launching {self.way}")
