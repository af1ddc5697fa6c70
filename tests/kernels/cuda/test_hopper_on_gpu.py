"""The Hopper kernels on a GPU: every shape of block, against float64; what only a persistent kernel can get wrong."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from kernels.attention.cuda.compile.build import build_all
from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.operator import bind_attention
from kernels.attention.cuda.plan.posing import problem_of
from kernels.attention.cuda.run.engine import Engine
from kernels.attention.cuda.run.launching import Bound
from kernels.attention.cuda.ways import hopper, hopper_kernels
from tests.kernels.cuda.exactly import exact, limits
from tests.kernels.cuda.on_gpu import DEV, DTYPES, ON_GPU, Poisoned, assert_replays_alike, randn

pytestmark = ON_GPU

SQUARE = tuple((2, 3, 3, s, s) for s in (1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256, 257, 512, 1000))
CROSS = ((2, 4, 2, 100, 333), (2, 4, 1, 333, 100), (1, 2, 2, 513, 1500), (1, 20, 4, 700, 700), (1, 8, 1, 1, 777))
LSE_ERROR = 2e-3


@pytest.fixture(scope="module")
def engine() -> Engine:
    engine = Engine(torch.device(DEV))
    if not engine.machine.hopper:
        pytest.skip("not a Hopper chip")
    build_all(
        list(hopper_kernels.hopper_table()), engine.target, engine.find_compiler(), engine.cache
    )  # in parallel; later cached
    return engine


def wrong(engine: Engine, way: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **kinds: object) -> str | None:
    """What is wrong with a way's answer, in poisoned memory between canaries, twice; None if nothing is."""
    made = Poisoned(q)
    call = bind_attention(q, k, v, made.out, lse=made.lse, way=way, engine=engine, **kinds)  # type: ignore[arg-type]
    alignment, window = kinds.get("causal_alignment", "top-left"), kinds.get("window")
    ends = limits(q, k, causal=bool(kinds.get("causal")), alignment=alignment, window=window)  # type: ignore[arg-type]
    return made.complaint(call) or made.wrong(*exact(q, k, v, *ends), LSE_ERROR)


def names(engine: Engine, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, left: bool) -> list[str]:
    """The Hopper ways that compute a problem."""
    window = (1, None) if left else None
    problem = problem_of(q, k, v, torch.empty_like(q), causal=causal, alignment="top-left", window=window)
    return [way.name for way in hopper.hopper_ways(problem, engine.machine)]


@pytest.mark.parametrize("head_dim", [64, 128, 8, 40, 72, 120])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_shape_agrees_with_float64(engine: Engine, dtype: torch.dtype, head_dim: int) -> None:
    shapes = SQUARE + CROSS if head_dim in (64, 128) else SQUARE[3:9:2] + CROSS
    found = []
    for number, (batch, heads, kv_heads, seq_q, seq_k) in enumerate(shapes):
        q = randn(batch, heads, seq_q, head_dim, dtype=dtype, seed=number, bshd=number % 2 == 0)
        k, v = (
            randn(batch, kv_heads, seq_k, head_dim, dtype=dtype, seed=number + i, bshd=number % 3 == 0)
            for i in (91, 92)
        )
        kinds: list[dict[str, object]] = [{}]
        kinds += [{"causal": True, "causal_alignment": a} for a in ("top-left", "bottom-right")]
        kinds += [{"window": (70, 9)}, {"window": (0, 0)}, {"window": (129, None)}]
        kinds += [{"causal": True, "window": (200, None), "causal_alignment": "bottom-right"}]
        for kind in kinds:
            left, right = kind.get("window") or (None, None)  # type: ignore[misc]
            bounded = bool(kind.get("causal")) or right is not None
            for way in names(engine, q, k, v, bounded, left is not None):
                complaint = wrong(engine, way, q, k, v, **kind)
                if complaint:
                    found.append(f"{way} {(batch, heads, kv_heads, seq_q, seq_k)} {kind}: {complaint}")
    assert not found, "\n".join(found[:20])


def test_scores_far_apart_and_values_that_are_not_numbers_do_as_in_pytorch(engine: Engine) -> None:
    q, k, v = (randn(1, 2, 300, 64, dtype=torch.bfloat16, seed=i) for i in range(3))
    q[0, 0, 5] = math.nan  # one row of one head
    q[0, 1] *= 8
    k[0, 1, 7] = math.inf  # every row of the other
    for causal in (False, True):
        expected = (
            torch.softmax(
                (q.float() @ k.float().mT / 8).masked_fill(
                    torch.ones(300, 300, device=DEV).triu(1).bool() & causal, -math.inf
                ),
                -1,
            )
            @ v.float()
        )
        for way in names(engine, q, k, v, causal, False):
            out = torch.full_like(q, 3.0)
            bind_attention(q, k, v, out, causal=causal, way=way, engine=engine)()
            assert torch.equal(torch.isnan(out), torch.isnan(expected)), way


@pytest.mark.parametrize("head_dim", [64, 128])
def test_launches_on_two_streams_at_once_do_not_disturb_each_other(engine: Engine, head_dim: int) -> None:
    streams = [torch.cuda.Stream() for _ in range(2)]
    for causal in (False, True):
        q, k, v = (randn(2, 8, 1111, head_dim, dtype=torch.bfloat16, seed=i) for i in range(3))
        for way in names(engine, q, k, v, causal, False):
            outs = [[torch.empty_like(q) for _ in range(20)] for _ in streams]
            calls: list[list[Bound]] = [
                [bind_attention(q, k, v, out, causal=causal, way=way, engine=engine) for out in share] for share in outs
            ]
            torch.cuda.synchronize()
            for pair in zip(*calls, strict=True):
                for stream, call in zip(streams, pair, strict=True):
                    with torch.cuda.stream(stream):
                        call()
            torch.cuda.synchronize()
            first = outs[0][0]
            assert all(torch.equal(first, out) for out in itertools.chain(*outs)), way


def test_a_captured_launch_can_be_replayed_any_number_of_times(engine: Engine) -> None:
    q, k, v = (randn(2, 8, 700, 128, dtype=torch.bfloat16, seed=i) for i in range(3))
    out = torch.empty_like(q)
    call = bind_attention(q, k, v, out, causal=True, way="fa90", engine=engine)
    for _ in range(10):
        assert_replays_alike(call, out)


def test_a_layout_without_a_tensor_map_goes_the_portable_way(engine: Engine) -> None:
    q = randn(1, 2, 64, 64, dtype=torch.float16, seed=1)
    k = randn(1, 1, 64, 64, dtype=torch.float16, seed=2).expand(1, 2, 64, 64)  # broadcast with stride 0
    problem = problem_of(q, k, k, torch.empty_like(q), causal=False, alignment="top-left")
    assert hopper.hopper_ways(problem, engine.machine) == []
    assert hopper.hopper_refusal(problem, engine.machine) == "a tensor map cannot describe these strides"
    with pytest.raises(Unsupported, match="no way named 'fa90'"):
        bind_attention(q, k, k, torch.empty_like(q), way="fa90", engine=engine)


def test_nothing_spills_and_wgmma_is_never_serialised(engine: Engine) -> None:
    built = build_all(list(hopper_kernels.hopper_table()), engine.target, engine.find_compiler(), engine.cache)
    assert all(one.resources is not None and one.resources.spill_bytes == 0 for one in built)
