"""One query of many heads that share a head of K, computed as rows of one head: on the CPU, against float64."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.plan.planning import Layout, Machine, Problem, plan_problem
from kernels.attention.cuda.plan.posing import Window, problem_of
from kernels.attention.cuda.plan.variants import Combine
from kernels.attention.cuda.ways.dispatch import choose_way
from kernels.attention.cuda.ways.heads_as_rows import HeadsAsRows, as_rows, row_ways
from kernels.attention.cuda.ways.hopper import HopperWay
from kernels.attention.cuda.ways.hopper_kernels import SPLIT_SHAPES, HopperKernel
from kernels.attention.cuda.ways.portable import Portable
from tests.kernels.cuda.compiled import WITH_COMPILER
from tests.kernels.cuda.exactly import assert_agree, draw, exact
from tests.kernels.cuda.hopper_runner import HopperProgram, Schedule, compile_hopper
from tests.kernels.cuda.simt_ways import HostBuffers, Program, compile_program
from tests.kernels.cuda.stub_driver import HOPPER, WITH_STUB, stub_libcuda

pytestmark = [WITH_COMPILER, WITH_STUB]

MACHINE = Machine(HOPPER, 132, 50 << 20, hopper=True)
SPLIT = HopperKernel("bfloat16", 64, False, False, SPLIT_SHAPES[64], split=True)
Programs = tuple[HopperProgram, Program]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    folder = tmp_path_factory.mktemp("rows")
    portable = plan_problem(as_rows(pose(71, 2, 900)), MACHINE).kernel
    with stub_libcuda(folder):
        others = compile_program((portable, Combine("bfloat16")), 800, folder)
        yield compile_hopper((SPLIT,), "HopperParams", folder), others


def pose(group: int, kv_heads: int, keys: int, *, queries: int = 1, **given: object) -> Problem:
    q = torch.empty(2, group * kv_heads, queries, 64, dtype=torch.bfloat16)
    k = torch.empty(2, kv_heads, keys, 64, dtype=torch.bfloat16)
    terms: dict[str, object] = {"causal": False, "alignment": "bottom-right"}
    return problem_of(q, k, k, torch.empty_like(q), **(terms | given))  # type: ignore[arg-type]


@pytest.mark.parametrize("apart", [64, 72], ids=["packed", "with-gaps"])
@pytest.mark.parametrize("hopper", [True, False], ids=["fa90", "portable"])
def test_heads_are_computed_as_the_rows_of_one_head(
    programs: Programs, tmp_path: Path, hopper: bool, apart: int
) -> None:
    q, k, v = draw("bfloat16", 2, 142, 2, 1, 900, 64)
    spread = torch.full((2, 142, 1, apart), math.nan, dtype=q.dtype)
    spread[..., :64] = q
    q, out, lse = spread[..., :64], torch.full_like(spread, math.nan)[..., :64], torch.full((2, 142, 1), math.nan)
    problem = problem_of(q, k, v, out, causal=True, alignment="bottom-right")
    buffers, posed = HostBuffers(lse=lse.data_ptr()), as_rows(problem)
    inner = HopperWay(SPLIT, MACHINE, 3) if hopper else Portable(plan_problem(posed, MACHINE, splits=3))
    steps = HeadsAsRows(inner).steps(problem, 64**-0.5, buffers)  # type: ignore[arg-type]
    tensors = [q, k, v, out, lse, *buffers.memory]
    if hopper:
        programs[0].run(steps.pop(0), tensors, tmp_path, Schedule())
        tensors = [q, k, v, out, lse, *buffers.memory]
    programs[1].run(steps, tensors, tmp_path)
    assert_agree(out, lse, *exact(q, k, v), 1e-3)


def test_many_heads_that_decoding_cannot_read_get_another_way() -> None:
    odd = dataclasses.replace(pose(71, 1, 8192), q=Layout(71 * 64, 63, 64))
    assert choose_way(odd, MACHINE)[0].name.startswith("general")


def test_only_one_query_of_many_heads_that_sees_all_keys_is_computed_so() -> None:
    assert row_ways(pose(71, 2, 8192, causal=True), MACHINE)
    assert row_ways(pose(71, 2, 8192), dataclasses.replace(MACHINE, hopper=False)) == []
    window: Window = (100, 0)
    for problem in (
        pose(71, 1, 8192),
        pose(71, 2, 2047),
        pose(71, 66, 8192),
        pose(64, 2, 8192),
        pose(71, 2, 8192, queries=2),
        pose(71, 2, 8192, causal=True, alignment="top-left"),
        pose(71, 2, 8192, window=window),
        dataclasses.replace(pose(71, 2, 8192), sign=-1),
    ):
        assert row_ways(problem, MACHINE) == []
