"""Masks that are the same for all rows on a GPU: every Hopper kernel that reads one number for each key, by float64."""

from __future__ import annotations

import itertools
import math

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

SIZES = ((1, 1), (64, 333), (129, 512), (300, 127), (700, 1100))
STRETCHES = {"some": (0.0, 0.0), "behind": (0.4, 1.0), "before": (0.0, 0.7), "between": (0.2, 0.8), "all": (0.0, 1.0)}


def mask_for(dtype: torch.dtype, shape: tuple[int, ...], hidden: str) -> torch.Tensor:
    """A third of the keys hidden, and a stretch of them; other numbers are drawn."""
    begin, end = (int(share * shape[-1]) for share in STRETCHES[hidden])
    generator = torch.Generator(DEV).manual_seed(sum(shape))
    away = torch.rand(shape, device=DEV, generator=generator) < 0.3
    away[..., begin:end] = True
    if dtype == torch.bool:
        return ~away
    return torch.randn(shape, device=DEV, generator=generator).masked_fill(away, -math.inf).to(dtype)


def wrong(engine: Engine, way: str, tensors: tuple[torch.Tensor, ...], mask: torch.Tensor, causal: bool) -> str | None:
    """What is wrong with a way's answer in poisoned memory, twice; None if nothing is."""
    q, k, v = tensors
    made = Poisoned(q)
    call = bind_attention(q, k, v, made.out, lse=made.lse, attn_mask=mask, causal=causal, way=way, engine=engine)
    return made.complaint(call) or made.wrong(*exact(q, k, v, 0 if causal else None, mask=mask), LSE_ERROR)


@pytest.mark.parametrize("head_dim", [64, 128, 160, 192, 256])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("dtype", "kind"),
    [(torch.bfloat16, torch.float32), (torch.bfloat16, torch.bool), (torch.float16, torch.float16)],
    ids=str,
)
def test_every_way_agrees_with_float64_whatever_tiles_of_keys_are_hidden(
    engine: Engine, dtype: torch.dtype, kind: torch.dtype, causal: bool, head_dim: int
) -> None:
    found, ran = [], 0
    for (seq_q, seq_k), hidden in itertools.product(SIZES, STRETCHES):
        q = randn(2, 3, seq_q, head_dim, dtype=dtype, seed=1)
        k, v = (randn(2, 3, seq_k, head_dim, dtype=dtype, seed=seed) for seed in (2, 3))
        mask = mask_for(kind, (2, 1, 1, seq_k + 3), hidden)[..., 3:]
        problem = problem_of(q, k, v, torch.empty_like(q), causal=causal, alignment="top-left", window=None, mask=mask)
        for way in hopper.bias_ways(problem, engine.machine):
            ran += 1
            complaint = wrong(engine, way.name, (q, k, v), mask, causal)
            if complaint:
                found.append(f"{way.name} {(seq_q, seq_k)} {hidden}: {complaint}")
    assert ran
    assert not found, "\n".join(found[:20])


def test_keys_hidden_with_their_whole_tile_are_not_felt_and_a_graph_follows_the_mask(engine: Engine) -> None:
    q, k, v = (randn(2, 4, 512, 64, dtype=torch.bfloat16, seed=seed) for seed in range(3))
    mask = torch.zeros(2, 1, 1, 512, device=DEV)
    out = torch.empty_like(q)
    problem = problem_of(q, k, v, out, causal=False, alignment="top-left", window=None, mask=mask)
    way = hopper.bias_ways(problem, engine.machine)[0].name
    call = bind_attention(q, k, v, out, attn_mask=mask, way=way, engine=engine)
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    wanted, _ = exact(q, k[:, :, :256], v[:, :, :256], mask=mask[..., :256])
    mask[..., 256:] = -math.inf
    k[:, :, 256:] = v[:, :, 256:] = math.nan
    graph.replay()
    assert float((out.double() - wanted).norm() / wanted.norm()) < FROBENIUS[q.dtype]
