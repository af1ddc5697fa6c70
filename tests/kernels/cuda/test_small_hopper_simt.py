"""The kernels for few keys on Hopper, run on the CPU with a fiber for each thread, against attention in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.ways.small_hopper import GroupKernel, GroupShape, single_shape
from tests.kernels.cuda.compiled import WITH_COMPILER
from tests.kernels.cuda.hopper_cases import Case, attend, complaint, draw
from tests.kernels.cuda.hopper_runner import (
    RELEASING,
    SHUFFLED,
    WAITING,
    HopperProgram,
    Schedule,
    compile_hopper,
)
from tests.kernels.cuda.stub_driver import WITH_STUB, stub_libcuda

pytestmark = [WITH_COMPILER, WITH_STUB]

ALONE = GroupKernel("bfloat16", 64, True, GroupShape(1, 1, 128, 1))
SHARED_KEYS = GroupKernel("float16", 64, True, GroupShape(1, 2, 64, 4))
FOUR = GroupKernel("bfloat16", 128, False, GroupShape(1, 4, 64, 4))
ROWS = GroupKernel("float16", 128, True, GroupShape(2, 1, 64, 4))
SINGLE = GroupKernel("bfloat16", 64, False, single_shape(1, 2, 128, 4))
LONG = GroupKernel("bfloat16", 64, True, single_shape(2, 1, 128, 4))
DEPENDENT = GroupKernel("float16", 64, False, GroupShape(1, 2, 64, 2), dependent=True)
KERNELS = (ALONE, SHARED_KEYS, FOUR, ROWS, SINGLE, LONG, DEPENDENT)
SCHEDULES = (Schedule(), WAITING, RELEASING, SHUFFLED)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HopperProgram]:
    folder = tmp_path_factory.mktemp("hopper")
    with stub_libcuda(folder):
        yield compile_hopper(KERNELS, "SmallParams", folder)


def assert_right(
    program: HopperProgram,
    kernel: GroupKernel,
    sizes: tuple[int, ...],
    scratch: Path,
    schedule: Schedule = SHUFFLED,
    case: Case | None = None,
) -> None:
    """`sizes`: batch, heads, heads of K and V, rows, keys, and the head dimension if not the kernel's."""
    case, tensors = case or Case(), draw(kernel, *sizes)
    answer = attend(program, kernel, tensors, scratch, schedule, case)
    assert complaint(kernel, tensors, case, *answer) is None


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_every_shape_agrees_with_float64_however_copies_products_and_warps_are_timed(
    program: HopperProgram, tmp_path: Path, kernel: GroupKernel, schedule: Schedule
) -> None:
    keys = kernel.shape.all_keys
    assert_right(program, kernel, (1, 2, 1, keys - 3, keys - 3), tmp_path, schedule)


@pytest.mark.parametrize("seq", [1, 63, 65, 129, 200])
@pytest.mark.parametrize("kernel", [SHARED_KEYS, ROWS, SINGLE], ids=lambda kernel: kernel.name)
def test_rows_and_keys_around_the_edges_of_blocks_are_right(
    program: HopperProgram, tmp_path: Path, kernel: GroupKernel, seq: int
) -> None:
    assert_right(program, kernel, (2, 2, 2, seq, seq), tmp_path)


@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 120), (120, 1), (63, 129), (300, 65)])
def test_both_causal_alignments_are_right_and_rows_that_see_nothing_are_zero(
    program: HopperProgram, tmp_path: Path, alignment: str, seq_q: int, seq_k: int
) -> None:
    for kernel in (SHARED_KEYS, LONG):
        assert_right(program, kernel, (1, 2, 1, seq_q, seq_k), tmp_path, WAITING, Case(alignment=alignment))


@pytest.mark.parametrize("head_dim", [8, 40, 72, 120])
def test_columns_that_a_head_does_not_have_count_as_zero(program: HopperProgram, tmp_path: Path, head_dim: int) -> None:
    for kernel in (FOUR, ROWS) if head_dim > 64 else (ALONE, DEPENDENT):
        assert_right(program, kernel, (1, 2, 1, 70, 110, head_dim), tmp_path)


def test_without_a_log_sum_exp_the_output_is_the_same(program: HopperProgram, tmp_path: Path) -> None:
    tensors = draw(SHARED_KEYS, 1, 2, 1, 100, 200)
    with_lse, _ = attend(program, SHARED_KEYS, tensors, tmp_path, SHUFFLED, Case())
    without, none = attend(program, SHARED_KEYS, tensors, tmp_path, SHUFFLED, Case(with_lse=False))
    assert torch.equal(with_lse, without)
    assert bool(none.isnan().all())


def test_a_row_that_is_no_number_spoils_itself_and_no_other(program: HopperProgram, tmp_path: Path) -> None:
    q, k, v = draw(SHARED_KEYS, 1, 2, 1, 150, 150)
    clean, _ = attend(program, SHARED_KEYS, (q, k, v), tmp_path, WAITING, Case())
    q[0, 1, 5] = math.nan
    got, _ = attend(program, SHARED_KEYS, (q, k, v), tmp_path, WAITING, Case())
    assert bool(got[0, 1, 5].isnan().all())
    got[0, 1, 5] = clean[0, 1, 5]
    assert torch.equal(got, clean)
