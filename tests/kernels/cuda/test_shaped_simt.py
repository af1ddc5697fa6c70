"""Capped scores, slopes, sinks and wide heads on the CPU: the kernels' own source and plan, against float64."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.backward.kernels import (
    PrepareKernel,
    SinksBackwardKernel,
    dropping_pair_kernel,
    pair_kernel,
)
from kernels.attention.cuda.backward.plan import BackwardProblem, Gradients, PairBackward
from kernels.attention.cuda.calls.backward import Sinks
from kernels.attention.cuda.plan.planning import Machine, Problem
from kernels.attention.cuda.plan.posing import Shaping, problem_of, tensor_layout
from kernels.attention.cuda.plan.variants import CHIPS, WIDE_HEAD_DIMS, Combine, SinksKernel, wide_padded
from kernels.attention.cuda.ways.general import General, plan_general
from kernels.attention.cuda.ways.portable import WithSinks
from tests.kernels.cuda.compiled import WITH_COMPILER
from tests.kernels.cuda.exactly import ERROR
from tests.kernels.cuda.shaped import CASES, MLA, Shaped, relative
from tests.kernels.cuda.simt_ways import HostBuffers, Program, compile_program

pytestmark = WITH_COMPILER

HOPPER = next(chip for chip in CHIPS if chip.name == "hopper")
MACHINE = Machine(HOPPER, 132, 50 << 20)
DIFFERENTIABLE = {name: case for name, case in CASES.items() if name != "576-and-512"}


def posed(case: Shaped, given: dict[str, torch.Tensor], out: torch.Tensor) -> Problem:
    dropout = {"dropout": case.dropout, "seed": given.get("dropout_seed")}
    shaping = Shaping(case.softcap, given.get("alibi_slopes"), given.get("sinks"), **dropout)  # type: ignore[arg-type]
    return problem_of(
        *(given[name] for name in "qkv"), out, causal=case.causal, alignment=case.alignment, window=case.window,
        mask=given.get("attn_mask"), shaping=shaping,
    )  # fmt: skip


def poisoned(given: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    q, v = given["q"], given["v"]
    return torch.full((*q.shape[:3], v.shape[-1]), math.nan, dtype=q.dtype), torch.full(q.shape[:3], math.nan)


@pytest.fixture(scope="module")
def forward(tmp_path_factory: pytest.TempPathFactory) -> Program:
    problems = [posed(case, given := case.draw(), poisoned(given)[0]) for case in CASES.values()]
    kernels = [plan_general(problem, MACHINE).kernel for problem in problems]
    joins = [kind(dtype) for kind in (Combine, SinksKernel) for dtype in ("float16", "bfloat16")]
    entries = list(dict.fromkeys([*kernels, *joins]))
    return compile_program(entries, 800, tmp_path_factory.mktemp("shaped"), parameters="DroppingParams")


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_shaped_scores_and_wide_heads_agree_with_float64(
    forward: Program, tmp_path: Path, name: str, splits: int
) -> None:
    case = CASES[name]
    given = case.draw()
    out, lse = poisoned(given)
    problem, buffers = posed(case, given, out), HostBuffers(lse.data_ptr())
    way = General(plan_general(problem, MACHINE, splits=splits))
    taken = WithSinks(way) if case.sinks else way
    steps = taken.steps(problem, given["q"].shape[-1] ** -0.5, buffers)  # type: ignore[arg-type]
    forward.run(steps, [*given.values(), out, lse, *buffers.memory], tmp_path, eager=splits > 1, reverse=splits > 1)
    want, want_lse, _ = case.exact(given)
    assert bool(out.isfinite().all()), "an element was not written, or is not a number"
    assert relative(out, want) <= ERROR[case.dtype]
    assert torch.equal(lse.isneginf(), want_lse.isneginf())
    seen = want_lse.isfinite()
    assert (lse.double() - want_lse)[seen].abs().max() < 1e-3


@pytest.fixture(scope="module")
def backward(tmp_path_factory: pytest.TempPathFactory) -> Program:
    entries: list[object] = []
    for case in DIFFERENTIABLE.values():
        dtype = "bfloat16" if case.dtype == torch.bfloat16 else "float16"
        width, value_width = case.sizes[5:]
        vector, mask = width % 8 == 0 == value_width % 8, {"float32": "float32", "bool": "bool", None: None}[case.mask]
        size, drops = wide_padded(max(width, value_width)), case.dropout > 0
        shaped = bool(case.softcap or case.slopes) or width != value_width
        options = {"vector": vector, "mask": mask, "shaped": shaped or size > 256}
        pair = [pair_kernel(HOPPER, dtype, size, keys=keys, **options) for keys in (True, False)]  # type: ignore[arg-type]
        entries += map(dropping_pair_kernel, pair) if drops else pair
        entries += [PrepareKernel(dtype, wide_padded(value_width), vector, False)]
        entries += [SinksBackwardKernel(dtype, wide_padded(value_width), vector)]
    made, folder = list(dict.fromkeys(entries)), tmp_path_factory.mktemp("shaped")
    return compile_program(made, 800, folder, parameters="DroppingBackwardParams")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_their_gradients_agree_with_float64_and_have_the_same_bits(
    backward: Program, tmp_path: Path, name: str
) -> None:
    case = DIFFERENTIABLE[name]
    given, made = case.draw(), []
    dout = case.slope(given)
    dlse = torch.randn(given["q"].shape[:3], generator=torch.Generator().manual_seed(3))
    want, sums, exact = case.exact(given, dout, dlse)
    out, lse = want.to(case.dtype), sums.float().contiguous()
    for turn in (False, True):
        gradients = [torch.full_like(given[one], math.nan) for one in "qkv"]
        places = Gradients(*(tensor_layout(x, "a gradient") for x in (dout, *gradients)))
        scale = given["q"].shape[-1] ** -0.5
        without = replace(posed(case, given, out), sinks=0)
        problem = BackwardProblem(without, places, scale, lse.data_ptr(), dlse.data_ptr())
        buffers = HostBuffers(0)
        steps = PairBackward(MACHINE).steps(problem, buffers)  # type: ignore[arg-type]
        tensors = [*given.values(), out, lse, dout, dlse, *gradients]
        if case.sinks:
            dsinks = torch.full_like(given["sinks"], math.nan)
            steps.append(Sinks.of(dout, dlse, out, lse, given["sinks"], None, dsinks).step)
            tensors.append(dsinks)
            gradients.append(dsinks)
        backward.run(steps, [*tensors, *buffers.memory], tmp_path, eager=turn, reverse=turn)
        made.append(gradients)
    for one, again, (of, right) in zip(*made, exact.items(), strict=True):
        assert torch.equal(one, again)
        assert relative(one, right) <= ERROR[case.dtype], of


@pytest.fixture(scope="module")
def sums_of_rows(tmp_path_factory: pytest.TempPathFactory) -> Program:
    kernels = [SinksBackwardKernel("float16", size, vector) for size in WIDE_HEAD_DIMS[:-1] for vector in (True, False)]
    return compile_program(kernels, 800, tmp_path_factory.mktemp("sinks"), parameters="BackwardParams")


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize(
    ("width", "rows"), [(64, 1300), (40, 515), (128, 700), (37, 1), (256, 200), (512, 150), (300, 33)]
)
def test_the_gradient_of_sinks_has_each_row_once_however_many_there_are(
    sums_of_rows: Program, tmp_path: Path, width: int, rows: int, packed: bool
) -> None:
    generator = torch.Generator().manual_seed(width)
    shape = (rows, 2, width) if packed else (2, 2, rows, width)
    out, dout = (torch.randn(shape, generator=generator).half() for _ in range(2))
    lse = torch.randn((2, rows) if packed else shape[:3], generator=generator)
    sinks, made = torch.tensor([0.3, -math.inf]), torch.full((2,), math.nan)
    starts = torch.tensor([0, rows // 3, rows], dtype=torch.int32) if packed else None
    step = Sinks.of(dout, None, out, lse, sinks, starts, made).step
    sums_of_rows.run([step], [out, dout, lse, sinks, made, *([starts] if packed else [])], tmp_path)  # type: ignore[list-item]
    products = (out.double() * dout.double()).sum(-1)
    products = products.T if packed else products
    weights = (sinks.double()[:, None] - lse.double()).exp()
    want = -(weights * products).sum(-1) if packed else -(weights * products).sum((0, 2))
    assert torch.allclose(made.double(), want, rtol=1e-4, atol=1e-3 * float(products.norm()))


def test_a_widened_problem_is_refused_by_name_where_a_block_cannot_hold_it() -> None:
    from kernels.attention.cuda.errors import Unsupported

    given = replace(MLA, sizes=(1, 16, 1, 3, 70, 576, 512)).draw()
    problem = posed(MLA, given, poisoned(given)[0])
    for chip in CHIPS:
        if chip.name in ("turing", "ampere", "ada") and problem.dtype in chip.dtypes:
            with pytest.raises(Unsupported, match=r"head dimensions 576 of K and 512 of V take \d+ bytes"):
                plan_general(problem, Machine(chip, 40, 1 << 20))
