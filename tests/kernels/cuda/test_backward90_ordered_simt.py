"""Hopper's backward pass with its sums in an order: the same bits however blocks, copies and additions are timed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.backward.kernels import HopperBackwardKernel, Order
from kernels.attention.cuda.backward.plan import HopperBackward
from kernels.attention.cuda.plan.planning import Machine
from tests.kernels.cuda.backward90_runner import Backward90, around, compile_backward90, run_with_sums
from tests.kernels.cuda.backward_runner import Posed, Three, assert_right
from tests.kernels.cuda.compiled import WITH_COMPILER, Failed
from tests.kernels.cuda.hopper_runner import RELEASING, SHUFFLED, WAITING, Schedule
from tests.kernels.cuda.simt_ways import HostBuffers
from tests.kernels.cuda.stub_driver import HOPPER, WITH_STUB, program_with_stub
from tests.kernels.cuda.test_backward90_simt import posed_for
from tests.kernels.cuda.test_hopper_mutants import Mutant, lines
from tests.kernels.cuda.test_races_simt import as_it_is

pytestmark = [WITH_COMPILER, WITH_STUB]

NARROW = HopperBackwardKernel("float16", 64, True, order=Order.KEYS)
WIDE = HopperBackwardKernel("bfloat16", 128, False, order=Order.KEYS)
CYCLE, WIDE_CYCLE = (
    HopperBackwardKernel(t, size, False, Order.CYCLIC) for t, size in (("float16", 64), ("bfloat16", 128))
)
UNORDERED = HopperBackwardKernel("float16", 64, True)
SHUFFLES = tuple(Schedule(late_copies=True, late_products=True, seed=seed) for seed in (1, 2, 3))
MACHINE = Machine(HOPPER, 132, 50 << 20, hopper=True)
ONE_AFTER_ANOTHER = Schedule(greedy=True, resident=1)
SCHEDULES = (Schedule(), WAITING, RELEASING, SHUFFLED, *SHUFFLES, ONE_AFTER_ANOTHER)
AWAIT = "      await_turn(turns_of(p) + tile, turn);\n"
GIVEN = "      additions_done();\n      give_turn(turns_of(p) + tile, turn + 1);\n"
NO_ORDER = Mutant("nobody_awaits_a_turn", (), ((AWAIT, ""),), NARROW)
GIVEN_EARLY = Mutant("a_turn_given_before_additions_have_happened", (), (lines(GIVEN, 1, 0),), NARROW)
NEVER_GIVEN = Mutant("a_turn_never_given", (), ((GIVEN, "      additions_done();\n"),), NARROW)
WORK_BY_PLACE = Mutant(
    "work_that_is_kept_for_a_block_that_has_not_begun",
    (),
    (
        ("BY_PLACE ? (int)blockIdx.x : atomicAdd(p.counter, 1);", "(int)blockIdx.x;"),
        ("(BY_PLACE ? blocks_again() : 0)", "blocks_again()"),
    ),
    NARROW,
)
LAST_FIRST = "C::LAST_FIRST ? end_of<C>(p, t) - 1 - i + t.first : i"
OTHER_WAY = Mutant("queries_taken_the_other_way_round_than_they_come", (), ((LAST_FIRST, "i"),), NARROW)
VALUES_EARLY = Mutant(
    "values_given_back_after_the_first_tile_of_queries_in_place_of_the_last",
    (),
    (("const bool last = i + 1 == end_of<C>(p, t)", "const bool last = i == t.first"),),
    NARROW,
)
PUT_BY_THE_SECOND = Mutant(
    "the_second_tile_of_keys_puts_its_share", (), (("if (turn == 0)", "if (turn == 1)"),), NARROW
)
NO_CYCLE = Mutant("nobody_awaits_a_turn_in_a_cyclic_order", (), ((AWAIT, ""),), CYCLE)
NOT_AROUND = Mutant("turns_that_end_at_the_last_tile", (), (("(keys > first ? all : 0)", "0"),), CYCLE)
STARTS_AT_FIRST = Mutant("queries_from_the_first_one_on", (), (("C::CYCLIC ? around(p, n + start) : n", "n"),), CYCLE)
CYCLIC_MISTAKES = (NO_CYCLE, NOT_AROUND, STARTS_AT_FIRST)
MISTAKES = (NO_ORDER, GIVEN_EARLY, NEVER_GIVEN, WORK_BY_PLACE, OTHER_WAY, VALUES_EARLY, PUT_BY_THE_SECOND)


KERNELS = (NARROW, WIDE, CYCLE, WIDE_CYCLE, UNORDERED)


program = program_with_stub(
    lambda folder: compile_backward90([*map(as_it_is, KERNELS), *MISTAKES, *CYCLIC_MISTAKES, *around(KERNELS)], folder)
)


def run(
    program: Backward90, posed: Posed, scratch: Path, schedule: Schedule, entry: Mutant, blocks: int = 3
) -> tuple[Three, torch.Tensor]:
    order = getattr(entry.kernel, "order", Order.ANY)
    return run_with_sums(program, posed, scratch, schedule, blocks=blocks, entry=entry, order=order)


def run_or_hang(
    program: Backward90, posed: Posed, scratch: Path, schedule: Schedule, entry: Mutant, blocks: int
) -> tuple[Three, torch.Tensor] | None:
    """The same; None where a tile's turns never end, so that nobody converts it."""
    try:
        return run(program, posed, scratch, schedule, entry, blocks)
    except Failed as failed:
        if "rests for what nobody does" not in str(failed):
            raise
        return None


