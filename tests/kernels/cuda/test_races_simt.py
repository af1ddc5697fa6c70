"""Every Hopper kernel's accesses to shared memory are in an order that barriers give, whatever order they happened in.

The rules are those of `simt/simt_races.h`; what copies, products and additions read and write counts too. The mistakes
below leave results right on the CPU, and mostly on a GPU, so nothing but this order tells them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.backward.few import FewBackwardKernel
from kernels.attention.cuda.backward.kernels import HopperBackwardKernel, Order
from kernels.attention.cuda.ways.hopper_kernels import HopperKernel, Shape
from kernels.attention.cuda.ways.small_hopper import GroupKernel, GroupShape
from tests.kernels.cuda.backward90_runner import (
    Backward90,
    around,
    compile_backward90,
    run_backward90,
    run_few,
    run_with_sums,
)
from tests.kernels.cuda.backward_runner import RELATIVE, errors
from tests.kernels.cuda.compiled import WITH_COMPILER, Failed
from tests.kernels.cuda.hopper_cases import Case, attend, draw
from tests.kernels.cuda.hopper_runner import RELEASING, SHUFFLED, HopperProgram, Schedule, compile_hopper
from tests.kernels.cuda.stub_driver import WITH_STUB, program_with_stub
from tests.kernels.cuda.test_backward90_simt import posed_for
from tests.kernels.cuda.test_hopper_mutants import OUTPUT_END, Mutant, lines, without

pytestmark = [WITH_COMPILER, WITH_STUB]


def as_it_is(kernel: HopperKernel | GroupKernel | HopperBackwardKernel | FewBackwardKernel) -> Mutant:
    """In a namespace of its own too, so that it fits one program with copies of itself."""
    return Mutant(f"{kernel.name}_as_it_is", (), (), kernel)


RACE, UNFENCED = "a race: ", "a write without its fence: "
STILL_TO_READ = "a copy over what a load may still have to read: "

# ---- the backward pass

BACKWARD = tuple(
    HopperBackwardKernel(dtype, size, causal)
    for dtype, size, causal in (("bfloat16", 64, True), ("float16", 128, False))
)
SLOPE_READY = "      named_sync(slope_ready(stage ^ 1, warpgroup), C::PAIR_THREADS);\n"
LAST_SLOPE_READY = "    named_sync(slope_ready(stage, warpgroup), C::PAIR_THREADS);\n"
SLOPES_TOLD = "    publish_shared();\n    named_arrive(slope_ready(stage, warpgroup ^ 1), C::PAIR_THREADS);\n"
ADDED = (
    "      additions_commit();\n      additions_have_read();\n    }\n    sync_warp();\n    named_arrive(C::SUM_EMPTY"
)
TAKEN = "    named_sync(C::SUM_FULL + warpgroup, C::SUM_THREADS);\n    const u64 told = load_shared_address(sum_to);\n"
TOLD = "    publish_shared();\n    if constexpr (C::ORDERED)\n      named_arrive(C::SUM_FULL + stage"
QUERIES_READ = "    warpgroup_wait<0>();\n    settled(dk);\n    release(barriers.q_empty(stage));\n"
VALUES_READ = "    warpgroup_wait<0>();\n    settled(d);\n    if (last) release(barriers.v_empty());\n"
ALL_SEEN = (
    "      BackwardTile t;\n      backward_tile_of<C>(p, work(present), t);\n      if (t.first >= end_of<C>(p, t)) {"
)
KEYS_READ = "    warpgroup_wait<0>();\n    settled(dq);\n    release(barriers.k_empty());\n"
SUM_EMPTY = "    named_sync(C::SUM_EMPTY + (C::ORDERED ? C::WARPGROUPS * stage : 0) + warpgroup, C::SUM_THREADS);\n"
BACKWARD_MISTAKES = (
    *(
        Mutant(name, (found,), (edit,), BACKWARD[0])
        for name, found, edit in (
            ("no_barrier_between_slopes_and_their_product", RACE, without(SLOPE_READY)),
            ("no_barrier_between_the_last_slopes_and_their_product", RACE, without(LAST_SLOPE_READY)),
            (
                "one_place_for_the_slopes_of_two_tiles",
                RACE,
                ("memory + C::SLOPE + stage * C::SLOPE_BYTES + row", "memory + C::SLOPE + row"),
            ),
            ("slopes_not_told_to_products", UNFENCED, lines(SLOPES_TOLD, 1)),
            ("sums_not_told_to_the_addition", UNFENCED, lines(TOLD, 1, 2)),
            ("sums_stored_while_they_are_read", RACE, without(SUM_EMPTY)),
            ("sums_given_back_while_they_are_read", RACE, lines(ADDED, 0, 2, 3, 4)),
            ("an_address_read_before_it_is_there", RACE, lines(TAKEN, 1, 0)),
            ("queries_given_back_while_they_are_read", RACE, lines(QUERIES_READ, 2, 0, 1)),
            ("keys_given_back_while_they_are_read", RACE, lines(KEYS_READ, 2, 0, 1)),
            ("values_given_back_while_they_are_read", RACE, lines(VALUES_READ, 2, 0, 1)),
            ("barriers_used_before_they_are_made", "does not know that it is made", without("  sync_block();\n")),
            (
                "a_block_that_ends_before_its_additions",
                "an addition is still under way",
                ("        additions_done();\n        count_up(", "        count_up("),
            ),
        )
    ),
    Mutant(
        "values_read_before_they_are_there",
        (RACE,),
        (without("      barrier_wait(barriers.v_full(), place.k_parity());\n"),),
        BACKWARD[1],
    ),
    Mutant(
        "keys_given_back_before_the_last_look_at_the_work",
        (RACE,),
        (
            (ALL_SEEN, "      release(barriers.k_empty());\n" + ALL_SEEN),
            ("    settled(dq);\n    release(barriers.k_empty());\n", "    settled(dq);\n"),
        ),
        BACKWARD[0],
    ),
)


folder = program_with_stub(lambda folder: folder)


@pytest.fixture(scope="module")
def backward(folder: Path) -> Backward90:
    return watched(BACKWARD, BACKWARD_MISTAKES, folder)


def watched(kernels: Sequence[HopperBackwardKernel], mistakes: Sequence[Mutant], folder: Path) -> Backward90:
    """The kernels, copies with mistakes in them, and what is launched before and after them, watched for races."""
    return compile_backward90([*map(as_it_is, kernels), *mistakes, *around(kernels)], folder, races=True)


@pytest.mark.parametrize("kernel", BACKWARD, ids=lambda kernel: kernel.name)
def test_the_backward_pass_has_no_race(backward: Backward90, tmp_path: Path, kernel: HopperBackwardKernel) -> None:
    """The problem of which compute-sanitizer's racecheck has something to say."""
    posed = posed_for(kernel, 1, 2, 1, 200, 300, alignment="bottom-right")
    for schedule in (Schedule(), SHUFFLED):
        found = errors(run_backward90(backward, posed, tmp_path, schedule, entry=as_it_is(kernel)), posed.exact)
        assert all(error <= RELATIVE[posed.out.dtype] for error in found)


