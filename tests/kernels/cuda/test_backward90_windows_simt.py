"""Hopper's backward pass with windows: a tile of keys meets only the queries whose windows it is in, and a tile of queries is
added to by only those tiles of keys, in their order if sums have one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.backward.kernels import ConvertKernel, HopperBackwardKernel, Order
from kernels.attention.cuda.backward.plan import HopperBackward
from kernels.attention.cuda.calls.quick import Options
from tests.kernels.cuda.backward90_runner import Backward90, around, compile_backward90, run_with_sums
from tests.kernels.cuda.backward_problems import MACHINE
from tests.kernels.cuda.backward_runner import Posed, Three, assert_right, pose, seen_of
from tests.kernels.cuda.compiled import WITH_COMPILER, Failed
from tests.kernels.cuda.hopper_runner import RELEASING, SHUFFLED, WAITING, Schedule
from tests.kernels.cuda.simt_ways import HostBuffers
from tests.kernels.cuda.stub_driver import WITH_STUB, program_with_stub
from tests.kernels.cuda.test_hopper_mutants import Mutant
from tests.kernels.cuda.test_races_simt import as_it_is

pytestmark = [WITH_COMPILER, WITH_STUB]

ANY, PARTS, ORDERED = ((Order.ANY, False), (Order.ANY, True), (Order.KEYS, False))
NARROW, NARROW_PARTS, NARROW_ORDERED = (
    HopperBackwardKernel("float16", 64, True, *kind, window=True) for kind in (ANY, PARTS, ORDERED)
)
WIDE, WIDE_PARTS, WIDE_ORDERED = (
    HopperBackwardKernel("bfloat16", 128, True, *kind, window=True) for kind in (ANY, PARTS, ORDERED)
)
KERNELS = (NARROW, NARROW_PARTS, NARROW_ORDERED, WIDE, WIDE_PARTS, WIDE_ORDERED)
OVERLAPPING = Schedule(late_copies=True, late_products=True, reverse=True, seed=5, overlap=True)
ONE_AFTER_ANOTHER = Schedule(greedy=True, resident=1)
SCHEDULES = (Schedule(), WAITING, RELEASING, SHUFFLED, OVERLAPPING, Schedule(overlap=True), ONE_AFTER_ANOTHER)


def mistake(name: str, old: str, new: str, kernel: HopperBackwardKernel | ConvertKernel = NARROW) -> Mutant:
    return Mutant(name, (), ((old, new),), kernel)


FIRST = "first = WINDOW ? min(first_keys(p, tile * QUERIES, KEYS), seen) : 0"
TURN = "    if (C::WINDOW) turn -= first_keys(p, tile % p.query_tiles * C::QUERIES, C::KEYS);\n"
END = "t.end = seen_to < 0 ? 0 : min(seen_to / C::QUERIES + 1, p.query_tiles);"
CONVERT = ConvertKernel("float16", 64, window=True)
CONVERT_ORDERED = ConvertKernel("float16", 64, ordered=True, window=True)
MISTAKES = (
    mistake("keys_before_the_window_are_seen", "      if (limited) limit(", "      if (false) limit("),
    mistake("one_tile_fewer_is_limited", "(free_to + 1) / C::QUERIES;", "(free_to + 1) / C::QUERIES + 1;"),
    mistake("windows_that_are_a_key_shorter", "if (8 * i + e > last)", "if (8 * i + e >= last)"),
    mistake("windows_that_are_a_key_longer", "if (8 * i + e > last)", "if (8 * i + e > last + 1)"),
    mistake("an_end_that_is_a_tile_early", END, END.replace(" + 1,", ",")),
    mistake("an_end_below_the_first_query", "seen_to < 0 ? 0 : ", "", NARROW_ORDERED),
    mistake("copies_for_all_queries", ": n < end_of<C>(p, t)) {", ": n < p.query_tiles) {"),
    mistake("sums_that_are_neither_stored_nor_cleared", "p.seq_q + p.below <= p.seq_k", "p.seq_q + p.below < p.seq_k"),
    mistake("turns_from_the_first_keys_of_all", TURN, "", NARROW_ORDERED),
    mistake(
        "turns_by_the_query_of_another_head", "tile % p.query_tiles * C::QUERIES", "tile * C::QUERIES", NARROW_ORDERED
    ),
    mistake(
        "a_start_at_the_last_query_of_all",
        "end_of<C>(p, t) - 1 : t.first;\n      const",
        "p.query_tiles - 1 : t.first;\n      const",
        NARROW_ORDERED,
    ),
    mistake("sums_that_wait_for_keys_before_the_window", FIRST, "first = 0", CONVERT),
    mistake(
        "sums_that_miss_the_first_keys",
        FIRST,
        FIRST.replace("(first_keys(p, tile * QUERIES, KEYS), seen)", "(first_keys(p, tile * QUERIES, KEYS) + 1, seen)"),
        CONVERT,
    ),
    mistake("turns_that_are_all_awaited", FIRST, "first = 0", CONVERT_ORDERED),
)


program = program_with_stub(
    lambda folder: compile_backward90([*map(as_it_is, KERNELS), *MISTAKES, *around(KERNELS)], folder)
)


def posed_for(
    kernel: HopperBackwardKernel, sizes: Sequence[int], window: tuple[int, int], alignment: str = "top-left"
) -> Posed:
    """`sizes`: batch, heads, heads of K and V, rows, keys, and the head dimension if not the kernel's."""
    batch, heads, kv_heads, seq_q, seq_k, head_dim = (*sizes, kernel.head_dim)[:6]
    options = Options(window=window, alignment=alignment)
    return pose(getattr(torch, kernel.dtype), batch, heads, kv_heads, seq_q, seq_k, head_dim, options)


