"""Masks whose rows differ at the widest heads on a GPU: every Hopper kernel that takes them through shared memory, by
float64, and dispatch's own choice whatever the mask lies like; at any head, that launches do not differ."""

from __future__ import annotations

import itertools
import math
import re

import pytest
import torch

from kernels.attention.cuda.operator import bind_attention
from kernels.attention.cuda.plan.posing import problem_of
from kernels.attention.cuda.run.engine import Engine
from kernels.attention.cuda.ways import hopper
from tests.kernels.cuda import on_gpu
from tests.kernels.cuda.exactly import exact
from tests.kernels.cuda.on_gpu import DEV, FROBENIUS, ON_GPU, Poisoned, randn
from tests.kernels.cuda.test_hopper_on_gpu import LSE_ERROR

pytestmark = ON_GPU
engine = on_gpu.hopper_engine

SIZES = ((2, 4, 4, 64, 64), (1, 4, 1, 129, 512), (2, 3, 3, 300, 336), (1, 8, 2, 700, 1104), (2, 2, 2, 65, 2000))
"""Batch, heads, heads of K, queries, keys."""
SHARED = ((True, True), (True, False), (False, True), (False, False))
"""Whether a mask has batches and heads of its own."""
MASKS = (torch.bool, torch.bfloat16, torch.float16, torch.float32)


def mask_for(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A third of the keys hidden, others drawn; of some rows every key, of some all but one."""
    generator = torch.Generator(DEV).manual_seed(sum(shape))
    away = torch.rand(shape, device=DEV, generator=generator) < 0.3
    away[..., 3::17, :] = True
    away[..., 5::29, 1:] = True
    if dtype == torch.bool:
        return ~away
    return torch.randn(shape, device=DEV, generator=generator).masked_fill(away, -math.inf).to(dtype)


def wrong(
    engine: Engine, way: str | None, tensors: tuple[torch.Tensor, ...], mask: torch.Tensor, window: str
) -> str | None:
    """What is wrong with an answer in poisoned memory, twice; None if nothing is."""
    q, k, v = tensors
    made = Poisoned(q)
    kinds = {"full": {}, "causal": {"causal": True}, "window": {"window": (70, 9)}, "tail": {"window": (40, None)}}
    how = kinds[window] | {"attn_mask": mask, "way": way, "engine": engine}
    call = bind_attention(q, k, v, made.out, lse=made.lse, **how)  # type: ignore[arg-type]
    limits = {"full": (None, None), "causal": (0, None), "window": (9, -70), "tail": (None, -40)}
    return made.complaint(call) or made.wrong(*exact(q, k, v, *limits[window], mask=mask), LSE_ERROR)


@pytest.mark.parametrize("head_dim", [160, 192, 200, 224, 248, 256])
@pytest.mark.parametrize("window", ["full", "causal", "window", "tail"])
@pytest.mark.parametrize("kind", MASKS, ids=str)
def test_every_way_agrees_with_float64_whoever_shares_the_mask(
    engine: Engine, kind: torch.dtype, window: str, head_dim: int
) -> None:
    found, ran = [], 0
    dtype = torch.float16 if kind == torch.float16 else torch.bfloat16
    for number, (size, (batches, heads_too)) in enumerate(itertools.product(SIZES, SHARED)):
        batch, heads, kv_heads, seq_q, seq_k = size
        q = randn(batch, heads, seq_q, head_dim, dtype=dtype, seed=1, bshd=number % 2 == 0)
        k, v = (randn(batch, kv_heads, seq_k, head_dim, dtype=dtype, seed=seed) for seed in (2, 3))
        shape = (batch if batches else 1, heads if heads_too else 1, seq_q, seq_k)
        mask = mask_for(kind, shape)
        causal = window == "causal"
        edges = {"window": (70, 9), "tail": (40, None)}.get(window)
        problem = problem_of(q, k, v, torch.empty_like(q), causal=causal, alignment="top-left", window=edges, mask=mask)
        for way in [None, *(one.name for one in hopper.hopper_ways(problem, engine.machine))]:
            ran += way is not None
            complaint = wrong(engine, way, (q, k, v), mask, window)
            if complaint:
                found.append(f"{way} {size} {shape}: {complaint}")
    assert ran
    assert not found, "\n".join(found[:20])


@pytest.mark.parametrize("kind", MASKS, ids=str)
def test_masks_that_lie_anyhow_and_lengths_of_any_size_are_computed(engine: Engine, kind: torch.dtype) -> None:
    dtype, found = (torch.float16 if kind == torch.float16 else torch.bfloat16), []
    for head_dim, (seq_q, seq_k), begin in itertools.product((161, 224, 256), ((77, 333), (130, 1000)), (0, 1, 8, 16)):
        q = randn(2, 4, seq_q, head_dim, dtype=dtype, seed=1)
        k, v = (randn(2, 2, seq_k, head_dim, dtype=dtype, seed=seed) for seed in (2, 3))
        mask = mask_for(kind, (2, 1, seq_q + 3, seq_k + 24))[:, :, 3:, begin : begin + seq_k]
        complaint = wrong(engine, None, (q, k, v), mask, "full")
        if complaint:
            found.append(f"{(seq_q, seq_k, head_dim)} from {begin}: {complaint}")
    assert not found, "\n".join(found[:20])


def test_a_graph_follows_the_mask_and_a_row_without_keys_is_zero(engine: Engine) -> None:
    q, k, v = (randn(1, 4, 512, 256, dtype=torch.bfloat16, seed=seed) for seed in range(3))
    mask, out = torch.zeros(1, 4, 512, 512, device=DEV, dtype=torch.bfloat16), torch.empty_like(q)
    call = bind_attention(q, k, v, out, attn_mask=mask, way="fa90", engine=engine)
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    mask.copy_(mask_for(torch.bfloat16, tuple(mask.shape)))
    graph.replay()
    wanted, _ = exact(q, k, v, mask=mask)
    assert float((out.double() - wanted).norm() / wanted.norm()) < FROBENIUS[q.dtype]
    assert bool((out[:, :, 3::17] == 0).all())


@pytest.mark.parametrize(
    ("head_dim", "rows", "dtype", "heads"),
    [
        (64, 2048, torch.float32, 1),  # before loads were waited for, 10 of 2,500 launches on an H100 differed here
        (64, 1024, torch.float32, 16),
        (64, 2048, torch.bfloat16, 16),
        (128, 1024, torch.float32, 16),
        (192, 1024, torch.bfloat16, 1),
        (256, 1024, torch.bool, 16),
        (256, 1024, torch.bfloat16, 16),
    ],
)
def test_no_tile_of_a_mask_is_overwritten_before_it_is_read(
    engine: Engine, head_dim: int, rows: int, dtype: torch.dtype, heads: int
) -> None:
    q, k, v = (randn(4, 16, rows, head_dim, seed=i, dtype=torch.bfloat16) for i in range(3))
    mask = mask_for(dtype, (1, heads, rows, rows))
    out = torch.empty_like(q)
    call = bind_attention(q, k, v, out, attn_mask=mask, engine=engine)
    assert re.search(r"m[12]", call.way)
    call()
    first, differing = out.clone(), torch.zeros((), device=DEV, dtype=torch.int64)
    for _ in range(2000):
        call()
        differing += (out.view(torch.int16) != first.view(torch.int16)).any()
    assert int(differing) == 0
