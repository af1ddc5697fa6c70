"""Hopper's backward pass, and its pass in one launch, run on the CPU with a fiber for each thread, against float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.backward.few import ROWS, FewBackwardKernel
from kernels.attention.cuda.backward.kernels import HopperBackwardKernel
from kernels.attention.cuda.calls.quick import Options
from tests.kernels.cuda.backward90_runner import Backward90, around, compile_backward90, run_backward90, run_few
from tests.kernels.cuda.backward_runner import RELATIVE, Posed, Three, assert_right, errors, pose
from tests.kernels.cuda.compiled import WITH_COMPILER
from tests.kernels.cuda.hopper_runner import RELEASING, SHUFFLED, WAITING, Schedule
from tests.kernels.cuda.stub_driver import WITH_STUB, program_with_stub

pytestmark = [WITH_COMPILER, WITH_STUB]

Kernel = HopperBackwardKernel | FewBackwardKernel
NARROW = HopperBackwardKernel("bfloat16", 64, True)
NARROW_FULL = HopperBackwardKernel("float16", 64, False)
WIDE = HopperBackwardKernel("float16", 128, True)
WIDE_FULL = HopperBackwardKernel("bfloat16", 128, False)
KERNELS = (NARROW, NARROW_FULL, WIDE, WIDE_FULL)
IN_ONE = tuple(
    FewBackwardKernel("bfloat16" if (size == 64) == causal else "float16", size, rows, causal)
    for size in (64, 128)
    for rows in ROWS
    for causal in (True, False)
)
"""The kernels of the pass in one launch."""
FEW_NARROW, FEW_NARROW_FULL, _, FEW_NARROW_LONG, _, FEW_WIDE_FULL, FEW_WIDE_LONG, _ = IN_ONE
SCHEDULES = (Schedule(), WAITING, RELEASING, SHUFFLED)


programs = program_with_stub(
    lambda folder: {
        HopperBackwardKernel: compile_backward90([*KERNELS, *around(KERNELS)], folder),
        FewBackwardKernel: compile_backward90(IN_ONE, folder),
    }
)


def posed_for(kernel: Kernel, *sizes: int, alignment: str = "top-left", with_dlse: bool = False) -> Posed:
    """`sizes`: batch, heads, heads of K and V, rows, keys, and the head dimension if not the kernel's."""
    batch, heads, kv_heads, seq_q, seq_k, head_dim = (*sizes, kernel.head_dim)[:6]
    dtype = getattr(torch, kernel.dtype)
    options = Options(kernel.causal, alignment=alignment)
    return pose(dtype, batch, heads, kv_heads, seq_q, seq_k, head_dim, options, with_dlse=with_dlse)


class Runner:
    """Runs a kernel by the program that it is in."""

    def __init__(self, programs: dict[type[Kernel], Backward90], scratch: Path):
        self.programs, self.scratch = programs, scratch

    def run(self, kernel: Kernel, posed: Posed, schedule: Schedule = SHUFFLED, blocks: int = 2) -> Three:
        program = self.programs[type(kernel)]
        if isinstance(kernel, FewBackwardKernel):
            return run_few(program, posed, kernel.rows, self.scratch, schedule)
        return run_backward90(program, posed, self.scratch, schedule, blocks=blocks)

    def check(self, kernel: Kernel, posed: Posed, schedule: Schedule = SHUFFLED, blocks: int = 2) -> None:
        found = errors(self.run(kernel, posed, schedule, blocks), posed.exact)
        assert all(error <= RELATIVE[posed.out.dtype] for error in found), found


@pytest.fixture
def runner(programs: dict[type[Kernel], Backward90], tmp_path: Path) -> Runner:
    return Runner(programs, tmp_path)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("kernel", [*KERNELS, *IN_ONE], ids=lambda kernel: kernel.name)
def test_gradients_agree_with_float64_however_copies_products_and_warps_are_timed(
    runner: Runner, kernel: Kernel, schedule: Schedule
) -> None:
    runner.check(kernel, posed_for(kernel, 1, 2, 1, 200, 300), schedule)


