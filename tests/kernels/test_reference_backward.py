"""The gradients that backward passes are judged by."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kernels.attention import reference


class Attention(torch.autograd.Function):
    """The reference, forward and backward."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.causal = causal
        return reference.attention(q, k, v, causal=causal, chunk_elements=20).out

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> Any:
        found = reference.attention_backward(*ctx.saved_tensors, *slopes, causal=ctx.causal, chunk_elements=20)
        return found.dq, found.dk, found.dv, None


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads", "seq_q", "seq_k"), [(2, 2, 5, 7), (4, 2, 6, 6), (2, 1, 7, 4)])
def test_the_reference_gradients_are_those_that_differences_show(
    causal: bool, heads: int, kv_heads: int, seq_q: int, seq_k: int
) -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(1, h, s, 3, generator=generator, dtype=torch.float64, requires_grad=True)
        for h, s in ((heads, seq_q), (kv_heads, seq_k), (kv_heads, seq_k))
    )
    assert torch.autograd.gradcheck(lambda *given: Attention.apply(*given, causal), (q, k, v))  # type: ignore[no-untyped-call]
