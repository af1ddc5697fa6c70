"""Inputs out of the ordinary on a GPU: the numbers that PyTorch's own backends give, or a refusal."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from kernels.attention.cuda.operator import attention
from kernels.attention.cuda.varlen import attention_varlen
from tests.kernels.cuda.on_gpu import DEV, ON_GPU, randn

pytestmark = ON_GPU

BF16 = torch.bfloat16
SHAPES = ((1, 2, 64, 64, 64), (2, 4, 300, 300, 64), (1, 4, 700, 700, 128), (1, 8, 4, 4096, 128), (1, 2, 200, 200, 256))


def qkv(batch: int, heads: int, seq_q: int, seq_k: int, head_dim: int) -> list[torch.Tensor]:
    sizes = [(seq, number) for number, seq in enumerate((seq_q, seq_k, seq_k))]
    return [randn(batch, heads, seq, head_dim, dtype=BF16, seed=seq + number) for seq, number in sizes]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1e2, 1e5, 1e8, 1e12])
def test_huge_scores_choose_one_key_as_in_pytorch(shape: tuple[int, int, int, int, int], size: float) -> None:
    q, k, v = qkv(*shape)
    q = (q.float() * size).to(BF16)
    for causal in (False, True):
        got = attention(q, k, v, causal=causal)
        assert bool(got.isfinite().all())
        if size >= 1e8:  # where float32 scores decide without doubt
            scores = q.double() @ k.double().mT
            if causal:
                scores = scores.masked_fill(
                    torch.ones(scores.shape[-2:], dtype=torch.bool, device=DEV).triu(1), -math.inf
                )
            want = torch.softmax(scores, -1) @ v.double()
            wrong = (got.double() - want).norm(dim=-1) / want.norm(dim=-1)
            assert (wrong > 0.02).double().mean().item() < 1e-3


@pytest.mark.parametrize("scale", [-0.2, 0.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_scales_that_are_not_positive(shape: tuple[int, int, int, int, int], scale: float) -> None:
    q, k, v = qkv(*shape)
    got, want = attention(q, k, v, scale=scale), sdpa(q.double(), k.double(), v.double(), scale=scale)
    assert ((got.double() - want).norm() / want.norm()).item() < 8e-3


@pytest.mark.parametrize("told", [1.0, 0.3, 0.0])
@pytest.mark.parametrize("lengths", [(700, 3, 0, 129), (5, 1, 8, 2), (40, 64, 1, 33)])
def test_packed_rows_are_all_computed_whatever_the_longest_is_said_to_be(lengths: tuple[int, ...], told: float) -> None:
    heads, kv_heads, total = 8, 2, sum(lengths)
    q = randn(1, heads, total, 128, dtype=BF16, seed=1)[0].transpose(0, 1)
    k, v = (randn(1, kv_heads, 2 * total, 128, dtype=BF16, seed=seed)[0].transpose(0, 1) for seed in (2, 3))
    ends = torch.tensor([0, *lengths], device=DEV).cumsum(0).int()
    starts = (ends, 2 * ends)
    longest = int(told * max(lengths)), int(told * 2 * max(lengths))
    for _ in range(3):
        out = torch.full_like(q, math.nan)
        got = attention_varlen(q, k, v, *starts, *longest, causal=True, out=out)
        assert got is out
        for b, length in enumerate(lengths):
            rows, keys = slice(int(ends[b]), int(ends[b + 1])), slice(2 * int(ends[b]), 2 * int(ends[b + 1]))
            if length:
                own = [x.transpose(0, 1)[None] for x in (q[rows], k[keys], v[keys])]
                want = attention(*own, causal=True, causal_alignment="bottom-right")
                assert (got[rows].transpose(0, 1)[None].float() - want.float()).abs().max().item() < 2e-2


def test_results_and_gradients_are_the_same_under_the_compiler() -> None:
    q, k, v = qkv(1, 2, 128, 128, 64)
    compiled = torch.compile(lambda q, k, v: attention(q, k, v, window=(9, 9)), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(q, k, v), attention(q, k, v, window=(9, 9)))
    found, wanted = q.clone().requires_grad_(), q.clone().requires_grad_()
    compiled(found, k, v).square().sum().backward()
    attention(wanted, k, v, window=(9, 9)).square().sum().backward()
    assert found.grad is not None
    assert wanted.grad is not None
    assert torch.equal(found.grad, wanted.grad)


def test_a_subclass_and_an_empty_tensor() -> None:
    class Sub(torch.Tensor):
        pass

    q, k, v = qkv(1, 2, 128, 128, 64)
    answer = attention(q.as_subclass(Sub), k, v)
    assert isinstance(answer, Sub)
    assert torch.equal(answer.as_subclass(torch.Tensor), attention(q, k, v))
    assert torch.equal(attention(q, k[:, :, :0], v[:, :, :0]), torch.zeros_like(q))
    assert attention(q[:0], k[:0], v[:0]).shape == (0, 2, 128, 64)


def test_a_given_output_is_the_one_returned_and_gets_the_same_bits() -> None:
    for shape in SHAPES:
        q, k, v = qkv(*shape)
        for options in ({}, {"causal": True}, {"window": (50, 3)}):
            want = attention(q, k, v, **options)  # type: ignore[arg-type]
            for _ in range(3):
                out = torch.full_like(q, math.nan)
                assert attention(q, k, v, out=out, **options) is out  # type: ignore[arg-type]
                assert torch.equal(out, want)
