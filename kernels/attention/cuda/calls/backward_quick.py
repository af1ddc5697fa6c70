"""The backward pass's fast path: what it costs the host once a pass like it has been made before.

As `quick` for the forward pass: the plan is kept, and what is left is to allocate the gradients and the workspace, to
write addresses into the arguments and to launch. The workspace is not kept: it is as large as dQ in float32.

Another current device, a tensor that misses its boundary and, for passes with a counter, a stream under capture take
the longer way.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch

from kernels.attention.cuda.backward.kernels import (
    PACK_POINTERS,
    POINTERS,
    BackwardParameters,
    DroppingBackwardParameters,
)
from kernels.attention.cuda.calls.backward import NAMES, Nothing, bind_backward, readable_gradient
from kernels.attention.cuda.calls.likeness import find_guard, key_of
from kernels.attention.cuda.calls.moving import VECTOR_MASK, Reader, Writer, address_reader, arguments_of, no_more
from kernels.attention.cuda.calls.quick import Options, Plans
from kernels.attention.cuda.run.driver import TensorMap, cuda_driver
from kernels.attention.cuda.run.engine import Engine
from kernels.attention.cuda.run.launching import Bound

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Call = Callable[..., Three | None]
"""Takes a pass's tensors in the order of `READ` that it has; None if they need another plan after all."""

READ = ("q", "k", "v", "mask", "q_starts", "k_starts", "slopes", "seed", "out", "lse", "dout", "dlse")
ALIGNED = ("q", "k", "v", "out", "dout")
PACK_POINTER = struct.Struct("=Q").pack_into
PIECE = 256
"""Bytes: pieces of the workspace begin at multiples of it, as allocations do."""


