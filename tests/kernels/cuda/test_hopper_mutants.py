"""Mistakes that a pipeline of copies and products invites, put into copies of the Hopper kernel: each must be found."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.backward.few import FewBackwardKernel
from kernels.attention.cuda.backward.kernels import ConvertKernel, HopperBackwardKernel
from kernels.attention.cuda.backward.wide import WideBackwardKernel
from kernels.attention.cuda.plan.variants import SOURCE
from kernels.attention.cuda.ways.hopper_kernels import HopperKernel, Shape
from kernels.attention.cuda.ways.small_hopper import GroupKernel, GroupShape
from tests.kernels.cuda.compiled import WITH_COMPILER, Failed
from tests.kernels.cuda.hopper_cases import Case, attend, complaint, draw
from tests.kernels.cuda.hopper_runner import RELEASING, SHUFFLED, WAITING, HopperProgram, Schedule, compile_hopper
from tests.kernels.cuda.stub_driver import WITH_STUB, program_with_stub

pytestmark = [WITH_COMPILER, WITH_STUB]

Kernel = HopperKernel | GroupKernel | HopperBackwardKernel | ConvertKernel | FewBackwardKernel | WideBackwardKernel

KERNEL = HopperKernel("bfloat16", 64, True, False, Shape(2, 64, 2, ping_pong=True))
FEW_KEYS = GroupKernel("float16", 128, False, GroupShape(1, 4, 64, 4))
"""Its warpgroups leave their results where K and V were."""
STAGED = HopperKernel("bfloat16", 64, False, False, Shape(4, 64, 2, masks=2, sharers=2), "float32")
"""Its mask comes through shared memory, for two heads at once."""
BOOLEAN = HopperKernel("float16", 64, False, False, Shape(2, 64, 2, masks=2), "bool")
"""Its mask too, two elements at a time."""
NARROW = HopperKernel("bfloat16", 192, True, False, Shape(2, 64, 2, ping_pong=True), narrow=128)
"""Its V is narrower than K."""
FILES = {
    HopperKernel: (
        ("problem.cuh", "wgmma.cuh"),
        ("schedule.cuh", "mask.cuh", "bias.cuh", "producer.cuh", "consumer.cuh", "fa90.cuh"),
    ),
    GroupKernel: (("wgmma.cuh", "../small/exchange.cuh"), ("../small/warpgroups.cuh",)),
    HopperBackwardKernel: (
        (*(f"../backward/{name}.cuh" for name in ("instructions", "problem", "wgmma")), "../small/instructions.cuh"),
        ("../backward/order.cuh", "../backward/hopper.cuh"),
    ),
    ConvertKernel: (
        ("../backward/instructions.cuh", "../backward/problem.cuh", "../small/instructions.cuh"),
        ("../backward/convert.cuh",),
    ),
    FewBackwardKernel: (
        ("../backward/instructions.cuh", "../backward/prepare.cuh", "wgmma.cuh"),
        ("../backward/few.cuh",),
    ),
    WideBackwardKernel: (
        tuple(f"../backward/{name}.cuh" for name in ("ampere_sums", "hopper", "cluster")),
        ("../backward/wide.cuh",),
    ),
}
"""By kind of kernel: what it includes, and what mistakes are put into; from source/hopper."""
READ_EARLY = ("a product reads where a copy is under way",)
OVERWRITTEN = ("a copy overwrites what a product under way reads",)
WRONG = ("the output is off", "is not a number")
SCHEDULES = (WAITING, RELEASING, SHUFFLED, *(Schedule(late_products=True, seed=seed) for seed in (1, 2, 3)))


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A copy of the kernel in which each of `edits` (old text, new text) is made once; `found` is how it shows."""

    name: str
    found: tuple[str, ...]
    edits: tuple[tuple[str, str], ...]
    kernel: Kernel = KERNEL

    @property
    def threads(self) -> int:
        return self.kernel.threads

    @property
    def shared_bytes(self) -> int:
        return self.kernel.shared_bytes

    @property
    def source(self) -> str:
        """In a namespace, so that many fit one program."""
        includes, files = FILES[type(self.kernel)]
        text = "".join((SOURCE / "hopper" / name).read_text() for name in files)
        text = "\n".join(line for line in text.split("\n") if not line.startswith(("#include", "#pragma once")))
        text += "\n" + "\n".join(self.kernel.source.split("\n")[1:]).replace(self.kernel.name, self.name)
        for old, new in self.edits:
            assert text.count(old) == 1, f"{self.name}: {old!r} is there {text.count(old)} times"
            text = text.replace(old, new)
        included = "".join(f'#include "hopper/{name}"\n' for name in includes)
        return f"{included}namespace in_{self.name} {{\n{text}\n}}\nusing in_{self.name}::{self.name};\n"


