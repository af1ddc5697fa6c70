"""Attention's tensors: the inputs of a case, and what an answer to them is judged by."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.attention import correctness
from kernels.attention.case import Case, Shape
from kernels.attention.correctness import Yardstick
from kernels.attention.gradient_gate import GradientYardstick, gradient_yardstick
from kernels.attention.interface import DTYPES

SMOKE = Shape(batch=1, heads=4, kv_heads=2, seq_q=65, seq_k=65, head_dim=64, causal=True)


@dataclass(frozen=True, slots=True)
class Inputs:
    """q [B, H, S_q, D], k and v [B, H_kv, S_k, D], in the dtype of the case; for a backward pass also the gradient of
    the output, like q."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor | None = None

    @property
    def slope(self) -> torch.Tensor:
        """The gradient of the output."""
        if self.dout is None:
            raise ValueError("the inputs of a forward pass have no gradient of the output")
        return self.dout


class AttentionProblem:
    """What attention needs torch for."""

    def smoke(self, device: torch.device) -> Case:
        """Short, causal, with shared heads, and no multiple of any tile."""
        return Case(SMOKE, "float16" if device.type == "cuda" else "float32")

    def inputs(self, case: Case, generator: torch.Generator) -> Inputs:
        """Fresh draws from N(0, 1), never zeros: on zeros a GPU draws less power, and runs faster than at work."""
        s = case.shape

        def draw(heads: int, seq: int) -> torch.Tensor:
            size = (s.batch, heads, seq, s.head_dim)
            drawn = torch.randn(size, generator=generator, device=generator.device, dtype=torch.float32)
            return drawn.to(DTYPES[case.dtype])

        q, k, v = draw(s.heads, s.seq_q), draw(s.kv_heads, s.seq_k), draw(s.kv_heads, s.seq_k)
        return Inputs(q, k, v, None if case.direction == "forward" else draw(s.heads, s.seq_q))

    def copied(self, inputs: Inputs) -> Inputs:
        """The same values in memory of their own."""
        dout = None if inputs.dout is None else inputs.dout.clone()
        return Inputs(inputs.q.clone(), inputs.k.clone(), inputs.v.clone(), dout)

    def set_bytes(self, case: Case, inputs: Inputs) -> int:  # noqa: ARG002  (others need them)
        """q, k, v and the output; backward those, and the gradient of each."""
        s = case.shape
        elements = (2 * s.heads * s.seq_q + 2 * s.kv_heads * s.seq_k) * (1 if case.direction == "forward" else 2)
        return int(s.batch * elements * s.head_dim * DTYPES[case.dtype].itemsize)

    def yardstick(self, case: Case, inputs: Inputs, max_abs_error: float) -> Yardstick | GradientYardstick:
        """The exact answer in float64, and limits from PyTorch's own error; of gradients, from that of the formula."""
        if case.direction != "forward":
            return gradient_yardstick(
                inputs.q,
                inputs.k,
                inputs.v,
                inputs.slope,
                causal=case.shape.causal,
                max_abs_error=max_abs_error if case.direction == "both" else None,
            )
        return correctness.yardstick(
            inputs.q, inputs.k, inputs.v, causal=case.shape.causal, max_abs_error=max_abs_error
        )
