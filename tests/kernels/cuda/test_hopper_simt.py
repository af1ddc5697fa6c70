"""The Hopper kernel and those for few keys, run on the CPU with a fiber for each thread, against attention in float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.ways.hopper_kernels import NARROW_SHAPES, SHAPES, HopperKernel, Shape
from kernels.attention.cuda.ways.small_hopper import GroupKernel, GroupShape
from tests.kernels.cuda.compiled import WITH_COMPILER
from tests.kernels.cuda.hopper_cases import Case, Tensors, attend, complaint, draw
from tests.kernels.cuda.hopper_runner import RELEASING, SHUFFLED, WAITING, HopperProgram, Schedule, compile_hopper
from tests.kernels.cuda.stub_driver import WITH_STUB, program_with_stub

pytestmark = [WITH_COMPILER, WITH_STUB]

PLAIN = HopperKernel("bfloat16", 64, True, False, Shape(2, 64, 4))
THREE = HopperKernel("float16", 64, True, False, SHAPES[64, True][0])
FOUR = HopperKernel("bfloat16", 64, False, False, SHAPES[64, False][1])
WIDE = HopperKernel("float16", 128, False, False, SHAPES[128, False][2])
DEEP = HopperKernel("bfloat16", 128, True, False, SHAPES[128, True][1])
WINDOW = HopperKernel("float16", 64, True, True, Shape(4, 64, 4, ping_pong=True))
TAIL = HopperKernel("bfloat16", 128, False, True, Shape(2, 64, 2, ping_pong=True))
BROAD = HopperKernel("bfloat16", 256, True, False, SHAPES[256, True][1])
ODD = HopperKernel("float16", 160, False, False, SHAPES[160, False][0])
UNEVEN = HopperKernel("bfloat16", 192, True, False, SHAPES[192, True][1])
LEAN = HopperKernel("bfloat16", 96, True, False, SHAPES[96, True][2])
THIN = HopperKernel("float16", 32, False, False, SHAPES[32, False][0])
NARROW = HopperKernel("bfloat16", 192, True, False, NARROW_SHAPES[192, 128, True][0], narrow=128)
NARROW_FULL = HopperKernel("float16", 192, False, False, NARROW_SHAPES[192, 128, False][0], narrow=128)
NARROW_TURNS = HopperKernel("bfloat16", 192, True, True, Shape(3, 64, 3, ping_pong=True), narrow=128)
NARROWER = (NARROW, NARROW_FULL, NARROW_TURNS)
"""Their V is narrower than K."""
TAKING_SINKS = tuple(replace(kernel, sinks=True) for kernel in (PLAIN, WINDOW, TAIL, NARROW))
KERNELS = (PLAIN, THREE, FOUR, WIDE, DEEP, WINDOW, TAIL, BROAD, ODD, UNEVEN, LEAN, THIN, *NARROWER)
ALONE = GroupKernel("bfloat16", 64, True, GroupShape(1, 1, 128, 1))
SHARED_KEYS = GroupKernel("float16", 64, True, GroupShape(1, 2, 64, 4))
FOUR_SHARERS = GroupKernel("bfloat16", 128, False, GroupShape(1, 4, 64, 4))
ROWS = GroupKernel("float16", 128, True, GroupShape(2, 1, 64, 4))
SINGLE = GroupKernel("bfloat16", 64, False, GroupShape(1, 2, 128, 4, ahead=False))
LONG = GroupKernel("bfloat16", 64, True, GroupShape(2, 1, 128, 4, ahead=False))
DEPENDENT = GroupKernel("float16", 64, False, GroupShape(1, 2, 64, 2), dependent=True)
FEW_KEYS = (ALONE, SHARED_KEYS, FOUR_SHARERS, ROWS, SINGLE, LONG, DEPENDENT)
SCHEDULES = (Schedule(), WAITING, RELEASING, SHUFFLED)
WINDOWS = {WINDOW: (70, 5), NARROW_TURNS: (70, 5), TAIL: (70, -1)}
WINDOWS |= {replace(kernel, sinks=True): window for kernel, window in WINDOWS.items()}


Kernel = HopperKernel | GroupKernel
Programs = Mapping[type[Kernel], HopperProgram]


programs = program_with_stub(
    lambda folder: {
        HopperKernel: compile_hopper((*KERNELS, *TAKING_SINKS), "HopperParams", folder),
        GroupKernel: compile_hopper(FEW_KEYS, "SmallParams", folder),
    }
)


def assert_right(
    programs: Programs,
    kernel: Kernel,
    tensors: Tensors,
    scratch: Path,
    schedule: Schedule = SHUFFLED,
    case: Case | None = None,
) -> None:
    case = case or Case(window=WINDOWS.get(kernel))
    answer = attend(programs[type(kernel)], kernel, tensors, scratch, schedule, case)
    assert complaint(kernel, tensors, case, *answer) is None


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("kernel", [*KERNELS, *FEW_KEYS], ids=lambda kernel: kernel.name)
def test_every_shape_agrees_with_float64_however_copies_products_and_warps_are_timed(
    programs: Programs, tmp_path: Path, kernel: Kernel, schedule: Schedule
) -> None:
    keys = 300 if isinstance(kernel, HopperKernel) else kernel.shape.all_keys - 3
    assert_right(programs, kernel, draw(kernel, 1, 2, 1, keys, keys), tmp_path, schedule)


@pytest.mark.parametrize("seq", [1, 63, 65, 129, 200])
@pytest.mark.parametrize(
    "kernel", [PLAIN, THREE, WIDE, NARROW, SHARED_KEYS, ROWS, SINGLE], ids=lambda kernel: kernel.name
)
def test_rows_and_keys_around_the_edges_of_tiles_are_right(
    programs: Programs, tmp_path: Path, kernel: Kernel, seq: int
) -> None:
    assert_right(programs, kernel, draw(kernel, 2, 2, 2, seq, seq), tmp_path)


@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 120), (1, 200), (120, 1), (200, 1), (63, 129), (300, 65)])
def test_both_causal_alignments_are_right_and_rows_that_see_nothing_are_zero(
    programs: Programs, tmp_path: Path, alignment: str, seq_q: int, seq_k: int
) -> None:
    kernels = [PLAIN, THREE, NARROW, *((SHARED_KEYS, LONG) if seq_k < 200 else ())]
    for kernel in kernels:
        assert_right(
            programs, kernel, draw(kernel, 1, 2, 1, seq_q, seq_k), tmp_path, WAITING, Case(alignment=alignment)
        )


@pytest.mark.parametrize("window", [(0, 0), (10, 3), (64, 64), (200, 0)])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(65, 300), (300, 100)])
def test_windows_are_right_where_they_begin_end_and_see_nothing(
    programs: Programs, tmp_path: Path, window: tuple[int, int], seq_q: int, seq_k: int
) -> None:
    tensors = draw(WINDOW, 1, 1, 1, seq_q, seq_k)
    assert_right(programs, WINDOW, tensors, tmp_path, case=Case(window=window))
    tensors = draw(TAIL, 1, 1, 1, seq_q, seq_k)
    assert_right(programs, TAIL, tensors, tmp_path, case=Case(window=(window[0], -1), alignment="bottom-right"))


@pytest.mark.parametrize("schedule", [WAITING, SHUFFLED], ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("kernel", TAKING_SINKS, ids=lambda kernel: kernel.name)
def test_sinks_take_their_share_of_each_row_in_the_same_launch(
    programs: Programs, tmp_path: Path, kernel: HopperKernel, schedule: Schedule
) -> None:
    """`attend` asserts that there is no other launch, so the output is rounded once."""
    for sinks, (seq_q, seq_k) in itertools.product(((0.5, 3.0), (-math.inf, 90.0)), ((65, 300), (300, 100))):
        case = Case(window=WINDOWS.get(kernel), sinks=torch.tensor(sinks))
        assert_right(programs, kernel, draw(kernel, 2, 2, 1, seq_q, seq_k), tmp_path, schedule, case)
        silent = replace(case, with_lse=False)
        assert_right(programs, kernel, draw(kernel, 1, 2, 1, seq_q, seq_k), tmp_path, schedule, silent)


@pytest.mark.parametrize("kernel", [BROAD, ODD, UNEVEN, LEAN, THIN], ids=lambda kernel: kernel.name)
def test_head_dimensions_of_every_width_are_right_whether_or_not_they_fill_it(
    programs: Programs, tmp_path: Path, kernel: HopperKernel
) -> None:
    for head_dim in (kernel.head_dim, kernel.head_dim - 8, kernel.head_dim - 24):
        assert_right(programs, kernel, draw(kernel, 1, 2, 1, 77, 170, head_dim), tmp_path)


@pytest.mark.parametrize("head_dim", [8, 40, 72, 120])
def test_columns_that_a_head_does_not_have_count_as_zero(programs: Programs, tmp_path: Path, head_dim: int) -> None:
    kernels = (DEEP, WIDE, FOUR_SHARERS, ROWS) if head_dim > 64 else (PLAIN, FOUR, ALONE, DEPENDENT)
    for kernel in kernels:
        seq_k = 130 if isinstance(kernel, HopperKernel) else 110
        assert_right(programs, kernel, draw(kernel, 1, 2, 1, 70, seq_k, head_dim), tmp_path)


@pytest.mark.parametrize("dims", [(192, 128), (184, 104), (136, 8), (192, 64)])
@pytest.mark.parametrize("kernel", NARROWER, ids=lambda kernel: kernel.name)
def test_a_narrower_v_is_right_whether_or_not_both_widths_are_filled(
    programs: Programs, tmp_path: Path, kernel: HopperKernel, dims: tuple[int, int]
) -> None:
    assert_right(programs, kernel, draw(kernel, 1, 4, 2, 77, 170, *dims), tmp_path)
    assert_right(programs, kernel, draw(kernel, 2, 2, 2, 200, 140, *dims), tmp_path, WAITING)


@pytest.mark.parametrize("dims", [(64, 128), (128, 64), (8, 120), (72, 8)])
@pytest.mark.parametrize("kernel", [DEEP, WIDE, BROAD], ids=lambda kernel: kernel.name)
def test_kernels_of_one_width_take_k_and_v_of_two(
    programs: Programs, tmp_path: Path, kernel: HopperKernel, dims: tuple[int, int]
) -> None:
    assert_right(programs, kernel, draw(kernel, 1, 4, 2, 77, 170, *dims), tmp_path)


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_few_blocks_share_many_tiles_and_leave_their_counter_zero(
    programs: Programs, tmp_path: Path, blocks: int, greedy: bool
) -> None:
    schedule = Schedule(late_products=True, seed=3, greedy=greedy)
    assert_right(programs, PLAIN, draw(PLAIN, 1, 5, 5, 260, 130), tmp_path, schedule, Case(blocks=blocks))
    assert_right(programs, FOUR, draw(FOUR, 2, 4, 1, 260, 130), tmp_path, schedule, Case(blocks=blocks))


def test_heads_that_the_last_section_has_too_many_are_passed_over(programs: Programs, tmp_path: Path) -> None:
    tensors = draw(PLAIN, 1, 5, 5, 65, 65)
    bytes_of_a_head = 2 * 65 * 64 * 2
    assert_right(programs, PLAIN, tensors, tmp_path, WAITING, Case(l2_bytes=int(bytes_of_a_head * 4.5 / 0.64)))


def test_every_block_of_a_launch_may_be_alone_and_any_order_of_warps_will_do(
    programs: Programs, tmp_path: Path
) -> None:
    tensors = draw(THREE, 1, 3, 1, 250, 250)
    for seed in range(1, 7):
        late = Schedule(late_copies=seed % 3 != 0, late_products=seed % 3 != 1, reverse=seed > 3, seed=seed)
        assert_right(programs, THREE, tensors, tmp_path, late, Case(blocks=2))


def test_lanes_that_fall_behind_their_warp_miss_no_phase_of_a_skipped_tile(programs: Programs, tmp_path: Path) -> None:
    tensors = draw(PLAIN, 1, 6, 3, 277, 196)
    for seed in range(1, 13):
        assert_right(programs, PLAIN, tensors, tmp_path, Schedule(reverse=True, seed=seed, greedy=True))


def test_what_lies_between_the_rows_of_the_output_stays_as_it_was(programs: Programs, tmp_path: Path) -> None:
    tensors = draw(PLAIN, 1, 2, 1, 70, 70, 40)
    wide = torch.full((1, 70, 2, 56), 7.0, dtype=torch.bfloat16)
    out = wide[..., :40].transpose(1, 2)
    out.fill_(math.nan)
    answer = attend(programs[HopperKernel], PLAIN, tensors, tmp_path, RELEASING, Case(), out=out)
    assert complaint(PLAIN, tensors, Case(), *answer) is None
    assert bool((wide[..., 40:] == 7.0).all())
    tensors = draw(NARROW, 1, 2, 1, 70, 70, 136, 40)
    out.fill_(math.nan)
    answer = attend(programs[HopperKernel], NARROW, tensors, tmp_path, RELEASING, Case(), out=out)
    assert complaint(NARROW, tensors, Case(), *answer) is None
    assert bool((wide[..., 40:] == 7.0).all())


@pytest.mark.parametrize("kernel", [DEEP, SHARED_KEYS], ids=lambda kernel: kernel.name)
def test_without_a_log_sum_exp_the_output_is_the_same(programs: Programs, tmp_path: Path, kernel: Kernel) -> None:
    tensors, run = draw(kernel, 1, 2, 1, 100, 200), programs[type(kernel)]
    with_lse, _ = attend(run, kernel, tensors, tmp_path, SHUFFLED, Case())
    without, none = attend(run, kernel, tensors, tmp_path, SHUFFLED, Case(with_lse=False))
    assert torch.equal(with_lse, without)
    assert bool(none.isnan().all())


@pytest.mark.parametrize("kernel", [PLAIN, SHARED_KEYS], ids=lambda kernel: kernel.name)
def test_a_row_that_is_no_number_spoils_itself_and_no_other(programs: Programs, tmp_path: Path, kernel: Kernel) -> None:
    q, k, v = draw(kernel, 1, 2, 1, 150, 150)
    clean, _ = attend(programs[type(kernel)], kernel, (q, k, v), tmp_path, WAITING, Case())
    q[0, 1, 5] = math.nan
    got, _ = attend(programs[type(kernel)], kernel, (q, k, v), tmp_path, WAITING, Case())
    assert bool(got[0, 1, 5].isnan().all())
    got[0, 1, 5] = clean[0, 1, 5]
    assert torch.equal(got, clean)


def test_a_key_that_is_no_number_reaches_the_rows_that_see_it_and_no_other(programs: Programs, tmp_path: Path) -> None:
    q, k, v = draw(PLAIN, 1, 1, 1, 150, 150)
    k[0, 0, 77] = math.nan
    got, lse = attend(programs[HopperKernel], PLAIN, (q, k, v), tmp_path, RELEASING, Case())
    assert bool(got[0, 0, :77].isfinite().all())
    assert bool(got[0, 0, 77:].isnan().all())
    assert bool(lse[0, 0, 77:].isnan().all())
