"""Masks that are the same for all rows, on the Hopper kernel that reads one number for each key; on the CPU, by float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.plan.planning import Layout, Machine, Mask, Problem
from kernels.attention.cuda.ways import hopper
from kernels.attention.cuda.ways.dispatch import choose_way
from kernels.attention.cuda.ways.hopper_kernels import HEAD_DIMS, HopperKernel, Shape, bias_shapes
from tests.kernels.cuda.compiled import WITH_COMPILER, Failed
from tests.kernels.cuda.hopper_cases import Case, Tensors, attend, complaint, draw
from tests.kernels.cuda.hopper_runner import RELEASING, SHUFFLED, WAITING, HopperProgram, Schedule, compile_hopper
from tests.kernels.cuda.stub_driver import HOPPER, WITH_STUB, program_with_stub
from tests.kernels.cuda.test_hopper_mutants import SCHEDULES, WRONG, Mutant, lines, mutants, without

pytestmark = [WITH_COMPILER, WITH_STUB]

FLOAT = HopperKernel("bfloat16", 64, False, False, Shape(3, 128, 2, ping_pong=True, biases=4), "float32")
BOOL = HopperKernel("bfloat16", 64, True, False, Shape(4, 64, 3, ping_pong=True, biases=4), "bool")
HALF = HopperKernel("float16", 128, False, False, Shape(2, 176, 2, biases=4), "float16")
WINDOW = HopperKernel("bfloat16", 128, True, True, Shape(2, 64, 2, biases=4), "bfloat16")
TAIL = HopperKernel("float16", 64, False, True, Shape(2, 128, 3, ping_pong=True, biases=4), "bool")
WIDE = HopperKernel("bfloat16", 256, True, False, Shape(2, 64, 2, biases=4), "float32")
WIDE_WINDOW = HopperKernel("bfloat16", 256, True, True, bias_shapes(256, True, True)[0], "bfloat16")
NARROW = HopperKernel("bfloat16", 192, True, False, bias_shapes(192, True, False)[0], "float32", narrow=128)
KERNELS = (FLOAT, BOOL, HALF, WINDOW, TAIL, WIDE, WIDE_WINDOW, NARROW)
DTYPES = {"bool": torch.bool, "float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
MACHINE = Machine(HOPPER, 132, 50 << 20, hopper=True)
HIDDEN = ("some", "behind", "before", "between", "all", "but two")


folder = program_with_stub(lambda folder: folder)


@pytest.fixture(scope="module")
def program(folder: Path) -> HopperProgram:
    return compile_hopper(KERNELS, "HopperParams", folder)


def mask_for(kernel: HopperKernel, shape: tuple[int, ...], hidden: str) -> torch.Tensor:
    """A third of the keys hidden, and as `hidden` says whole stretches; other numbers are drawn."""
    assert kernel.mask is not None
    generator, keys = torch.Generator().manual_seed(sum(shape)), shape[-1]
    away = torch.rand(shape, generator=generator) < 0.3
    places = {"behind": [(keys // 3, keys)], "before": [(0, 2 * keys // 3)], "between": [(keys // 5, 4 * keys // 5)]}
    places |= {"all": [(0, keys)], "but two": [(0, keys // 2), (keys // 2 + 2, keys)]}
    if hidden == "but two":
        away[..., keys // 2 : keys // 2 + 2] = False
    for begin, end in places.get(hidden, []):
        away[..., begin:end] = True
    if kernel.mask == "bool":
        return ~away
    return torch.randn(shape, generator=generator).masked_fill(away, -math.inf).to(DTYPES[kernel.mask])


def case_of(kernel: HopperKernel, mask: torch.Tensor, **changes: int | str) -> Case:
    window = None if not kernel.left else (200, 5 if kernel.right else -1)
    return replace(Case(mask=mask, window=window, blocks=2), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("schedule", [Schedule(), WAITING, RELEASING, SHUFFLED], ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_bias_agrees_with_float64_whatever_the_tiles_and_timing(
    program: HopperProgram, tmp_path: Path, kernel: HopperKernel, schedule: Schedule
) -> None:
    sizes = (1, 2, 1, 140, 333) if kernel.head_dim == 256 else (1, 2, 1, 260, 459)
    for hidden in HIDDEN:
        tensors, case = draw(kernel, *sizes), case_of(kernel, mask_for(kernel, (sizes[0], 1, 1, sizes[4]), hidden))
        found = complaint(kernel, tensors, case, *attend(program, kernel, tensors, tmp_path, schedule, case))
        assert found is None, hidden


@pytest.mark.parametrize("shape", [(2, 1, 1, 77), (2, 3, 1, 77), (1, 3, 1, 77), (1, 77), (77,), (1,), (2, 1, 1, 1)])
@pytest.mark.parametrize("kernel", [FLOAT, BOOL], ids=lambda kernel: kernel.name)
def test_a_bias_is_broadcast_over_batches_heads_and_keys(
    program: HopperProgram, tmp_path: Path, kernel: HopperKernel, shape: tuple[int, ...]
) -> None:
    tensors, case = draw(kernel, 2, 3, 3, 65, 77), case_of(kernel, mask_for(kernel, shape, "some"))
    assert complaint(kernel, tensors, case, *attend(program, kernel, tensors, tmp_path, SHUFFLED, case)) is None


@pytest.mark.parametrize("kernel", [FLOAT, BOOL, HALF], ids=lambda kernel: kernel.name)
def test_a_bias_may_lie_anywhere_and_apart(program: HopperProgram, tmp_path: Path, kernel: HopperKernel) -> None:
    whole = mask_for(kernel, (1, 2, 3, 300), "some")
    tensors = draw(kernel, 1, 2, 2, 70, 99)
    for part in (whole[:, :, 1:2, 1:298:3], whole[:, :, 2:3, 7:106], whole[:, :, :1, 201:]):
        case = case_of(kernel, part)
        assert complaint(kernel, tensors, case, *attend(program, kernel, tensors, tmp_path, SHUFFLED, case)) is None


@pytest.mark.parametrize("kernel", [BOOL, WIDE], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("sizes", [(300, 70), (70, 300)])
def test_a_causal_limit_at_the_bottom_right_hides_keys_too(
    program: HopperProgram, tmp_path: Path, kernel: HopperKernel, sizes: tuple[int, int]
) -> None:
    for hidden in HIDDEN:
        mask = mask_for(kernel, (1, 1, 1, sizes[1]), hidden)
        tensors, case = draw(kernel, 1, 2, 1, *sizes), case_of(kernel, mask, alignment="bottom-right")
        found = complaint(kernel, tensors, case, *attend(program, kernel, tensors, tmp_path, SHUFFLED, case))
        assert found is None, hidden


def test_keys_hidden_with_their_whole_tile_are_not_felt_whatever_they_are(
    program: HopperProgram, tmp_path: Path
) -> None:
    mask = torch.zeros(1, 1, 1, 512)
    mask[..., 128:384] = -math.inf
    q, k, v = draw(FLOAT, 1, 1, 1, 70, 512)
    case = case_of(FLOAT, mask)
    wanted, _ = attend(program, FLOAT, (q, k, v), tmp_path, SHUFFLED, case)
    k[:, :, 128:384] = v[:, :, 128:384] = math.nan
    found, _ = attend(program, FLOAT, (q, k, v), tmp_path, SHUFFLED, case)
    assert torch.equal(found, wanted)


def test_the_most_negative_number_hides_a_key_only_beside_others(program: HopperProgram, tmp_path: Path) -> None:
    least = torch.finfo(torch.float32).min
    tensors = draw(FLOAT, 1, 1, 1, 70, 264)
    out, _ = attend(program, FLOAT, tensors, tmp_path, SHUFFLED, Case(mask=torch.full((1, 1, 1, 264), least)))
    mean = tensors[2].double().mean(2, keepdim=True).expand_as(out)
    assert (out.double() - mean).norm() < 1e-2 * mean.norm()
    mask = mask_for(FLOAT, (1, 1, 1, 264), "behind")
    wanted, _ = attend(program, FLOAT, tensors, tmp_path, SHUFFLED, Case(mask=mask))
    found, _ = attend(
        program, FLOAT, tensors, tmp_path, SHUFFLED, Case(mask=mask.masked_fill(mask == -math.inf, least))
    )
    assert torch.equal(found, wanted)


# ---- which problems get them


def posed(mask: Mask, **changes: object) -> Problem:
    lies = Layout(16 * 512 * 64, 512 * 64, 64, 4096)
    base = Problem("bfloat16", 4, 16, 16, 512, 512, 64, False, 0, lies, lies, lies, lies, mask=mask)
    return replace(base, **changes)  # type: ignore[arg-type]


ROW = Mask("float32", 4096, 512 * 4, 0, 0, 4)


def test_every_mask_of_one_row_has_a_way_however_it_lies_and_others_have_none() -> None:
    for mask in (ROW, replace(ROW, address=4100), replace(ROW, key=12), replace(ROW, dtype="bool", key=1, batch=511)):
        for width, changes in itertools.product((64, 128, 256), ({}, {"causal": True}, {"window_offset": -9})):
            names = [way.name for way in hopper.bias_ways(posed(mask, head_dim=width, **changes), MACHINE)]
            assert names
            assert all(name.endswith("b4") for name in names)
    assert hopper.bias_ways(posed(replace(ROW, row=2048)), MACHINE) == []
    assert hopper.bias_ways(replace(posed(ROW), mask=None), MACHINE) == []
    assert hopper.bias_ways(posed(ROW), replace(MACHINE, hopper=False)) == []


def taken(mask: Mask, machine: Machine = MACHINE, **changes: object) -> str:
    return choose_way(posed(mask, **changes), machine)[0].name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
@pytest.mark.parametrize("address", [4096, 4098])
def test_a_mask_of_one_row_is_read_once_in_the_shape_that_was_fastest_on_a_gpu(dtype: str, address: int) -> None:
    size = {"float32": 4, "bfloat16": 2, "bool": 1}[dtype]
    measured = {
        (64, 512, False): "fa90-256x64s4pb4",
        (64, 2048, False): "fa90-256x64s4pb4",
        (64, 4096, False): "fa90-192x128s2pb4",
        (64, 2048, True): "fa90-256x64s4pb4",
        (64, 64, False): "general-64x64w4s2q",
        (64, 128, False): "fa90-128x128s3pb4",
        (64, 384, False): "fa90-192x128s2pb4",
        (128, 64, False): "fa90-128x64s4pb4",
        (128, 128, False): "fa90-128x128s2pb4",
        (128, 256, False): "fa90-128x128s2pb4",
        (128, 512, False): "fa90-128x128s2pb4",
        (192, 2048, False): "fa90-128x96s2b4",
        (256, 64, False): "fa90-128x64s2pb4",
        (256, 384, False): "fa90-128x80s2b4",
        (256, 512, False): "fa90-128x64s2pb4",
        (256, 2048, False): "fa90-128x80s2b4",
        (256, 2048, True): "fa90-128x64s2b4",
    }
    for (width, rows, causal), name in measured.items():
        lies = Layout(16 * rows * width, rows * width, width, 4096)
        mask = Mask(dtype, address, rows * size, 0, 0, size)
        sizes = {"head_dim": width, "seq_q": rows, "seq_k": rows, "causal": causal}
        assert taken(mask, **sizes, **dict.fromkeys(("q", "k", "v", "out"), lies)) == name


def test_without_prices_a_one_row_mask_takes_the_shape_with_the_fewest_rows_per_sm() -> None:
    fewer = replace(MACHINE, sm_count=130)
    assert taken(ROW, fewer) == "fa90-256x64s4pb4"
    assert taken(ROW, fewer, batch=1, heads=8, kv_heads=8) == "fa90-128x128s3pb4"


def test_a_mask_of_one_row_is_read_once_with_a_window_too() -> None:
    assert taken(ROW, window_offset=-9) == "fa90-128x128s3pb4"
    assert taken(ROW, window_offset=-9, causal=True, head_dim=128) == "fa90-128x128s2b4"
    assert taken(ROW, window_offset=-9, head_dim=256) == "fa90-128x48s2b4"


def test_a_mask_of_one_row_leaves_few_tiles_to_the_kernel_that_cuts_keys() -> None:
    few = {"batch": 1, "heads": 2, "kv_heads": 2, "seq_q": 1, "seq_k": 8192}
    assert taken(ROW, **few) == "fa90-128x128s3pb4"
    assert taken(replace(ROW, address=4100), **few).startswith("general")
    assert taken(ROW, head_dim=256, **few).startswith("general")
    assert taken(ROW, head_dim=256, **(few | {"seq_k": 256})) == "fa90-128x64s2pb4"  # too few keys to cut


def test_every_kernel_with_a_bias_fits_a_block_and_has_a_name_of_its_own() -> None:
    kernels = [
        HopperKernel("bfloat16", width, right, left, shape, "float32")
        for width, right, left in itertools.product(HEAD_DIMS, (False, True), (False, True))
        if width not in (32, 96)
        for shape in bias_shapes(width, right, left)
    ]
    assert len({kernel.name for kernel in kernels}) == len(kernels)
    assert HOPPER is not None
    assert all(kernel.shared_bytes + 1024 <= HOPPER.shared_bytes_per_block for kernel in kernels)


# ---- mistakes

SMALL = HopperKernel("bfloat16", 64, True, False, Shape(2, 64, 2, ping_pong=True, biases=2), "bool")
CONTROL = Mutant("bias_as_it_is", (), (), SMALL)
RACE, STUCK = "a race: ", "deadlock"
IS_SEEN = "      if (given.seen()) return true;\n"
WAITED = f"      barrier_wait(barriers.mask_full(given.place.stage()), given.place.parity());\n{IS_SEEN}"
PASSED = "      pass_mask();\n      if (n == tile.first) release(barriers.q_empty());\n      return false;\n"
EMPTY = "    barrier_wait(barriers.mask_empty(place.stage()), place.parity());\n"
TOLD = "    sync_warp();\n    if (lane == 0) barrier_arrive(barriers.mask_full(place.stage()));\n"
FIRST = (
    "    if constexpr (C::KEY_BIAS) await_turn();\n    start_scores(place.stage);\n"
    "    if constexpr (C::KEY_BIAS) pass_turn();\n"
)
READ = "      const u32 read = given.add_to(score, scale);\n      pass_mask(read);\n"
MISTAKES = mutants(
    SMALL,
    ("a_bias_read_before_it_is_there", ("one arrival too many", STUCK, *WRONG), (WAITED, IS_SEEN)),
    ("no_wait_for_an_empty_place", ("one arrival too many", STUCK, *WRONG), (f"{EMPTY}    bias", "    bias")),
    ("a_hidden_tile_not_given_back", (STUCK, *WRONG), lines(PASSED, 1, 2)),
    ("q_kept_where_the_last_tile_is_hidden", (STUCK,), lines(PASSED, 0, 2)),
    ("q_only_with_a_tile_that_is_seen", (STUCK,), ("if (n == tile.last - 1) give_q", "if (seen && n == 1) give_q")),
    ("a_first_turn_not_taken", ("wait for named barrier",), lines(FIRST, 1)),
    ("a_bias_of_the_tile_before", WRONG, ("(n - 1) * C::KEYS, p.seq_k", "n * C::KEYS, p.seq_k")),
    ("keys_behind_the_last", ("a load outside of every buffer",), (" && key < seq_k)", ")")),
    ("one_lane_tells_for_all", WRONG, ("    return any_lane(any);", "    return any;")),
    ("values_of_a_hidden_tile", (STUCK, *WRONG), without("        if (!seen) continue;\n")),
)
EARLY = "      const auto read = given;\n      pass_mask();\n      read.add_to(score, scale);\n"
RACES = mutants(
    SMALL,
    ("told_before_all_lanes_have_written", (RACE,), lines(TOLD, 1)),
    ("a_bias_given_back_before_it_is_read", (RACE,), (READ, EARLY)),
)


@pytest.fixture(scope="module")
def mistaken(folder: Path) -> HopperProgram:
    return compile_hopper((CONTROL, *MISTAKES), "HopperParams", folder)


@pytest.fixture(scope="module")
def racing(folder: Path) -> HopperProgram:
    return compile_hopper((CONTROL, *RACES), "HopperParams", folder, races=True)


def problems() -> Iterator[tuple[Tensors, Case]]:
    """Many tiles of work a block, of which masks hide first, last, middle and all tiles of keys."""
    for hidden in HIDDEN:
        mask = mask_for(SMALL, (1, 1, 1, 330), hidden)
        yield draw(SMALL, 1, 3, 1, 330, 330), case_of(SMALL, mask)


def complaints(program: HopperProgram, mutant: Mutant, scratch: Path) -> Iterator[str]:
    """What is wrong with a mutant's answers, under one schedule after the other that finds something."""
    for schedule, (tensors, case) in itertools.product(SCHEDULES, problems()):
        try:
            answer = attend(program, SMALL, tensors, scratch, schedule, case, entry=mutant)
            what = complaint(SMALL, tensors, case, *answer)
        except (Failed, AssertionError) as one:
            what = str(one)
        if what is not None:
            yield what


def test_a_bias_as_it_is_has_nothing_to_complain_of(
    mistaken: HopperProgram, racing: HopperProgram, tmp_path: Path
) -> None:
    assert list(complaints(mistaken, CONTROL, tmp_path)) == []
    assert list(complaints(racing, CONTROL, tmp_path)) == []


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_mistake_is_found_and_shows_as_what_it_is(mistaken: HopperProgram, tmp_path: Path, mistake: Mutant) -> None:
    seen = list(itertools.islice(complaints(mistaken, mistake, tmp_path), 8))
    assert any(words in what for what in seen for words in mistake.found), seen


@pytest.mark.parametrize("mistake", RACES, ids=lambda mistake: mistake.name)
def test_a_mistake_in_the_order_of_accesses_is_found(racing: HopperProgram, tmp_path: Path, mistake: Mutant) -> None:
    assert any(mistake.found[0] in what for what in complaints(racing, mistake, tmp_path))
