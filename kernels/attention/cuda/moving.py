"""Bound calls that can be given other tensors of the same layout: addresses are written where the kernels read them."""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from kernels.attention.cuda.driver import LaunchConfig, TensorMap, driver
from kernels.attention.cuda.host import Host
from kernels.attention.cuda.inputs import span
from kernels.attention.cuda.launching import Bound, Buffers, Step

Answer: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
Call = Callable[..., Answer | None]
"""Takes a call's tensors; None if they need another plan after all."""

VECTOR_MASK = 15
ADDRESSED = ("q", "k", "v", "out", "lse", "mask", "q_starts", "k_starts", "block_table", "k_lengths")
"""The fields of kernel arguments that hold the address of the tensor of that name."""
OUT, LSE = ADDRESSED.index("out"), ADDRESSED.index("lse")
ALIGNED = 4
"""Of the first so many it matters how they miss their 16-byte boundary."""


@dataclass(slots=True)
class Run:
    """Neighbouring fields of one argument that hold addresses: which of ADDRESSED, from where on."""

    argument: ctypes.Structure
    offset: int
    first: int
    last: int

    def writer(self) -> Callable[[Sequence[int]], None]:
        """Writes its share of all addresses."""
        pack, argument, offset, share = self.packer(), self.argument, self.offset, slice(self.first, self.last)
        return lambda addresses: pack(argument, offset, *addresses[share])

    def packer(self) -> Callable[..., None]:
        return struct.Struct(f"={self.last - self.first}Q").pack_into


def runs_of(
    argument: ctypes.Structure, addresses: Sequence[int], present: Container[int], owned: Sequence[range]
) -> list[Run] | None:
    """Where an argument holds the addresses that are present; None if it holds one that cannot be accounted for."""
    found: list[Run] = []
    for name, kind, *_ in argument._fields_:
        offset, value = getattr(type(argument), name).offset, getattr(argument, name)
        if isinstance(value, ctypes.Structure):
            if any(inner[1] is ctypes.c_void_p for inner in value._fields_):
                return None
        elif kind is ctypes.c_void_p and name in ADDRESSED:
            index = ADDRESSED.index(name)
            if (value or 0) != addresses[index]:
                return None
            if index not in present:
                continue
            if found and found[-1].last == index and found[-1].offset + 8 * (index - found[-1].first) == offset:
                found[-1].last += 1
            else:
                found.append(Run(argument, offset, index, index + 1))
        elif kind is ctypes.c_void_p and value and not any(value in part for part in owned):
            return None
    return found


def arguments_of(bound: Bound) -> Iterator[ctypes.Structure]:
    """Every argument of its launches, once."""
    seen: set[int] = set()
    for argument in itertools.chain.from_iterable(step.arguments for step in bound.plan):
        if id(argument) not in seen:
            seen.add(id(argument))
            yield argument


def no_more(buffers: Buffers) -> list[Step]:
    """What makes the launches of a bound call whose own launches are moved from now on."""
    raise AssertionError(f"a moved call has its buffers for good, not {buffers}")


@dataclass(slots=True)
class Movable:
    """A bound call that can be given other tensors of the same layout."""

    bound: Bound
    runs: list[Run]
    maps: list[tuple[int, TensorMap]]

    @classmethod
    def of(cls, bound: Bound, tensors: Mapping[str, torch.Tensor]) -> Movable | None:
        """None for a call that keeps addresses where they cannot be replaced. `tensors` by their names in ADDRESSED."""
        addresses = [tensors[name].data_ptr() if name in tensors else 0 for name in ADDRESSED]
        present = {place for place, name in enumerate(ADDRESSED) if name in tensors} | {LSE}
        owned = [range(memory.data_ptr(), memory.data_ptr() + memory.nbytes) for memory in bound.buffers.kept]
        owned += [range(address, address + 1) for address in bound.buffers.counters]
        runs: list[Run] = []
        maps: list[tuple[int, TensorMap]] = []
        for argument in arguments_of(bound):
            if isinstance(argument, TensorMap):
                if argument.tensor not in ADDRESSED:
                    return None
                maps.append((ADDRESSED.index(argument.tensor), argument))
            else:
                found = runs_of(argument, addresses, present, owned)
                if found is None:
                    return None
                runs += found
        bound.kept, bound.make = (), no_more  # the tensors of the first call, and their problem, are not held
        return cls(bound, runs, maps)


