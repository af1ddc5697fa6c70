"""The host's fast path: what a call costs once a call like it has been made before.

A call like it: the same types, sizes, strides, device and options. Its plan is kept; what is left to do is to allocate
the output, write the addresses into the arguments and launch. Plans belong to a thread, which needs no lock for them.

Whatever is unusual (a tensor that misses its 16-byte boundary, a subclass, a mode that listens to operators, another
current device, a stream under capture whose kernels need memory of their own) takes the slower, general way.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch

from kernels.attention.cuda.driver import LaunchConfig, TensorMap, driver
from kernels.attention.cuda.engine import Counters, Engine
from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.host import Host
from kernels.attention.cuda.launching import Bound, Buffers, Slot

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Answer: TypeAlias = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
Options = tuple[bool, float | None, str, bool]
"""causal, scale, causal_alignment, return_lse."""
Check = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], bool]
Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Answer | None]

MOST_RECENT = 8
"""Plans of a set of options that are tried one after the other; beyond them a table is asked."""
PLANS_PER_GENERATION = 128
"""A thread keeps the plans used since the last but one time that so many new ones had come."""
VECTOR_MASK = 15
ADDRESSED = ("q", "k", "v", "out", "lse")
"""The fields of kernel arguments that hold the address of the tensor of that name."""


class Binder(Protocol):
    """`operator.bind`."""

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        *,
        causal: bool,
        scale: float | None,
        causal_alignment: str,
        lse: torch.Tensor | None,
        buffers: Buffers,
    ) -> Bound: ...


def key_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[object, ...]:
    """All that a plan depends on but its options and the remainders of the addresses."""
    return tuple((type(x), x.dtype, x.device, x.shape, x.stride(), x.requires_grad) for x in (q, k, v))


def check_by_key(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Check:
    """Whether other tensors are like these, and none of them wants a gradient now, in Python."""
    key = key_of(q, k, v)
    if any(x.requires_grad for x in (q, k, v)):
        return lambda q, k, v: not torch.is_grad_enabled() and key_of(q, k, v) == key
    return lambda q, k, v: key_of(q, k, v) == key


def check_by_guard(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Check:
    """The same by the guard that torch.compile puts before its graphs: in C++, and several times as fast.

    It also looks at what a tensor is dispatched by (inference mode, autocast, functorch), so a plan is kept for each.
    It never lets one tensor given twice pass, and it does not ask whether gradients are on.
    """
    from torch._C._dynamo.guards import TensorGuards

    if q is k or k is v or v is q or any(x.requires_grad for x in (q, k, v)):
        return check_by_key(q, k, v)
    guards: Any = TensorGuards  # its stub is older than it is
    check: Check = guards(q, k, v, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check


def find_checker() -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Check]:
    """The guard if this PyTorch has it and it does what it must, else the comparison in Python."""
    a, b, c, d, e, f = (torch.empty(1, 2, 3, 4) for _ in range(6))
    longer, transposed = torch.empty(1, 2, 5, 4), torch.empty(1, 3, 2, 4).transpose(1, 2)
    try:
        check = check_by_guard(a, b, c)
        tells = [check(*given) for given in ((d, e, f), (d, e, longer), (d, transposed, f), (d.half(), e, f))]
    except Exception:
        return check_by_key
    return check_by_guard if [bool(one) for one in tells] == [True, False, False, False] else check_by_key


class Slots:
    """One counter for each stream, or several where a call asks for several: launches on a stream follow each other."""

    def __init__(self) -> None:
        self.slots: dict[tuple[int, ...], Slot] = {}
        self.lock = threading.Lock()

    def address(self, engine: Engine, stream: int, number: int, size: int) -> int:
        """The address of a stream's counter number `number`, zero whenever no launch on the stream is under way."""
        key = (id(engine), stream, number, engine.counters.size_of(size))
        with self.lock:
            slot = self.slots.get(key)
            if slot is None:
                slot = self.slots[key] = Slot(engine, size)
        return slot.address


@dataclass(slots=True)
class OfStream(Buffers):
    """Memory for calls that are all made on one stream."""

    slots: Slots = field(default_factory=Slots)
    stream: int = 0
    asked: int = 0

    def counter(self, size: int = Counters.SLOT_BYTES) -> int:
        self.asked += 1
        return self.slots.address(self.engine, self.stream, self.asked, size)

    @property
    def has_state(self) -> bool:
        """Whether its call must not be made on another stream."""
        return bool(self.asked or self.kept)