def same(one: tuple[Three, torch.Tensor] | None, other: tuple[Three, torch.Tensor]) -> bool:
    """Whether gradients have the same bits, and so have the sums, which show what rounding may hide."""
    if one is None:
        return False
    return all(torch.equal(a, b) for a, b in zip((*one[0], one[1]), (*other[0], other[1]), strict=True))


def timings(schedules: Sequence[Schedule], few: int, many: int) -> list[tuple[Schedule, int]]:
    """Few and many blocks in turn, and both under the schedule that shuffles most: which blocks meet depends on either."""
    turns = list(zip(schedules, itertools.cycle((many, few)), strict=False))
    return [*turns, *((SHUFFLED, blocks) for blocks in (few, many) if (SHUFFLED, blocks) not in turns)]


@pytest.mark.parametrize("kernel", [NARROW, WIDE], ids=lambda kernel: kernel.name)
def test_the_bits_are_the_same_for_any_number_and_timing_of_blocks(
    program: Backward90, tmp_path: Path, kernel: HopperBackwardKernel
) -> None:
    posed = posed_for(kernel, 1, 2, 1, 200, 500, alignment="bottom-right")
    first = run(program, posed, tmp_path, Schedule(), as_it_is(kernel), blocks=1)
    assert_right(first[0], posed)
    for schedule, blocks in timings(SCHEDULES, 2, 5):
        found = run(program, posed, tmp_path, schedule, as_it_is(kernel), blocks)
        assert same(found, first), (schedule.name, blocks)


@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 1), (65, 127), (129, 40), (20, 300), (300, 65), (333, 217)])
def test_rows_and_keys_around_the_edges_of_tiles_have_the_right_gradients(
    program: Backward90, tmp_path: Path, seq_q: int, seq_k: int
) -> None:
    for kernel, alignment in ((NARROW, "top-left"), (NARROW, "bottom-right"), (WIDE, "top-left")):
        posed = posed_for(kernel, 1, 2, 1, seq_q, seq_k, alignment=alignment)
        found = run(program, posed, tmp_path, SHUFFLED, as_it_is(kernel))
        assert_right(found[0], posed)


def test_keys_and_queries_are_taken_as_they_come_from_the_last_queries_to_the_first(
    program: Backward90, tmp_path: Path
) -> None:
    posed = posed_for(NARROW, 1, 2, 1, 300, 500, alignment="bottom-right")
    found = run(program, posed, tmp_path, RELEASING, as_it_is(NARROW), blocks=1)
    assert_right(found[0], posed)
    wrong = run(program, posed, tmp_path, RELEASING, OTHER_WAY, blocks=1)
    with pytest.raises(AssertionError):
        assert_right(wrong[0], posed)
    with pytest.raises(Failed, match="a copy overwrites what a product under way reads"):
        run(program, posed, tmp_path, RELEASING, VALUES_EARLY, blocks=1)


