"""FlashAttention 3 and 4: the same passes in two packages, in their own layout [B, S, H, D]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from kernels.attention.case import SINKS, VALUE_WIDTH, WINDOW, Case
from kernels.attention.problem import Inputs
from kernels.attention.rivals.package import Package, Rival
from kernels.harness.workload import Call, Implementation, Site

FLASH_ATTENTION_3 = Package(
    name="flash-attn-3",
    module="flash_attn_interface",
    distribution="flash_attn_3",
    install='pip install --no-build-isolation "git+https://github.com/Dao-AILab/flash-attention#subdirectory=hopper"',
    names=("_flash_attn_forward", "_flash_attn_backward"),
    features=(VALUE_WIDTH, WINDOW),
    newest=(9, 0),
)
FLASH_ATTENTION_4 = Package(
    name="flash-attn-4",
    module="flash_attn.cute.interface",
    distribution="flash-attn-4",
    install="pip install --pre flash-attn-4",
    names=("_flash_attn_fwd", "_flash_attn_bwd"),
    features=(VALUE_WIDTH, WINDOW, SINKS),
)
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Passes:
    """Both passes of a package: `forward(q, k, v)` gives the output and the log-sum-exps, `backward(slope, q, k, v,
    output, log-sum-exps)` the gradients."""

    forward: Callable[..., Tensors]
    backward: Callable[..., Tensors]


class FlashAttention3(Rival):
    """`fa3`: the number of parts into which the keys are split is its own choice."""

    package = FLASH_ATTENTION_3

    def call(self, module: Any, case: Case, inputs: Inputs) -> Call:
        """Its passes on copies of the inputs in its layout."""
        s = case.shape
        window = {"window_size_left": s.window - 1, "window_size_right": 0} if s.window else {}

        def forward(*tensors: torch.Tensor) -> Tensors:
            return tuple(module._flash_attn_forward(*tensors, causal=s.causal, num_splits=0, **window)[:2])

        def backward(slope: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *results: Any) -> Tensors:
            dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
            module._flash_attn_backward(slope, q, k, v, *results, dq=dq, dk=dk, dv=dv, is_causal=s.causal, **window)
            return dq, dk, dv

        return call_in_layout(Passes(forward, backward), case, inputs)


class FlashAttention4(Rival):
    """`fa4`: called without splitting the keys; `fa4:split` leaves the number of parts to it."""

    package = FLASH_ATTENTION_4

    def __init__(self, splits: bool = False) -> None:
        self.splits = {"num_splits": 0} if splits else {}

    def call(self, module: Any, case: Case, inputs: Inputs) -> Call:
        """Its passes on copies of the inputs in its layout."""
        s = case.shape
        options: dict[str, Any] = {"causal": s.causal}
        options |= {"window_size_left": s.window - 1} if s.window else {}
        options |= {} if inputs.sinks is None else {"learnable_sink": inputs.sinks}
        needs_lse = case.direction != "forward"

        def forward(*tensors: torch.Tensor) -> Tensors:
            return tuple(module._flash_attn_fwd(*tensors, return_lse=needs_lse, **options, **self.splits)[:2])

        def backward(slope: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *results: Any) -> Tensors:
            out, lse = results
            return tuple(module._flash_attn_bwd(q, k, v, out, slope, lse, **options)[: 3 + bool(s.sinks)])

        return call_in_layout(Passes(forward, backward), case, inputs, " split" if self.splits else "")


def call_in_layout(passes: Passes, case: Case, inputs: Inputs, backend: str = "") -> Call:
    """A case's passes on copies of the inputs as [B, S, H, D], made beforehand; what is judged is [B, H, S, D]."""
    q, k, v = (x.transpose(1, 2).contiguous() for x in (inputs.q, inputs.k, inputs.v))
    if case.direction == "forward":
        plan: Callable[[], Any] = lambda: passes.forward(q, k, v)[0]  # noqa: E731
        return Call(backend, plan, output=lambda out: out.transpose(1, 2))
    slope = inputs.slope.transpose(1, 2).contiguous()
    saved = passes.forward(q, k, v)

    def both_passes() -> Tensors:
        out, lse = passes.forward(q, k, v)
        return (out, *passes.backward(slope, q, k, v, out, lse))

    plan = both_passes if case.direction == "both" else lambda: passes.backward(slope, q, k, v, *saved)

    def output(answers: Tensors) -> Tensors:
        return tuple(x.transpose(1, 2) if x.ndim == 4 else x for x in answers)

    return Call(backend, plan, output=output)


def fa3_implementation(_name: str, _site: Site) -> Implementation:
    """FlashAttention-3."""
    return FlashAttention3()


def fa4_implementation(name: str, _site: Site) -> Implementation:
    """FlashAttention-4."""
    return FlashAttention4(splits=name.endswith(":split"))
