"""Batch-invariant calls on a GPU: bits of outputs and gradients beside any neighbours, through the public calls."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from kernels.attention.cuda.operator import attention
from kernels.attention.cuda.paged import attention_paged
from kernels.attention.cuda.varlen import attention_varlen
from tests.kernels.cuda.on_gpu import DEV, ON_GPU
from tests.kernels.cuda.paged_cases import draw_cache

pytestmark = ON_GPU

BF16 = torch.bfloat16
LENGTHS = (1, 700, 64, 2500, 333, 1025)


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.detach().contiguous().view(torch.int16 if x.element_size() == 2 else torch.int32)


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, device=DEV, generator=torch.Generator(DEV).manual_seed(seed)).to(BF16)


@pytest.mark.parametrize(
    ("kv_heads", "head_dim", "value_dim"), [(8, 128, 128), (2, 64, 64), (4, 80, 80), (4, 256, 256), (4, 192, 128)]
)
def test_packed_sequences_and_their_gradients_depend_on_no_neighbour(
    kv_heads: int, head_dim: int, value_dim: int
) -> None:
    chance, kinds = random.Random(head_dim), (8, kv_heads, kv_heads, 8)
    dims = (head_dim, head_dim, value_dim, value_dim)
    parts = [
        [
            draw(length, heads, width, seed=10 * at + kind)
            for kind, (heads, width) in enumerate(zip(kinds, dims, strict=True))
        ]
        for at, length in enumerate(LENGTHS)
    ]

    def gradients(order: list[int], longest: int) -> list[list[torch.Tensor]]:
        q, k, v, dout = (torch.cat([parts[at][kind] for at in order]) for kind in range(4))
        starts = torch.tensor([0, *itertools.accumulate(LENGTHS[at] for at in order)], dtype=torch.int32, device=DEV)
        tensors = [x.requires_grad_() for x in (q, k, v)]
        out = attention_varlen(*tensors, starts, starts, longest, longest, causal=True, batch_invariant=True)
        assert isinstance(out, torch.Tensor)
        made = (out, *torch.autograd.grad(out, tensors, dout))
        return [[bits(x[a:b]) for x in made] for a, b in itertools.pairwise(starts.tolist())]

    want = [gradients([at], LENGTHS[at])[0] for at in range(len(LENGTHS))]
    for _ in range(20):
        order = chance.choices(range(len(LENGTHS)), k=chance.randrange(1, 12))
        for at, found in zip(order, gradients(order, chance.choice((1, 4000))), strict=True):
            assert all(torch.equal(one, other) for one, other in zip(found, want[at], strict=True))


@pytest.mark.parametrize(("page", "head_dim"), [(16, 128), (64, 64), (24, 128), (32, 256)])
def test_decoding_over_pages_depends_on_no_neighbour(page: int, head_dim: int) -> None:
    chance = random.Random(page)
    cache = draw_cache(LENGTHS, 1, page=page, heads=8, head_dim=head_dim, dtype=BF16, device=DEV)
    options = {"causal": True, "batch_invariant": True}

    def decode(order: list[int], longest: int | None) -> torch.Tensor:
        rows = torch.tensor(order, device=DEV)
        given = cache.q[rows], cache.k, cache.v, cache.table[rows], cache.lengths[rows]
        return bits(attention_paged(*given, max_seqlen_k=longest, **options))  # type: ignore[arg-type]

    want = [decode([at], None)[0] for at in range(len(LENGTHS))]
    for _ in range(50):
        order = chance.choices(range(len(LENGTHS)), k=chance.randrange(1, 70))
        found = decode(order, chance.choice((None, 1, 9000)))
        assert all(torch.equal(found[place], want[at]) for place, at in enumerate(order))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("kv_heads", "rows", "head_dim"), [(8, 300, 128), (2, 257, 64), (8, 1, 128), (4, 64, 256)])
def test_padded_rows_and_their_gradients_depend_on_no_batch(
    kv_heads: int, rows: int, head_dim: int, compiled: bool
) -> None:
    if compiled and rows != 300:
        pytest.skip("one shape for the compiler")
    sizes = ((8, rows), (kv_heads, 300), (kv_heads, 300), (8, rows))
    q, k, v, dout = (draw(9, heads, length, head_dim, seed=at) for at, (heads, length) in enumerate(sizes))

    def call(*given: torch.Tensor) -> torch.Tensor:
        made = attention(*given, causal=True, causal_alignment="bottom-right", batch_invariant=True)
        assert isinstance(made, torch.Tensor)
        return made

    run = torch.compile(call, dynamic=False) if compiled else call

    def gradients(first: int, last: int) -> list[torch.Tensor]:
        tensors = [x[first:last].clone().requires_grad_() for x in (q, k, v)]
        out = run(*tensors)
        return [bits(x) for x in (out, *torch.autograd.grad(out, tensors, dout[first:last]))]

    want = gradients(0, 9)
    for first, last in ((0, 1), (3, 5), (8, 9)):
        assert all(torch.equal(x, of[first:last]) for x, of in zip(gradients(first, last), want, strict=True))
