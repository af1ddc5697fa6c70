"""The host's fast path for a call once a similar call has been made.

A similar call has the same types, sizes, strides, device and options. Its plan is kept, so a call only has to allocate
the output, write the addresses into the arguments and launch. Plans belong to a thread, which needs no lock for them.

Unusual calls take the slower, general way: a tensor off its 16-byte boundary, a subclass, a mode that listens to
operators, another current device, a stream under capture whose kernels need memory of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from kernels.attention.cuda.calls.likeness import Check, find_checker, find_guard, guard_of, key_of
from kernels.attention.cuda.calls.moving import Answer, Call, Form, Movable, general_call, plain_call, remainders_of
from kernels.attention.cuda.plan import inputs
from kernels.attention.cuda.plan.posing import Window, output_like
from kernels.attention.cuda.run.engine import Engine
from kernels.attention.cuda.run.launching import Bound, Buffers

__all__ = ["Answer", "Options", "Quick", "empty_sums", "lse_shape"]

MOST_RECENT = 8
"""How many plans of a set of options are tried one after the other; further ones are in a table."""
PLANS_PER_GENERATION = 128
"""When this many new plans were made, a new generation begins. A thread keeps the plans that it used in the present or
the last generation."""
QKV = ("q", "k", "v")
PAGED = (*QKV, "block_table", "k_lengths")
"""The tensors of a call whose keys are in pages; `q_starts` and `out` may follow."""


class Options(NamedTuple):
    """All of a call but its tensors, whose names are in `names`: q, k, v; mask; q_starts, k_starts; block_table,
    k_lengths; slopes; sinks; q_scale; k_scale; v_scale; seed; out.

    `longest`: the longest sequences of Q and of K, where they are packed or keys are in pages; -1 where nobody said.
    """

    causal: bool = False
    scale: float | None = None
    alignment: str = "top-left"
    return_lse: bool = False
    window: Window | None = None
    names: tuple[str, ...] = QKV
    longest: tuple[int, int] | None = None
    softcap: float = 0.0
    invariant: bool = False
    dropout: float = 0.0

    @property
    def paged(self) -> bool:
        """Whether the keys are in pages."""
        return "block_table" in self.names


Binder = Callable[[dict[str, torch.Tensor], torch.Tensor, torch.Tensor | None, Options, Buffers], Bound]
"""`binding.bind_call`: binds the named tensors, the output, the log-sum-exps, the options and the buffers."""
Differentiate = Callable[[tuple[torch.Tensor, ...], Options], Callable[..., Answer]]
Plan = tuple[Check, Callable[..., Any]]
"""The check for the calls of the plan, and the function that computes them: a `Call`, or one that always answers."""


class Plans(threading.local):
    """One thread's plans: recent ones by their options alone, those for tensors that want gradients apart."""

    def __init__(self) -> None:
        self.recent: dict[tuple[object, ...], list[Plan]] = {}
        self.wanting: dict[tuple[object, ...], list[Plan]] = {}
        self.young: dict[tuple[object, ...], Plan] = {}
        self.old: dict[tuple[object, ...], Plan] = {}

    def find(self, key: tuple[object, ...]) -> Plan | None:
        plan = self.young.get(key)
        if plan is None:
            plan = self.old.pop(key, None)
            if plan is not None:
                self.young[key] = plan
        return plan

    def keep(self, key: tuple[object, ...], plan: Plan) -> None:
        if len(self.young) >= PLANS_PER_GENERATION:
            self.old, self.young = self.young, {}
            self.recent.clear()
            self.wanting.clear()
        self.young[key] = plan

    def to_front(self, key: tuple[object, ...], plan: Plan, *, wanting: bool = False) -> None:
        """Of the recent ones, or of those for tensors that want gradients."""
        # A new list, as another call of this thread (a signal handler, a finaliser) may be reading the present one.
        table = self.wanting if wanting else self.recent
        other_plans = [one for one in table.get(key, ()) if one[1] is not plan[1]]
        table[key] = [plan, *other_plans[: MOST_RECENT - 1]]