def without(text: str) -> tuple[str, str]:
    return text, ""


FULL_V = "    start_scores(following.stage);\n    barrier_wait(barriers.v_full(place.stage), place.parity);\n"
FIRST_SCORES_END = "    warpgroup_wait<0>();\n    settled(score);\n    release(barriers.k_empty(place.stage));\n"
SCORES_END = (
    "    warpgroup_wait<1>();\n    settled(score);\n    release(barriers.k_empty(following.stage));\n"
    "    if (n == tile.first) release(barriers.q_empty());\n"
)
OUTPUT_END = (
    "    warpgroup_wait<0>();\n    if constexpr (C::FLOAT8)\n      settled(part);\n    else\n      settled(out);\n"
    "    release(barriers.v_empty(stage));\n"
)
STEP_END = "    end_output(place.stage);\n    pack_weights();\n"
K_EMPTY = "        barrier_wait(barriers.k_empty(place.stage), place.parity);\n"
Q_EMPTY = "          barrier_wait(barriers.q_empty(), q_parity);\n"
EXPECTED = "    barrier_arrive_expecting(full, C::SHARERS * CHUNKS * C::KV_CHUNK_BYTES);\n"
Q_COPY = "          copy_q(index, tile);\n          q_is_due = false;\n"


def lines(text: str, *order: int) -> tuple[str, str]:
    """The lines of a text in another order."""
    return text, "".join(text.splitlines(keepends=True)[i] for i in order)


def mutants(kernel: Kernel, *mistakes: tuple[str, tuple[str, ...], tuple[str, str]]) -> tuple[Mutant, ...]:
    """Copies of a kernel, one with each of these: its name, how it shows, and the edit."""
    return tuple(Mutant(name, found, (edit,), kernel) for name, found, edit in mistakes)


CONTROLS = (
    Mutant("as_it_is", (), ()),
    Mutant("mask_as_it_is", (), (), STAGED),
    Mutant("booleans_as_they_are", (), (), BOOLEAN),
    Mutant("a_narrow_v_as_it_is", (), (), NARROW),
)
MUTANTS = mutants(
    KERNEL,
    ("no_wait_for_v", READ_EARLY, lines(FULL_V, 0)),
    ("no_wait_for_k", READ_EARLY, without("    barrier_wait(barriers.k_full(following.stage), following.parity);\n")),
    ("no_wait_for_an_empty_k", ("one arrival too many", *OVERWRITTEN), without(K_EMPTY)),
    ("no_wait_for_an_empty_q", OVERWRITTEN, (Q_EMPTY + Q_COPY, Q_COPY)),
    ("k_released_while_it_is_read", OVERWRITTEN, lines(FIRST_SCORES_END, 2, 0, 1)),
    ("v_released_while_it_is_read", OVERWRITTEN, lines(OUTPUT_END, 5, 0, 1, 2, 3, 4)),
    ("q_released_before_its_last_read", OVERWRITTEN, lines(SCORES_END, 3, 0, 1, 2)),
    ("weights_overwritten_while_they_are_read", WRONG, lines(STEP_END, 1, 0)),
    (
        "scores_used_before_they_are_there",
        ("accumulators are used while a product is under way",),
        ("    warpgroup_wait<1>();\n", "    warpgroup_wait<2>();\n"),
    ),
    (
        "a_parity_that_never_flips",
        ("deadlock", *READ_EARLY, *OVERWRITTEN),
        ("Place{0, parity ^ 1}", "Place{0, parity}"),
    ),
    ("a_parity_that_begins_wrong", ("deadlock",), ("    u32 q_parity = 1;", "    u32 q_parity = 0;")),
    (
        "a_turn_not_passed",
        ("wait for named barrier",),
        ("    start_output(place.stage);\n    pass_turn();\n", "    start_output(place.stage);\n"),
    ),
    ("registers_not_given_away", ("wait for registers",), without("    fewer_registers<C::PRODUCER_REGISTERS>();\n")),
    (
        "too_few_bytes_expected",
        ("deadlock", *READ_EARLY, *OVERWRITTEN),
        (f"{EXPECTED}    if", f"{EXPECTED.replace('BYTES', 'BYTES / 2')}    if"),
    ),
    (
        "barriers_used_before_they_are_made",
        ("before it is initialised",),
        without("    named_sync(C::BARRIERS_READY, C::READY_THREADS);\n"),
    ),
    ("a_counter_left_behind", ("a counter is not zero",), without("      p.counter[0] = 0;\n")),
    (
        "a_slot_that_every_lane_reads",
        ("deadlock", "a counter is not zero", *WRONG),
        ("uniform(lane == 0 ? *tile_slot : 0)", "*tile_slot"),
    ),
    (
        "groups_of_eight_rows_in_the_wrong_place",
        WRONG,
        ("step * (16 * C::CHUNK_ROW_BYTES / UNITS)", "step * (8 * C::CHUNK_ROW_BYTES / UNITS)"),
    ),
)

