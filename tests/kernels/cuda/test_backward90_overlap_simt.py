"""Hopper's backward pass, whose last launch starts while the one before it runs: it converts the sums of dQ of a tile of
queries as soon as all keys that the tile sees have been added, and not before."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kernels.attention.cuda.backward.kernels import ConvertKernel, HopperBackwardKernel, Order
from tests.kernels.cuda.backward90_runner import Backward90, around, compile_backward90, run_with_sums
from tests.kernels.cuda.backward_runner import Posed, Three, assert_right
from tests.kernels.cuda.compiled import WITH_COMPILER, Failed
from tests.kernels.cuda.hopper_runner import RELEASING, SHUFFLED, WAITING, Schedule
from tests.kernels.cuda.stub_driver import WITH_STUB, program_with_stub
from tests.kernels.cuda.test_backward90_simt import posed_for
from tests.kernels.cuda.test_hopper_mutants import Mutant, lines
from tests.kernels.cuda.test_races_simt import as_it_is

pytestmark = [WITH_COMPILER, WITH_STUB]

CAUSAL = HopperBackwardKernel("float16", 64, True)
FULL = HopperBackwardKernel("bfloat16", 128, False)
IN_ORDER = HopperBackwardKernel("float16", 64, True, Order.KEYS)
FULL_IN_ORDER = HopperBackwardKernel("bfloat16", 128, False, Order.KEYS)
KERNELS = (CAUSAL, FULL, IN_ORDER, FULL_IN_ORDER)
SEEDS = tuple(Schedule(late_copies=True, late_products=True, seed=seed) for seed in range(1, 5))
SCHEDULES = tuple(
    dataclasses.replace(one, overlap=True, greedy=False) for one in (Schedule(), WAITING, RELEASING, SHUFFLED, *SEEDS)
)
COUNTED = """        additions_done();
        count_up(finished_of(p) + divide(tile / p.query_tiles, p.group) * (int)p.tiles.divisor + keys_of_share(told));
"""
EARLY = Mutant("keys_counted_before_their_additions_have_happened", (), (lines(COUNTED, 1, 0),), CAUSAL)
NEVER = Mutant("keys_that_are_never_counted", (), ((COUNTED, "        additions_done();\n"),), CAUSAL)
EACH = Mutant("keys_counted_at_each_of_their_shares", (), (("if (is_last_share(told))", "if (true)"),), CAUSAL)
MISTAKES = (EARLY, NEVER, EACH)
CONVERT = ConvertKernel("float16", 64)
IMPATIENT = Mutant(
    "a_tile_converted_at_once", (), (("while (!C::is_summed", "while (false && !C::is_summed"),), CONVERT
)
FEWER = Mutant("a_tile_that_awaits_too_few_keys", (), (("last / KEYS + 1", "last / KEYS"),), CONVERT)
CONVERTS = (IMPATIENT, FEWER)


program = program_with_stub(
    lambda folder: compile_backward90([*map(as_it_is, KERNELS), *MISTAKES, *CONVERTS, *around(KERNELS)], folder)
)


def run(
    program: Backward90,
    posed: Posed,
    scratch: Path,
    schedule: Schedule,
    blocks: int,
    entry: Mutant,
    order: Order = Order.ANY,
) -> Three:
    main, convert = (as_it_is(CAUSAL), entry) if isinstance(entry.kernel, ConvertKernel) else (entry, None)
    return run_with_sums(program, posed, scratch, schedule, blocks=blocks, entry=main, convert=convert, order=order)[0]


def is_wrong(program: Backward90, posed: Posed, scratch: Path, schedule: Schedule, mistake: Mutant) -> bool:
    """Whether dQ is not right, or nobody ever has it."""
    try:
        assert_right(run(program, posed, scratch, schedule, 2, mistake), posed)
    except (AssertionError, Failed):
        return True
    return False


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_sums_are_converted_when_complete_however_the_launches_are_timed(
    program: Backward90, tmp_path: Path, kernel: HopperBackwardKernel
) -> None:
    for sizes, alignment in (((1, 4, 2, 300, 330), "top-left"), ((1, 2, 1, 200, 520), "bottom-right")):
        posed = posed_for(kernel, *sizes, alignment=alignment)
        for schedule in SCHEDULES:
            for blocks in (1, 3):
                assert_right(run(program, posed, tmp_path, schedule, blocks, as_it_is(kernel), kernel.order), posed)


def test_queries_that_see_no_keys_have_sums_for_which_nobody_waits(program: Backward90, tmp_path: Path) -> None:
    posed = posed_for(CAUSAL, 1, 2, 1, 600, 300, alignment="bottom-right")
    for schedule in SCHEDULES:
        assert_right(run(program, posed, tmp_path, schedule, 3, as_it_is(CAUSAL)), posed)


@pytest.mark.parametrize("mistake", [*MISTAKES, *CONVERTS], ids=lambda mistake: mistake.name)
def test_a_mistake_about_what_is_complete_shows(program: Backward90, tmp_path: Path, mistake: Mutant) -> None:
    problems = (posed_for(CAUSAL, 1, 2, 1, 300, 520, alignment="bottom-right"), posed_for(CAUSAL, 1, 2, 1, 300, 300))
    assert any(is_wrong(program, posed, tmp_path, one, mistake) for posed in problems for one in SCHEDULES)