@pytest.mark.parametrize("mistake", BACKWARD_MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_in_the_order_of_the_backward_pass_is_found(
    backward: Backward90, tmp_path: Path, mistake: Mutant
) -> None:
    posed = posed_for(BACKWARD[0], 1, 2, 1, 200, 300)
    with pytest.raises(Failed, match=mistake.found[0]):
        run_backward90(backward, posed, tmp_path, RELEASING, entry=mistake)


# ---- the backward pass with its sums in an order

ORDERED = (
    *(HopperBackwardKernel(one.dtype, one.head_dim, one.causal, Order.KEYS) for one in BACKWARD),
    HopperBackwardKernel("float16", 64, False, Order.CYCLIC),
)
TAKEN_IN_TURN = "C::SUM_BYTES);\n      additions_commit();\n      additions_have_read();\n    }\n    sync_warp();\n"
READ_IN_TURN = (
    "    named_sync(C::SUM_FULL + own, C::TILE_THREADS);\n    const u64 share = load_shared_address(told + 8 * own);\n"
)
ORDERED_MISTAKES = tuple(
    Mutant(name, (found,), (edit,), ORDERED[0])
    for name, found, edit in (
        ("sums_in_turn_given_back_while_they_are_read", RACE, lines(TAKEN_IN_TURN, 0, 1, 3, 4)),
        ("sums_in_turn_not_told_to_the_addition", UNFENCED, lines(TOLD, 1, 2)),
        ("a_tile_read_before_it_is_there", RACE, lines(READ_IN_TURN, 1, 0)),
    )
)


@pytest.fixture(scope="module")
def in_turn(folder: Path) -> Backward90:
    return watched(ORDERED, ORDERED_MISTAKES, folder)


@pytest.mark.parametrize("kernel", ORDERED, ids=lambda kernel: kernel.name)
def test_sums_in_an_order_have_no_race(in_turn: Backward90, tmp_path: Path, kernel: HopperBackwardKernel) -> None:
    posed = posed_for(kernel, 1, 2, 1, 200, 300, alignment="bottom-right")
    for schedule in (Schedule(), SHUFFLED):
        found = run_with_sums(in_turn, posed, tmp_path, schedule, entry=as_it_is(kernel), order=kernel.order, blocks=3)[
            0
        ]
        assert all(error <= RELATIVE[posed.out.dtype] for error in errors(found, posed.exact))


@pytest.mark.parametrize("mistake", ORDERED_MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_in_the_order_of_sums_is_found(in_turn: Backward90, tmp_path: Path, mistake: Mutant) -> None:
    posed = posed_for(ORDERED[0], 1, 2, 1, 200, 300)
    with pytest.raises(Failed, match=mistake.found[0]):
        run_with_sums(in_turn, posed, tmp_path, RELEASING, entry=mistake, order=Order.KEYS)


# ---- the backward pass in one launch

ONE_LAUNCH = (FewBackwardKernel("bfloat16", 64, 64, True), FewBackwardKernel("float16", 128, 128, False))
TILE_READ = (
    "    warpgroup_wait<0>();\n    settled(first);\n    settled(second);\n"
    "    sync_warp();  // all lanes have read the tile's numbers\n"
    "    if (lane() == 0) barrier_arrive(barriers.empty(stage));\n"
)
LANDED = "          barrier_wait(barriers.out(place.stage()), place.parity());\n"
LEFT = "    named_sync(C::BOTH, C::PAIR_THREADS);  // all have done with the tiles that lay here\n"
THERE = "    named_sync(C::BOTH, C::PAIR_THREADS);\n    if constexpr (KEYS) {\n"
ONE_LAUNCH_MISTAKES = tuple(
    Mutant(name, (found,), (edit,), ONE_LAUNCH[0])
    for name, found, edit in (
        ("a_tile_given_back_while_it_is_read", RACE, lines(TILE_READ, 3, 4, 0, 1, 2)),
        ("numbers_told_of_by_one_lane_for_all", RACE, ("    sync_warp();\n  }\n", "  }\n")),
        ("a_tile_given_back_by_one_lane_for_all", RACE, lines(TILE_READ, 0, 1, 2, 4)),
        (
            "numbers_read_before_they_are_there",
            RACE,
            without("    if constexpr (KEYS) barrier_wait(barriers.numbers(stage), place.parity());\n"),
        ),
        (
            "numbers_of_kept_rows_read_before_they_are_there",
            RACE,
            without("        barrier_wait(barriers.numbers(), 0);\n"),
        ),
        ("sums_of_a_tile_that_has_not_landed", RACE, without(LANDED)),
        ("results_left_where_tiles_are_read", RACE, without(LEFT)),
        ("results_added_before_they_are_left", RACE, lines(THERE, 1)),
        (
            "barriers_of_one_launch_used_before_they_are_made",
            "does not know that it is made",
            without("  sync_block();\n"),
        ),
    )
)


@pytest.fixture(scope="module")
def one_launch(folder: Path) -> Backward90:
    return compile_backward90([*map(as_it_is, ONE_LAUNCH), *ONE_LAUNCH_MISTAKES], folder, races=True)


@pytest.mark.parametrize("kernel", ONE_LAUNCH, ids=lambda kernel: kernel.name)
def test_the_backward_pass_in_one_launch_has_no_race(
    one_launch: Backward90, tmp_path: Path, kernel: FewBackwardKernel
) -> None:
    posed = posed_for(kernel, 1, 128 // kernel.head_dim, 1, 280, 300, alignment="bottom-right")
    for schedule in (Schedule(), SHUFFLED):
        found = errors(run_few(one_launch, posed, kernel.rows, tmp_path, schedule, entry=as_it_is(kernel)), posed.exact)
        assert all(error <= RELATIVE[posed.out.dtype] for error in found)


@pytest.mark.parametrize("mistake", ONE_LAUNCH_MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_in_the_order_of_the_one_launch_is_found(
    one_launch: Backward90, tmp_path: Path, mistake: Mutant
) -> None:
    posed = posed_for(ONE_LAUNCH[0], 1, 2, 1, 280, 300)
    with pytest.raises(Failed, match=mistake.found[0]):
        run_few(one_launch, posed, ONE_LAUNCH[0].rows, tmp_path, Schedule(), entry=mistake)


# ---- the forward pass

FORWARD = (
    HopperKernel("bfloat16", 64, True, False, Shape(2, 64, 2, ping_pong=True)),
    HopperKernel("float16", 128, True, False, Shape(3, 64, 2)),
    HopperKernel("float16", 64, True, True, Shape(2, 64, 2)),
    HopperKernel("bfloat16", 64, False, False, Shape(2, 64, 2, ping_pong=True), "bool"),
    HopperKernel("bfloat16", 64, True, False, Shape(2, 64, 2, masks=2), "bfloat16"),
    HopperKernel("bfloat16", 256, False, False, Shape(2, 64, 2, masks=1), "bfloat16"),
    HopperKernel("bfloat16", 256, True, False, Shape(2, 48, 2, masks=2), "float32"),
    HopperKernel("float16", 256, True, True, Shape(2, 64, 2, masks=2), "bool"),
    HopperKernel("bfloat16", 64, False, True, Shape(2, 64, 2, masks=2), "bfloat16"),
    HopperKernel("bfloat16", 64, False, False, Shape(4, 64, 2, masks=2, sharers=2), "float32"),
)
READ_MASK = "      const u32 read = given.add_to(score, scale);\n      pass_mask(read);\n"
PASSED_MASK = "      const auto read = given;\n      pass_mask();\n      read.add_to(score, scale);\n"
FENCES = "    if constexpr (C::STAGED && BY_FENCE) stores_before_products();\n"
ARRIVES_AFTER = "if (lane == 0) barrier_arrive_after(empty, read);"
FORWARD_MISTAKES = tuple(
    Mutant(name, (found,), (edit,), kernel)
    for name, found, edit, kernel in (
        ("v_given_back_while_it_is_read", RACE, lines(OUTPUT_END, 5, 0, 1, 2, 3, 4), FORWARD[1]),
        ("a_slot_that_every_lane_reads", RACE, ("uniform(lane == 0 ? *tile_slot : 0)", "*tile_slot"), FORWARD[1]),
        ("a_mask_given_back_without_its_fence", STILL_TO_READ, without(FENCES), FORWARD[-2]),
        ("a_mask_given_back_before_it_is_read", RACE, (READ_MASK, PASSED_MASK), FORWARD[-1]),
        (
            "a_mask_given_back_as_soon_as_its_loads_are_issued",
            STILL_TO_READ,
            (ARRIVES_AFTER, "release(empty);"),
            FORWARD[-1],
        ),
    )
)


@pytest.fixture(scope="module")
def forward(folder: Path) -> HopperProgram:
    return compile_hopper((*map(as_it_is, FORWARD), *FORWARD_MISTAKES), "HopperParams", folder, races=True)


def window_of(kernel: HopperKernel) -> tuple[int, int | None] | None:
    return (70, 5 if kernel.right else None) if kernel.left else None


def mask_for(kernel: HopperKernel, rows: int, keys: int) -> torch.Tensor | None:
    return torch.ones(1, 1, rows, keys).tril(100).to(getattr(torch, kernel.mask)) if kernel.mask else None


@pytest.mark.parametrize("kernel", FORWARD, ids=lambda kernel: kernel.name)
def test_the_forward_pass_has_no_race(forward: HopperProgram, tmp_path: Path, kernel: HopperKernel) -> None:
    case = Case(blocks=2, window=window_of(kernel), mask=mask_for(kernel, 300, 304))
    attend(forward, kernel, draw(kernel, 1, 2, 1, 300, 304), tmp_path, SHUFFLED, case, entry=as_it_is(kernel))


@pytest.mark.parametrize("mistake", FORWARD_MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_in_the_order_of_the_forward_pass_is_found(
    forward: HopperProgram, tmp_path: Path, mistake: Mutant
) -> None:
    kernel = mistake.kernel
    assert isinstance(kernel, HopperKernel)
    heads = 3 if kernel.mask is None else 2  # which come in pairs where they share a mask
    tensors = draw(kernel, 1, heads, 1, 260, 264)
    case = Case(blocks=2, window=window_of(kernel), mask=mask_for(kernel, 260, 264))
    with pytest.raises(Failed, match=mistake.found[0]):
        attend(forward, kernel, tensors, tmp_path, Schedule(), case, entry=mistake)


# ---- few keys

FEW = (
    GroupKernel("float16", 128, False, GroupShape(1, 4, 64, 4)),
    GroupKernel("bfloat16", 64, True, GroupShape(2, 1, 64, 2)),
    GroupKernel("bfloat16", 64, False, GroupShape(1, 2, 128, 4, ahead=False)),
)
FEW_MISTAKES = (
    Mutant(
        "results_left_where_others_still_read",
        (RACE,),
        (("      if constexpr (!C::OWN_PLACE) sync_block();", "      "),),
        FEW[0],
    ),
    Mutant(
        "results_picked_up_before_they_are_left",
        (RACE,),
        (without("      named_sync(1 + row_group, C::KEY_GROUPS * 128);\n"),),
        FEW[0],
    ),
)


@pytest.fixture(scope="module")
def few(folder: Path) -> HopperProgram:
    return compile_hopper((*map(as_it_is, FEW), *FEW_MISTAKES), "SmallParams", folder, races=True)


@pytest.mark.parametrize("kernel", FEW, ids=lambda kernel: kernel.name)
def test_the_kernels_for_few_keys_have_no_race(few: HopperProgram, tmp_path: Path, kernel: GroupKernel) -> None:
    keys = kernel.shape.all_keys
    attend(few, kernel, draw(kernel, 1, 2, 1, keys - 3, keys - 3), tmp_path, SHUFFLED, Case(), entry=as_it_is(kernel))


@pytest.mark.parametrize("mistake", FEW_MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_in_the_order_of_a_kernel_for_few_keys_is_found(
    few: HopperProgram, tmp_path: Path, mistake: Mutant
) -> None:
    with pytest.raises(Failed, match=mistake.found[0]):
        attend(few, FEW[0], draw(FEW[0], 1, 2, 1, 70, 250), tmp_path, Schedule(), Case(), entry=mistake)
