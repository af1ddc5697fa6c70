"""Hopper's backward pass with the heads of a group in parts: whichever part of a tile of keys comes last adds the sums of
all, so that dK and dV have the same bits however blocks are timed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.backward.kernels import HopperBackwardKernel
from tests.kernels.cuda.backward90_runner import Backward90, around, compile_backward90, run_with_sums
from tests.kernels.cuda.backward_runner import Posed, Three, assert_right
from tests.kernels.cuda.compiled import WITH_COMPILER, Failed
from tests.kernels.cuda.hopper_runner import RELEASING, SHUFFLED, WAITING, Schedule
from tests.kernels.cuda.stub_driver import WITH_STUB, program_with_stub
from tests.kernels.cuda.test_backward90_simt import posed_for
from tests.kernels.cuda.test_hopper_mutants import Mutant
from tests.kernels.cuda.test_races_simt import as_it_is

pytestmark = [WITH_COMPILER, WITH_STUB]

CAUSAL = HopperBackwardKernel("float16", 64, True, parts=True)
FULL = HopperBackwardKernel("bfloat16", 64, False, parts=True)
WIDE = HopperBackwardKernel("bfloat16", 128, True, parts=True)
WIDE_FULL = HopperBackwardKernel("float16", 128, False, parts=True)
KERNELS = (CAUSAL, FULL, WIDE, WIDE_FULL)
SEEDS = tuple(Schedule(late_copies=True, late_products=True, seed=seed) for seed in (1, 2))
OVERLAPPING = dataclasses.replace(SHUFFLED, overlap=True)
SCHEDULES = (Schedule(), WAITING, RELEASING, SHUFFLED, *SEEDS, OVERLAPPING)
STORED = """    leave_sums(to, dk, p.scale);
    leave_sums(to + C::PART_BYTES / 2, dv, __int_as_float((int)opaque(0x3f800000u)));
"""
MISTAKES = tuple(
    Mutant(name, (), edits, CAUSAL)
    for name, edits in (
        (
            "a_part_that_is_counted_before_it_is_there",
            (
                (STORED, ""),
                ("    return before + 1 == 1 << p.part_bits;", f"{STORED}    return before + 1 == 1 << p.part_bits;"),
            ),
        ),
        ("the_first_part_writes", (("before + 1 == 1 << p.part_bits", "before == 0"),)),
        ("one_number_for_all_warps", ((" * C::READERS + warp_of_all", ""),)),
        ("keys_of_another_head", (("return C::PARTS ? head >> p.part_bits : head;", "return head;"),)),
    )
)
FROM = "sums_of_part(head_of_keys<C>(p, head) << p.part_bits, tile)"
STEP = "      from += (i64)(int)p.tiles.divisor * C::PART_BYTES;\n"
FROM_OWN_ON = """      const int parts = 1 << p.part_bits, own = (t.batch * (int)p.kv_heads.divisor + t.kv_head) % parts;
      from += (own + part + 1 == parts ? 1 - parts : 1) * (i64)(int)p.tiles.divisor * C::PART_BYTES;
