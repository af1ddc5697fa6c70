"""Which kernel, grid and split a problem gets; no GPU and no compiler of CUDA is involved."""

from __future__ import annotations

import dataclasses
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.plan.parameters import Divisor
from kernels.attention.cuda.plan.planning import (
    Layout,
    Machine,
    Problem,
    blocks_per_sm,
    kernel_refusal,
    plan_problem,
    splits_for,
)
from kernels.attention.cuda.plan.variants import (
    CHIPS,
    PADDED_HEAD_DIMS,
    SOURCE,
    Chip,
    Combine,
    Kernel,
    chip_of,
    kernel_table,
    padded_head_dim,
)

SHIM = Path(__file__).parent / "simt"
TURING, AMPERE, ADA, HOPPER = CHIPS


def problem(
    *,
    dtype: str = "float16",
    batch: int = 2,
    heads: int = 8,
    kv_heads: int = 8,
    seq_q: int = 512,
    seq_k: int = 512,
    head_dim: int = 64,
    causal: bool = False,
    offset: int = 0,
    address: int = 0,
) -> Problem:
    """A problem over contiguous tensors."""

    def contiguous(h: int, s: int) -> Layout:
        return Layout(h * s * head_dim, s * head_dim, head_dim, address)

    q, kv = contiguous(heads, seq_q), contiguous(kv_heads, seq_k)
    return Problem(dtype, batch, heads, kv_heads, seq_q, seq_k, head_dim, causal, offset, q, kv, kv, q)


def machine(chip: Chip = HOPPER, sm_count: int = 132, l2_mb: int = 50) -> Machine:
    return Machine(chip, sm_count, l2_mb * 2**20)


@given(divisor=st.integers(1, 2**31 - 1), dividend=st.integers(0, 2**31 - 1))
def test_multiply_and_shift_divides_exactly(divisor: int, dividend: int) -> None:
    d = Divisor.of(divisor)
    got = dividend if d.divisor == 1 else (dividend * d.multiplier >> 32) >> d.shift
    assert got == dividend // divisor


