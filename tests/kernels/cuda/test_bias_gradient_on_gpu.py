"""The gradient of a mask that is added to the scores, on a GPU: by autograd, by the operators and under torch.compile."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.operator import attention
from tests.kernels.cuda.on_gpu import DEV, ON_GPU, randn

pytestmark = ON_GPU

B, H, H_KV, ROWS, KEYS = 2, 4, 2, 150, 210


def exact(
    tensors: list[torch.Tensor], dout: torch.Tensor, softcap: float, sinks: torch.Tensor | None
) -> list[torch.Tensor]:
    """The gradients of q, k, v and the mask in float64."""
    q, k, v, mask = (x.detach().double().requires_grad_() for x in tensors)
    scores = q @ k.repeat_interleave(H // H_KV, 1).mT / math.sqrt(q.shape[-1])
    scores = (softcap * torch.tanh(scores / softcap) if softcap else scores) + mask
    all_scores = scores
    if sinks is not None:
        all_scores = torch.cat([scores, sinks.double()[None, :, None, None].expand(B, H, ROWS, 1)], -1)
    weights = torch.softmax(all_scores, -1)[..., :KEYS]
    return list(torch.autograd.grad(weights @ v.repeat_interleave(H // H_KV, 1), (q, k, v, mask), dout.double()))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", ["plain", "softcap", "sinks"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("shape", [(B, H, ROWS, KEYS), (H, ROWS, KEYS), (B, 1, 1, KEYS), (ROWS, KEYS)])
def test_the_gradient_of_a_mask_is_exact_and_has_the_same_bits(
    shape: tuple[int, ...], head_dim: int, kind: str, compiled: bool
) -> None:
    if compiled and (shape != (H, ROWS, KEYS) or head_dim != 64):
        pytest.skip("once for each kind")
    sizes = ((H, ROWS), (H_KV, KEYS), (H_KV, KEYS), (H, ROWS))
    q, k, v, dout = (
        randn(B, heads, rows, head_dim, dtype=torch.bfloat16, seed=at) for at, (heads, rows) in enumerate(sizes)
    )
    mask = torch.randn(shape, device=DEV, generator=torch.Generator(DEV).manual_seed(5))
    softcap = 3.0 if kind == "softcap" else 0.0
    sinks = torch.randn(H, device=DEV) if kind == "sinks" else None
    tensors = [x.requires_grad_() for x in (q, k, v, mask)]

    def call(*given: torch.Tensor) -> torch.Tensor:
        of_q, of_k, of_v, added = given
        return attention(of_q, of_k, of_v, attn_mask=added, softcap=softcap, sinks=sinks)

    made = torch.compile(call)(*tensors) if compiled else call(*tensors)
    found = torch.autograd.grad(made, tensors, dout, retain_graph=True)
    again = torch.autograd.grad(made, tensors, dout)
    for got, want in zip(found, exact(tensors, dout, softcap, sinks), strict=True):
        assert got.shape == want.shape
        assert float((got.double() - want).norm() / want.norm()) < 1.2e-2
    assert torch.equal(found[3], again[3])


def test_a_second_derivative_of_a_mask_is_refused() -> None:
    q = randn(1, 1, 20, 64, dtype=torch.float16, seed=0)
    mask = torch.zeros(20, 20, device=DEV, requires_grad=True)
    with pytest.raises(Unsupported, match="second"):
        torch.autograd.grad(attention(q, q, q, attn_mask=mask).float().sum(), mask, create_graph=True)[
            0
        ].sum().backward()
