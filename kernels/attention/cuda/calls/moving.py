"""Bound calls that can be used with other tensors of the same layout: new addresses are written where kernels read
them."""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeAlias

import torch

from kernels.attention.cuda.plan.inputs import memory_span
from kernels.attention.cuda.plan.parameters import fields_of
from kernels.attention.cuda.run.driver import LaunchConfig, TensorMap, cuda_driver
from kernels.attention.cuda.run.host import Host
from kernels.attention.cuda.run.launching import Bound, Buffers, Step

Answer: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
Call = Callable[..., Answer | None]
"""Takes a call's tensors; None if they need another plan after all."""

Reader = Callable[[Sequence[int]], Sequence[int]]
"""A function that selects addresses from a list."""

Writer = tuple[Callable[..., None], ctypes.Structure, int, Reader]
"""How addresses are written into an argument: the packing function, the argument, the offset, and the selection."""

VECTOR_MASK = 15
ADDRESSED = (
    *("q", "k", "v", "out", "lse", "mask", "q_starts", "k_starts", "block_table", "k_lengths"),
    *("slopes", "sinks", "q_scale", "k_scale", "v_scale", "seed"),
)
"""The fields of kernel arguments that hold the address of the tensor of that name."""
OUT, LSE, MASK = (ADDRESSED.index(name) for name in ("out", "lse", "mask"))
ALIGNED = ("q", "k", "v", "out", "mask")
"""For these tensors it matters how far their address is from a 16-byte boundary."""


@dataclass(slots=True)
class Run:
    """Neighbouring fields of one argument that hold addresses: which of ADDRESSED, from where on."""

    argument: ctypes.Structure
    offset: int
    first: int
    last: int

    def packer(self) -> Callable[..., None]:
        """Writes the addresses of its fields, given in their order, into an argument at an offset."""
        return struct.Struct(f"={self.last - self.first}Q").pack_into


def runs_of(
    argument: ctypes.Structure, addresses: Sequence[int], present: Container[int], owned: Sequence[range]
) -> list[Run] | None:
    """The runs of fields in which an argument holds the present addresses; None if it holds an address of unknown
    origin."""
    runs: list[Run] = []
    for name, kind in fields_of(type(argument)):
        offset, value = getattr(type(argument), name).offset, getattr(argument, name)
        if isinstance(value, ctypes.Structure):
            if any(inner[1] is ctypes.c_void_p for inner in value._fields_):
                return None
        elif kind is ctypes.c_void_p and name in ADDRESSED:
            index = ADDRESSED.index(name)
            is_of_tensor = (value or 0) == addresses[index]
            if value and not is_of_tensor and not any(value in part for part in owned):
                return None
            if index not in present or not is_of_tensor:
                continue
            if runs and runs[-1].last == index and runs[-1].offset + 8 * (index - runs[-1].first) == offset:
                runs[-1].last += 1
            else:
                runs.append(Run(argument, offset, index, index + 1))
        elif kind is ctypes.c_void_p and value and not any(value in part for part in owned):
            return None
    return runs


def arguments_of(bound: Bound) -> Iterator[ctypes.Structure]:
    """Every argument of its launches, once."""
    seen: set[int] = set()
    for argument in itertools.chain.from_iterable(step.arguments for step in bound.plan):
        if id(argument) not in seen:
            seen.add(id(argument))
            yield argument


def no_more(buffers: Buffers) -> list[Step]:
    """Replaces `make` of a bound call whose launches are moved from now on."""
    raise AssertionError(f"the buffers of a moved call cannot be replaced, as with {buffers}")


@dataclass(slots=True)
class Movable:
    """A bound call that can be used with other tensors of the same layout."""

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
                if argument.tensor == TensorMap.SCRATCH:
                    continue
                if argument.tensor not in ADDRESSED:
                    return None
                maps.append((ADDRESSED.index(argument.tensor), argument))
            else:
                run_list = runs_of(argument, addresses, present, owned)
                if run_list is None:
                    return None
                runs += run_list
        bound.kept, bound.make = (), no_more  # the tensors of the first call, and their problem, are not held
        return cls(bound, runs, maps)


@dataclass(slots=True)
class Form:
    """What a plan must know of a call's tensors beside their likeness.

    `places`: which of ADDRESSED each tensor is. `remainders`: how each of ALIGNED misses its boundary, 0 for
    an output that the call makes. `spans`: the bytes from each tensor's first to its last.
    """

    places: tuple[int, ...]
    remainders: tuple[int, ...]
    spans: tuple[int, ...]
    lse_shape: tuple[int, ...] | None
    device: torch.device
    index: int
    make: Callable[[torch.Tensor], torch.Tensor] = torch.empty_like
    """Makes an output, from q."""

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        tensors: Sequence[torch.Tensor],
        out: torch.Tensor,
        lse: torch.Tensor | None,
        index: int,
    ) -> Form:
        places = tuple(ADDRESSED.index(name) for name in names)
        bounds = [memory_span(x) for x in tensors]
        return cls(
            places,
            remainders_of(names, tensors),
            tuple(to - start for start, to in bounds),
            None if lse is None else tuple(lse.shape),
            tensors[0].device,
            index,
            torch.empty_like if (out.shape, out.dtype) == (tensors[0].shape, tensors[0].dtype) else maker(out),
        )

    @property
    def out_place(self) -> int | None:
        """The index of the output among the tensors; None if the call makes the output."""
        return self.places.index(OUT) if OUT in self.places else None