class Addresses:
    """What a pass's addresses are, in the order in which a later pass lists its own: its tensors in the order of READ,
    its gradients, the pieces of its workspace, and what stays (nothing at all, and a counter)."""

    def __init__(self, bound: Bound, given: Mapping[str, torch.Tensor], gradients: Three) -> None:
        self.known = {name: x.data_ptr() for name, x in given.items()}
        self.known |= {f"d{name}": x.data_ptr() for name, x in zip(NAMES, gradients, strict=True)}
        self.offsets: list[int] = []
        self.size = 0
        self.others: dict[int, int] = {}
        for memory in bound.buffers.kept:
            self.others[memory.data_ptr()] = len(self.known) + len(self.offsets)
            self.offsets.append(self.size)
            self.size += -(-memory.nbytes // PIECE) * PIECE
        self.constants = [0, *bound.buffers.counters]
        first = len(self.known) + len(self.offsets)
        self.others |= {constant: first + number for number, constant in enumerate(self.constants)}

    def place(self, name: str, value: int) -> int | None:
        """Of what a field of this name holds; None for an address that is nobody's."""
        if value and self.known.get(name) == value:
            return list(self.known).index(name)
        return self.others.get(value)

    def writers(self, argument: ctypes.Structure) -> list[Writer] | None:
        """What writes into an argument the addresses that it holds, from a list; None for another kind of argument."""
        if not isinstance(argument, BackwardParameters):
            return None
        order = [self.place(name, getattr(argument, name) or 0) for name in POINTERS]
        places_found = [place for place in order if place is not None]
        if len(places_found) < len(order):
            return None
        made: list[Writer] = [(PACK_POINTERS, argument, 0, address_reader(places_found))]
        if isinstance(argument, DroppingBackwardParameters):
            place = self.place("seed", argument.seed)
            if place is None:
                return None
            made.append((PACK_POINTER, argument, type(argument).seed.offset, address_reader([place])))
        return made


def move_call(bound: Bound, given: Mapping[str, torch.Tensor], gradients: Three) -> Call | None:
    """The same pass for other tensors of the same layout; None where an address cannot be accounted for.

    `given` by their names in READ. Its workspace is allocated anew by each call, in one piece.
    """
    if any(given[name].data_ptr() & VECTOR_MASK for name in ALIGNED):
        return None
    addresses = Addresses(bound, given, gradients)
    writers: list[Writer] = []
    maps: list[tuple[int, TensorMap]] = []
    for argument in arguments_of(bound):
        if isinstance(argument, TensorMap):
            maps.append((list(given).index(argument.tensor), argument))
            continue
        of_argument = addresses.writers(argument)
        if of_argument is None:
            return None
        writers += of_argument
    bound.kept, bound.make = (), no_more
    bound.buffers.kept.clear()
    aligned = address_reader([list(given).index(name) for name in ALIGNED])
    return relaunching_call(bound, addresses, writers, maps, aligned)


def relaunching_call(
    bound: Bound,
    known: Addresses,
    writers: Sequence[Writer],
    maps: Sequence[tuple[int, TensorMap]],
    aligned: Reader,
) -> Call:
    """Written for speed: everything that a call needs is in a cell of its own."""
    engine, steps, launch, fail = bound.engine, bound.steps, bound.launch_kernel, bound.fail
    device, index, host = engine.device, engine.device.index, engine.host
    stream = bound.buffers.stream if bound.buffers.counters else None
    offsets, constants, size, replace = known.offsets, known.constants, known.size, cuda_driver().replace_address
    latest, empty_like = [0] * len(maps), torch.empty_like
    pattern = torch.empty(1, dtype=torch.uint8, device=device).expand(size)  # what the workspace is made like

    def call(*tensors: torch.Tensor) -> Three | None:
        addresses = [x.data_ptr() for x in tensors]
        a, b, c, d, e = aligned(addresses)
        if (a | b | c | d | e) & VECTOR_MASK or host.current_device() != index:
            return None
        current = host.current_stream(index)
        if stream is not None and (current != stream or host.capturing()):
            return None
        made = dq, dk, dv = empty_like(tensors[0]), empty_like(tensors[1]), empty_like(tensors[2])
        addresses += (dq.data_ptr(), dk.data_ptr(), dv.data_ptr())
        if size:
            workspace = empty_like(pattern)
            start = workspace.data_ptr()
            addresses += [start + offset for offset in offsets]
        addresses += constants
        for pack, argument, offset, read in writers:
            pack(argument, offset, *read(addresses))
        for number, (place, one) in enumerate(maps):
            if latest[number] != addresses[place]:
                replace(one, addresses[place])
                latest[number] = addresses[place]
        for config, configuration, function, arguments in steps:
            config.stream = current
            code = launch(configuration, function, arguments, None)
            if code:
                fail(code)
        return made

    return call


class QuickBackward:
    """Gradients with remembered plans. `bind` prepares a pass; `engine_of` finds the engine of a device."""

    def __init__(self, engine_of: Callable[[torch.device], Engine], bind: Callable[..., Bound] = bind_backward) -> None:
        self.engine_of, self.bind = engine_of, bind
        self.plans = Plans()
        self.guard = find_guard()

    def __call__(
        self,
        tensors: Mapping[str, torch.Tensor],
        out: torch.Tensor,
        lse: torch.Tensor,
        dout: torch.Tensor,
        options: Options,
        dlse: torch.Tensor | None = None,
    ) -> Three:
        """dQ, dK and dV; `tensors` by the options' names."""
        given = (*tensors.values(), out, lse, dout)
        return self.compute(given if dlse is None else (*given, dlse), options)

    def compute(self, given: tuple[torch.Tensor, ...], options: Options) -> Three:
        """The same of the options' tensors and out, lse, dout and, if there is one, dlse, in this order.

        The same bits in every run where torch.use_deterministic_algorithms says so.
        """
        deterministic = torch.are_deterministic_algorithms_enabled()
        key = (options, deterministic, len(given))
        if not torch.is_grad_enabled():
            for check, known in self.plans.recent.get(key, ()):
                if check(*given):
                    made = cast("Three | None", known(*given))
                    if made is not None:
                        return made
        names = (*options.names, "out", "lse", "dout", "dlse")[: len(given)]
        return self.first(dict(zip(names, given, strict=True)), options, deterministic, key)

    def first(
        self, given: dict[str, torch.Tensor], options: Options, deterministic: bool, short: tuple[object, ...]
    ) -> Three:
        """A pass like none of the most recent ones."""
        engine = self.engine_of(given["q"].device)
        index = engine.device.index
        if engine.host.current_device() != index:
            with torch.cuda.device(index):
                return self.first(given, options, deterministic, short)
        given["dout"] = readable_gradient(given["dout"])
        if "dlse" in given:
            given["dlse"] = given["dlse"].contiguous()
        tensors = tuple(given.values())
        key = (engine.host.current_stream(index), *short, *key_of(*tensors))
        known_plan = self.plans.find(key)
        made = cast("Three | None", known_plan[1](*tensors)) if known_plan else None
        if known_plan and made is not None:
            self.plans.to_front(short, known_plan)
            return made
        return self.prepare(given, options, deterministic, engine, (short, key))

    def prepare(
        self,
        given: dict[str, torch.Tensor],
        options: Options,
        deterministic: bool,
        engine: Engine,
        keys: tuple[tuple[object, ...], tuple[object, ...]],
    ) -> Three:
        """Computes a pass by binding it, and keeps the plan for passes like it."""
        gradients = torch.empty_like(given["q"]), torch.empty_like(given["k"]), torch.empty_like(given["v"])
        named = {name: x for name, x in given.items() if name not in ("out", "lse", "dout", "dlse")}
        bound = self.bind(
            named,
            given["out"],
            given["lse"],
            given["dout"],
            gradients,
            options,
            dlse=given.get("dlse"),
            deterministic=deterministic,
            engine=engine,
        )
        bound()
        if not isinstance(bound, Nothing) and not bound.buffers.capturing:
            call = move_call(bound, given, gradients)
            if call is not None:
                short, key = keys
                plan = (self.guard(*given.values()), call)
                self.plans.keep(key, plan)
                self.plans.to_front(short, plan)
        return gradients
