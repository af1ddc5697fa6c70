"""Keys in pages on a GPU: native code, and the PTX of a T4, an A100 and an L4, against float64 and PyTorch's SDPA."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels.attention.cuda import attention_paged, bind_paged
from kernels.attention.cuda.plan.posing import Window, key_limits
from kernels.attention.cuda.run.engine import Engine
from tests.kernels.cuda.on_gpu import DEV, FROBENIUS, ON_GPU, dtypes_of, failures
from tests.kernels.cuda.on_gpu import engine as engine
from tests.kernels.cuda.paged_cases import Cache, draw_cache, rows_of

pytestmark = ON_GPU


def gathered(cache: Cache, x: torch.Tensor, b: int) -> torch.Tensor:
    """A sequence's keys or values, [1, H, S_k, D], each head of K and V once for every head of Q."""
    keys = torch.arange(int(cache.lengths[b]), device=DEV)
    rows = x[cache.table[b, keys // x.shape[1]].long(), keys % x.shape[1]]
    return rows.transpose(0, 1).repeat_interleave(cache.q.shape[-2] // x.shape[2], 0)[None]


def seen(seq_q: int, seq_k: int, causal: bool, window: Window | None) -> torch.Tensor:
    """[S_q, S_k], aligned with the last key."""
    right, left = key_limits(causal, window, seq_k - seq_q)
    apart = torch.arange(seq_k, device=DEV)[None] - torch.arange(seq_q, device=DEV)[:, None]
    hidden = torch.zeros_like(apart, dtype=torch.bool)
    if right is not None:
        hidden |= apart > right
    if left is not None:
        hidden |= apart < left
    return ~hidden


def verdict(
    engine: Engine,
    cache: Cache,
    *,
    causal: bool = True,
    window: Window | None = None,
    way: str | None = None,
    hints: tuple[int | None, int | None] = (None, None),
) -> str | None:
    """None if output and log-sum-exp are right, twice in a row, and as near to float64 as twice SDPA's distance."""
    q = cache.q
    sums = (q.shape[1], q.shape[0]) if cache.starts is not None else (q.shape[0], q.shape[2], q.shape[1])
    out, lse = torch.full_like(q, math.nan), torch.full(sums, math.nan, device=DEV)
    longest = {"max_seqlen_q": hints[0], "max_seqlen_k": hints[1]}
    options = {"causal": causal, "window": window, "lse": lse, "engine": engine, "way": way}
    given = (q, cache.k, cache.v, out, cache.table, cache.lengths)
    call = bind_paged(*given, cu_seqlens_q=cache.starts, **longest, **options)  # type: ignore[arg-type]
    call()
    first = out.clone()
    call()
    if not torch.equal(out, first):
        return "the second launch differs from the first, or something is not a number"
    for b in range(cache.batch):
        own = cache.queries(b).transpose(0, 1)[None]
        found = rows_of(out, cache.starts, b).transpose(0, 1)[None].double()
        if not own.shape[2]:
            continue
        k, v = gathered(cache, cache.k, b), gathered(cache, cache.v, b)
        mask = seen(own.shape[2], k.shape[2], causal, window)
        scores = (own.double() @ k.double().mT * own.shape[-1] ** -0.5).masked_fill(~mask, -math.inf)
        want_lse = torch.logsumexp(scores, -1) if k.shape[2] else scores.new_full(scores.shape[:3], -math.inf)
        want = torch.exp(scores - want_lse.nan_to_num(neginf=0.0)[..., None]) @ v.double()
        error = ((found - want).norm() / want.norm().clamp_min(1e-30)).item()
        if not error <= FROBENIUS[q.dtype]:
            return f"sequence {b}: relative Frobenius error {error:.3g}"
        if k.shape[2] and bool(mask.any(-1).all()):
            theirs = scaled_dot_product_attention(own, k, v, attn_mask=mask).double()
            if not (found - want).norm() <= 2.0 * (theirs - want).norm() + 1e-3 * want.norm():
                return f"sequence {b}: more than twice as far from float64 as SDPA on gathered tensors"
        mine = lse[b] if cache.starts is None else lse[:, int(cache.starts[b]) : int(cache.starts[b + 1])]
        if bool((want_lse[0].isinf() != mine.isinf()).any()):
            return f"sequence {b}: a row without keys has a finite log-sum-exp, or the other way round"
        off = (mine.double() - want_lse[0]).nan_to_num(0.0, posinf=1.0, neginf=1.0).abs().max().item()
        if off > 2e-4:
            return f"sequence {b}: log-sum-exp off by {off:.3g}"
    return None


@pytest.mark.parametrize("page", [1, 16, 32, 48, 64, 128, 256])
def test_decoding_agrees_with_float64_and_sdpa(engine: Engine, page: int) -> None:
    cases = []
    for dtype, group, head_dim in itertools.product(dtypes_of(engine), (1, 4, 8), (64, 128, 256)):
        lengths = (1, 0, 33, 512, 1000, 4097)
        sizes = {"heads": 2 * group, "kv_heads": 2, "head_dim": head_dim, "dtype": dtype, "device": DEV}
        cache = draw_cache(lengths, 1, page=page, seed=group, shared=3, **sizes)  # type: ignore[arg-type]
        cases.append((f"{dtype} g{group} d{head_dim}", verdict(engine, cache)))
    assert failures(cases) == []


@pytest.mark.parametrize("page", [1, 16, 64, 256])
def test_a_chunk_of_a_prompt_agrees_with_float64_and_sdpa(engine: Engine, page: int) -> None:
    cases = []
    for dtype, head_dim in itertools.product(dtypes_of(engine), (40, 64, 128, 256)):
        sizes = {"heads": 8, "kv_heads": 2, "head_dim": head_dim, "dtype": dtype, "device": DEV}
        cache = draw_cache((700, 2000, 513), 512, page=page, shared=2, **sizes)  # type: ignore[arg-type]
        cases.append((f"{dtype} d{head_dim}", verdict(engine, cache)))
        cases.append((f"{dtype} d{head_dim} general", verdict(engine, cache, way="general")))
        packed = draw_cache((700, 2000, 0, 513), (100, 1, 3, 513), page=page, **sizes)  # type: ignore[arg-type]
        cases.append((f"{dtype} d{head_dim} packed", verdict(engine, packed)))
    assert failures(cases) == []


def test_random_caches_agree_with_float64_and_sdpa(engine: Engine) -> None:
    chance, cases = random.Random(20261122), []
    for number in range(60):
        batch, packed = chance.randint(1, 5), chance.random() < 0.4
        most = chance.choice((1, 4, 16, 200))
        queries = [chance.randint(0, most) for _ in range(batch)] if packed else chance.randint(1, most)
        lengths = [chance.choice((0, chance.randint(1, 100), chance.randint(1, 4000))) for _ in range(batch)]
        kv_heads, group = chance.choice((1, 2, 5)), chance.choice((1, 2, 3, 8))
        if packed and not sum(queries):  # type: ignore[arg-type]
            continue
        cache = draw_cache(
            lengths,
            queries,
            page=chance.choice((1, 2, 8, 16, 32, 48, 64, 100, 256)),
            heads=kv_heads * group,
            kv_heads=kv_heads,
            head_dim=chance.choice((16, 64, 80, 128, 256)),
            dtype=chance.choice(dtypes_of(engine)),
            seed=number,
            shared=chance.randint(0, 4),
            heads_first=chance.random() < 0.3,
            device=DEV,
        )
        window = chance.choice((None, None, (chance.randint(0, 300), 0)))
        hints = chance.choice(((None, None), (1, 1), (most, max(lengths))))
        cases.append((f"{number} {queries} {lengths}", verdict(engine, cache, window=window, hints=hints)))
    assert failures(cases) == []


def test_a_graph_follows_lengths_and_tables_that_change_between_replays(engine: Engine) -> None:
    caches = [
        draw_cache(lengths, 1, page=16, heads=32, kv_heads=8, head_dim=128, seed=seed, spare=spare, device=DEV)
        for seed, (lengths, spare) in enumerate((((3000, 17, 0, 800), 0), ((1, 3000, 64, 65), 0)))
    ]
    pages = max(x.k.shape[0] for x in caches)
    k, v = (torch.zeros(pages, 16, 8, 128, device=DEV, dtype=torch.float16) for _ in range(2))
    q, table, lengths = torch.empty_like(caches[0].q), torch.empty_like(caches[0].table), caches[0].lengths.clone()

    def load(one: Cache) -> None:
        q.copy_(one.q)
        table.copy_(one.table)
        lengths.copy_(one.lengths)
        for to, source in ((k, one.k), (v, one.v)):
            to[: source.shape[0]].copy_(source)

    load(caches[0])
    out = torch.empty_like(q)
    call = bind_paged(q, k, v, out, table, lengths, causal=True, engine=engine)
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
        call()
    for one in (*caches, *caches):
        load(one)
        out.fill_(math.nan)
        graph.replay()
        found = out.clone()
        call()
        fresh = torch.empty_like(q)
        bind_paged(one.q, one.k, one.v, fresh, one.table, one.lengths, causal=True, engine=engine)()
        assert torch.equal(found, out)
        assert torch.equal(found, fresh)
        assert verdict(engine, one) is None


def test_a_call_waits_for_nothing_and_gives_what_a_bound_one_does() -> None:
    cache = draw_cache((3000, 17, 0, 800), 1, page=16, heads=32, kv_heads=8, head_dim=128, device=DEV)
    given = (cache.q, cache.k, cache.v, cache.table, cache.lengths)
    out = torch.empty_like(cache.q)
    bind_paged(*given[:3], out, *given[3:], causal=True)()
    attention_paged(*given, causal=True)
    try:
        torch.cuda.set_sync_debug_mode("error")
        found = [attention_paged(*given, causal=True) for _ in range(3)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(torch.equal(one, out) for one in found)


def test_the_compiled_call_gives_the_same_bits() -> None:
    cache = draw_cache((3000, 17), 4, page=16, heads=8, head_dim=128, device=DEV)
    given = (cache.q, cache.k, cache.v, cache.table, cache.lengths)
    want = attention_paged(*given, causal=True)
    compiled = torch.compile(lambda *x: attention_paged(*x, causal=True), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*given), want)


def test_keys_in_pages_give_what_keys_in_a_row_give_bit_by_bit(engine: Engine) -> None:
    from kernels.attention.cuda.operator import bind_attention

    for head_dim, queries, way in ((128, 1, "decode"), (64, 3, "decode"), (128, 300, "general")):
        cache = draw_cache((2048, 2048), queries, page=16, heads=8, head_dim=head_dim, device=DEV)
        keys = [torch.cat([gathered(cache, x, b) for b in range(2)])[:, ::4] for x in (cache.k, cache.v)]
        q = cache.q.transpose(1, 2)
        paged, plain = torch.empty_like(cache.q), torch.empty_like(q)
        options = {"causal": True, "causal_alignment": "bottom-right", "engine": engine}
        bound = bind_paged(
            cache.q, cache.k, cache.v, paged, cache.table, cache.lengths, way=way, max_seqlen_k=2048, **options
        )  # type: ignore[arg-type]
        bound()
        other = {} if way == "decode" else {"window": (2**20, 0)}
        contiguous = bind_attention(q, *keys, plain, way=way, **other, **options)  # type: ignore[arg-type]
        contiguous()
        if bound.way == contiguous.way:
            assert torch.equal(paged.transpose(1, 2), plain)