def maker(out: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that makes tensors with the sizes and strides of an output, of the type and on the device of q."""
    sizes, strides = tuple(out.shape), out.stride()
    return lambda q: q.new_empty_strided(sizes, strides, dtype=out.dtype)


def remainders_of(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """The distances in bytes of q, k, v, a given output and a mask from their 16-byte boundary."""
    remainders = dict(zip(names, tensors, strict=True))
    return tuple(remainders[name].data_ptr() & VECTOR_MASK if name in remainders else 0 for name in ALIGNED)


def like_sums(form: Form) -> torch.Tensor | None:
    """What a call's log-sum-exps are made like, in memory of one of them: cheaper than naming sizes, type and device.

    None where there are none.
    """
    if form.lse_shape is None:
        return None
    return torch.empty(1, dtype=torch.float32, device=form.device).expand(form.lse_shape)


def plain_call(movable: Movable, form: Form, host: Host) -> Call | None:
    """For one launch on q, k and v alone, aligned, without state, whose argument holds all addresses in a row.

    Written for speed: everything it needs is in a cell of its own.
    """
    bound, runs = movable.bound, movable.runs
    if len(bound.steps) != 1 or movable.maps or len(runs) != 1 or any(form.remainders):
        return None
    if form.places != (0, 1, 2) or form.make is not torch.empty_like:
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

    sums = like_sums(form)
    if sums is None:
        return call

    def call_with_sums(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Answer | None:
        q_address, k_address, v_address = q.data_ptr(), k.data_ptr(), v.data_ptr()
        if (q_address | k_address | v_address) & VECTOR_MASK or current_device() != index:
            return None
        out, lse = empty_like(q), empty_like(sums)
        pack(argument, offset, q_address, k_address, v_address, out.data_ptr(), lse.data_ptr())
        config.stream = current_stream(index)
        code = launch(configuration, function, arguments, None)
        if code:
            fail(code)
        return out, lse

    return call_with_sums


def address_reader(places: Sequence[int]) -> Reader:
    """A reader that selects the addresses at these places, in this order."""
    if len(places) == 1:
        only = places[0]
        return lambda addresses: (addresses[only],)
    read: Reader = itemgetter(*places)
    return read


def writers_of(movable: Movable, listed: Sequence[int]) -> tuple[list[Writer], list[tuple[int, TensorMap]]]:
    """What writes into each argument, and where the maps' addresses are, in a list of addresses that holds `listed` of
    ADDRESSED and then 0, for whatever is not there."""
    where = {place: number for number, place in enumerate(listed)}
    writers = []
    for run in movable.runs:
        read = address_reader([where.get(place, len(listed)) for place in range(run.first, run.last)])
        writers.append((run.packer(), run.argument, run.offset, read))
    return writers, [(where[place], one) for place, one in movable.maps]


def alignment_rules(form: Form) -> tuple[list[int], int, int]:
    """How q, k, v and the mask must miss their boundary, how the output must, and where among the tensors the mask is:
    where there is none, q stands in for it."""
    q, k, v, out, mask = form.remainders
    place = form.places.index(MASK) if MASK in form.places else 0
    return [q, k, v, mask if place else q], out, place


def general_call(movable: Movable, form: Form, host: Host, stream: int | None) -> Call:
    """For anything that can be moved. With state, `stream` is the one stream that it may be launched on.

    Addresses are listed as the tensors come; then that of the output if the call makes it, then that of the sums.
    """
    bound, replace = movable.bound, cuda_driver().replace_address
    out_place, sums = form.out_place, like_sums(form)
    listed = [*form.places, *([] if out_place is not None else [OUT]), *([] if sums is None else [LSE])]
    writers, maps = writers_of(movable, listed)
    latest = [0] * len(maps)
    steps: list[tuple[LaunchConfig, int, int, int]] = bound.steps
    launch, fail, index = bound.launch_kernel, bound.fail, form.index
    remainders, out_remainder, mask_place = alignment_rules(form)
    empty_like, make, spans = torch.empty_like, form.make, form.spans

    def call(*tensors: torch.Tensor) -> Answer | None:
        addresses = [x.data_ptr() for x in tensors]
        q, k, v, mask = addresses[0], addresses[1], addresses[2], addresses[mask_place]
        missed = [q & VECTOR_MASK, k & VECTOR_MASK, v & VECTOR_MASK, mask & VECTOR_MASK]
        if missed != remainders or host.current_device() != index:
            return None
        current = host.current_stream(index)
        if stream is not None and (current != stream or host.capturing()):
            return None
        if out_place is None:
            out = make(tensors[0])
            addresses.append(out.data_ptr())
        else:
            out = tensors[out_place]
            if addresses[out_place] & VECTOR_MASK != out_remainder or output_overlaps(addresses, spans, out_place):
                return None
        lse = None
        if sums is not None:
            lse = empty_like(sums)
            addresses.append(lse.data_ptr())
        addresses.append(0)
        for pack, argument, offset, read in writers:
            pack(argument, offset, *read(addresses))
        for number, (place, one) in enumerate(maps):
            if addresses[place] != latest[number]:
                replace(one, addresses[place])
                latest[number] = addresses[place]
        for config, configuration, function, arguments in steps:
            config.stream = current
            code = launch(configuration, function, arguments, None)
            if code:
                fail(code)
        return out if lse is None else (out, lse)

    return call


def output_overlaps(addresses: Sequence[int], spans: Sequence[int], out_place: int) -> bool:
    """Whether an output reaches into the bytes between an input's first and last: a case for a closer look.

    Of tensors in a row, the output among them, by their addresses and the bytes that they reach over.
    """
    start, end = addresses[out_place], addresses[out_place] + spans[out_place]
    pairs = enumerate(zip(addresses, spans, strict=True))
    return any(place != out_place and first < end and start < first + size for place, (first, size) in pairs)