def test_what_lies_where_sums_are_made_is_no_part_of_them(program: Backward90, tmp_path: Path) -> None:
    """Memory is NaN at first: nobody clears it where all queries see the first keys, and where not, the first launch."""
    for seq_q, prepare in ((300, "backward_prepare_fp16_d64_turned_keeps"), (600, "backward_prepare_fp16_d64_turned")):
        posed = posed_for(NARROW, 1, 2, 1, seq_q, 500, alignment="bottom-right")
        steps = HopperBackward(MACHINE, order=Order.KEYS).steps(posed.problem(posed.gradients()), HostBuffers())  # type: ignore[arg-type]
        assert steps[0].entry.name == prepare
        assert_right(run(program, posed, tmp_path, Schedule(), as_it_is(NARROW))[0], posed)
    with pytest.raises(AssertionError):
        assert_right(run(program, posed, tmp_path, Schedule(), PUT_BY_THE_SECOND)[0], posed)


@pytest.mark.parametrize("entry", [as_it_is(UNORDERED), NO_ORDER, GIVEN_EARLY], ids=lambda entry: entry.name)
def test_without_its_order_the_bits_differ(program: Backward90, tmp_path: Path, entry: Mutant) -> None:
    posed = posed_for(NARROW, 1, 2, 1, 200, 500, alignment="bottom-right")
    first = run(program, posed, tmp_path, Schedule(), entry, blocks=1)
    assert not all(same(run_or_hang(program, posed, tmp_path, schedule, entry, 5), first) for schedule in SCHEDULES)


@pytest.mark.parametrize(
    ("entry", "schedule"), [(NEVER_GIVEN, Schedule()), (WORK_BY_PLACE, ONE_AFTER_ANOTHER)], ids=("never", "place")
)
def test_a_turn_that_never_comes_is_a_deadlock(
    program: Backward90, tmp_path: Path, entry: Mutant, schedule: Schedule
) -> None:
    posed = posed_for(NARROW, 1, 1, 1, 200, 500, alignment="bottom-right")
    with pytest.raises(Failed, match="a number in global memory"):
        run(program, posed, tmp_path, schedule, entry)


@pytest.mark.parametrize("kernel", [CYCLE, WIDE_CYCLE], ids=lambda kernel: kernel.name)
def test_in_a_cyclic_order_the_bits_are_the_same_if_a_heads_tiles_run_together(
    program: Backward90, tmp_path: Path, kernel: HopperBackwardKernel
) -> None:
    """Four tiles of keys a head: more than there are of queries, and as many. Four blocks, and two heads at once."""
    posed = posed_for(kernel, 2, 2, 1, 200, 500)
    first = run(program, posed, tmp_path, Schedule(), as_it_is(kernel), blocks=4)
    assert_right(first[0], posed)
    for schedule, blocks in timings((Schedule(), WAITING, RELEASING, SHUFFLED, *SHUFFLES), 4, 9):
        found = run(program, posed, tmp_path, schedule, as_it_is(kernel), blocks)
        assert same(found, first), (schedule.name, blocks)
    with pytest.raises(Failed, match="a number in global memory"):  # so it is launched only if they do
        run(program, posed, tmp_path, ONE_AFTER_ANOTHER, as_it_is(kernel), blocks=4)


@pytest.mark.parametrize(
    ("seq_q", "seq_k"), [(1, 1), (65, 127), (129, 40), (20, 300), (300, 65), (333, 217), (700, 250)]
)
def test_in_a_cyclic_order_the_edges_of_tiles_have_the_right_gradients(
    program: Backward90, tmp_path: Path, seq_q: int, seq_k: int
) -> None:
    for kernel in (CYCLE, WIDE_CYCLE):
        posed = posed_for(kernel, 1, 2, 1, seq_q, seq_k)
        assert_right(run(program, posed, tmp_path, SHUFFLED, as_it_is(kernel))[0], posed)


def test_mistakes_in_a_cyclic_order_are_found(program: Backward90, tmp_path: Path) -> None:
    posed = posed_for(CYCLE, 1, 2, 1, 600, 500)
    first = run(program, posed, tmp_path, Schedule(), NO_CYCLE, blocks=4)
    assert not all(same(run_or_hang(program, posed, tmp_path, one, NO_CYCLE, 4), first) for one in SHUFFLES)
    with pytest.raises(Failed, match="a number in global memory"):
        run(program, posed, tmp_path, Schedule(), NOT_AROUND, blocks=4)
    with pytest.raises(AssertionError):
        assert_right(run(program, posed, tmp_path, Schedule(), STARTS_AT_FIRST, blocks=4)[0], posed)
