"""The descriptions of passes for the compiled function (`native`): only numbers, which it copies for each call."""

from __future__ import annotations

import ctypes
import itertools
import math
import struct
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from kernels.attention.cuda.backward.kernels import POINTERS, BackwardParameters
from kernels.attention.cuda.calls import native
from kernels.attention.cuda.calls.backward import bind_backward, readable_gradient
from kernels.attention.cuda.calls.backward_quick import ALIGNED, Addresses
from kernels.attention.cuda.calls.binding import bind_call
from kernels.attention.cuda.calls.gradients import Three
from kernels.attention.cuda.calls.likeness import key_of
from kernels.attention.cuda.calls.moving import ADDRESSED, Answer, Movable, arguments_of
from kernels.attention.cuda.calls.quick import QKV, Options, empty_sums
from kernels.attention.cuda.calls.registered import sides_window, window_sides
from kernels.attention.cuda.run.driver import TensorMap, cuda_driver
from kernels.attention.cuda.run.engine import Engine
from kernels.attention.cuda.run.launching import Bound, Buffers

Write = tuple[int, int, int, int]
"""An argument, an offset in it, the index of the address that is written there, and what is added to the address."""

COMPILED: tuple[tuple[str, ...], ...] = (QKV, (*QKV, "mask"), (*QKV, "q_starts", "k_starts"))
"""The names of the tensors of calls that are compiled."""
MOST_LEARNED = 4
"""How many kinds of gradients a plan learns, one after the other; it keeps only the latest."""


def current_context() -> int:
    """The driver's handle of the thread's current context."""
    context = ctypes.c_void_p()
    cuda_driver().check(cuda_driver().library.cuCtxGetCurrent(ctypes.byref(context)), "asking for the current context")
    return context.value or 0