class Quick:
    """Attention with remembered plans.

    `bind` prepares a call, `engine_of` finds a device's engine, `slow` computes what is not for plans. `differentiate`,
    if set, gives what computes calls like one that want gradients and that nobody watches.
    """

    def __init__(
        self,
        bind: Binder,
        engine_of: Callable[[torch.device], Engine],
        slow: Callable[[dict[str, torch.Tensor], Options], Answer],
    ) -> None:
        self.bind, self.engine_of, self.slow = bind, engine_of, slow
        self.differentiate: Differentiate | None = None
        self.plans = Plans()
        self.checker, self.guard = find_checker(), find_guard()

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
        """As `operator.attention`, with nothing but q, k and v."""
        options, plans = (causal, scale, alignment, return_lse), self.plans
        if not listening() and forward_ad._current_level < 0:
            if plans.wanting and torch.is_grad_enabled():
                for check, call in plans.wanting.get(options, ()):
                    if check(q, k, v):
                        return call(q, k, v)
            for check, call in plans.recent.get(options, ()):
                if check(q, k, v):
                    answer = call(q, k, v)
                    if answer is not None:
                        return answer
        return self.first((q, k, v), Options(*options))

    def call(self, tensors: tuple[torch.Tensor, ...], options: Options) -> Answer:
        """Computes any call; `tensors` are in the order of `options.names`."""
        if not listening() and forward_ad._current_level < 0:
            plans, key = self.plans, recent_key(options)
            if plans.wanting and torch.is_grad_enabled():
                for check, known in plans.wanting.get(key, ()):
                    if check(*tensors):
                        return known(*tensors)
            for check, known in plans.recent.get(key, ()):
                if check(*tensors):
                    answer = known(*tensors)
                    if answer is not None:
                        return answer
        return self.first(tensors, options)

    def launch(self, tensors: tuple[torch.Tensor, ...], options: Options) -> Answer:
        """Launches any call now, even if a mode listens. The tensors are of PyTorch's own class."""
        remembered = self.remembered(tensors, options)
        answer = None if remembered is None else remembered(*tensors)
        if answer is None:
            inputs.refuse_tensors(dict(zip(options.names, tensors, strict=True)))
            answer = self.compute(tensors, options)
        return answer

    def remembered(self, tensors: tuple[torch.Tensor, ...], options: Options) -> Call | None:
        """The function of a recent plan that launches calls like this one. It may still return None."""
        for check, known in self.plans.recent.get(recent_key(options), ()):
            if check(*tensors):
                return known
        return None

    def first(self, tensors: tuple[torch.Tensor, ...], options: Options) -> Answer:
        """Computes a call that is like none of the most recent ones."""
        given = dict(zip(options.names, tensors, strict=True))
        inputs.refuse_strange(given)
        inputs.refuse_tangents(given)
        wanting = inputs.wanting_gradient(given)
        if not set(wanting) <= {*QKV, "sinks", "mask"} or not given.keys().isdisjoint(
            {"out", "block_table", "k_scale"}
        ):
            inputs.refuse_derivatives(given)
        tracing = torch._C._get_tracing_state() is not None
        strange = any(type(x) not in inputs.PLAIN_TYPES for x in tensors) or tensors[0].device.type == "meta"
        if listening() or tracing or strange or (wanting and self.differentiate is None):
            return self.seen(given, options)
        if wanting and self.differentiate is not None:
            return self.differentiated(tensors, options, self.differentiate)
        return self.compute(tensors, options)

    def differentiated(
        self, tensors: tuple[torch.Tensor, ...], options: Options, differentiate: Differentiate
    ) -> Answer:
        """A call that wants gradients now, and nobody watches. What computes it is kept where the guard works: only
        that sees all that has been ruled out here."""
        key = ("wanting", *options, *key_of(*tensors))
        plan = self.plans.find(key)
        if plan is None or not plan[0](*tensors):
            plan = (self.guard(*tensors), differentiate(tensors, options))
        answer = plan[1](*tensors)
        if self.guard is guard_of:
            self.plans.keep(key, plan)
            self.plans.to_front(recent_key(options), plan, wanting=True)
        return answer

    def seen(self, given: dict[str, torch.Tensor], options: Options) -> Answer:
        """Computes the call by the operator; the result is copied to a given output."""
        out = given.pop("out", None)
        answer = self.slow(given, options)
        if out is None:
            return answer
        result, *other_results = answer if isinstance(answer, tuple) else (answer,)
        out.copy_(result)
        return (out, *other_results) if other_results else out

    def compute(self, tensors: tuple[torch.Tensor, ...], options: Options) -> Answer:
        """Computes the call by an older plan, or by a new one."""
        engine = self.engine_of(tensors[0].device)
        index = engine.device.index
        if engine.host.current_device() != index:
            with torch.cuda.device(index):
                return self.compute(tensors, options)
        key: tuple[object, ...] = (*options, remainders_of(options.names, tensors), *key_of(*tensors))
        stream = engine.host.current_stream(index)
        for known in (self.plans.find(key), self.plans.find((stream, *key))):
            answer = known[1](*tensors) if known else None
            if known and answer is not None:
                self.plans.to_front(recent_key(options), known)
                return answer
        return self.prepare(tensors, options, engine, key, stream)

    def prepare(
        self,
        tensors: tuple[torch.Tensor, ...],
        options: Options,
        engine: Engine,
        key: tuple[object, ...],
        stream: int,
    ) -> Answer:
        """Computes a call by binding it, and keeps the plan for calls like it."""
        buffers = Buffers(engine, stream=stream, capturing=bool(engine.host.capturing()))
        given = dict(zip(options.names, tensors, strict=True))
        q, out = given["q"], given.pop("out", None)
        if out is None:
            out = output_like(q, given["v"])
        lse = empty_sums(q, paged=options.paged) if options.return_lse else None
        bound = self.bind(given, out, lse, options, buffers)
        bound()
        of_one_launch = buffers.capturing and buffers.has_state
        if bound.plan and type(options.scale) in (float, int, type(None)) and not of_one_launch:
            movable = Movable.of(bound, {**given, "out": out, **({} if lse is None else {"lse": lse})})
            if movable is not None:
                form = Form.of(options.names, tensors, out, lse, engine.device.index)
                only = stream if buffers.has_state else None
                call = None if buffers.has_state else plain_call(movable, form, engine.host)
                plan = (self.checker(*tensors), call or general_call(movable, form, engine.host, only))
                self.plans.keep(key if only is None else (stream, *key), plan)
                self.plans.to_front(recent_key(options), plan)
        return out if lse is None else (out, lse)


def recent_key(options: Options) -> tuple[object, ...]:
    """The key of recent plans, which is shortest if there are only q, k and v."""
    shaped = options.softcap or options.invariant or options.dropout
    return options[:4] if options.names == QKV and options.window is None and not shaped else options


def empty_sums(q: torch.Tensor, *, paged: bool) -> torch.Tensor:
    """Memory for the log-sum-exps of a call."""
    return torch.empty(lse_shape(q, paged=paged), dtype=torch.float32, device=q.device)


def lse_shape(q: torch.Tensor, *, paged: bool) -> tuple[int, ...]:
    """The shape of the log-sum-exp: [B, H, S_q], or [H, total_q] where sequences are packed. With keys in pages, q is
    [B, S_q, H, D]."""
    if q.dim() == 3:
        return q.shape[1], q.shape[0]
    return (q.shape[0], q.shape[2], q.shape[1]) if paged else tuple(q.shape[:3])


listening: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
"""Not 0 while a mode (fake tensors, tracing, counting operations) wants to see every operator."""
