"""Decoding on a GPU: native code, and the PTX of a T4, an A100 and an L4 translated by the driver."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch

from kernels.attention.cuda.operator import bind_attention
from kernels.attention.cuda.plan.posing import problem_of
from kernels.attention.cuda.run.engine import Engine
from kernels.attention.cuda.run.launching import Bound, Buffers
from kernels.attention.cuda.ways.decode import TILES, Decode, DecodeKernel, plan_decode
from tests.kernels.cuda.exactly import exact, limits
from tests.kernels.cuda.on_gpu import DEV, ON_GPU, Poisoned, assert_replays_alike, dtypes_of, failures
from tests.kernels.cuda.on_gpu import engine as engine

pytestmark = ON_GPU


def draw(
    seed: int, batch: int, kv_heads: int, group: int, seq_q: int, seq_k: int, head_dim: int, dtype: torch.dtype
) -> list[torch.Tensor]:
    generator = torch.Generator(DEV).manual_seed(seed)
    return [
        torch.randn(batch, s, h, head_dim, device=DEV, generator=generator).to(dtype).transpose(1, 2)
        for h, s in ((kv_heads * group, seq_q), (kv_heads, seq_k), (kv_heads, seq_k))
    ]


def bound(
    engine: Engine,
    tensors: list[torch.Tensor],
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    causal: bool,
    alignment: str,
    splits: int | None,
    tickets: bool | None,
) -> Bound:
    q, k, v = tensors
    problem = problem_of(q, k, v, out, causal=causal, alignment=alignment)
    launch = plan_decode(problem, engine.machine, splits=splits, tickets=tickets)
    buffers = Buffers.now(engine)
    buffers.lse = lse.data_ptr()
    return Bound.of(Decode(launch), problem, q.shape[3] ** -0.5, buffers, (q, k, v, out, lse))


def verdict(
    engine: Engine,
    tensors: list[torch.Tensor],
    *,
    causal: bool = True,
    alignment: str = "bottom-right",
    splits: int | None = None,
    tickets: bool | None = None,
) -> str | None:
    """None if output and log-sum-exp are right, twice in a row, and nothing beside them is written."""
    q, k, v = tensors
    made = Poisoned(q)
    kinds = {"causal": causal, "alignment": alignment, "splits": splits, "tickets": tickets}
    call = bound(engine, tensors, made.out, made.lse, **kinds)  # type: ignore[arg-type]
    return made.complaint(call) or made.wrong(*exact(q, k, v, *limits(q, k, causal=causal, alignment=alignment)))


@pytest.mark.parametrize("head_dim", [8, 40, 64, 104, 128, 192, 256])
def test_decoding_agrees_with_float64(engine: Engine, head_dim: int) -> None:
    cases = []
    for dtype, group, seq_q, seq_k in itertools.product(
        dtypes_of(engine), (1, 4, 8), (1, 2, 7), (1, 33, 512, 1000, 4097)
    ):
        tensors = draw(seq_k, 2, 3, group, seq_q, seq_k, head_dim, dtype)
        cases.append((f"{dtype} g{group} q{seq_q} k{seq_k}", verdict(engine, tensors)))
    assert failures(cases) == []


def test_random_decoding_agrees_with_float64(engine: Engine) -> None:
    chance, cases = random.Random(20261121), []
    for number in range(120):
        dtype, head_dim = chance.choice(dtypes_of(engine)), chance.choice((16, 64, 80, 128, 256))
        kv_heads, group = chance.choice((1, 2, 5)), chance.choice((1, 2, 3, 8, 16))
        seq_q, seq_k = chance.randint(1, 4), chance.randint(1, 9000)
        batch, splits, tickets = chance.randint(1, 3), chance.choice((None, 1, 2, 17, 128)), chance.random() < 0.5
        causal, alignment = chance.random() < 0.7, chance.choice(("top-left", "bottom-right"))
        tensors = draw(number, batch, kv_heads, group, seq_q, seq_k, head_dim, dtype)
        name = f"{dtype} b{batch} h{kv_heads}x{group} q{seq_q} k{seq_k} d{head_dim} {causal} {alignment} {splits} {tickets}"
        words = verdict(engine, tensors, causal=causal, alignment=alignment, splits=splits, tickets=tickets)
        cases.append((name, words))
    assert failures(cases) == []


def test_many_heads_on_few_are_right_by_the_way_that_is_chosen(engine: Engine) -> None:
    cases = []
    for batch, kv_heads, group, seq_k, head_dim in (
        (1, 1, 71, 8192, 64), (1, 1, 96, 20000, 128), (3, 1, 71, 8192, 64), (2, 2, 128, 9000, 128), (4, 1, 128, 2048, 64),
    ):  # fmt: skip
        for dtype in dtypes_of(engine):
            q, k, v = draw(group, batch, kv_heads, group, 1, seq_k, head_dim, dtype)
            made = Poisoned(q)
            call = bind_attention(q, k, v, made.out, lse=made.lse, engine=engine)
            words = made.complaint(call) or made.wrong(*exact(q, k, v))
            cases.append((f"{call.way} {dtype} {batch} {kv_heads} {group} {seq_k} {head_dim}", words))
    assert failures(cases) == []


def test_a_long_cache_is_decoded_right(engine: Engine) -> None:
    for head_dim in (64, 128):
        assert verdict(engine, draw(1, 1, 2, 8, 1, 131072, head_dim, torch.float16)) is None


def test_every_tile_of_the_chip_is_right(engine: Engine) -> None:
    cases = []
    for (head_dim, rows), tile in TILES[engine.chip.name].items():
        group = rows if rows > 1 else 71  # the tile for one query of many heads
        for dtype in dtypes_of(engine):
            q, k, v = draw(rows, 1, 2, group, 1, 3000, head_dim, dtype)
            kernel = DecodeKernel(str(dtype).removeprefix("torch."), head_dim, tile)
            cases.append((kernel.name, verdict(engine, [q, k, v])))
    assert failures(cases) == []


def test_a_thousand_launches_are_bitwise_the_same_beside_a_copy(engine: Engine) -> None:
    q, k, v = draw(5, 2, 4, 8, 1, 30000, 128, torch.float16)
    out = torch.empty_like(q)
    call = bind_attention(q, k, v, out, way="decode", engine=engine)
    call()
    first, differs = out.clone(), torch.zeros((), device=DEV, dtype=torch.int64)
    source, other = torch.empty(2**28, dtype=torch.int8, device=DEV), torch.cuda.Stream()
    target = torch.empty_like(source)
    torch.cuda.synchronize()
    for number in range(1000):
        if number % 20 == 0:
            with torch.cuda.stream(other):
                target.copy_(source)
        call()
        differs += (out != first).any()
    assert int(differs) == 0


def test_two_calls_on_two_streams_do_not_meet(engine: Engine) -> None:
    streams, calls = [torch.cuda.Stream() for _ in range(2)], []
    for number in range(2):
        q, k, v = draw(number, 1, 2, 8, 1, 20000, 64, torch.float16)
        out = torch.empty_like(q)
        calls.append((bind_attention(q, k, v, out, way="decode", engine=engine), out, exact(q, k, v)[0]))
    torch.cuda.synchronize()
    for _ in range(200):
        for stream, (call, _, _) in zip(streams, calls, strict=True):
            with torch.cuda.stream(stream):
                call()
    torch.cuda.synchronize()
    for _, out, want in calls:
        assert ((out.double() - want).norm() / want.norm()).item() < 1.2e-3


def test_a_captured_graph_gives_the_same_bits(engine: Engine) -> None:
    q, k, v = draw(9, 1, 4, 8, 1, 16384, 128, torch.float16)
    out = torch.empty_like(q)
    assert_replays_alike(bind_attention(q, k, v, out, way="decode", engine=engine), out)


def test_what_lies_beyond_the_last_key_is_never_used(engine: Engine) -> None:
    for length in (1, 63, 600, 1025):
        q, k, v = draw(length, 1, 2, 4, 1, 2048, 64, torch.float16)
        for x in (k, v):
            x[:, :, length:] = math.nan
        assert verdict(engine, [q, k[:, :, :length], v[:, :, :length]], causal=False) is None


def test_nan_and_infinity_reach_only_the_heads_that_see_them(engine: Engine) -> None:
    q, k, v = draw(3, 1, 2, 4, 1, 3000, 64, torch.float16)
    clean = torch.empty_like(q)
    bind_attention(q, k, v, clean, way="decode", engine=engine)()
    for poison in (math.nan, math.inf):
        bad, out = k.clone(), torch.empty_like(q)
        bad[0, 1, 2000] = poison
        bind_attention(q, bad, v, out, way="decode", engine=engine)()
        assert torch.equal(out[0, :4], clean[0, :4])
        assert bool(out[0, 4:].isnan().any())