@dataclass(slots=True)
class Run:
    """Neighbouring fields of one argument that hold addresses: which of ADDRESSED, from where on."""

    argument: ctypes.Structure
    offset: int
    first: int
    last: int

    def writer(self) -> Callable[[Sequence[int]], None]:
        """Writes its share of five addresses."""
        pack, argument, offset, share = self.packer(), self.argument, self.offset, slice(self.first, self.last)
        return lambda addresses: pack(argument, offset, *addresses[share])

    def packer(self) -> Callable[..., None]:
        return struct.Struct(f"={self.last - self.first}Q").pack_into


def runs_of(argument: ctypes.Structure, addresses: Sequence[int], owned: Sequence[range]) -> list[Run] | None:
    """Where an argument holds the given addresses; None if it holds one that cannot be accounted for."""
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


@dataclass(slots=True)
class Movable:
    """A bound call that can be given other tensors of the same layout."""

    bound: Bound
    runs: list[Run]
    maps: list[tuple[int, TensorMap]]

    @classmethod
    def of(cls, bound: Bound, buffers: OfStream, addresses: Sequence[int]) -> Movable | None:
        """None for a call that keeps addresses where they cannot be replaced."""
        owned = [range(m.data_ptr(), m.data_ptr() + m.nbytes) for m in buffers.kept if isinstance(m, torch.Tensor)]
        counters = {slot.address for slot in buffers.slots.slots.values()}
        owned += [range(address, address + 1) for address in counters]
        runs: list[Run] = []
        maps: list[tuple[int, TensorMap]] = []
        for argument in arguments_of(bound):
            if isinstance(argument, TensorMap):
                if argument.tensor not in ADDRESSED:
                    return None
                maps.append((ADDRESSED.index(argument.tensor), argument))
            else:
                found = runs_of(argument, addresses, owned)
                if found is None:
                    return None
                runs += found
        bound.kept = tuple(buffers.kept)  # the tensors of the first call are not held
        return cls(bound, runs, maps)


@dataclass(slots=True)
class Form:
    """What a plan must know of a call's tensors: the remainders of their addresses, and the log-sum-exp's shape."""

    remainders: tuple[int, int, int]
    lse_shape: tuple[int, ...] | None
    device: torch.device
    index: int


def remainders_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[int, int, int]:
    return q.data_ptr() & VECTOR_MASK, k.data_ptr() & VECTOR_MASK, v.data_ptr() & VECTOR_MASK


def plain_call(movable: Movable, form: Form, host: Host) -> Call | None:
    """For one launch without state, on aligned tensors, whose argument holds all addresses in a row.

    Written for speed: everything it needs is in a cell of its own.
    """
    bound, runs = movable.bound, movable.runs
    if len(bound.steps) != 1 or movable.maps or len(runs) != 1 or any(form.remainders) or form.lse_shape is not None:
        return None
    if (runs[0].first, runs[0].last) != (0, len(ADDRESSED)):
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
    latest = [0] * len(ADDRESSED)

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Answer | None:
        if remainders_of(q, k, v) != form.remainders or host.current_device() != index:
            return None
        current = host.current_stream(index)
        if stream is not None and (current != stream or host.capturing()):
            return None
        out = torch.empty_like(q)
        shape = form.lse_shape
        lse = None if shape is None else torch.empty(shape, dtype=torch.float32, device=form.device)
        addresses = (q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr(), 0 if lse is None else lse.data_ptr())
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


class Plans(threading.local):
    """One thread's plans."""

    def __init__(self) -> None:
        self.recent: dict[Options, list[tuple[Check, Call]]] = {}
        self.young: dict[tuple[object, ...], tuple[Check, Call]] = {}
        self.old: dict[tuple[object, ...], tuple[Check, Call]] = {}

    def find(self, key: tuple[object, ...]) -> tuple[Check, Call] | None:
        found = self.young.get(key)
        if found is None:
            found = self.old.pop(key, None)
            if found is not None:
                self.young[key] = found
        return found

    def keep(self, key: tuple[object, ...], plan: tuple[Check, Call]) -> None:
        if len(self.young) >= PLANS_PER_GENERATION:
            self.old, self.young = self.young, {}
            self.recent.clear()
        self.young[key] = plan

    def to_front(self, options: Options, plan: tuple[Check, Call]) -> None:
        # A new list: another call of this thread (a signal handler, a finaliser) may be walking the present one.
        rest = [one for one in self.recent.get(options, ()) if one[1] is not plan[1]]
        self.recent[options] = [plan, *rest[: MOST_RECENT - 1]]