@dataclass(slots=True)
class Form:
    """What a plan must know of a call's tensors beside their likeness.

    `places`: which of ADDRESSED each tensor is. `remainders`: how the first ALIGNED of those miss their boundary, 0 for
    an output that the call makes. `spans`: the bytes from each tensor's first to its last.
    """

    places: tuple[int, ...]
    remainders: tuple[int, ...]
    spans: tuple[int, ...]
    lse_shape: tuple[int, ...] | None
    device: torch.device
    index: int

    @classmethod
    def of(cls, names: Sequence[str], tensors: Sequence[torch.Tensor], lse: torch.Tensor | None, index: int) -> Form:
        places = tuple(ADDRESSED.index(name) for name in names)
        bounds = [span(x) for x in tensors]
        return cls(
            places,
            remainders_of(names, tensors),
            tuple(to - start for start, to in bounds),
            None if lse is None else tuple(lse.shape),
            tensors[0].device,
            index,
        )

    @property
    def out_place(self) -> int | None:
        """Where among the tensors the output is; None if the call makes it."""
        return self.places.index(OUT) if OUT in self.places else None


def remainders_of(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """By how many bytes q, k, v and a given output miss their boundary."""
    found = dict(zip(names, tensors, strict=True))
    return tuple(found[name].data_ptr() & VECTOR_MASK if name in found else 0 for name in ADDRESSED[:ALIGNED])


def plain_call(movable: Movable, form: Form, host: Host) -> Call | None:
    """For one launch on q, k and v alone, aligned, without state, whose argument holds all addresses in a row.

    Written for speed: everything it needs is in a cell of its own.
    """
    bound, runs = movable.bound, movable.runs
    if len(bound.steps) != 1 or movable.maps or len(runs) != 1 or any(form.remainders) or form.lse_shape is not None:
        return None
    if form.places != (0, 1, 2):
        return None
    if (runs[0].first, runs[0].last) != (0, LSE + 1):
        return None
    config, configuration, function, arguments = bound.steps[0]
    pack, argument, offset = runs[0].packer(), runs[0].argument, runs[0].offset
    current_device, current_stream, index = host.current_device, host.current_stream, form.index
    launch, empty_like, fail = bound.launch_kernel, torch.empty_like, bound.fail

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Answer | None:
        q_address, k_address, v_address = q.data_ptr(), k.data_ptr(), v.data_ptr()
        if (q_address | k_address | v_address) & VECTOR_MASK or current_device() != index:
            return None
        out = empty_like(q)
        pack(argument, offset, q_address, k_address, v_address, out.data_ptr(), 0)
        config.stream = current_stream(index)
        code = launch(configuration, function, arguments, None)
        if code:
            fail(code)
        return out

    return call


def general_call(movable: Movable, form: Form, host: Host, stream: int | None) -> Call:
    """For anything that can be moved. With state, `stream` is the one stream that it may be launched on."""
    bound, maps, replace = movable.bound, movable.maps, driver().replace_address
    writers = [run.writer() for run in movable.runs]
    steps: list[tuple[LaunchConfig, int, int, int]] = bound.steps
    launch, fail, index = bound.launch_kernel, bound.fail, form.index
    places, remainders, shape, out_place = form.places, form.remainders, form.lse_shape, form.out_place
    latest = [0] * len(ADDRESSED)

    def call(*tensors: torch.Tensor) -> Answer | None:
        addresses = [0] * len(ADDRESSED)
        for place, x in zip(places, tensors, strict=True):
            addresses[place] = x.data_ptr()
        if tuple([one & VECTOR_MASK for one in addresses[:ALIGNED]]) != remainders or host.current_device() != index:
            return None
        current = host.current_stream(index)
        if stream is not None and (current != stream or host.capturing()):
            return None
        if out_place is None:
            out = torch.empty_like(tensors[0])
            addresses[OUT] = out.data_ptr()
        else:
            out = tensors[out_place]
            if touches(addresses, form, addresses[OUT], out_place):
                return None
        lse = None if shape is None else torch.empty(shape, dtype=torch.float32, device=form.device)
        if lse is not None:
            addresses[LSE] = lse.data_ptr()
        for write in writers:
            write(addresses)
        for number, one in maps:
            if addresses[number] != latest[number]:
                replace(one, addresses[number])
        latest[:] = addresses
        for config, configuration, function, arguments in steps:
            config.stream = current
            code = launch(configuration, function, arguments, None)
            if code:
                fail(code)
        return out if lse is None else (out, lse)

    return call


def touches(addresses: Sequence[int], form: Form, out: int, out_place: int) -> bool:
    """Whether an output reaches into the bytes between an input's first and last: a case for a closer look."""
    end = out + form.spans[out_place]
    pairs = zip(form.places, form.spans, strict=True)
    return any(place != OUT and addresses[place] < end and out < addresses[place] + size for place, size in pairs)