READ_MASK = (
    "      if (C::STAGED) barrier_wait(barriers.mask_full(given.place.stage()), given.place.parity());"
    "  // `sees` waited for a bias\n      const u32 read = given.add_to(score, scale);\n"
)
MASK_MUTANTS = (
    *mutants(
        STAGED,
        ("mask_read_before_it_is_there", ("one arrival too many", *WRONG), lines(READ_MASK, 1)),
        (
            "no_wait_for_an_empty_mask",
            ("one arrival too many", *WRONG),
            without("      barrier_wait(barriers.mask_empty(place.stage()), place.parity());\n"),
        ),
        ("mask_never_released", ("deadlock",), without("      if (lane == 0) barrier_arrive_after(empty, read);\n")),
        ("a_sharer_of_another_mask", WRONG, ("    tile.batch += sharer;", "    tile.head ^= sharer;")),
        ("keys_of_the_other_sharer", WRONG, ("matrix(k_tiles + sharer * C::K_BYTES, 16)", "matrix(k_tiles, 16)")),
    ),
    *mutants(
        BOOLEAN,
        ("one_of_two_booleans_read", WRONG, ("seen & 0xff00 ?", "seen & 0xff ?")),
        ("booleans_read_before_they_are_there", ("one arrival too many", *WRONG), lines(READ_MASK, 1)),
    ),
)
NARROW_MUTANTS = mutants(
    NARROW,
    (
        "a_v_as_wide_as_k_copied",
        (*OVERWRITTEN, *WRONG, "access outside shared memory"),
        ("copy_tile<C::VALUE_CHUNKS>(to, v,", "copy_tile<C::CHUNKS>(to, v,"),
    ),
    (
        "stages_of_v_where_those_of_k_would_be",
        ("access outside shared memory",),
        ("stage * (C::V_STAGE_BYTES / UNITS)", "stage * (C::K_STAGE_BYTES / UNITS)"),
    ),
    (
        "v_begins_where_a_narrow_k_would_end",
        (*READ_EARLY, *OVERWRITTEN, *WRONG),
        ("v_tiles = k_tiles + C::STAGES * C::K_STAGE_BYTES,", "v_tiles = k_tiles + C::STAGES * C::V_STAGE_BYTES,"),
    ),
)

SMALL_CONTROL = Mutant("few_keys_as_it_is", (), (), FEW_KEYS)
SMALL_MUTANTS = mutants(
    FEW_KEYS,
    ("few_keys_no_wait_for_k", READ_EARLY, without("    barrier_wait(k_full(block), 0);\n")),
    ("few_keys_no_wait_for_v", READ_EARLY, without("    barrier_wait(v_full(block), 0);\n")),
    ("few_keys_no_wait_for_q", READ_EARLY, without("  barrier_wait(barriers + row_group * 8, 0);\n")),
    ("results_left_where_others_still_read", WRONG, ("      if constexpr (!C::OWN_PLACE) sync_block();", "      ")),
    (
        "results_picked_up_before_they_are_left",
        WRONG,
        without("      named_sync(1 + row_group, C::KEY_GROUPS * 128);\n"),
    ),
    (
        "barriers_of_others_used_before_they_are_made",
        ("before it is initialised",),
        ("  if (C::CLUSTER == 1) sync_block();", "  "),
    ),
)


