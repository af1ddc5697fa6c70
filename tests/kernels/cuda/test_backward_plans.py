"""Which kernels a backward pass takes, and with what grids: pure."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kernels.attention.cuda
from kernels.attention.cuda.backward import few as backward_few
from kernels.attention.cuda.backward.ampere import (
    SHAPES,
    AmpereBackward,
    ampere_refusal,
    ampere_ways,
)
from kernels.attention.cuda.backward.costs import passing_keys, possible_parts, schedule_span, three_launches
from kernels.attention.cuda.backward.few import FewBackward, few_refusal, few_ways
from kernels.attention.cuda.backward.kernels import (
    BackwardParameters,
    Order,
    every_backward_kernel,
    every_hopper_kernel,
)
from kernels.attention.cuda.backward.plan import (
    BackwardProblem,
    HopperBackward,
    PairBackward,
    hopper_refusal,
    windowless_refusal,
)
from kernels.attention.cuda.backward.small import (
    MOST_ROWS,
    SmallBackward,
    small_refusal,
    small_ways,
)
from kernels.attention.cuda.backward.turing import SHAPES as TURING_SHAPES
from kernels.attention.cuda.backward.turing import turing_ways
from kernels.attention.cuda.backward.ways import backward_ways
from kernels.attention.cuda.backward.wide import WideBackward
from kernels.attention.cuda.compile.build import Resources, check_gates
from kernels.attention.cuda.errors import BuildFailed
from kernels.attention.cuda.plan.planning import Dropping, Layout, Lengths, Machine, Mask
from kernels.attention.cuda.plan.variants import CHIPS, Chip
from tests.kernels.cuda.backward_problems import ADA, AMPERE, FEW, HOPPER, MACHINE, TURING, posed
from tests.kernels.cuda.every_kernel import (
    every_ampere_kernel,
    every_few_kernel,
    every_small_backward_kernel,
    every_turing_kernel,
    every_wide_kernel,
)
from tests.kernels.cuda.simt_ways import HostBuffers
from tests.kernels.cuda.stub_driver import WITH_STUB, Stub


def kinds(problem: BackwardProblem, machine: Machine = MACHINE) -> list[type]:
    return list(dict.fromkeys(type(way) for way in backward_ways(problem, machine)))


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_every_kernel_fits_its_chip_and_has_a_name_of_its_own(chip: Chip) -> None:
    entries = [*every_backward_kernel(chip), *every_small_backward_kernel(chip), *every_ampere_kernel(chip)]
    entries += every_turing_kernel(chip)
    entries += [*every_hopper_kernel(), *every_few_kernel(), *every_wide_kernel()] if chip is HOPPER else ()
    assert len({entry.name for entry in entries}) == len(entries)
    for entry in entries:
        assert entry.shared_bytes <= chip.shared_bytes_per_block
        assert entry.threads <= 384


def test_heads_over_128_go_to_clusters_and_before_hopper_to_mma() -> None:
    problem = posed(head_dim=256)
    assert "at most 128" in (hopper_refusal(problem, MACHINE) or "")
    assert kinds(problem) == [WideBackward, AmpereBackward, PairBackward]
    assert kinds(problem, replace(MACHINE, hopper=False)) == [AmpereBackward, PairBackward]
    assert kinds(posed(head_dim=256, scale=-1.0)) == [AmpereBackward, PairBackward]
    assert kinds(posed(head_dim=128, value_dim=256)) == [AmpereBackward, PairBackward]


@pytest.mark.parametrize(
    ("changes", "reason", "other"),
    [
        ({"mask": Mask("bool", 0, 0, 0, 0, 1)}, "masks", "masks and packed sequences"),
        ({"lengths": Lengths(0, 0, 10, True)}, "packed sequences", "packed sequences"),
        ({"scale": -1.0}, "must be positive", None),
        ({"head_dim": 100}, "16-byte", "16-byte"),
        ({"k": Layout(0, 0, 128)}, "strides", None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_hoppers_kernel_does_not_take_has_another_way(
    changes: dict[str, Any], reason: str, other: str | None
) -> None:
    problem = posed(**changes)
    assert reason in (hopper_refusal(problem, MACHINE) or "")
    assert (other or "") in (ampere_refusal(problem, MACHINE) or "")
    assert kinds(problem) == ([PairBackward] if other else [AmpereBackward, PairBackward])


def test_windows_are_hoppers_where_it_has_kernels_for_them() -> None:
    for causal in (False, True):
        problem = posed(window_offset=-5, causal=causal)
        assert kinds(problem) == [HopperBackward, AmpereBackward, PairBackward]
        kernel = HopperBackward(MACHINE).kernel(problem)
        assert (kernel.causal, kernel.window) == (True, True)
        for refused in (few_refusal(problem, MACHINE), windowless_refusal(problem, MACHINE)):
            assert "windows with a left limit" in (refused or "")
    assert kinds(posed(window_offset=-5, invariant=True)) == [HopperBackward]
    assert kinds(posed(window_offset=-5, head_dim=256)) == [AmpereBackward, PairBackward]
    assert kinds(posed(window_offset=-5, scale=-1.0)) == [AmpereBackward, PairBackward]


def test_the_queries_that_pass_by_a_tile_of_keys_are_those_whose_windows_it_is_in() -> None:
    chance = random.Random(3)
    for _ in range(50):
        sizes = {"seq": chance.randint(1, 500), "seq_k": chance.randint(1, 500), "kv_heads": 8, "head_dim": 64}
        right = chance.randint(-200, 200)
        left = chance.choice((None, right - chance.randint(0, 300)))
        problem = posed(**sizes, causal_offset=right, window_offset=left)
        tiles = [set[int]() for _ in range(0, sizes["seq_k"], 128)]
        for query, tile in itertools.product(range(-(-sizes["seq"] // 128) * 128), range(len(tiles))):
            if tile * 128 <= query + right and (left is None or query + left < tile * 128 + 128):
                tiles[tile].add(query // 128)
        assert passing_keys(problem, 128) == [2 * len(seen) for seen in tiles]


def test_plain_and_causal_problems_are_hoppers_where_there_is_one() -> None:
    for causal in (False, True):
        assert kinds(posed(causal=causal)) == [HopperBackward, FewBackward, AmpereBackward, PairBackward]
        assert kinds(posed(causal=causal), replace(MACHINE, hopper=False)) == [AmpereBackward, PairBackward]
        turing = replace(MACHINE, chip=CHIPS[0], hopper=False)
        assert kinds(in_float16(posed(causal=causal)), turing) == [AmpereBackward, PairBackward]


def in_float16(problem: BackwardProblem) -> BackwardProblem:
    """Turing has no other type."""
    return replace(problem, forward=replace(problem.forward, dtype="float16"))


def test_the_pass_with_five_products_precedes_the_pair_however_few_blocks() -> None:
    for head_dim in SHAPES:
        for sizes in ({"batch": 1, "heads": 2, "kv_heads": 2}, {"batch": 2}):
            problem = posed(seq=600, head_dim=head_dim, **sizes)
            assert kinds(problem, Machine(ADA, 58, 48 << 20)) == [AmpereBackward, PairBackward]


@pytest.mark.parametrize(
    ("chip", "head_dim", "filled", "few"),
    [
        (AMPERE, 64, "128x64w4f2s2b1h2", "64x64w4f1s2b1h2"),
        (AMPERE, 128, "128x64w8f2s1b1h1", "64x128w8f2s1b1h1"),
        (ADA, 64, "128x64w4f2s2b1h2", "64x64w4f1s2b1h2"),
        (ADA, 128, "64x32w4f1s2b1h1", "64x32w4f1s2b1h1"),
    ],
    ids=lambda value: value.name if isinstance(value, Chip) else str(value),
)
def test_where_not_every_sm_has_a_block_a_block_keeps_fewer_keys(
    chip: Chip, head_dim: int, filled: str, few: str
) -> None:
    machine = Machine(chip, 64, 40 << 20)
    for heads, shape in ((16, filled), (15, few)):  # of four tiles of 128 keys each
        (way, *_) = ampere_ways(posed(batch=1, heads=heads, kv_heads=heads, seq=512, head_dim=head_dim), machine)
        assert way.shape.name == shape


@pytest.mark.parametrize("chip", CHIPS[1:], ids=lambda chip: chip.name)
def test_a_chip_takes_the_first_shape_that_it_has_shared_memory_for(chip: Chip) -> None:
    for head_dim, shapes in SHAPES.items():
        ways = ampere_ways(posed(head_dim=head_dim), Machine(chip, 58, 48 << 20))
        fitting = [one for one in shapes if one.shared_bytes(head_dim) <= chip.shared_bytes_per_block]
        assert [way.shape for way in ways] == fitting
        assert fitting


def test_turing_takes_five_products_where_it_has_the_operands_for_them() -> None:
    machine = Machine(TURING, 40, 4 << 20)
    for head_dim in (8, 64, 128):
        assert kinds(in_float16(posed(head_dim=head_dim)), machine) == [AmpereBackward, PairBackward]
    others: tuple[dict[str, Any], ...] = ({"head_dim": 256}, {"head_dim": 100}, {"mask": Mask("bool", 0, 0, 0, 0, 1)})
    for changes in (*others, {"lengths": Lengths(0, 0, 10, True)}):
        assert kinds(in_float16(posed(**changes)), machine) == [PairBackward]
    assert kinds(in_float16(posed(seq=(1 << 31) // 64)), machine) == [PairBackward]
    for head_dim, shapes in TURING_SHAPES.items():
        filled = in_float16(posed(head_dim=head_dim, batch=1, heads=10, kv_heads=10, seq=512))
        assert [way.shape for way in turing_ways(filled, machine)] == list(shapes)
        few = in_float16(posed(head_dim=head_dim, batch=1, heads=9, kv_heads=9, seq=512))
        assert [way.shape for way in turing_ways(few, machine)] == sorted(shapes, key=lambda shape: shape.keys)


def test_sums_of_five_products_have_no_turns_behind_them_to_clear() -> None:
    (way, *_) = ampere_ways(posed(head_dim=64, seq=200), replace(MACHINE, hopper=False))
    buffers = HostBuffers()
    steps = way.steps(posed(head_dim=64, seq=200), buffers)  # type: ignore[arg-type]
    assert [step.arguments[0].query_tiles for step in steps] == [0, 4, 0]
    assert [memory.numel() for memory in buffers.memory] == [64 * 256 * 4, 64 * 256 * 4, 64 * 256 * 64 * 4]


@pytest.mark.parametrize(("causal", "heads"), [(True, 8), (False, 1)])
def test_sections_of_the_pass_with_five_products_fit_the_cache(causal: bool, heads: int) -> None:
    (way, *_) = ampere_ways(posed(causal=causal), replace(MACHINE, hopper=False))
    assert way.heads_of_section(posed(causal=causal)) == heads
    few = posed(causal=True, batch=1, heads=4, kv_heads=4)
    assert way.heads_of_section(few) == 4


@pytest.mark.parametrize(
    ("sizes", "full", "causal"),
    [
        ({"seq": 512}, 64, 64),
        ({"seq": 1024}, 32, 64),  # few tiles, but not so that all heads fit the cache
        ({"seq": 2048}, 16, 16),
        ({"seq": 4096}, 8, 16),
        ({"seq": 8192}, 8, 16),
        ({"batch": 2, "seq": 16384}, 4, 8),
        ({"head_dim": 64, "seq": 4096}, 16, 32),
        ({"head_dim": 64, "batch": 2, "seq": 16384}, 8, 16),
    ],
)
def test_in_an_order_tiles_of_many_heads_go_side_by_side_with_either_mask(
    sizes: dict[str, Any], full: int, causal: int
) -> None:
    """On the machine on which that was measured to be the fastest."""
    way = HopperBackward(Machine(HOPPER, 132, 50 << 20, hopper=True), order=Order.KEYS)
    assert [way.heads_of_section(posed(**sizes, causal=mask)) for mask in (False, True)] == [full, causal]


@pytest.mark.parametrize(
    ("sizes", "heads"),
    [
        ({"seq": 2048}, 16),  # nineteen fit: four sections of sixteen
        ({"seq": 4096}, 4),  # nine fit, but heads are long
        ({"seq": 1024}, 32),
        ({"seq": 512}, 64),  # two rounds of tiles: one order over all heads
        ({"seq": 4096, "causal": False}, 1),
        ({"batch": 2, "heads": 32, "kv_heads": 8, "seq": 4096}, 16),  # four rounds, each block with four heads
        ({"batch": 4, "heads": 32, "kv_heads": 8, "seq": 4096}, 4),  # of which only one need fit
        ({"batch": 2, "seq": 16384}, 1),
        ({"batch": 2, "heads": 64, "kv_heads": 8, "seq": 16384, "head_dim": 64, "window_offset": -1023}, 6),
        ({"batch": 2, "heads": 64, "kv_heads": 8, "seq": 4096, "head_dim": 64, "window_offset": -1023}, 16),
    ],
)
def test_sections_are_equal_and_one_where_there_are_few_tiles(sizes: dict[str, Any], heads: int) -> None:
    assert HopperBackward(MACHINE).heads_of_section(posed(**sizes)) == heads


@pytest.mark.parametrize(
    ("sizes", "rows"),
    [
        ({"seq": 32}, 32),
        ({"seq": 128}, 32),  # 64 blocks that keep keys, 64 that keep queries
        ({"seq": 197}, 64),
        ({"seq": 256}, 64),
        ({"seq": 512}, 128),
        ({"seq": 512, "heads": 64, "kv_heads": 64}, 128),
        ({"seq": 128, "head_dim": 128}, 32),
    ],
)
def test_a_block_keeps_the_fewest_rows_with_which_each_has_an_sm(sizes: dict[str, Any], rows: int) -> None:
    assert small_ways(posed(**{**FEW, **sizes}), MACHINE)[0].shape.rows == rows


def test_few_keys_are_one_launch_where_that_is_sure_to_pay() -> None:
    for head_dim in (64, 128):
        for seq, group in ((1, 1), (64, 1), (128, 1), (128, 4)):
            problem = posed(**{**FEW, "seq": seq, "head_dim": head_dim, "kv_heads": 8 // group})
            assert kinds(problem) == [SmallBackward, FewBackward, HopperBackward, AmpereBackward, PairBackward]
    # Not measured: few blocks only by 128 rows in each.
    many = posed(**{**FEW, "seq": 128, "batch": 8, "head_dim": 128})
    assert kinds(many) == [FewBackward, HopperBackward, SmallBackward, AmpereBackward, PairBackward]
    # More blocks than there are SMs.
    filled = [HopperBackward, FewBackward, AmpereBackward, PairBackward, SmallBackward]
    assert kinds(posed(**{**FEW, "batch": 64})) == filled
    elsewhere = replace(MACHINE, hopper=False)
    for seq in (197, 256, 512):
        assert kinds(posed(**{**FEW, "seq": seq}), elsewhere) == [SmallBackward, AmpereBackward, PairBackward]


@pytest.mark.parametrize(
    ("sizes", "rows"),
    [
        ({"seq": 197}, 64),
        ({"seq": 256}, 64),  # 64 blocks that keep keys, 64 that keep queries
        ({"seq": 257}, 128),
        ({"seq": 512}, 128),
        ({"seq": 512, "head_dim": 128}, 128),
        ({"seq": 512, "batch": 1}, 64),
        # More blocks than there are SMs: what is expected to end first.
        ({"seq": 512, "batch": 1, "heads": 32, "kv_heads": 1}, 64),
        ({"seq": 4096, "batch": 1, "heads": 1, "kv_heads": 1}, 64),
        ({"seq": 4096, "batch": 1, "heads": 2, "kv_heads": 2, "causal": False}, 128),
        ({"seq": 640}, 128),
        ({"seq": 640, "causal": False}, None),
        ({"seq": 1024}, None),
    ],
)
def test_where_blocks_have_an_sm_or_nearly_hoppers_pass_is_one_launch(sizes: dict[str, Any], rows: int | None) -> None:
    first = backward_ways(posed(**{**FEW, **sizes}), MACHINE)[0]
    assert (first.rows if isinstance(first, FewBackward) else None) == rows


def test_what_a_tensor_map_cannot_describe_is_not_given_to_hoppers_one_launch() -> None:
    problem = posed(**{**FEW, "out": Layout(0, 0, 64)})
    assert "the output's strides" in (few_refusal(problem, MACHINE) or "")
    assert few_ways(problem, MACHINE) == []


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ({"seq": 32}, "32x2c32"),  # one tile by any shape: the smallest
        ({"seq": 64}, "32x2c32"),
        ({"seq": 65}, "32x4c32"),  # one tile against two
        ({"seq": 128}, "32x4c32"),
        ({"seq": 256}, "64x2c64"),
        ({"seq": 64, "batch": 8}, "64x2c32"),
        ({"seq": 32, "head_dim": 128}, "32x4c16"),  # as large as 32x2c32, and more groups
        ({"seq": 128, "head_dim": 128}, "32x4c32"),
        ({"seq": 256, "head_dim": 128}, "64x2c32"),
    ],
)
def test_the_fewest_tiles_pass_by_and_no_larger_ones_than_that_takes(sizes: dict[str, Any], shape: str) -> None:
    assert small_ways(posed(**{**FEW, **sizes}), MACHINE)[0].shape.name == shape


def test_a_plan_for_many_blocks_does_not_count_them_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backward_few, "one_launch", lambda *given: pytest.fail("was asked"))
    assert isinstance(backward_ways(posed(), MACHINE)[0], HopperBackward)


def test_blocks_follow_each_other_on_the_first_sm_that_is_free() -> None:
    assert schedule_span([3.0, 1.0, 1.0, 1.0], 2) == 3.0
    assert schedule_span([1.0, 1.0, 3.0], 2) == 4.0
    assert schedule_span([], 2) == 0.0


LLAMA = {"batch": 1, "heads": 64, "kv_heads": 8}


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ({"seq": 1024}, 4),
        ({"seq": 2048}, 4),  # from here on parts of two heads, four at most
        ({"seq": 32768}, 4),
        ({"seq": 65536}, 2),  # four parts would leave 2 GiB, as two parts would in the next problems
        ({"seq": 131072}, 1),
        ({"seq": 32768, "batch": 4}, 1),
        ({"seq": 2048, "heads": 256}, 4),
        ({"seq": 1024, "batch": 2}, 2),
        ({"seq": 4096, "batch": 2}, 4),
        ({"seq": 1024, "heads": 32}, 4),
        ({"seq": 2048, "heads": 32}, 2),
        ({"seq": 16384, "heads": 32}, 2),
        ({"seq": 2048, "heads": 32, "batch": 2}, 2),
        ({"seq": 2048, "causal": False}, 1),  # one round of equal tiles
        ({"seq": 1024, "causal": False}, 2),
        ({"seq": 2048, "heads": 56}, 1),
        ({"seq": 2048, "head_dim": 64}, 2),
        ({"seq": 1024, "head_dim": 64, "window_offset": -127}, 2),
        ({"seq": 2048, "head_dim": 64, "window_offset": -127}, 1),  # one round of tiles of two tiles of queries
        ({"seq": 2048, "batch": 2, "head_dim": 64, "window_offset": -1023}, 2),
        ({"seq": 4096, "batch": 2, "head_dim": 64, "window_offset": -1023}, 1),
        ({"seq": 2048, "window_offset": -1023}, 1),  # the model expects four parts to end first; they did not
        ({"seq": 8192, "window_offset": -1023}, 1),
        ({"seq": 64, "seq_k": 16384, "causal_offset": 16320}, 1),  # what parts leave is more than what they read
    ],
)
def test_a_group_is_in_parts_where_its_longest_tiles_would_end_late(sizes: dict[str, Any], parts: int) -> None:
    problem = posed(**{**LLAMA, **sizes})
    ways = [way for way in backward_ways(problem, MACHINE) if isinstance(way, HopperBackward) and not way.same_bits]
    possible = possible_parts(problem)
    assert (ways[0].parts or 1) == parts
    assert sorted(way.name for way in ways) == (
        [f"backward90-parts{n}" for n in possible] if len(possible) > 1 else ["backward90"]
    )


@pytest.mark.parametrize(
    ("sizes", "heads"),
    [
        ({"seq": 2048}, 2),
        ({"seq": 16384}, 2),
        ({"seq": 2048, "heads": 32, "batch": 4}, 4),
        ({"seq": 8192, "heads": 24, "kv_heads": 3}, 2),
        ({"seq": 1024}, 8),  # all fit the cache
    ],
)
def test_parts_are_taken_with_those_of_few_other_heads(sizes: dict[str, Any], heads: int) -> None:
    """Else the rows and sums of all heads of all groups would have to fit the L2 cache."""
    problem = posed(**{**LLAMA, **sizes})
    way = backward_ways(problem, MACHINE)[0]
    assert isinstance(way, HopperBackward)
    assert way.heads_of_section(problem) == heads


def test_heads_without_a_group_have_no_parts() -> None:
    for sizes in ({"seq": 1024}, {"seq": 2048, "batch": 1, "heads": 8, "kv_heads": 8}):
        ways = backward_ways(posed(**sizes), MACHINE)
        assert not [way.name for way in ways if "parts" in way.name]


def test_the_last_part_of_each_head_reads_the_sums_of_all() -> None:
    problem = posed(batch=1, heads=4, kv_heads=1, seq=128)  # two tiles of queries of each head pass by
    tile = three_launches(problem, 1) - three_launches(posed(batch=1, heads=3, kv_heads=1, seq=128), 1)
    undivided, two = (three_launches(problem, 8, parts) for parts in (1, 2))
    assert two == pytest.approx(undivided + (4 + 1 + 2 - 8) * tile / 2)


@WITH_STUB
@pytest.mark.parametrize(("parts", "numbers"), [(1, 128 + 2 * 2048), (2, 256 + 8 * 128 + 2 * 2048)])
def test_each_part_of_a_group_counts_as_a_group_of_its_own(stub: Stub, parts: int, numbers: int) -> None:
    buffers = HostBuffers()
    prepare, main, convert = HopperBackward(MACHINE, parts=parts).steps(posed(**LLAMA, seq=2048), buffers)  # type: ignore[arg-type]
    given = main.arguments[-1]
    assert isinstance(given, BackwardParameters)
    assert main.entry.name.endswith("_parts") == (parts > 1)
    assert (given.items, given.all_kv_heads, given.section.divisor) == (128 * parts, 8 * parts, 8)
    assert (given.group.divisor, given.kv_heads.divisor, 1 << given.part_bits) == (8 // parts, 8 * parts, parts)
    assert convert.grid == (64 * 32, 1, 1)
    cleared, tiles = prepare.arguments[0].all_kv_heads, given.tiles.divisor  # type: ignore[attr-defined]
    assert cleared * tiles + given.all_heads * given.query_tiles * 2 == numbers
    sizes = [memory.numel() for memory in buffers.memory]
    assert numbers * 4 in sizes
    assert (64 * 32 * 64 * 128 + (parts > 1) * parts * 128 * 2 * 128 * 128) * 4 in sizes


MEASURED = Path(kernels.attention.cuda.__file__).parent / "results" / "backward-small-h200.jsonl"


@pytest.mark.parametrize("line", MEASURED.read_text().splitlines())
def test_of_the_ways_that_were_measured_one_within_a_twentieth_of_the_best_is_taken(line: str) -> None:
    row = json.loads(line)
    us = row.pop("us")
    ways = backward_ways(posed(**row), MACHINE)
    assert us[ways[0].name] <= 1.05 * min(us.get(way.name, float("inf")) for way in ways)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mask": Mask("bool", 0, 0, 0, 0, 1)}, "masks and packed sequences"),
        ({"lengths": Lengths(0, 0, 10, True)}, "packed sequences"),
        ({"head_dim": 256}, "at most 128"),
        ({"head_dim": 100}, "16-byte"),
        ({"seq_q": MOST_ROWS + 1}, "more than 512"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_the_kernels_for_few_keys_do_not_take_has_another_way(changes: dict[str, Any], reason: str) -> None:
    problem = posed(**{**FEW, **changes})
    assert reason in (small_refusal(problem, MACHINE) or "")
    assert SmallBackward not in kinds(problem)
    turing = next(chip for chip in CHIPS if chip.name == "turing")
    assert small_ways(posed(**FEW), replace(MACHINE, chip=turing, hopper=False)) == []


def test_no_kernel_may_spill() -> None:
    hopper = next(entry for entry in every_hopper_kernel() if entry.name.startswith("backward90"))
    other = next(iter(every_backward_kernel(HOPPER)))
    check_gates(hopper, HOPPER, Resources(168, 0, 0))
    for entry in (hopper, other):
        for resources in (Resources(168, 4, 0), Resources(168, 0, 8)):
            with pytest.raises(BuildFailed, match="spills"):
                check_gates(entry, HOPPER, resources)


@pytest.mark.parametrize(
    ("dims", "columns"),
    [((192, 128), [3, 2]), ((128, 192), [3, 1]), ((256, 256), [2, 2]), ((136, 136), [2, 2]), ((512, 8), [8, 4])],
)
def test_no_block_of_the_two_passes_computes_columns_that_no_head_has(
    dims: tuple[int, int], columns: list[int]
) -> None:
    problem = posed(seq=70, head_dim=dims[0], value_dim=dims[1])
    steps = PairBackward(MACHINE).steps(problem, HostBuffers())  # type: ignore[arg-type]
    assert [step.grid[1] for step in steps[1:]] == columns


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        (
            {},
            [
                "backward-wide90",
                "backward80-64x64w8f2s2b1h1",
                "backward80-64x64w8f2s1b1h1",
                "backward80-32x32w4f1s1b1h1",
                "backward-pair",
            ],
        ),
        ({"invariant": True}, ["backward-pair"]),
        ({"softcap": 2.0}, ["backward-pair"]),
        ({"dropout": Dropping(4096, 1, 2.0)}, ["backward-pair"]),
        ({"lengths": Lengths(4096, 4096, 4096, True, 4096)}, ["backward-pair"]),
        ({"value_dim": 512}, ["backward-pair"]),
        ({"value_dim": 100}, ["backward-pair"]),
    ],
)
def test_k_and_v_of_two_widths_have_five_products_where_no_bits_are_asked_for(
    changes: dict[str, Any], names: list[str]
) -> None:
    problem = posed(head_dim=192, **({"value_dim": 128} | changes))
    assert [way.name for way in backward_ways(problem, MACHINE)] == names
    assert next(way for way in backward_ways(problem, MACHINE) if way.same_bits).name == "backward-pair"


def test_the_rows_of_two_widths_are_prepared_with_the_width_of_v() -> None:
    prepare, main, convert = ampere_ways(posed(head_dim=192, value_dim=128), MACHINE)[0].steps(
        posed(head_dim=192, value_dim=128),
        HostBuffers(),  # type: ignore[arg-type]
    )
    assert [step.arguments[0].head_dim for step in (prepare, main, convert)] == [128, 192, 192]  # type: ignore[attr-defined]
    assert main.arguments[0].value_dim == 128  # type: ignore[attr-defined]
    assert "d256v128" in main.entry.name
