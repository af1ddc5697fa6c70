"""Who takes part in a cell: our kernel in its forms, PyTorch's backends, FlexAttention and FlashAttention-4.

With the log-sum-exp written: PyTorch's FLASH backend always writes it; cuDNN and EFFICIENT do when they are asked
(`compute_log_sumexp`), which scaled_dot_product_attention does only for inputs that need a gradient. So there is one
`flash`, and `cudnn:lse` and `efficient:lse` beside `cudnn` and `efficient`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.attention.cuda.campaign import exact
from kernels.attention.cuda.campaign.cells import Cell
from kernels.attention.cuda.campaign.timing import Call, Contender
from kernels.attention.cuda.engine import Engine
from kernels.attention.cuda.errors import Unavailable
from kernels.attention.cuda.launching import Bound
from kernels.attention.cuda.operator import bind

BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
MAX_SETS, SETS_OF_L2 = 64, 2.0
RELATIVE_ERROR = {"float16": 1.2e-3, "bfloat16": 8e-3}
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(slots=True)
class Field:
    """The contenders of a cell, what was found out about their results, and why the others are not there."""

    contenders: list[Contender] = field(default_factory=list)
    errors: dict[str, dict[str, float]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    ways: dict[str, str] = field(default_factory=dict)


class Stable(Protocol):
    """Where contenders come from: tests give the campaign one whose calls take a time that they chose."""

    def prepare(self, cell: Cell, *, check: bool) -> Field:
        """The contenders, warm; with `check` their results are compared with float64."""

    def about(self) -> dict[str, Any]:
        """Versions of everything that takes part."""


def is_seen(_batch: Any, _head: Any, query: Any, key: Any) -> Any:
    """The causal mask as FlexAttention wants it told."""
    return query >= key


def settle(device: torch.device) -> None:
    """Wait for the device, so that what a call did wrong is found here."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def sets_for(cell: Cell, l2_bytes: int) -> int:
    """How many sets of inputs it takes to leave the L2 cache; 1 where one does not fit it anyway."""
    wanted = math.ceil(SETS_OF_L2 * l2_bytes / cell.set_bytes)
    return 1 if wanted < 2 else min(MAX_SETS, wanted)


def make_inputs(cell: Cell, count: int, device: torch.device) -> list[Inputs]:
    """N(0, 1), the same for every visit of a cell."""
    generator = torch.Generator(device).manual_seed(cell.seq_q * 131 + cell.seq_k * 7 + cell.head_dim)
    dtype = getattr(torch, cell.dtype)

    def tensor(heads: int, rows: int) -> torch.Tensor:
        shape = (cell.batch, heads, rows, cell.head_dim)
        return torch.randn(shape, device=device, dtype=torch.float32, generator=generator).to(dtype)

    return [
        (
            tensor(cell.heads, cell.seq_q),
            tensor(cell.kv_heads, cell.seq_k),
            tensor(cell.kv_heads, cell.seq_k),
        )
        for _ in range(count)
    ]


Pin = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Entrant:
    """Calls, what pins their backend, and how to get the first call's output and, from us, its log-sum-exp."""

    calls: list[Call]
    output: Callable[[], torch.Tensor]
    pin: Pin = nullcontext
    sums: torch.Tensor | None = None