folder = program_with_stub(lambda folder: folder)


@pytest.fixture(scope="module")
def program(folder: Path) -> HopperProgram:
    return compile_hopper((*CONTROLS, *MUTANTS, *MASK_MUTANTS, *NARROW_MUTANTS), "HopperParams", folder)


@pytest.fixture(scope="module")
def small_program(folder: Path) -> HopperProgram:
    return compile_hopper((SMALL_CONTROL, *SMALL_MUTANTS), "SmallParams", folder)


def complaints(program: HopperProgram, mutant: Mutant, scratch: Path) -> Iterator[str]:
    """What is wrong with a mutant's answers, under one schedule after the other that finds something."""
    if mutant.kernel is FEW_KEYS:
        problems = [(Case(), (1, 2, 1, 70, 250))]
    elif mutant.kernel is STAGED:  # what two batches share
        mask = torch.randn(1, 2, 140, 264, generator=torch.Generator().manual_seed(1))
        problems = [(Case(blocks=2, mask=mask), (2, 2, 1, 140, 264))]
    elif mutant.kernel is BOOLEAN:
        mask = torch.rand(2, 140, 272, generator=torch.Generator().manual_seed(1)) < 0.7
        problems = [(Case(blocks=2, mask=mask), (2, 2, 1, 140, 272))]
    else:  # many tiles a block; and tiles whose rows see nothing
        problems = [
            (Case(blocks=2), (1, 3, 1, 260, 260)),
            (Case(blocks=2, alignment="bottom-right"), (1, 1, 1, 1500, 70)),
        ]
    for schedule, (case, sizes) in itertools.product(SCHEDULES, problems):
        tensors = draw(mutant.kernel, *sizes)
        try:
            answer = attend(program, mutant.kernel, tensors, scratch, schedule, case, entry=mutant)
            what = complaint(mutant.kernel, tensors, case, *answer)
        except (Failed, AssertionError) as one:
            what = str(one)
        if what is not None:
            yield f"{schedule.name}: {what}"


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.name)
def test_the_kernel_as_it_is_has_nothing_to_complain_of(
    program: HopperProgram, tmp_path: Path, control: Mutant
) -> None:
    assert list(complaints(program, control, tmp_path)) == []


def test_the_kernel_for_few_keys_as_it_is_has_nothing_to_complain_of(
    small_program: HopperProgram, tmp_path: Path
) -> None:
    assert list(complaints(small_program, SMALL_CONTROL, tmp_path)) == []


@pytest.mark.parametrize("mutant", [*MUTANTS, *MASK_MUTANTS, *NARROW_MUTANTS], ids=lambda mutant: mutant.name)
def test_a_mistake_is_found_and_shows_as_what_it_is(program: HopperProgram, tmp_path: Path, mutant: Mutant) -> None:
    assert_found(complaints(program, mutant, tmp_path), mutant)


@pytest.mark.parametrize("mutant", SMALL_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_in_the_kernel_for_few_keys_is_found(
    small_program: HopperProgram, tmp_path: Path, mutant: Mutant
) -> None:
    assert_found(complaints(small_program, mutant, tmp_path), mutant)


def assert_found(found: Iterator[str], mutant: Mutant) -> None:
    """One of what was found is how the mistake shows."""
    seen = []
    for what in found:
        if any(words in what for words in mutant.found):
            return
        seen.append(what)
    pytest.fail(f"found, but not as what it is: {seen}" if seen else "no schedule finds it")


def test_a_deadlock_is_reported_with_who_waits_for_which_barrier(program: HopperProgram, tmp_path: Path) -> None:
    named = next(mutant for mutant in MUTANTS if mutant.name == "a_parity_that_begins_wrong")
    report = next(complaints(program, named, tmp_path))
    assert "threads 0-0 wait for parity 0 of barrier 1, which lacks 8 of 8 arrivals and 0 bytes" in report
    assert "threads 128-383 wait for parity 0 of barrier 0, which lacks 1 of 1 arrivals and 0 bytes" in report
