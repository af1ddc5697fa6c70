"""Measures what windows, masks, lengths, packed heads and pages cost, beside the plain kernel and PyTorch.

    python -m kernels.attention.cuda.campaign.features

It prints one line for each problem in bf16: the median microseconds of a call for each contender, in CUDA graphs, from
the harness's timers.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kernels.attention.cuda.campaign.race import Track, measure_rounds
from kernels.attention.cuda.operator import bind_attention
from kernels.attention.cuda.paged import bind_paged
from kernels.attention.cuda.plan.posing import problem_of
from kernels.attention.cuda.run.engine import engine_of
from kernels.attention.cuda.run.launching import Bound, Buffers
from kernels.attention.cuda.varlen import bind_varlen
from kernels.attention.cuda.ways.general import General, plan_general
from kernels.harness.timers import timer_for
from kernels.harness.turns import Contender

Call = Callable[[], object]
GRAPH_ROUNDS = 7


def random_normal(batch: int, heads: int, seq: int, head_dim: int) -> torch.Tensor:
    return torch.randn(batch, heads, seq, head_dim, device="cuda").bfloat16()


def bind_general(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, pack: int | None = None) -> Bound:
    """Bind the general kernel to a problem that does not need its features."""
    engine, out = engine_of(q.device), torch.empty_like(q)
    problem = problem_of(q, k, v, out, causal=causal, alignment="bottom-right")
    way = General(plan_general(problem, engine.machine, pack=pack))
    return Bound.of(way, problem, q.shape[3] ** -0.5, Buffers.now(engine), (q, k, v, out))


def bind_paged_problem(queries: int, page: int | None, head_dim: int, *, batch: int = 4, keys: int = 8192) -> Bound:
    """Bind a problem of 32 heads of Q and 8 of K and V. Its keys are in pages of `page` keys in random order; without
    `page` they follow each other."""
    q = random_normal(batch, queries, 32, head_dim)
    k, v = (random_normal(batch, keys, 8, head_dim) for _ in range(2))
    if page is None:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return bind_attention(q, k, v, torch.empty_like(q), causal=True, causal_alignment="bottom-right")
    k, v = (x.view(-1, page, 8, head_dim) for x in (k, v))
    table = torch.randperm(k.shape[0], device="cuda", dtype=torch.int32).view(batch, -1)
    lengths = torch.full((batch,), keys, device="cuda", dtype=torch.int32)
    return bind_paged(q, k, v, torch.empty_like(q), table, lengths, causal=True)


def bind_efficient(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> Call:
    """Return a call of the only fused backend of PyTorch that supports masks."""

    def call() -> torch.Tensor:
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            return scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return call


def feature_problems(head_dim: int) -> Iterator[tuple[str, dict[str, Call]]]:
    """Yield the name of each problem, and its contenders by name."""
    q, k, v = (random_normal(4, 16, 4096, head_dim) for _ in range(3))
    made = torch.empty_like
    plain = bind_attention(q, k, v, made(q), causal=True, way="fa2")
    yield "causal 4096", {"fa2": plain, "general": bind_general(q, k, v, causal=True)}
    for mask in (
        torch.rand(4096, 4096, device="cuda") > 0.3,
        random_normal(1, 16, 4096, 4096),
        torch.randn(4096, 4096, device="cuda"),
    ):
        name = f"mask {str(mask.dtype).removeprefix('torch.')} {'x'.join(map(str, mask.shape))}"
        bias = mask if mask.dtype != torch.float32 else mask.bfloat16()
        ours = bind_attention(q, k, v, made(q), attn_mask=mask)
        yield (
            name,
            {
                "general": ours,
                "efficient": bind_efficient(q, k, v, bias),
                "fa2 unmasked": bind_attention(q, k, v, made(q), way="fa2"),
            },
        )
    a, b, c = (x.transpose(1, 2).reshape(-1, 16, head_dim) for x in (q, k, v))
    starts = torch.arange(5, device="cuda", dtype=torch.int32) * 4096
    packed = bind_varlen(a, b, c, made(a), starts, starts, 4096, 4096, causal=True)
    yield "four sequences of 4096, causal", {"varlen": packed, "fa2": plain}
    q, k, v = (random_normal(1, 16, 16384, head_dim) for _ in range(3))
    windowed = bind_attention(q, k, v, made(q), causal=True, window=(1024, 0), way="general")
    yield (
        "window 1024 of 16384",
        {"general": windowed, "fa2 causal": bind_attention(q, k, v, made(q), causal=True, way="fa2")},
    )
    q, k, v = (
        random_normal(4, 32, 16, head_dim),
        random_normal(4, 4, 8192, head_dim),
        random_normal(4, 4, 8192, head_dim),
    )
    packed_heads = bind_general(q, k, v, causal=True, pack=8)
    single = bind_general(q, k, v, causal=True, pack=1)
    yield "16 queries, 32/4 heads, 8192 keys", {"packed": packed_heads, "head by head": single}
    for queries in (1, 512):
        row, *pages = (bind_paged_problem(queries, page, head_dim) for page in (None, 16, 64))
        contenders: dict[str, Call] = {"in a row": row, "pages of 16": pages[0], "pages of 64": pages[1]}
        yield f"{queries} queries, 32/8 heads, 4 sequences of 8192 keys", contenders


def main() -> None:
    for head_dim in (64, 128):
        for name, calls in feature_problems(head_dim):
            field = {contender: Contender(contender, (call,), nullcontext) for contender, call in calls.items()}
            track = Track(field, lambda regime: timer_for(torch.device("cuda", torch.cuda.current_device()), regime))
            times = measure_rounds(track, list(field), "graph", GRAPH_ROUNDS, random.Random(1))
            row = ", ".join(f"{contender} {statistics.median(found):.1f}" for contender, found in times.items())
            sys.stdout.write(f"D{head_dim} {name}: {row}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