class GpuStable:
    """The real ones. `flex_s` is how long FlexAttention may compile in all; `only` restricts who takes part."""

    def __init__(self, engine: Engine, *, flex_s: float = 0.0, only: Sequence[str] = ()) -> None:
        self.engine = engine
        self.flex_s = flex_s
        self.only = tuple(only)
        self.flex_calls: dict[Cell, Callable[..., Any]] = {}
        self.fa4, self.fa4_words = flash_attention_4()

    def about(self) -> dict[str, Any]:
        """Versions; None for what is not there."""
        names = ("flash-attn-4", "nvidia-cutlass-dsl", "quack-kernels", "triton")
        return {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()} | {
            name: version_of(name) for name in names
        }

    def prepare(self, cell: Cell, *, check: bool) -> Field:
        """Every contender that this cell can have, warm and right; a wrong one is absent, its error the reason."""
        found = Field()
        inputs = make_inputs(cell, sets_for(cell, self.engine.machine.l2_bytes), self.engine.device)
        entrants = self.entrants(cell, inputs)
        wanted, sums = exact.attention(*inputs[0], causal=cell.causal) if check else (None, None)
        for name, make in entrants.items():
            if self.only and name.partition(":")[0] not in self.only:
                continue
            try:
                entrant = make()
                contender = Contender(name, tuple(entrant.calls), entrant.pin)
                with contender.pinned():
                    result = entrant.output()
                    settle(self.engine.device)
            except Exception as exc:  # whatever a rival raises, it is absent and says why
                found.absent[name] = (str(exc).strip() or type(exc).__name__).splitlines()[0][:200]
                continue
            if isinstance(entrant.calls[0], Bound):
                found.ways[name] = entrant.calls[0].way
            if wanted is not None and sums is not None and name in ERROR_NAMES:
                errors = exact.difference(result, wanted)
                if entrant.sums is not None:
                    errors["lse_max_abs"] = (entrant.sums.double() - sums).abs().max().item()
                found.errors[name] = errors
                if not errors["relative"] < RELATIVE_ERROR[cell.dtype]:
                    found.absent[name] = f"wrong: relative error {errors['relative']:.3g}"
                    continue
            found.contenders.append(contender)
        return found

    def entrants(self, cell: Cell, inputs: list[Inputs]) -> dict[str, Callable[[], Entrant]]:
        """How to make each contender."""
        found: dict[str, Callable[[], Entrant]] = {
            "ours": partial(self.ours, cell, inputs, False),
            "ours:lse": partial(self.ours, cell, inputs, True),
            "ours:again": partial(self.ours, cell, inputs[:1], False),
            **{name: partial(sdpa, name, cell, inputs) for name in BACKENDS},
            "cudnn:lse": partial(cudnn_with_sums, cell, inputs),
        }
        if cell.group == "small":
            found["ours:dependent"] = partial(self.dependent, cell, inputs)
            found["efficient:lse"] = partial(efficient_with_sums, cell, inputs)
        if cell.group != "decode":
            found["fa4"] = partial(self.flash_attention_4, cell, inputs)
        if cell.with_flex and self.flex_s > 0:
            found["flex"] = partial(self.flex, cell, inputs)
        return found

    def ours(self, cell: Cell, inputs: list[Inputs], lse: bool) -> Entrant:
        outputs = [torch.full_like(q, math.nan) for q, _, _ in inputs]
        sums = [torch.full(q.shape[:3], math.nan, device=q.device) if lse else None for q, _, _ in inputs]
        calls: list[Call] = [
            bind(q, k, v, out, causal=cell.causal, lse=one, engine=self.engine)
            for (q, k, v), out, one in zip(inputs, outputs, sums, strict=True)
        ]

        def output() -> torch.Tensor:
            for call in calls:
                call()
            return outputs[0]

        return Entrant(calls, output, sums=sums[0])

    def dependent(self, cell: Cell, inputs: list[Inputs]) -> Entrant:
        """Our way again, but each launch begins while the one before it ends (programmatic dependent launch)."""
        outputs = [torch.full_like(q, math.nan) for q, _, _ in inputs]
        plain = bind(*inputs[0], outputs[0], causal=cell.causal, engine=self.engine).way
        way = f"{plain}-dependent"
        calls: list[Call] = [
            bind(*one, out, causal=cell.causal, engine=self.engine, way=way)
            for one, out in zip(inputs, outputs, strict=True)
        ]

        def output() -> torch.Tensor:
            for call in calls:
                call()
            return outputs[0]

        return Entrant(calls, output)

    def flash_attention_4(self, cell: Cell, inputs: list[Inputs]) -> Entrant:
        """Its own layout, [B, S, H, D], and no log-sum-exp."""
        if self.fa4 is None:
            raise Unavailable(self.fa4_words)
        forward, calls, outputs = self.fa4, [], []
        for one in inputs:
            q, k, v = (x.transpose(1, 2).contiguous() for x in one)
            outputs.append(torch.full_like(q, math.nan))
            calls.append(partial(forward, q, k, v, causal=cell.causal, out=outputs[-1]))

        def output() -> torch.Tensor:
            calls[0]()
            return outputs[0].transpose(1, 2)

        return Entrant(list(calls), output)

    def flex(self, cell: Cell, inputs: list[Inputs]) -> Entrant:
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        started = time.perf_counter()
        if cell not in self.flex_calls:
            if self.flex_s <= 0:
                raise Unavailable("the time for compiling FlexAttention is spent")
            torch._dynamo.config.recompile_limit = 64
            compiled = torch.compile(flex_attention, dynamic=False)
            mask = None
            if cell.causal:
                sizes = (None, None, cell.seq_q, cell.seq_k)
                mask = create_block_mask(is_seen, *sizes, device=str(self.engine.device))
            self.flex_calls[cell] = partial(compiled, block_mask=mask)
        calls: list[Call] = [partial(self.flex_calls[cell], *one) for one in inputs]
        calls[0]()
        self.flex_s -= time.perf_counter() - started
        return outcome(calls)


ERROR_NAMES = ("ours", "ours:lse", "ours:dependent", "cudnn", "flash", "efficient", "fa4", "flex")
"""Whose results are compared with float64. The rest compute what one of these does."""


def outcome(calls: list[Call], pin: Pin = nullcontext) -> Entrant:
    """For calls that return their output, alone or first of several."""

    def output() -> torch.Tensor:
        result = calls[0]()
        first: torch.Tensor = result if isinstance(result, torch.Tensor) else result[0]  # type: ignore[index]
        return first

    return Entrant(calls, output, pin)


def sdpa(backend: str, cell: Cell, inputs: list[Inputs]) -> Entrant:
    """PyTorch's attention, the backend pinned."""
    options: dict[str, Any] = {"is_causal": cell.causal}
    if cell.heads != cell.kv_heads:
        options["enable_gqa"] = True
    calls = [partial(torch.nn.functional.scaled_dot_product_attention, *one, **options) for one in inputs]
    return outcome(list(calls), partial(sdpa_kernel, BACKENDS[backend]))


def cudnn_with_sums(cell: Cell, inputs: list[Inputs]) -> Entrant:
    operator = torch.ops.aten._scaled_dot_product_cudnn_attention
    return outcome([partial(operator, *one, None, True, 0.0, cell.causal, False) for one in inputs])


def efficient_with_sums(cell: Cell, inputs: list[Inputs]) -> Entrant:
    operator = torch.ops.aten._scaled_dot_product_efficient_attention
    return outcome([partial(operator, *one, None, True, 0.0, cell.causal) for one in inputs])


def version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def flash_attention_4() -> tuple[Callable[..., Any] | None, str]:
    """Its forward function, or None and why."""
    try:
        forward: Callable[..., Any] = importlib.import_module("flash_attn.cute.interface")._flash_attn_fwd
    except Exception as exc:  # a compiler in Python: it can fail to import in any way
        return None, f"flash-attn-4 does not import: {type(exc).__name__}: {exc}"[:200]
    return forward, ""