class Quick:
    """Attention with remembered plans.

    `bind` prepares a call, `engine_of` finds a device's engine, `slow` computes what is not for plans.
    """

    def __init__(
        self,
        bind: Binder,
        engine_of: Callable[[torch.device], Engine],
        slow: Callable[..., Answer],
    ) -> None:
        self.bind, self.engine_of, self.slow = bind, engine_of, slow
        self.plans = Plans()
        self.slots = Slots()
        self.captured: list[Any] = []
        self.checker = find_checker()

    def attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool,
        scale: float | None,
        alignment: str,
        return_lse: bool,
    ) -> Answer:
        """As `operator.attention`, without `out`."""
        options = (causal, scale, alignment, return_lse)
        if not listening():
            for check, call in self.plans.recent.get(options, ()):
                if check(q, k, v):
                    answer = call(q, k, v)
                    if answer is not None:
                        return answer
        return self.first(q, k, v, options)

    def first(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: Options) -> Answer:
        """A call like none of the most recent ones."""
        tensors = (q, k, v)
        if not all(isinstance(x, torch.Tensor) for x in tensors):
            raise TypeError(f"q, k and v must be tensors, not {', '.join(type(x).__name__ for x in tensors)}")
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            raise Unsupported("there is no backward pass: detach the inputs, or call this under torch.no_grad()")
        if listening() or any(type(x) not in (torch.Tensor, torch.nn.Parameter) for x in tensors):
            return self.slow(q, k, v, *options)
        engine = self.engine_of(q.device)
        index = engine.device.index
        if engine.host.current_device() != index:
            with torch.cuda.device(index):
                return self.first(q, k, v, options)
        key: tuple[object, ...] = (*options, remainders_of(q, k, v), *key_of(q, k, v))
        stream = engine.host.current_stream(index)
        for known in (self.plans.find(key), self.plans.find((stream, *key))):
            answer = known[1](q, k, v) if known else None
            if known and answer is not None:
                self.plans.to_front(options, known)
                return answer
        return self.prepare(q, k, v, options, engine, key, stream)

    def prepare(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        options: Options,
        engine: Engine,
        key: tuple[object, ...],
        stream: int,
    ) -> Answer:
        """Computes a call by binding it, and keeps the plan for calls like it."""
        causal, scale, alignment, return_lse = options
        capturing = engine.host.capturing()
        # A captured launch is replayed who knows when and where: its counters are its own, for good.
        slots = Slots() if capturing else self.slots
        buffers = OfStream(engine, slots=slots, stream=stream)
        out = torch.empty_like(q)
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if return_lse else None
        bound = self.bind(
            q, k, v, out, causal=causal, scale=scale, causal_alignment=alignment, lse=lse, buffers=buffers
        )
        bound()
        if capturing and buffers.asked:
            self.captured.append(slots)
        elif type(scale) in (float, int, type(None)) and not (capturing and buffers.has_state):
            addresses = [*(x.data_ptr() for x in (q, k, v, out)), 0 if lse is None else lse.data_ptr()]
            movable = Movable.of(bound, buffers, addresses)
            if movable is not None:
                shape = tuple(q.shape[:3]) if return_lse else None
                form = Form(remainders_of(q, k, v), shape, q.device, engine.device.index)
                only = stream if buffers.has_state else None
                call = None if buffers.has_state else plain_call(movable, form, engine.host)
                plan = (self.checker(q, k, v), call or general_call(movable, form, engine.host, only))
                self.plans.keep(key if only is None else (stream, *key), plan)
                self.plans.to_front(options, plan)
        return out if lse is None else (out, lse)


listening: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
"""Not 0 while a mode (fake tensors, tracing, counting operations) wants to see every operator."""