def run(
    program: Backward90, posed: Posed, scratch: Path, entry: Mutant, schedule: Schedule, blocks: int = 3
) -> tuple[Three, torch.Tensor]:
    """The gradients and dQ's sums; the mistake may be in the kernel or in the one that converts the sums."""
    kernel = entry.kernel
    if isinstance(kernel, ConvertKernel):
        main = NARROW_ORDERED if kernel.ordered else NARROW
        how = {"order": main.order, "entry": as_it_is(main), "convert": entry}
    else:
        assert isinstance(kernel, HopperBackwardKernel)
        how = {"order": kernel.order, "entry": entry, "parts": 2 if kernel.parts else None}
    return run_with_sums(program, posed, scratch, schedule, blocks=blocks, **how)  # type: ignore[arg-type]


def have_the_same_bits(a: tuple[Three, torch.Tensor], b: tuple[Three, torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip((*a[0], a[1]), (*b[0], b[1]), strict=True))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_windows_have_the_right_gradients_however_blocks_and_copies_are_timed(
    program: Backward90, tmp_path: Path, kernel: HopperBackwardKernel
) -> None:
    """And the same bits, if sums have an order: the sums themselves too, which were NaN at first."""
    posed = posed_for(kernel, (1, 2, 1, 450, 500), (150, 0), "bottom-right")
    first = run(program, posed, tmp_path, as_it_is(kernel), Schedule(), 1)
    assert_right(first[0], posed)
    for schedule, blocks in zip(SCHEDULES, (2, 3, 5, 12, 3, 2, 5), strict=True):
        found = run(program, posed, tmp_path, as_it_is(kernel), schedule, blocks)
        assert_right(found[0], posed)
        if kernel.order is Order.KEYS:
            assert have_the_same_bits(found, first), (schedule.name, blocks)


EDGES = (
    ((1, 1, 1, 1, 1), (0, 0)),
    ((1, 2, 1, 300, 300), (0, 0)),  # a query sees one key
    ((1, 2, 1, 300, 300), (127, 0)),
    ((1, 2, 1, 300, 300), (128, 0)),
    ((1, 2, 1, 300, 300), (1000, 0)),  # a window that hides nothing
    ((1, 2, 1, 257, 400), (60, 70)),  # a limit on the right too
    ((1, 2, 1, 260, 300), (90, -1)),  # and none
    ((1, 2, 1, 600, 200), (100, 0)),  # the last queries, or the first, see no key; nor do any of their tiles
    ((1, 2, 1, 60, 700), (40, 0)),  # most keys are seen by no query
    ((2, 2, 2, 130, 300, 40), (33, 0)),
)


@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
@pytest.mark.parametrize(("sizes", "window"), EDGES, ids=str)
def test_windows_around_the_edges_of_tiles_have_the_right_gradients(
    program: Backward90, tmp_path: Path, sizes: tuple[int, ...], window: tuple[int, int], alignment: str
) -> None:
    kernels = KERNELS if len(sizes) == 5 else KERNELS[:3]
    for kernel in kernels if sizes[1] > sizes[2] else (one for one in kernels if not one.parts):
        posed = posed_for(kernel, sizes, window, alignment)
        gradients = run(program, posed, tmp_path, as_it_is(kernel), OVERLAPPING)[0]
        seen = seen_of(*sizes[3:5], posed.options)
        if window == (
            0,
            0,
        ):  # one key a query: its weight is 1 whatever the scores, so that dQ and dK are rounding alone
            assert max(float(x.abs().max()) for x in gradients[:2]) < 1e-2
            continue
        assert_right(gradients, posed)
        assert not gradients[0][:, :, ~seen.any(1)].any()
        assert not any(x[:, :, ~seen.any(0)].any() for x in gradients[1:])


def test_random_windows_have_the_right_gradients(program: Backward90, tmp_path: Path) -> None:
    chance = random.Random(7)
    for _ in range(40):
        kernel, group = chance.choice(KERNELS), chance.choice((2, 4))
        sizes = (chance.choice((1, 2)), group, 1, chance.randint(16, 520), chance.randint(16, 520))
        window = (chance.choice((17, 31, 64, 127, 128, 200, 300)), chance.choice((0, 0, 0, 5, 130, -1)))
        posed = posed_for(kernel, sizes, window, chance.choice(("top-left", "bottom-right")))
        schedule = chance.choice(SCHEDULES)
        gradients = run(program, posed, tmp_path, as_it_is(kernel), schedule, chance.choice((1, 2, 3, 7)))[0]
        if posed.exact[0].any():
            assert_right(gradients, posed)
        else:
            assert not any(x.any() for x in gradients)


def test_sums_are_cleared_only_where_some_queries_meet_no_tile_of_keys(program: Backward90, tmp_path: Path) -> None:
    for seq_q, alignment, keeps in (
        (300, "top-left", True),
        (400, "top-left", True),  # the last query sees the last key
        (401, "top-left", False),
        (900, "top-left", False),
        (300, "bottom-right", True),
        (301, "bottom-right", False),
    ):
        posed = posed_for(NARROW, (1, 2, 1, seq_q, 300), (100, 0), alignment)
        steps = HopperBackward(MACHINE).steps(posed.problem(posed.gradients()), HostBuffers())  # type: ignore[arg-type]
        assert steps[0].entry.name.endswith("_keeps") == keeps
        for kernel in (NARROW, NARROW_ORDERED):
            assert_right(run(program, posed, tmp_path, as_it_is(kernel), SHUFFLED)[0], posed)


PROBLEMS = (
    ((1, 2, 1, 450, 500), (150, 0), "bottom-right"),
    ((1, 2, 1, 450, 450), (63, 0), "top-left"),
    ((1, 2, 1, 60, 700), (40, 0), "bottom-right"),
    ((1, 2, 1, 600, 200), (100, 0), "top-left"),
    ((1, 2, 1, 400, 300), (100, 0), "top-left"),
)


@pytest.mark.parametrize("mutant", MISTAKES, ids=lambda mutant: mutant.name)
def test_a_mistake_about_windows_shows(program: Backward90, tmp_path: Path, mutant: Mutant) -> None:
    def is_wrong(posed: Posed, schedule: Schedule, blocks: int) -> bool:
        try:
            assert_right(run(program, posed, tmp_path, mutant, schedule, blocks)[0], posed)
        except (AssertionError, Failed):
            return True
        return False

    posed = [posed_for(NARROW, *problem) for problem in PROBLEMS]
    assert any(is_wrong(one, schedule, blocks) for one in posed for schedule in SCHEDULES for blocks in (3, 12))


def test_windows_have_no_race(tmp_path: Path, program: Backward90) -> None:
    """`program` only has the stub in place."""
    kernels = (NARROW_ORDERED, WIDE, WIDE_PARTS)
    watched = compile_backward90([*map(as_it_is, kernels), *around(kernels)], tmp_path, races=True)
    for kernel in kernels:
        posed = posed_for(kernel, (1, 2, 1, 300, 400), (150, 0), "bottom-right")
        for schedule in (Schedule(), SHUFFLED):
            assert_right(run(watched, posed, tmp_path, as_it_is(kernel), schedule)[0], posed)
