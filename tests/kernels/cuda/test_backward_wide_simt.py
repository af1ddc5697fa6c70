"""Hopper's backward pass for head dimensions over 128, run on the CPU with a fiber for each thread, against float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.backward.ampere import AmpereConvertKernel
from kernels.attention.cuda.backward.kernels import PrepareKernel
from kernels.attention.cuda.backward.wide import (
    VALUE_WIDTHS,
    WIDTHS,
    WideBackward,
    WideBackwardKernel,
    wide_ways,
)
from kernels.attention.cuda.calls.quick import Options
from kernels.attention.cuda.plan.planning import Machine
from kernels.attention.cuda.plan.variants import Entry
from tests.kernels.cuda.backward90_runner import Backward90, compile_backward90
from tests.kernels.cuda.backward_runner import RELATIVE, Posed, Three, assert_right, errors, pose
from tests.kernels.cuda.compiled import WITH_COMPILER, Failed
from tests.kernels.cuda.every_kernel import every_wide_kernel
from tests.kernels.cuda.hopper_runner import RELEASING, SHUFFLED, WAITING, Schedule
from tests.kernels.cuda.simt_ways import HostBuffers
from tests.kernels.cuda.stub_driver import HOPPER, WITH_STUB, program_with_stub
from tests.kernels.cuda.test_hopper_mutants import OVERWRITTEN, Mutant, lines, without
from tests.kernels.cuda.test_races_simt import RACE, UNFENCED, as_it_is

pytestmark = [WITH_COMPILER, WITH_STUB]

DTYPES = {128: "bfloat16", 192: "float16", 256: "bfloat16"}
"""By the width of V."""
SCHEDULES = (Schedule(), WAITING, RELEASING, SHUFFLED)


def kernels() -> list[Entry]:
    wide: list[Entry] = [
        kernel
        for kernel in every_wide_kernel()
        if kernel.dtype == DTYPES.get(getattr(kernel, "value_dim", 0), kernel.dtype)
    ]
    return [
        *wide,
        *(AmpereConvertKernel(dtype, 256, 64, 8) for dtype in ("bfloat16", "float16")),
        *(PrepareKernel(dtype, 256, True, True) for dtype in ("bfloat16", "float16")),
    ]


programs = program_with_stub(lambda folder: {WideBackward: compile_backward90(kernels(), folder)})


class Runner:
    """Runs a problem by the way."""

    def __init__(self, program: Backward90, scratch: Path):
        self.program, self.scratch = program, scratch

    def run(self, posed: Posed, schedule: Schedule = SHUFFLED, entry: Entry | None = None) -> Three:
        gradients, buffers = posed.gradients(), HostBuffers()
        machine = Machine(HOPPER, 4, 1 << 20, hopper=True)
        problem = posed.problem(gradients)
        (way,) = wide_ways(problem, machine)
        steps = way.steps(problem, buffers)  # type: ignore[arg-type]
        if entry is not None:
            steps[1] = replace(steps[1], entry=entry)
        self.program.run(steps, posed.touched(gradients, buffers), self.scratch, schedule)
        return gradients

    def check(self, *sizes: int, schedule: Schedule = SHUFFLED, value_dim: int = 0, **options: object) -> None:
        """`sizes`: batch, heads, heads of K and V, rows, keys, and the head dimension."""
        posed = posed_for(*sizes, value_dim=value_dim, **options)
        assert_right(self.run(posed, schedule), posed)


def posed_for(*sizes: int, value_dim: int = 0, with_dlse: bool = False, **options: object) -> Posed:
    width = value_dim or sizes[-1]
    dtype = getattr(torch, DTYPES[next(padded for padded in VALUE_WIDTHS if padded >= width)])
    return pose(dtype, *sizes, Options(**options), value_dim=value_dim, with_dlse=with_dlse)  # type: ignore[arg-type]


@pytest.fixture
def runner(programs: dict[type, Backward90], tmp_path: Path) -> Runner:
    return Runner(programs[WideBackward], tmp_path)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("value_dim", VALUE_WIDTHS)
@pytest.mark.parametrize("head_dim", WIDTHS)
def test_gradients_agree_with_float64_however_copies_products_and_warps_are_timed(
    runner: Runner, head_dim: int, value_dim: int, schedule: Schedule
) -> None:
    runner.check(1, 2, 1, 200, 300, head_dim, value_dim=value_dim, schedule=schedule, causal=head_dim == 192)


@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 1), (64, 128), (65, 127), (129, 40), (20, 300)])
def test_rows_and_keys_around_the_edges_of_tiles_have_the_right_gradients(
    runner: Runner, seq_q: int, seq_k: int
) -> None:
    runner.check(1, 1, 1, seq_q, seq_k, 256)


@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(300, 65), (63, 260)])
def test_both_causal_alignments_have_the_right_gradients(
    runner: Runner, alignment: str, seq_q: int, seq_k: int
) -> None:
    runner.check(2, 2, 1, seq_q, seq_k, 192, schedule=WAITING, causal=True, alignment=alignment, with_dlse=True)


@pytest.mark.parametrize(("head_dim", "value_dim"), [(136, 136), (160, 160), (136, 8), (200, 72), (248, 248)])
def test_columns_that_a_head_does_not_have_have_no_gradients(runner: Runner, head_dim: int, value_dim: int) -> None:
    runner.check(1, 2, 1, 70, 150, head_dim, value_dim=value_dim)


def test_keys_that_no_query_sees_and_queries_that_see_no_key_have_gradients_of_zero(runner: Runner) -> None:
    _, dk, dv = runner.run(posed_for(1, 1, 1, 10, 300, 256, causal=True), RELEASING)
    assert not dk[:, :, 10:].any()
    assert not dv[:, :, 10:].any()
    dq, _, _ = runner.run(posed_for(1, 1, 1, 300, 10, 256, causal=True, alignment="bottom-right"), RELEASING)
    assert not dq[:, :, :290].any()


# ---- the order of what the warpgroups and the two blocks do

WATCHED = WideBackwardKernel("bfloat16", 192, 128)
WRONG = "the gradients are off"
STUCK = "deadlock"
UNDER_WAY = "a copy is still under way"
MESSAGE_UNDER_WAY = "a message of the other block is still under way"
WEIGHTS_STORED = "    if constexpr (!FIRST) named_sync(C::P_EMPTY, C::PAIR_THREADS);\n"
SLOPES_TOLD = "    publish_shared();\n    named_arrive(C::SLOPE_STORED + stage, C::SENDER_THREADS);\n"
ENDED = "    warpgroup_wait<0>();\n    settled(sum);\n"
DOUT_READ = ENDED + "    release(barriers.dout_empty(dout_stage));\n"
QUERIES_READ = ENDED + "    release(barriers.q_empty(stage));\n"
DQ_BEGUN = "    warpgroup_commit();\n  }\n  // Adds this warpgroup's columns"
PLACE_GIVEN_BACK = "barrier_arrive_in_peer(barriers.slope_free(place));"
LAST = "      finish(tile, "
UNSEEN = "      barrier_wait(barriers.other_full(), 0);  // a block must not end while something is copied into it\n"
MISTAKES = tuple(
    Mutant(name, (found,), (edit,), WATCHED)
    for name, found, edit in (
        ("weights_stored_while_they_are_read", STUCK, without(WEIGHTS_STORED)),
        ("weights_read_before_they_are_there", RACE, without("    named_sync(C::P_FULL, C::PAIR_THREADS);\n")),
        ("slopes_not_told_to_products_and_copies", UNFENCED, lines(SLOPES_TOLD, 1)),
        ("queries_given_back_while_dk_reads_them", RACE, lines(QUERIES_READ, 2, 0, 1)),
        ("dout_given_back_while_dv_reads_it", RACE, lines(DOUT_READ, 2, 0, 1)),
        (
            "slopes_stored_without_a_free_place",
            RACE,
            without("    barrier_wait(barriers.slope_free(stage), count.parity() ^ 1);\n"),
        ),
        (
            "a_place_given_back_while_dq_reads_it",
            OVERWRITTEN[0],
            (DQ_BEGUN, DQ_BEGUN.replace("  }\n", f"    if (lane() == 0) {PLACE_GIVEN_BACK}\n  }}\n")),
        ),
        ("one_reader_too_few", "within a phase", ("slope_free(i), C::READERS)", "slope_free(i), C::READERS - 1)")),
        (
            "barriers_not_published_to_the_other_block",
            "before a fence has published it",
            without("    barrier_init_done();\n"),
        ),
        (
            "slopes_of_the_other_block_not_counted",
            STUCK,
            (
                "barrier_arrive_expecting(barriers.slope_full(place), C::CHUNK_BYTES);",
                "barrier_arrive(barriers.slope_full(place));",
            ),
        ),
        (
            "an_address_with_the_number_of_its_block",
            RACE,
            ("matrix(address & 0x3ffff, chunk_bytes)", "matrix(address, chunk_bytes)"),
        ),
        ("one_half_of_dq_twice", WRONG, ("of_other * C::CHUNK_BYTES, 16)", "0 * of_other, 16)")),
        ("a_block_ends_before_its_copies", UNDER_WAY, without(UNSEEN)),
        ("a_block_ends_before_the_last_message", MESSAGE_UNDER_WAY, ("count.n < tiles + 2", "count.n < tiles")),
        (
            "the_last_dq_forgotten",
            STUCK,
            (LAST, LAST.replace("finish", "if (SCORES) finish")),
        ),
    )
)


watched = program_with_stub(
    lambda folder: compile_backward90(
        [
            as_it_is(WATCHED),
            *MISTAKES,
            *(entry for entry in kernels() if entry.dtype == "bfloat16" and not isinstance(entry, WideBackwardKernel)),
        ],
        folder,
        races=True,
    )
)


def run_watched(program: Backward90, scratch: Path, entry: Entry, schedule: Schedule) -> None:
    posed = posed_for(1, 2, 1, 250, 400, 192, value_dim=128, causal=True)  # no query sees the last keys
    found = errors(Runner(program, scratch).run(posed, schedule, entry), posed.exact)
    if not all(error <= RELATIVE[posed.out.dtype] for error in found):
        raise Failed(f"{WRONG}: {found}")


@pytest.mark.parametrize("schedule", [Schedule(), SHUFFLED], ids=lambda schedule: schedule.name)
def test_the_pass_of_two_blocks_has_no_race(watched: Backward90, tmp_path: Path, schedule: Schedule) -> None:
    run_watched(watched, tmp_path, as_it_is(WATCHED), schedule)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_in_the_pass_of_two_blocks_is_found(watched: Backward90, tmp_path: Path, mistake: Mutant) -> None:
    with pytest.raises(Failed, match=mistake.found[0]):
        run_watched(watched, tmp_path, mistake, WAITING if mistake.found[0] == UNDER_WAY else RELEASING)
