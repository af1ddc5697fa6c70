"""Keys cut into parts on the Hopper kernel, run on the CPU with a fiber for each thread, against float64."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.plan.planning import Layout, Machine, Problem
from kernels.attention.cuda.plan.posing import output_like, problem_of
from kernels.attention.cuda.plan.variants import Combine
from kernels.attention.cuda.ways.costs import work_terms
from kernels.attention.cuda.ways.dispatch import choose_way
from kernels.attention.cuda.ways.hopper import HopperWay, hopper_ways
from kernels.attention.cuda.ways.hopper_kernels import NARROW_SPLIT_SHAPES, SPLIT_SHAPES, HopperKernel
from tests.kernels.cuda.compiled import WITH_COMPILER
from tests.kernels.cuda.exactly import assert_agree, draw, exact, limits
from tests.kernels.cuda.hopper_runner import RELEASING, SHUFFLED, WAITING, HopperProgram, Schedule, compile_hopper
from tests.kernels.cuda.simt_ways import HostBuffers, Program, compile_program
from tests.kernels.cuda.stub_driver import HOPPER, WITH_STUB, stub_libcuda

pytestmark = [WITH_COMPILER, WITH_STUB]

FULL = HopperKernel("bfloat16", 64, False, False, SPLIT_SHAPES[64], split=True)
CAUSAL = HopperKernel("float16", 128, True, False, SPLIT_SHAPES[128], split=True)
NARROW = HopperKernel("bfloat16", 192, True, False, NARROW_SPLIT_SHAPES[192], split=True, narrow=128)
KERNELS = (FULL, CAUSAL, NARROW)
Programs = tuple[HopperProgram, Program]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    folder = tmp_path_factory.mktemp("split")
    with stub_libcuda(folder):
        joining = compile_program((Combine("bfloat16"), Combine("float16")), 800, folder)
        yield compile_hopper(KERNELS, "HopperParams", folder), joining


def assert_right(
    programs: Programs,
    kernel: HopperKernel,
    scratch: Path,
    *,
    seq_q: int,
    seq_k: int,
    parts: int,
    schedule: Schedule = Schedule(),  # noqa: B008 - immutable
    head_dim: int | None = None,
    alignment: str = "bottom-right",
) -> None:
    """Two batches of four heads over two; against the definition in float64."""
    head_dim = head_dim or kernel.head_dim
    q, k, v = draw(kernel.dtype, 2, 4, 2, seq_q, seq_k, head_dim, kernel.narrow)
    out, lse = output_like(q, v).fill_(math.nan), torch.full(q.shape[:3], math.nan)
    problem = problem_of(q, k, v, out, causal=kernel.right, alignment=alignment)
    buffers = HostBuffers(lse=lse.data_ptr())
    way = HopperWay(kernel, Machine(HOPPER, 3, 1 << 20, hopper=True), parts)
    first, joins = way.steps(problem, head_dim**-0.5, buffers)  # type: ignore[arg-type]
    tensors = [q, k, v, out, lse, *buffers.memory]
    programs[0].run(first, tensors, scratch, schedule)
    assert not buffers.memory[0].any(), "the next launch would find tiles handed out"
    programs[1].run([joins], tensors, scratch)
    ends = limits(q, k, causal=kernel.right, alignment=alignment)
    assert_agree(out, lse, *exact(q, k, v, *ends), 1e-3)


@pytest.mark.parametrize("schedule", [Schedule(), WAITING, RELEASING, SHUFFLED], ids=lambda one: one.name)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda one: one.name)
def test_parts_of_the_keys_make_the_whole(
    programs: Programs, tmp_path: Path, kernel: HopperKernel, schedule: Schedule
) -> None:
    assert_right(programs, kernel, tmp_path, seq_q=70, seq_k=900, parts=3, schedule=schedule)


@pytest.mark.parametrize(
    ("seq_q", "seq_k", "parts"), [(1, 300, 2), (130, 700, 5), (128, 512, 4), (200, 130, 2), (65, 1, 7)]
)
def test_parts_may_be_ragged_or_empty(programs: Programs, tmp_path: Path, seq_q: int, seq_k: int, parts: int) -> None:
    assert_right(programs, FULL, tmp_path, seq_q=seq_q, seq_k=seq_k, parts=parts, head_dim=40)
    for alignment in ("top-left", "bottom-right"):
        assert_right(programs, CAUSAL, tmp_path, seq_q=seq_q, seq_k=seq_k, parts=parts, alignment=alignment)


def test_parts_bring_no_race(tmp_path: Path) -> None:
    with stub_libcuda(tmp_path):
        program = compile_hopper((FULL,), "HopperParams", tmp_path, races=True)
        joining = compile_program((Combine("bfloat16"),), 800, tmp_path)
        for schedule in (Schedule(), SHUFFLED):
            assert_right((program, joining), FULL, tmp_path, seq_q=70, seq_k=600, parts=3, schedule=schedule)


def problem(batch: int, heads: int, seq_q: int, seq_k: int, head_dim: int = 128) -> Problem:
    q, k = (Layout(heads * s * head_dim, s * head_dim, head_dim) for s in (seq_q, seq_k))
    return Problem("bfloat16", batch, heads, heads, seq_q, seq_k, head_dim, False, 0, q, k, k, q)


def test_keys_are_cut_where_rows_leave_most_of_the_chip_idle_and_nowhere_else() -> None:
    machine = Machine(HOPPER, 132, 60 << 20, hopper=True)

    def parts(one: Problem) -> list[int]:
        return [way.parts for way in hopper_ways(one, machine) if way.kernel.split]

    assert parts(problem(1, 16, 128, 16384)) == [8]
    assert parts(problem(2, 8, 256, 8192)) == [4]
    assert parts(problem(4, 16, 256, 16384)) == []
    assert parts(problem(1, 16, 128, 512)) == []
    assert parts(dataclasses.replace(problem(1, 16, 128, 16384), window_offset=0)) == []
    way = next(way for way in hopper_ways(problem(1, 16, 128, 16384), machine) if way.kernel.split)
    assert way.name == "fa90-128x128s2p-split-8"
    whole, cut = (
        work_terms(one, problem(1, 16, 128, 16384), machine) for one in (dataclasses.replace(way, parts=1), way)
    )
    assert whole is not None
    assert cut is not None
    assert cut[2] < whole[2] / 4


def test_keys_are_cut_where_that_is_priced_well_below_every_other_way() -> None:
    machine = Machine(HOPPER, 132, 60 << 20, hopper=True)
    assert choose_way(problem(1, 16, 128, 16384), machine)[0].name == "fa90-128x128s2p-split-8"
    assert choose_way(problem(1, 16, 128, 16384, 64), machine)[0].name == "fa90-128x128s3p-split-8"
    for level in (problem(1, 16, 32, 16384), problem(4, 16, 64, 4096), problem(1, 16, 1, 16384)):
        assert any(way.kernel.split for way in hopper_ways(level, machine))
        assert "split" not in choose_way(level, machine)[0].name


def test_a_chip_without_prices_cuts_no_keys_unless_asked() -> None:
    machine = Machine(HOPPER, 100, 60 << 20, hopper=True)
    posed = problem(1, 16, 128, 16384)
    assert any(way.kernel.split for way in hopper_ways(posed, machine))
    assert "split" not in choose_way(posed, machine)[0].name
