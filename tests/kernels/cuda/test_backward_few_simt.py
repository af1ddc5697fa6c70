"""Hopper's backward pass in one launch, run on the CPU with a fiber for each thread, against float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.backward.few import ROWS, FewBackwardKernel
from tests.kernels.cuda.backward90_runner import Backward90, compile_backward90, run_few
from tests.kernels.cuda.backward_runner import RELATIVE, Posed, assert_right, errors
from tests.kernels.cuda.compiled import WITH_COMPILER
from tests.kernels.cuda.hopper_runner import RELEASING, SHUFFLED, WAITING, Schedule
from tests.kernels.cuda.stub_driver import WITH_STUB, stub_libcuda
from tests.kernels.cuda.test_backward90_simt import posed_for

pytestmark = [WITH_COMPILER, WITH_STUB]

KERNELS = tuple(
    FewBackwardKernel("bfloat16" if (size == 64) == causal else "float16", size, rows, causal)
    for size in (64, 128)
    for rows in ROWS
    for causal in (True, False)
)
NARROW, NARROW_FULL, _, NARROW_LONG, WIDE, WIDE_FULL, WIDE_LONG, _ = KERNELS
SCHEDULES = (Schedule(), WAITING, RELEASING, SHUFFLED)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backward90]:
    folder = tmp_path_factory.mktemp("few90")
    with stub_libcuda(folder):
        yield compile_backward90(KERNELS, folder)


def holds(
    program: Backward90, kernel: FewBackwardKernel, posed: Posed, scratch: Path, schedule: Schedule = SHUFFLED
) -> None:
    found = errors(run_few(program, posed, kernel.rows, scratch, schedule), posed.exact)
    assert all(error <= RELATIVE[posed.out.dtype] for error in found), found


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_gradients_agree_with_float64_however_copies_products_and_warps_are_timed(
    program: Backward90, tmp_path: Path, kernel: FewBackwardKernel, schedule: Schedule
) -> None:
    holds(program, kernel, posed_for(kernel, 1, 2, 1, 200, 300), tmp_path, schedule)


@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 1), (64, 128), (65, 127), (129, 40), (20, 300)])
def test_rows_and_keys_around_the_edges_of_tiles_have_the_right_gradients(
    program: Backward90, tmp_path: Path, seq_q: int, seq_k: int
) -> None:
    for kernel in (NARROW_FULL, WIDE_LONG):
        posed = posed_for(kernel, 1, 1, 1, seq_q, seq_k)
        found = run_few(program, posed, kernel.rows, tmp_path, SHUFFLED)
        assert_right(found, posed)


@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(300, 65), (63, 260)])
def test_both_causal_alignments_have_the_right_gradients(
    program: Backward90, tmp_path: Path, alignment: str, seq_q: int, seq_k: int
) -> None:
    for kernel in (NARROW, WIDE_LONG):
        holds(program, kernel, posed_for(kernel, 1, 2, 1, seq_q, seq_k, alignment=alignment), tmp_path, WAITING)


@pytest.mark.parametrize("head_dim", [8, 40, 72, 120])
def test_columns_that_a_head_does_not_have_have_no_gradients(
    program: Backward90, tmp_path: Path, head_dim: int
) -> None:
    kernel = WIDE_FULL if head_dim > 64 else NARROW_LONG
    holds(program, kernel, posed_for(kernel, 1, 2, 1, 70, 150, head_dim), tmp_path)


def test_the_log_sum_exp_may_have_a_gradient_of_its_own(program: Backward90, tmp_path: Path) -> None:
    for kernel in (NARROW, NARROW_LONG):
        holds(program, kernel, posed_for(kernel, 1, 2, 1, 140, 150, with_dlse=True), tmp_path)


def test_more_tiles_than_there_are_stages_pass_by(program: Backward90, tmp_path: Path) -> None:
    for kernel in (NARROW_FULL, WIDE_LONG):
        holds(program, kernel, posed_for(kernel, 2, 3, 1, 270, 520), tmp_path)


def test_keys_that_no_query_sees_and_queries_that_see_no_key_have_gradients_of_zero(
    program: Backward90, tmp_path: Path
) -> None:
    for kernel in (NARROW, WIDE_LONG):
        posed = posed_for(kernel, 1, 1, 1, 10, 300)
        _, dk, dv = run_few(program, posed, kernel.rows, tmp_path, RELEASING)
        assert not dk[:, :, 10:].any()
        assert not dv[:, :, 10:].any()
        posed = posed_for(kernel, 1, 1, 1, 300, 10, alignment="bottom-right")
        dq, _, _ = run_few(program, posed, kernel.rows, tmp_path, RELEASING)
        assert not dq[:, :, :290].any()


def test_two_runs_give_the_same_bits_in_whatever_order_warps_and_blocks_run(
    program: Backward90, tmp_path: Path
) -> None:
    for kernel in (NARROW, WIDE_LONG):
        posed = posed_for(kernel, 1, 2, 1, 200, 260)
        first = run_few(program, posed, kernel.rows, tmp_path, WAITING)
        second = run_few(program, posed, kernel.rows, tmp_path, SHUFFLED)
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_keys_beyond_the_last_stay_masked_even_at_very_negative_scores(program: Backward90, tmp_path: Path) -> None:
    posed = posed_for(NARROW_LONG, 1, 1, 1, 100, 70)
    posed.tensors["q"][:] = 16.0
    posed.tensors["k"][:] = -16.0  # each score is -2048: what lies beyond the keys, zeros, would weigh exp(2048)
    posed.lse[:] = -2048.0 + math.log(70)
    found = run_few(program, posed, 128, tmp_path, SHUFFLED)
    assert all(bool(one.isfinite().all()) for one in found)