def words_of(bound: Bound, writes: Sequence[Write], maps: Mapping[int, int], workspace: int = 0) -> list[int]:
    """A pass in numbers, in the order in which the compiled function reads them. `maps`: the places of tensor maps
    among the arguments, and whose they are."""
    arguments, buffers = list(arguments_of(bound)), bound.buffers
    places = {id(one): place for place, one in enumerate(arguments)}
    launch_words = [
        bound.device_index,
        current_context(),
        bool(buffers.counters),
        buffers.stream,
        workspace,
        len(arguments),
    ]
    for place, one in enumerate(arguments):
        size = -(-len(bytes(one)) // 8)
        launch_words += [
            maps.get(place, -1),
            len(bytes(one)),
            *struct.unpack(f"<{size}q", bytes(one).ljust(8 * size, b"\0")),
        ]
    launch_words += [len(writes), *itertools.chain.from_iterable(writes), len(bound.plan)]
    for step in bound.plan:
        entry, given = step.entry, [places[id(one)] for one in step.arguments]
        launch_words += [
            bound.engine.function(entry).handle,
            *step.grid,
            entry.threads,
            entry.shared_bytes,
            step.attribute,
        ]
        launch_words += [len(given), *given]
    return [int(one) for one in launch_words]


def forward_words(bound: Bound, tensors: Mapping[str, torch.Tensor]) -> list[int] | None:
    """Of a forward pass over tensors in their order, out and lse the last; None where it has memory of its own beside a
    counter."""
    movable = None if not bound.plan or bound.buffers.kept else Movable.of(bound, tensors)
    if movable is None:
        return None
    arguments = [id(one) for one in arguments_of(bound)]
    where = {ADDRESSED.index(name): number for number, name in enumerate(tensors)}
    writes = [
        (arguments.index(id(run.argument)), run.offset + 8 * (place - run.first), where[place], 0)
        for run in movable.runs
        for place in range(run.first, run.last)
        if place in where
    ]
    return words_of(bound, writes, {arguments.index(id(one)): where[place] for place, one in movable.maps})


def backward_words(bound: Bound, given: Mapping[str, torch.Tensor], gradients: Three) -> list[int] | None:
    """Of a backward pass over `given`; None where an address cannot be accounted for."""
    addresses, writes, maps = Addresses(bound, given, gradients), [], {}
    workspace = len(addresses.known)
    for number, argument in enumerate(arguments_of(bound)):
        if isinstance(argument, TensorMap):
            maps[number] = list(given).index(argument.tensor)
            continue
        assert isinstance(argument, BackwardParameters)
        for name in POINTERS:
            place, offset = addresses.place(name, getattr(argument, name) or 0), getattr(type(argument), name).offset
            if place is None:
                return None
            if place < workspace:
                writes.append((number, offset, place, 0))
            elif place < workspace + len(addresses.offsets):
                writes.append((number, offset, workspace, addresses.offsets[place - workspace]))
    return words_of(bound, writes, maps, addresses.size)


class Taught:
    """A plan of the compiled function, which learns its backward pass once one was made."""

    numbers = itertools.count(1)

    def __init__(
        self, engine: Engine, words: list[int], tensors: tuple[torch.Tensor, ...], options: Options, scale: float
    ) -> None:
        self.engine, self.number = engine, next(self.numbers)
        option_values = (options.causal, scale, options.alignment, *window_sides(options.window))
        missed = tensors[options.names.index("mask")].data_ptr() % 16 if "mask" in options.names else -1
        self.plan = torch.classes.spotbench_host.Plan(
            self.number, words, options.return_lse, missed, *(options.longest or (-1, -1)), *option_values
        )
        self.address: int = self.plan.address()
        self.known: set[tuple[object, ...]] = set()

    def learn(self, given: tuple[torch.Tensor, ...], options: Options) -> None:
        """Of a pass over these (the call's tensors, out, lse, dout) that has been made."""
        deterministic, host = torch.are_deterministic_algorithms_enabled(), self.engine.host
        key = (deterministic, host.current_stream(self.engine.device.index), *key_of(*given))
        if key in self.known or len(self.known) >= MOST_LEARNED or host.capturing():
            return
        self.known.add(key)
        named = dict(zip((*options.names, "out", "lse", "dout"), given, strict=True))
        if readable_gradient(named["dout"]) is not named["dout"] or any(
            named[name].data_ptr() % 16 for name in ALIGNED
        ):
            return
        q, k, v, *_, out, lse, dout = given
        made = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        tensors = {name: named[name] for name in options.names}
        mode_options = {"deterministic": deterministic, "engine": self.engine}
        bound = bind_backward(tensors, out, lse, dout, made, options, **mode_options)
        call_words = backward_words(bound, named, made) if bound.plan else None
        if call_words is not None:
            self.plan.learn(call_words, list(given), deterministic)


class Native:
    """The compiled function, in use from now on. `compute` makes backward passes that it does not know."""

    def __init__(
        self,
        engine_of: Callable[[torch.device], Engine],
        compute: Callable[[tuple[torch.Tensor, ...], Options], Three],
        current_stream: int,
    ) -> None:
        self.engine_of, self.compute = engine_of, compute
        self.taught: weakref.WeakValueDictionary[int, Taught] = weakref.WeakValueDictionary()
        library = cuda_driver().library
        needed = ("cuLaunchKernelEx", "cuTensorMapReplaceAddress", "cuStreamIsCapturing", "cuCtxGetCurrent")
        functions = [native.address_of(getattr(library, name)) for name in needed]
        torch.ops.spotbench_host.use([*functions, current_stream])
        self.operators = torch.library.Library("spotbench_host", "IMPL")
        self.operators.impl("learning_backward", self.learning_backward, "CompositeExplicitAutograd")

    def close(self) -> None:
        """Stops using the compiled function."""
        self.operators._destroy()

    def call(
        self, tensors: tuple[torch.Tensor, ...], options: Options, by_python: Callable[..., Answer]
    ) -> Callable[..., Answer] | None:
        """The function that computes calls like this one, which want gradients; None for calls that are not compiled.
        `by_python` computes those that the compiled function does not handle."""
        engine = self.engine_of(tensors[0].device)
        buffers = Buffers.now(engine)
        if options.names not in COMPILED or buffers.capturing or engine.host.current_device() != engine.device.index:
            return None
        q = tensors[0]
        if any(x.requires_grad for x in tensors[3:]):
            return None
        if options.softcap or options.invariant or tensors[2].shape[-1] != q.shape[-1]:
            return None
        with torch.no_grad():
            out = torch.empty_like(q)
            lse = empty_sums(q, paged=options.paged)
            given, asked = dict(zip(options.names, tensors, strict=True)), options._replace(return_lse=True)
            bound = bind_call(given, out, lse, asked, buffers)
            call_words = forward_words(bound, {**given, "out": out, "lse": lse})
        if call_words is None:
            return None
        scale = 1.0 / math.sqrt(q.shape[-1]) if options.scale is None else float(options.scale)
        taught = Taught(engine, call_words, tensors, options, scale)
        self.taught[taught.number] = taught
        return pair_function(taught, by_python) if options.return_lse else output_function(taught, by_python)

    def learning_backward(self, number: int, *given: Any) -> Three:
        """A backward pass that the compiled function does not know yet."""
        dout, dlse, out, lse, q, k, v, a, b, longest_q, longest_k, causal, scale, alignment, left, right = given
        longest = (longest_q, longest_k) if longest_q >= 0 else None
        names = COMPILED[2 if longest else 0 if a is None else 1]
        options = Options(causal, scale, alignment, True, sides_window(left, right), names, longest)
        tensors = tuple(x for x in (q, k, v, a, b, out, lse, dout) if x is not None)
        made = self.compute(tensors if dlse is None else (*tensors, dlse), options)
        taught = self.taught.get(number)
        if taught is not None and dlse is None:
            taught.learn(tensors, options)
        return made


def output_function(one: Taught, by_python: Callable[..., Answer]) -> Callable[..., Answer]:
    """The function for calls that want only the output."""
    run = torch.ops.spotbench_host.attention.default

    def call(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: torch.Tensor | None = None, b: torch.Tensor | None = None
    ) -> Answer:
        out: torch.Tensor | None = run(q, k, v, a, b, one.address)
        return by_python(*(x for x in (q, k, v, a, b) if x is not None)) if out is None else out

    return call


def pair_function(one: Taught, by_python: Callable[..., Answer]) -> Callable[..., Answer]:
    """The function for calls that want the log-sum-exps too."""
    run = torch.ops.spotbench_host.pair.default

    def call(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: torch.Tensor | None = None, b: torch.Tensor | None = None
    ) -> Answer:
        out, lse = run(q, k, v, a, b, one.address)
        return by_python(*(x for x in (q, k, v, a, b) if x is not None)) if out is None else (out, lse)

    return call