@pytest.mark.parametrize("kernel", [NARROW_FULL, WIDE, FEW_NARROW_FULL, FEW_WIDE_LONG], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 1), (64, 128), (65, 127), (129, 40), (20, 300)])
def test_rows_and_keys_around_the_edges_of_tiles_have_the_right_gradients(
    runner: Runner, kernel: Kernel, seq_q: int, seq_k: int
) -> None:
    posed = posed_for(kernel, 1, 1, 1, seq_q, seq_k)
    assert_right(runner.run(kernel, posed), posed)


@pytest.mark.parametrize("kernel", [NARROW, WIDE, FEW_NARROW, FEW_WIDE_LONG], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(300, 65), (63, 260)])
def test_both_causal_alignments_have_the_right_gradients(
    runner: Runner, kernel: Kernel, alignment: str, seq_q: int, seq_k: int
) -> None:
    runner.check(kernel, posed_for(kernel, 1, 2, 1, seq_q, seq_k, alignment=alignment), WAITING)


@pytest.mark.parametrize("head_dim", [8, 40, 72, 120])
def test_columns_that_a_head_does_not_have_have_no_gradients(runner: Runner, head_dim: int) -> None:
    for kernel in (WIDE_FULL, FEW_WIDE_FULL) if head_dim > 64 else (NARROW, FEW_NARROW_LONG):
        runner.check(kernel, posed_for(kernel, 1, 2, 1, 70, 150, head_dim))


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("blocks", [1, 3])
def test_few_blocks_share_many_tiles_of_keys_and_leave_their_counter_zero(
    runner: Runner, blocks: int, greedy: bool
) -> None:
    schedule = Schedule(late_products=True, seed=3, greedy=greedy)
    runner.check(NARROW, posed_for(NARROW, 2, 4, 2, 150, 260), schedule, blocks)


@pytest.mark.parametrize("kernel", [NARROW, FEW_NARROW, FEW_NARROW_LONG], ids=lambda kernel: kernel.name)
def test_the_log_sum_exp_may_have_a_gradient_of_its_own(runner: Runner, kernel: Kernel) -> None:
    runner.check(kernel, posed_for(kernel, 1, 2, 1, 140, 150, with_dlse=True))


@pytest.mark.parametrize("kernel", [FEW_NARROW_FULL, FEW_WIDE_LONG], ids=lambda kernel: kernel.name)
def test_more_tiles_than_there_are_stages_pass_by(runner: Runner, kernel: Kernel) -> None:
    runner.check(kernel, posed_for(kernel, 2, 3, 1, 270, 520))


@pytest.mark.parametrize("kernel", [WIDE, FEW_NARROW, FEW_WIDE_LONG], ids=lambda kernel: kernel.name)
def test_keys_that_no_query_sees_and_queries_that_see_no_key_have_gradients_of_zero(
    runner: Runner, kernel: Kernel
) -> None:
    _, dk, dv = runner.run(kernel, posed_for(kernel, 1, 1, 1, 10, 300), RELEASING)
    assert not dk[:, :, 10:].any()
    assert not dv[:, :, 10:].any()
    dq, _, _ = runner.run(kernel, posed_for(kernel, 1, 1, 1, 300, 10, alignment="bottom-right"), RELEASING)
    assert not dq[:, :, :290].any()


@pytest.mark.parametrize("kernel", [FEW_NARROW, FEW_WIDE_LONG], ids=lambda kernel: kernel.name)
def test_two_runs_give_the_same_bits_in_whatever_order_warps_and_blocks_run(runner: Runner, kernel: Kernel) -> None:
    posed = posed_for(kernel, 1, 2, 1, 200, 260)
    first, second = (runner.run(kernel, posed, schedule) for schedule in (WAITING, SHUFFLED))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_keys_beyond_the_last_stay_masked_even_at_very_negative_scores(runner: Runner) -> None:
    posed = posed_for(FEW_NARROW_LONG, 1, 1, 1, 100, 70)
    posed.make_scores_very_negative()
    assert all(bool(one.isfinite().all()) for one in runner.run(FEW_NARROW_LONG, posed))