@given(divisor=st.integers(2, 2**31 - 1), multiple=st.integers(1, 2**31 - 1))
def test_division_is_exact_on_both_sides_of_a_multiple(divisor: int, multiple: int) -> None:
    d = Divisor.of(divisor)
    for dividend in (multiple // divisor * divisor, multiple // divisor * divisor - 1):
        if dividend >= 0:
            assert (dividend * d.multiplier >> 32) >> d.shift == dividend // divisor


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_every_dtype_head_dim_mask_and_alignment_has_a_kernel(chip: Chip) -> None:
    entries = list(kernel_table(chip))
    names = [entry.name for entry in entries]
    assert len(names) == len(set(names))
    kernels = [entry for entry in entries if isinstance(entry, Kernel)]
    for dtype in chip.dtypes:
        assert Combine(dtype) in entries
        for head_dim in PADDED_HEAD_DIMS:
            for causal in (False, True):
                for vector in (False, True):
                    assert any(
                        (k.dtype, k.head_dim, k.causal, k.vector) == (dtype, head_dim, causal, vector) for k in kernels
                    )


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_every_kernel_fits_its_chips_shared_memory(chip: Chip) -> None:
    for entry in kernel_table(chip):
        assert entry.shared_bytes <= chip.shared_bytes_per_block, entry.name
        if isinstance(entry, Kernel):
            assert blocks_per_sm(entry, chip) >= 1


def test_only_asynchronous_copies_run_a_tile_ahead() -> None:
    assert all(entry.tile.stages == 1 for entry in kernel_table(TURING) if isinstance(entry, Kernel))


@given(
    chip=st.sampled_from(CHIPS),
    batch=st.integers(1, 9),
    kv_heads=st.integers(1, 8),
    group=st.integers(1, 8),
    seq_q=st.integers(1, 9000),
    seq_k=st.integers(1, 9000),
    head_dim=st.integers(1, 256),
    causal=st.booleans(),
    address=st.sampled_from((0, 2, 16)),
    sm_count=st.integers(1, 200),
)
def test_every_problem_gets_a_kernel_of_the_table_and_a_grid_that_covers_it(
    chip: Chip,
    batch: int,
    kv_heads: int,
    group: int,
    seq_q: int,
    seq_k: int,
    head_dim: int,
    causal: bool,
    address: int,
    sm_count: int,
) -> None:
    wanted = problem(
        batch=batch,
        heads=kv_heads * group,
        kv_heads=kv_heads,
        seq_q=seq_q,
        seq_k=seq_k,
        head_dim=head_dim,
        causal=causal,
        address=address,
    )
    launch = plan_problem(wanted, machine(chip, sm_count))
    assert launch.kernel in list(kernel_table(chip))
    assert launch.kernel.head_dim == padded_head_dim(head_dim) >= head_dim
    assert launch.kernel.vector == (head_dim % 8 == 0 and address % 16 == 0)
    tile = launch.kernel.tile
    assert launch.row_tiles * tile.rows >= seq_q > (launch.row_tiles - 1) * tile.rows
    tiles = -(-seq_k // tile.keys)
    assert launch.splits * launch.tiles_per_split >= tiles > (launch.splits - 1) * launch.tiles_per_split
    assert launch.blocks >= batch * kv_heads * group * launch.row_tiles


@given(blocks=st.integers(1, 2000), sm_count=st.integers(1, 200), per_sm=st.integers(1, 4), tiles=st.integers(1, 500))
def test_a_full_grid_is_never_split_and_a_short_loop_neither(
    blocks: int, sm_count: int, per_sm: int, tiles: int
) -> None:
    splits = splits_for(blocks, sm_count, per_sm, tiles)
    assert 1 <= splits <= max(1, tiles // 8)
    if blocks >= sm_count or tiles < 16:
        assert splits == 1


def test_one_query_over_a_long_cache_fills_the_chip() -> None:
    launch = plan_problem(problem(batch=1, heads=8, seq_q=1, seq_k=65536, head_dim=128), machine())
    assert launch.splits > 8


def test_bfloat16_on_turing_is_refused_with_a_reason() -> None:
    assert kernel_refusal(TURING, "bfloat16", 64) == "turing chips have no bfloat16 tensor cores"
    with pytest.raises(Unsupported, match="bfloat16"):
        plan_problem(problem(dtype="bfloat16"), machine(TURING))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": "float32"}, "float32"),
        ({"head_dim": 257}, "head dimensions"),
        ({"head_dim": 0}, "head dimensions"),
        ({"seq_k": 0}, "at least 1"),
        ({"heads": 6, "kv_heads": 4}, "share"),
        ({"k": Layout(0, 0, 2**24)}, "span"),
    ],
)
def test_what_no_kernel_computes_is_refused_with_a_reason(changes: dict[str, object], words: str) -> None:
    with pytest.raises(Unsupported, match=words):
        plan_problem(dataclasses.replace(problem(), **changes), machine())


@pytest.mark.parametrize(
    ("capability", "name"),
    [
        (70, None),
        (75, "turing"),
        (80, "ampere"),
        (86, "ada"),
        (89, "ada"),
        (90, "hopper"),
        (100, "hopper"),
        (121, "ada"),
    ],
)
def test_each_compute_capability_finds_its_family(capability: int, name: str | None) -> None:
    chip = chip_of(capability)
    assert (chip.name if chip else None) == name


def test_sections_keep_the_heads_of_a_group_together() -> None:
    launch = plan_problem(
        problem(heads=32, kv_heads=4, seq_q=8192, seq_k=8192, head_dim=128, causal=True), machine(l2_mb=8)
    )
    assert launch.section % 8 == 0


@given(batch=st.integers(1, 64), kv_heads=st.integers(1, 64), group=st.integers(1, 8), seq=st.integers(1, 1 << 17))
def test_sections_are_whole_groups_and_as_equal_as_can_be(batch: int, kv_heads: int, group: int, seq: int) -> None:
    wanted = problem(batch=batch, heads=kv_heads * group, kv_heads=kv_heads, seq_q=1, seq_k=seq, causal=True)
    section = plan_problem(wanted, machine()).section
    heads = batch * kv_heads * group
    assert section % group == 0
    sections = -(-heads // section)
    assert sections * section - heads < sections * group, "one section fewer would do, or one is nearly empty"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++ to compile the index arithmetic")
def test_the_kernels_index_arithmetic_takes_every_visible_tile_exactly_once(tmp_path: Path) -> None:
    program = tmp_path / "coverage"
    command = ["g++", "-std=c++17", "-O1", "-Wno-unknown-pragmas", "-DSIMT_SHIM", "-DSIMT_ARCH=750"]
    command += [f"-I{SHIM}", f"-I{SOURCE}", str(SHIM / "coverage.cc"), "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    chance, lines = random.Random(20261121), []
    for _ in range(400):
        heads, seq_q, seq_k = chance.randint(1, 9), chance.randint(1, 700), chance.randint(1, 700)
        causal, row_tiles, tiles = chance.random() < 0.7, -(-seq_q // 64), -(-seq_k // 64)
        offset = chance.choice((0, seq_k - seq_q)) if causal else 0
        section = chance.randint(1, heads) if causal else heads
        per_split = chance.randint(1, tiles)
        splits, blocks = -(-tiles // per_split), -(-heads // section) * section * row_tiles
        values = (heads, row_tiles, section, seq_q, seq_k, int(causal), offset, splits, per_split, blocks)
        lines.append(" ".join(map(str, values)))
    done = subprocess.run([str(program)], input="\n".join(lines), capture_output=True, text=True, timeout=600)
    verdicts = done.stdout.split("\n")[:-1]
    assert len(verdicts) == len(lines)
    assert [(line, words) for line, words in zip(lines, verdicts, strict=True) if words != "ok"] == []
