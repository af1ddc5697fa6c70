"""Hopper's backward pass, run on the CPU with a fiber for each thread, against float64."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.backward.few import FewBackwardKernel
from kernels.attention.cuda.backward.kernels import HopperBackwardKernel
from kernels.attention.cuda.calls.quick import Options
from tests.kernels.cuda.backward90_runner import Backward90, around, compile_backward90, run_backward90
from tests.kernels.cuda.backward_runner import RELATIVE, Posed, assert_right, errors, pose
from tests.kernels.cuda.compiled import WITH_COMPILER
from tests.kernels.cuda.hopper_runner import RELEASING, SHUFFLED, WAITING, Schedule
from tests.kernels.cuda.stub_driver import WITH_STUB, stub_libcuda

pytestmark = [WITH_COMPILER, WITH_STUB]

BRAIN, HALF = torch.bfloat16, torch.float16
NARROW = HopperBackwardKernel("bfloat16", 64, True)
NARROW_FULL = HopperBackwardKernel("float16", 64, False)
WIDE = HopperBackwardKernel("float16", 128, True)
WIDE_FULL = HopperBackwardKernel("bfloat16", 128, False)
KERNELS = (NARROW, NARROW_FULL, WIDE, WIDE_FULL)
SCHEDULES = (Schedule(), WAITING, RELEASING, SHUFFLED)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backward90]:
    folder = tmp_path_factory.mktemp("backward90")
    with stub_libcuda(folder):
        yield compile_backward90([*KERNELS, *around(KERNELS)], folder)


def posed_for(
    kernel: HopperBackwardKernel | FewBackwardKernel, *sizes: int, alignment: str = "top-left", with_dlse: bool = False
) -> Posed:
    """`sizes`: batch, heads, heads of K and V, rows, keys, and the head dimension if not the kernel's."""
    batch, heads, kv_heads, seq_q, seq_k, head_dim = (*sizes, kernel.head_dim)[:6]
    dtype = getattr(torch, kernel.dtype)
    options = Options(kernel.causal, alignment=alignment)
    return pose(dtype, batch, heads, kv_heads, seq_q, seq_k, head_dim, options, with_dlse=with_dlse)


def holds(program: Backward90, posed: Posed, scratch: Path, schedule: Schedule = SHUFFLED, blocks: int = 2) -> None:
    found = errors(run_backward90(program, posed, scratch, schedule, blocks=blocks), posed.exact)
    assert all(error <= RELATIVE[posed.out.dtype] for error in found), found


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_gradients_agree_with_float64_however_copies_products_and_warps_are_timed(
    program: Backward90, tmp_path: Path, kernel: HopperBackwardKernel, schedule: Schedule
) -> None:
    holds(program, posed_for(kernel, 1, 2, 1, 200, 300), tmp_path, schedule)


@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 1), (64, 128), (65, 127), (129, 40), (20, 300)])
def test_rows_and_keys_around_the_edges_of_tiles_have_the_right_gradients(
    program: Backward90, tmp_path: Path, seq_q: int, seq_k: int
) -> None:
    for kernel in (NARROW_FULL, WIDE):
        posed = posed_for(kernel, 1, 1, 1, seq_q, seq_k)
        found = run_backward90(program, posed, tmp_path, SHUFFLED)
        assert_right(found, posed)


@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(300, 65), (63, 260)])
def test_both_causal_alignments_have_the_right_gradients(
    program: Backward90, tmp_path: Path, alignment: str, seq_q: int, seq_k: int
) -> None:
    for kernel in (NARROW, WIDE):
        holds(program, posed_for(kernel, 1, 2, 1, seq_q, seq_k, alignment=alignment), tmp_path, WAITING)


@pytest.mark.parametrize("head_dim", [8, 40, 72, 120])
def test_columns_that_a_head_does_not_have_have_no_gradients(
    program: Backward90, tmp_path: Path, head_dim: int
) -> None:
    kernel = WIDE_FULL if head_dim > 64 else NARROW
    holds(program, posed_for(kernel, 1, 2, 1, 70, 150, head_dim), tmp_path)


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("blocks", [1, 3])
def test_few_blocks_share_many_tiles_of_keys_and_leave_their_counter_zero(
    program: Backward90, tmp_path: Path, blocks: int, greedy: bool
) -> None:
    schedule = Schedule(late_products=True, seed=3, greedy=greedy)
    holds(program, posed_for(NARROW, 2, 4, 2, 150, 260), tmp_path, schedule, blocks)


def test_the_log_sum_exp_may_have_a_gradient_of_its_own(program: Backward90, tmp_path: Path) -> None:
    holds(program, posed_for(NARROW, 1, 2, 1, 140, 150, with_dlse=True), tmp_path)


def test_keys_that_no_query_sees_have_gradients_of_zero(program: Backward90, tmp_path: Path) -> None:
    posed = posed_for(WIDE, 1, 1, 1, 10, 300)
    _, dk, dv = run_backward90(program, posed, tmp_path, RELEASING)
    assert not dk[:, :, 10:].any()
    assert not dv[:, :, 10:].any()
