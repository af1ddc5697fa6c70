"""Attention's tensors: the inputs of a case, and the yardstick for its answers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.attention import correctness
from kernels.attention.case import Case, Shape
from kernels.attention.correctness import Yardstick
from kernels.attention.dropout import Dropout
from kernels.attention.gradient_gate import GradientYardstick, gradient_yardstick
from kernels.attention.interface import DTYPES
from kernels.attention.reference import Terms

SMOKE = Shape(batch=1, heads=4, kv_heads=2, seq_q=65, seq_k=65, head_dim=64, causal=True)


@dataclass(frozen=True, slots=True)
class Inputs:
    """q [B, H, S_q, D], k [B, H_kv, S_k, D] and v [B, H_kv, S_k, D_v], in the dtype of the case; for a backward pass
    also the gradient of the output; sinks, float32 [H], if the case has them; and for dropout a seed and an offset,
    int64 [2]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    seed: torch.Tensor | None = None

    @property
    def slope(self) -> torch.Tensor:
        """The gradient of the output."""
        if self.dout is None:
            raise ValueError("the inputs of a forward pass have no gradient of the output")
        return self.dout


class AttentionProblem:
    """The part of the attention workload that needs torch."""

    def smoke(self, device: torch.device) -> Case:
        """A small case for a first try: short, causal, with shared heads, and with sizes that are no multiples of a
        tile."""
        return Case(SMOKE, "float16" if device.type == "cuda" else "float32")

    def inputs(self, case: Case, generator: torch.Generator) -> Inputs:
        """New inputs from N(0, 1). Zeros are not used, because with them a GPU needs less power and runs faster than
        with real data."""
        s = case.shape

        def numbers(*size: int) -> torch.Tensor:
            return torch.randn(size, generator=generator, device=generator.device, dtype=torch.float32)

        def draw(heads: int, seq: int, width: int) -> torch.Tensor:
            return numbers(s.batch, heads, seq, width).to(DTYPES[case.dtype])

        q, k = draw(s.heads, s.seq_q, s.head_dim), draw(s.kv_heads, s.seq_k, s.head_dim)
        v = draw(s.kv_heads, s.seq_k, s.width)
        dout = None if case.direction == "forward" else draw(s.heads, s.seq_q, s.width)
        sinks, seed = numbers(s.heads) if s.sinks else None, None
        if s.dropout:
            seed = torch.randint(-(2**63), 2**63 - 1, (2,), generator=generator, device=generator.device)
        return Inputs(q, k, v, dout, sinks, seed)

    def copied(self, inputs: Inputs) -> Inputs:
        """A copy of the inputs in new memory."""
        optional = (None if x is None else x.clone() for x in (inputs.dout, inputs.sinks, inputs.seed))
        return Inputs(inputs.q.clone(), inputs.k.clone(), inputs.v.clone(), *optional)

    def set_bytes(self, case: Case, inputs: Inputs) -> int:  # noqa: ARG002  (other workloads need them)
        """The bytes of q, k, v and the output; for a backward pass also of the gradient of each."""
        s = case.shape
        elements = (s.heads * s.seq_q + s.kv_heads * s.seq_k) * (1 if case.direction == "forward" else 2)
        return int(s.batch * elements * (s.head_dim + s.width) * DTYPES[case.dtype].itemsize)

    def yardstick(self, case: Case, inputs: Inputs, max_abs_error: float) -> Yardstick | GradientYardstick:
        """The exact answer in float64, and limits from PyTorch's own error; of gradients, from that of the formula."""
        dropout = None if inputs.seed is None else Dropout(case.shape.dropout, *inputs.seed.tolist())
        causal, terms = case.shape.causal, Terms(case.shape.window, inputs.sinks, dropout)
        if case.direction != "forward":
            return gradient_yardstick(
                inputs.q,
                inputs.k,
                inputs.v,
                inputs.slope,
                causal=causal,
                max_abs_error=max_abs_error if case.direction == "both" else None,
                terms=terms,
            )
        return correctness.exact_answer(
            inputs.q, inputs.k, inputs.v, causal=causal, max_abs_error=max_abs_error, terms=terms
        )
