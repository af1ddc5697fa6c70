"""The kernels for few keys on a GPU: every shape of block, against float64."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch

from kernels.attention.cuda.compile.build import build_all
from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.operator import bind_attention
from kernels.attention.cuda.plan.planning import Problem
from kernels.attention.cuda.plan.posing import problem_of
from kernels.attention.cuda.run.engine import Engine
from kernels.attention.cuda.run.launching import Way
from kernels.attention.cuda.ways import dispatch, small, small_hopper
from tests.kernels.cuda.every_kernel import every_small_forward_kernel, every_small_hopper_kernel
from tests.kernels.cuda.exactly import exact
from tests.kernels.cuda.on_gpu import DEV, DTYPES, ON_GPU, Poisoned, failures, randn
from tests.kernels.cuda.test_on_gpu import in_dtype

pytestmark = ON_GPU

CASES = (
    *((2, 2, 1, s, s, 64, "top-left") for s in (1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200, 255, 256, 300, 512)),
    *(
        (2, 4, 2, q, k, 64, a)
        for q, k in ((1, 64), (100, 33), (33, 100), (300, 250))
        for a in ("top-left", "bottom-right")
    ),
    *((1, 3, 3, s, s, 128, "top-left") for s in (1, 64, 100, 128, 250)),
    *((1, 4, 1, 70, 90, d, "bottom-right") for d in (8, 24, 56, 72, 96, 120)),
)
DEPENDENT_DTYPE, DEPENDENT_HEAD_DIM = "bfloat16", 64  # one type is enough to test dependent launches with


@pytest.fixture(scope="module")
def engine() -> Engine:
    try:
        engine = Engine(torch.device(DEV))
    except Unsupported as exc:
        pytest.skip(str(exc))
    kernels: list[small.SmallKernel | small_hopper.GroupKernel] = list(every_small_forward_kernel(engine.chip))
    if engine.machine.hopper:
        kernels += every_small_hopper_kernel(engine.chip)
        dependent = [one for one in kernels if one.dtype == DEPENDENT_DTYPE and one.head_dim == DEPENDENT_HEAD_DIM]
        kernels += [dataclasses.replace(one, dependent=True) for one in dependent]
    build_all(kernels, engine.target, engine.find_compiler(), engine.cache)  # in parallel; later found in the cache
    return engine


def few_key_ways(problem: Problem, engine: Engine, *, dependent: bool) -> list[Way]:
    found = dispatch.list_ways(problem, engine.machine, dependent=dependent)
    return [way for way in found if way.name.startswith("small-")]


def run(
    engine: Engine, way: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, alignment: str
) -> str | None:
    """None if a way's result is as good as it must be, else what is wrong with it."""
    made = Poisoned(q)
    out, lse = made.out, made.lse
    call = bind_attention(q, k, v, out, causal=causal, causal_alignment=alignment, lse=lse, way=way, engine=engine)
    call()
    first = out.clone()
    if not made.intact:
        return "wrote beside the output"
    offset = k.shape[2] - q.shape[2] if alignment == "bottom-right" else 0
    scale = q.shape[3] ** -0.5
    want, want_lse = exact(q, k, v, offset if causal else None, scale=scale)
    limit = (
        2 * (in_dtype(q, k, v, causal=causal, offset=offset, scale=scale).double() - want).nan_to_num(0.0).abs().max()
    )
    error = (out.double() - want).abs().max().item()
    if not error <= limit.item() + torch.finfo(q.dtype).eps * want.abs().max().item():
        return f"error {error:.3g} over {limit.item():.3g}"
    if not torch.equal(lse.isinf(), want_lse.isinf()):
        return "a row without keys has a finite log-sum-exp, or the other way round"
    if not (lse.double() - want_lse).nan_to_num(0.0).abs().max().item() < 2e-4:
        return "log-sum-exp"
    for _ in range(3):
        out.fill_(math.nan)
        call()
        if not torch.equal(out, first):
            return "two launches differ"
    return None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_every_way_for_few_keys_agrees_with_float64(engine: Engine, causal: bool, dtype: torch.dtype) -> None:
    cases, seen = [], set()
    for number, (batch, heads, kv_heads, seq_q, seq_k, head_dim, alignment) in enumerate(CASES):
        bshd = number % 2 == 1
        q = randn(batch, heads, seq_q, head_dim, dtype=dtype, seed=number, bshd=bshd)
        k, v = (randn(batch, kv_heads, seq_k, head_dim, dtype=dtype, seed=number + 1000 * i, bshd=bshd) for i in (1, 2))
        problem = problem_of(q, k, v, q, causal=causal, alignment=alignment)
        may_depend = dtype is torch.bfloat16 and head_dim == DEPENDENT_HEAD_DIM
        for dependent in (False, True) if may_depend else (False,):
            for way in few_key_ways(problem, engine, dependent=dependent):
                seen.add(way.name)
                name = f"{way.name} {tuple(q.shape)} keys {seq_k} {alignment}"
                cases.append((name, run(engine, way.name, q, k, v, causal=causal, alignment=alignment)))
    assert failures(cases) == []
    assert len(seen) >= 20, "every shape of block has had its turn"


def test_chained_dependent_launches_see_what_the_launch_before_wrote(engine: Engine) -> None:
    q, k, v = (randn(2, 8, 64, 64, dtype=torch.bfloat16, seed=i) for i in range(3))
    problem = problem_of(q, k, v, q, causal=False, alignment="top-left")
    names = [way.name for way in few_key_ways(problem, engine, dependent=True)]
    if not names:
        pytest.skip("this chip has no programmatic dependent launch")
    for name in names:
        steps = [torch.empty_like(q) for _ in range(20)]
        chain = [q, *steps]
        calls = [bind_attention(a, k, v, b, way=name, engine=engine) for a, b in itertools.pairwise(chain)]
        for call in calls:
            call()
        plain = [torch.empty_like(q) for _ in range(20)]
        for a, b in itertools.pairwise([q, *plain]):
            bind_attention(a, k, v, b, way=name.removesuffix("-dependent"), engine=engine)()
            torch.cuda.synchronize()
        assert torch.equal(steps[-1], plain[-1]), name


def test_a_row_that_is_no_number_stays_alone(engine: Engine) -> None:
    q, k, v = (randn(1, 2, 64, 64, dtype=torch.float16, seed=i) for i in range(3))
    problem = problem_of(q, k, v, q, causal=True, alignment="top-left")
    for way in few_key_ways(problem, engine, dependent=False):
        clean, spoilt = torch.empty_like(q), torch.empty_like(q)
        bind_attention(q, k, v, clean, causal=True, way=way.name, engine=engine)()
        other = q.clone()
        other[0, 0, 5] = math.nan
        bind_attention(other, k, v, spoilt, causal=True, way=way.name, engine=engine)()
        assert bool(spoilt[0, 0, 5].isnan().all())
        spoilt[0, 0, 5] = clean[0, 0, 5]
        assert torch.equal(spoilt, clean), way.name
