"""Hopper's backward pass under a causal mask: the first block that has a share of a sum of dQ stores it, so that nobody
clears the sums; the others wait until it is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.attention.cuda.backward.kernels import HopperBackwardKernel
from kernels.attention.cuda.backward.plan import HopperBackward
from tests.kernels.cuda.backward90_runner import Backward90, around, compile_backward90, run_backward90
from tests.kernels.cuda.backward_problems import MACHINE
from tests.kernels.cuda.backward_runner import Posed, assert_right
from tests.kernels.cuda.compiled import WITH_COMPILER
from tests.kernels.cuda.hopper_runner import RELEASING, SHUFFLED, WAITING, Schedule
from tests.kernels.cuda.simt_ways import HostBuffers
from tests.kernels.cuda.stub_driver import WITH_STUB, program_with_stub
from tests.kernels.cuda.test_backward90_simt import posed_for
from tests.kernels.cuda.test_hopper_mutants import Mutant, lines, without
from tests.kernels.cuda.test_races_simt import as_it_is

pytestmark = [WITH_COMPILER, WITH_STUB]

CAUSAL = HopperBackwardKernel("float16", 64, True)
WIDE = HopperBackwardKernel("bfloat16", 128, True)
SHUFFLES = tuple(Schedule(late_copies=True, late_products=True, seed=seed) for seed in range(1, 7))
SCHEDULES = (Schedule(), WAITING, RELEASING, SHUFFLED, *SHUFFLES)
GIVEN = "          additions_done();\n          give_turn(states + share, C::STORED);\n"
MISTAKES = tuple(
    Mutant(name, (), (edit,), CAUSAL)
    for name, edit in (
        (
            "nobody_waits_until_the_first_share_is_there",
            without("      if (state == C::BEING_STORED) await_turn(states + share, C::STORED);\n"),
        ),
        ("a_share_that_is_there_before_it_is_stored", lines(GIVEN, 1, 0)),
        ("two_that_are_the_first", (": claim(states + share);", ": look_at(states + share);")),
        ("the_first_adds", ("if (state == C::NOT_STORED)\n        store_floats", "if (false)\n        store_floats")),
        ("everybody_stores", ("if (state == C::NOT_STORED)\n        store_floats", "if (true)\n        store_floats")),
        ("the_state_of_another_share", ("share == ahead && seen_ahead", "seen_ahead")),
    )
)


program = program_with_stub(
    lambda folder: compile_backward90([*map(as_it_is, (CAUSAL, WIDE)), *MISTAKES, *around((CAUSAL, WIDE))], folder)
)


def prepared_by(posed: Posed) -> str:
    steps = HopperBackward(MACHINE).steps(posed.problem(posed.gradients()), HostBuffers())  # type: ignore[arg-type]
    return steps[0].entry.name


@pytest.mark.parametrize("kernel", [CAUSAL, WIDE], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
def test_sums_that_nobody_has_cleared_are_right_whoever_comes_first(
    program: Backward90, tmp_path: Path, kernel: HopperBackwardKernel, alignment: str
) -> None:
    """Memory is NaN at first."""
    posed = posed_for(kernel, 1, 2, 1, 330, 500, alignment=alignment)
    assert prepared_by(posed).endswith("_keeps")
    for schedule in SCHEDULES:
        for blocks in (1, 5):
            assert_right(
                run_backward90(program, posed, tmp_path, schedule, blocks=blocks, entry=as_it_is(kernel)), posed
            )


def test_sums_are_cleared_where_some_queries_see_no_keys(program: Backward90, tmp_path: Path) -> None:
    posed = posed_for(CAUSAL, 1, 2, 1, 600, 300, alignment="bottom-right")
    assert not prepared_by(posed).endswith("_keeps")
    for schedule in SCHEDULES:
        assert_right(run_backward90(program, posed, tmp_path, schedule, blocks=3, entry=as_it_is(CAUSAL)), posed)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_about_who_is_the_first_shows(program: Backward90, tmp_path: Path, mistake: Mutant) -> None:
    problems = (
        posed_for(CAUSAL, 1, 2, 1, 330, 500, alignment="bottom-right"),  # tiles of keys begin at the same queries
        posed_for(CAUSAL, 1, 4, 1, 500, 500),  # each at others, and after each head again
    )

    def is_wrong(posed: Posed, schedule: Schedule, blocks: int) -> bool:
        try:
            assert_right(run_backward90(program, posed, tmp_path, schedule, blocks=blocks, entry=mistake), posed)
        except AssertionError:
            return True
        return False

    assert any(is_wrong(posed, schedule, blocks) for posed in problems for schedule in SCHEDULES for blocks in (1, 5))