"""
OWN_FIRST = Mutant("own_sums_first", (), ((FROM, "sums_of_part(head, tile)"), (STEP, FROM_OWN_ON)), CAUSAL)


program = program_with_stub(
    lambda folder: compile_backward90([*map(as_it_is, KERNELS), *MISTAKES, OWN_FIRST, *around(KERNELS)], folder)
)


def run(
    program: Backward90, posed: Posed, scratch: Path, entry: Mutant, parts: int, schedule: Schedule, blocks: int = 3
) -> Three:
    return run_with_sums(program, posed, scratch, schedule, blocks=blocks, entry=entry, parts=parts)[0]


def have_the_same_bits(a: Three, b: Three) -> bool:
    """Whether dK and dV do."""
    return all(torch.equal(x, y) for x, y in zip(a[1:], b[1:], strict=True))


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_parts_give_the_right_gradients_and_the_same_bits_however_they_are_timed(
    program: Backward90, tmp_path: Path, kernel: HopperBackwardKernel, parts: int
) -> None:
    posed = posed_for(kernel, 1, 4, 1, 200, 300, alignment="bottom-right")
    first = run(program, posed, tmp_path, as_it_is(kernel), parts, Schedule(), 1)
    assert_right(first, posed)
    for schedule, blocks in zip(SCHEDULES, (2, 3, 5, 12, 3, 2, 5), strict=True):
        found = run(program, posed, tmp_path, as_it_is(kernel), parts, schedule, blocks)
        assert_right(found, posed)
        assert have_the_same_bits(found, first), (schedule.name, blocks)


@pytest.mark.parametrize(("heads", "kv_heads", "parts"), [(8, 2, 2), (6, 1, 2), (8, 1, 8), (12, 3, 4)])
def test_parts_of_several_groups_and_batches_have_the_right_gradients(
    program: Backward90, tmp_path: Path, heads: int, kv_heads: int, parts: int
) -> None:
    posed = posed_for(CAUSAL, 2, heads, kv_heads, 150, 260)
    assert_right(run(program, posed, tmp_path, as_it_is(CAUSAL), parts, OVERLAPPING), posed)


@pytest.mark.parametrize("section", [1, 2, 4])
def test_parts_of_some_heads_after_those_of_others_have_the_right_gradients(
    program: Backward90, tmp_path: Path, section: int
) -> None:
    """With 6 heads of K, sections of 4 have 2 too many."""
    posed, entry = posed_for(CAUSAL, 2, 12, 3, 150, 260), as_it_is(CAUSAL)
    for schedule in (WAITING, OVERLAPPING):
        found, _ = run_with_sums(program, posed, tmp_path, schedule, entry=entry, parts=2, section=section)
        assert_right(found, posed)


@pytest.mark.parametrize("kernel", [CAUSAL, WIDE], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 1), (65, 127), (129, 40), (20, 300), (300, 65)])
def test_parts_have_the_right_gradients_around_the_edges_of_tiles(
    program: Backward90, tmp_path: Path, kernel: HopperBackwardKernel, seq_q: int, seq_k: int
) -> None:
    for alignment in ("top-left", "bottom-right"):
        posed = posed_for(kernel, 1, 2, 1, seq_q, seq_k, alignment=alignment)
        assert_right(run(program, posed, tmp_path, as_it_is(kernel), 2, SHUFFLED), posed)


def test_keys_that_no_query_sees_have_gradients_of_zero_from_all_parts(program: Backward90, tmp_path: Path) -> None:
    for kernel in (CAUSAL, WIDE):
        _, dk, dv = run(program, posed_for(kernel, 1, 4, 1, 10, 300), tmp_path, as_it_is(kernel), 4, RELEASING)
        assert not dk[:, :, 10:].any()
        assert not dv[:, :, 10:].any()
        posed = posed_for(kernel, 1, 2, 1, 300, 10, alignment="bottom-right")
        dq, _, _ = run(program, posed, tmp_path, as_it_is(kernel), 2, OVERLAPPING)
        assert not dq[:, :, :290].any()


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_about_parts_shows(program: Backward90, tmp_path: Path, mistake: Mutant) -> None:
    posed = posed_for(CAUSAL, 1, 4, 2, 200, 300, alignment="bottom-right")

    def is_wrong(schedule: Schedule, blocks: int) -> bool:
        try:
            assert_right(run(program, posed, tmp_path, mistake, 2, schedule, blocks), posed)
        except (AssertionError, Failed):
            return True
        return False

    assert any(is_wrong(schedule, blocks) for schedule in SCHEDULES for blocks in (3, 12))


def test_sums_that_begin_with_a_parts_own_differ_in_bits(program: Backward90, tmp_path: Path) -> None:
    posed = posed_for(CAUSAL, 1, 4, 1, 200, 300, alignment="bottom-right")
    first = run(program, posed, tmp_path, OWN_FIRST, 4, Schedule(), 1)
    assert_right(first, posed)
    found = [run(program, posed, tmp_path, OWN_FIRST, 4, one, blocks) for one in SCHEDULES for blocks in (5, 12)]
    assert not all(have_the_same_bits(one, first) for one in found)


def test_parts_have_no_race(tmp_path: Path, program: Backward90) -> None:
    """`program` only has the stub in place."""
    watched = compile_backward90([as_it_is(WIDE), *around([WIDE])], tmp_path, races=True)
    posed = posed_for(WIDE, 1, 2, 1, 200, 300, alignment="bottom-right")
    for schedule in (Schedule(), SHUFFLED):
        assert_right(run(watched, posed, tmp_path, as_it_is(WIDE), 2, schedule), posed)
