"""Which kernel, grid and split decoding gets, and problems with windows, masks and lengths; nothing is compiled."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.plan.planning import Layout, Lengths, Machine, Mask, Problem
from kernels.attention.cuda.plan.posing import key_limits, mask_of, problem_of, varlen_problem_of
from kernels.attention.cuda.plan.variants import CHIPS, Chip, padded_head_dim
from kernels.attention.cuda.ways import decode
from kernels.attention.cuda.ways.decode import Decode, plan_decode
from kernels.attention.cuda.ways.dispatch import choose_way, list_ways
from kernels.attention.cuda.ways.general import General, plan_general
from kernels.attention.cuda.ways.portable import Portable
from tests.kernels.cuda.every_kernel import every_general_kernel

HOPPER = next(chip for chip in CHIPS if chip.name == "hopper")


def problem(
    *, batch: int = 2, kv_heads: int = 4, group: int = 8, seq_q: int = 1, seq_k: int = 8192, head_dim: int = 128
) -> Problem:
    """A problem over contiguous float16 tensors."""

    def contiguous(h: int, s: int) -> Layout:
        return Layout(h * s * head_dim, s * head_dim, head_dim)

    q, kv = contiguous(kv_heads * group, seq_q), contiguous(kv_heads, seq_k)
    heads = kv_heads * group
    return Problem("float16", batch, heads, kv_heads, seq_q, seq_k, head_dim, False, 0, q, kv, kv, q)


def machine(chip: Chip = HOPPER) -> Machine:
    return Machine(chip, 132, 50 * 2**20)


@given(
    chip=st.sampled_from(CHIPS),
    batch=st.integers(1, 40),
    kv_heads=st.integers(1, 16),
    group=st.integers(1, 16),
    seq_q=st.integers(1, 4),
    seq_k=st.integers(1, 1 << 17),
    head_dim=st.integers(1, 32).map(lambda eighth: eighth * 8),
)
def test_every_decoding_gets_a_kernel_of_its_chip_and_a_grid_that_covers_it(
    chip: Chip, batch: int, kv_heads: int, group: int, seq_q: int, seq_k: int, head_dim: int
) -> None:
    wanted = problem(batch=batch, kv_heads=kv_heads, group=group, seq_q=seq_q, seq_k=seq_k, head_dim=head_dim)
    launch = plan_decode(wanted, machine(chip))
    assert launch.kernel in list(decode.every_kernel(chip))
    assert launch.kernel.head_dim == padded_head_dim(head_dim)
    assert (
        launch.row_tiles * launch.kernel.tile.rows >= seq_q * group > (launch.row_tiles - 1) * launch.kernel.tile.rows
    )
    assert launch.items == batch * kv_heads * launch.row_tiles
    assert 1 <= launch.splits <= max(1, min(decode.MOST_SPLITS, seq_k // decode.LEAST_KEYS))
    assert not (launch.tickets and launch.splits == 1)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_every_kernel_made_on_demand_fits_its_chip_and_has_a_name_of_its_own(chip: Chip) -> None:
    entries = [*decode.every_kernel(chip), *every_general_kernel(chip)]
    assert len({entry.name for entry in entries}) == len(entries)
    for entry in entries:
        assert entry.shared_bytes <= chip.shared_bytes_per_block, entry.name


@given(
    chip=st.sampled_from(CHIPS),
    seq_q=st.integers(1, 3000),
    seq_k=st.integers(1, 3000),
    group=st.integers(1, 8),
    head_dim=st.integers(1, 256),
    left=st.none() | st.integers(0, 3000),
    mask=st.sampled_from((None, "bool", "float16", "float32")),
)
def test_every_problem_with_features_gets_a_kernel_that_a_gate_has_seen(
    chip: Chip, seq_q: int, seq_k: int, group: int, head_dim: int, left: int | None, mask: str | None
) -> None:
    wanted = dataclasses.replace(
        problem(seq_q=seq_q, seq_k=seq_k, group=group, head_dim=head_dim),
        causal=True,
        window_offset=None if left is None else -left,
        mask=None if mask is None else Mask(mask, 16, 0, 0, 0, 1),
    )
    launch = plan_general(wanted, machine(chip))
    assert launch.kernel in list(every_general_kernel(chip))
    assert launch.pack in (1, group)
    packs = wanted.batch * wanted.heads // launch.pack
    assert launch.row_tiles * launch.kernel.tile.rows >= seq_q * launch.pack
    assert launch.blocks >= packs * launch.row_tiles
    assert launch.blocks % (launch.section * launch.row_tiles) == 0


def test_one_query_over_a_long_cache_fills_the_chip_once() -> None:
    for batch, kv_heads in itertools.product((1, 2, 4, 16), (4, 8)):
        launch = plan_decode(problem(batch=batch, kv_heads=kv_heads, seq_k=65536), machine())
        assert 120 <= launch.items * launch.splits <= 132, (batch, kv_heads)


@pytest.mark.parametrize(
    ("batch", "kv_heads", "group", "seq_k", "head_dim", "name"),
    [
        (1, 1, 71, 1024, 64, "decode-16x32w8s3-4"),
        (1, 1, 71, 4096, 64, "decode-16x32w8s3-16"),
        (1, 1, 71, 8192, 64, "decode-16x32w8s3-16"),
        (1, 1, 71, 32768, 64, "decode-16x32w8s3-26"),
        (1, 1, 71, 131072, 64, "decode-16x32w8s3-26"),
        (1, 1, 71, 8192, 128, "decode-16x16w8s1-16"),
        (1, 1, 128, 8192, 128, "decode-16x16w8s1-16"),
        (8, 1, 71, 8192, 64, "rows-fa90-128x128s3p-split-16"),
        (32, 1, 71, 8192, 64, "rows-fa90-128x128s3p-split-4"),
        (8, 1, 71, 32768, 128, "rows-fa90-128x128s2p-split-16"),
        (8, 1, 128, 8192, 128, "rows-fa90-128x128s2p-split-8"),
        (2, 1, 96, 4096, 128, "rows-fa2-64x64w4s2-16"),
        (4, 1, 128, 2048, 64, "rows-fa2-64x64w4s2-8"),
        (4, 2, 72, 4096, 128, "rows-fa90-128x128s2p-split-16"),
    ],
)
def test_many_heads_on_few_k_heads_take_what_was_fastest_on_an_h100_or_h200(
    batch: int, kv_heads: int, group: int, seq_k: int, head_dim: int, name: str
) -> None:
    posed = problem(batch=batch, kv_heads=kv_heads, group=group, seq_k=seq_k, head_dim=head_dim)
    way, _ = choose_way(posed, dataclasses.replace(machine(), hopper=True))
    assert way.name == name
    assert not isinstance(way, Decode) or way.launch.tickets


def test_the_way_follows_from_what_the_problem_has() -> None:
    plain = problem()
    many = problem(seq_q=512, seq_k=512)
    lengths = Lengths(16, 16, 100, True)
    for wanted, way in (
        (plain, Decode),
        (dataclasses.replace(plain, window_offset=0), Decode),
        (dataclasses.replace(plain, lengths=lengths), Decode),
        (dataclasses.replace(plain, mask=Mask("bool", 16, 0, 0, 0, 1)), General),
        (dataclasses.replace(many, window_offset=0), General),
        (dataclasses.replace(many, lengths=lengths), General),
        (many, Portable),
    ):
        chosen, _ = choose_way(wanted, Machine(CHIPS[0], 40, 4 << 20))
        assert isinstance(chosen, way), (wanted, chosen.name)
    assert not any(
        isinstance(way, Portable) for way in list_ways(dataclasses.replace(many, lengths=lengths), machine())
    )


@pytest.mark.parametrize(
    ("causal", "window", "shift", "expected"),
    [
        (False, None, 0, (None, None)),
        (True, None, 5, (5, None)),
        (False, (3, 2), 0, (2, -3)),
        (True, (3, 2), 4, (4, 1)),
        (False, (-1, None), 0, (None, None)),
        (False, (0, 1 << 40), 0, ((1 << 30) - 1, 0)),
    ],
)
def test_a_window_and_causality_become_two_limits(
    causal: bool, window: tuple[int | None, int | None] | None, shift: int, expected: tuple[int | None, int | None]
) -> None:
    assert key_limits(causal, window, shift) == expected


def test_a_window_of_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="window"):
        key_limits(False, (-2, 0), 0)


def test_a_mask_broadcasts_without_a_copy_and_only_as_pytorch_lets_it() -> None:
    q = torch.zeros(2, 4, 5, 64, dtype=torch.float16)
    mask = torch.zeros(4, 1, 7)
    assert mask_of(mask, (2, 4, 5, 7), q) == Mask("float32", mask.data_ptr(), 0, 28, 0, 4)
    boolean = torch.ones(5, 7, dtype=torch.bool)
    assert mask_of(boolean, (2, 4, 5, 7), q) == Mask("bool", boolean.data_ptr(), 0, 0, 7, 1)
    with pytest.raises(ValueError, match="broadcast"):
        mask_of(torch.zeros(5, 6), (2, 4, 5, 7), q)
    with pytest.raises(Unsupported, match="float64"):
        mask_of(torch.zeros(5, 7, dtype=torch.float64), (2, 4, 5, 7), q)
    with pytest.raises(Unsupported, match="bfloat16"):
        mask_of(torch.zeros(5, 7, dtype=torch.bfloat16), (2, 4, 5, 7), q)


def test_packed_tensors_that_contradict_their_lengths_are_refused() -> None:
    q = torch.zeros(10, 4, 64, dtype=torch.float16)
    starts = torch.tensor([0, 10], dtype=torch.int32)

    def posed(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Problem:
        return varlen_problem_of(x, x, x, x, a, b, 10, 10, causal=False, alignment="bottom-right", window=None)

    assert posed(q, starts, starts).lengths == Lengths(starts.data_ptr(), starts.data_ptr(), 10, True, 10)
    for tensors, words in (
        ((q[None], starts, starts), "total"),
        ((q, starts.long(), starts), "int32"),
        ((q, starts, torch.tensor([0, 3, 10], dtype=torch.int32)), "one entry more"),
        ((q, starts[:1], starts[:1]), "one entry more"),
    ):
        with pytest.raises(ValueError, match=words):
            posed(*tensors)
    assert posed(q, starts, starts).has_keys
    assert not posed(q[:0], starts, starts).has_keys


def test_a_window_on_one_side_to_the_right_is_plain() -> None:
    q = torch.zeros(1, 2, 100, 64, dtype=torch.float16)
    wanted = problem_of(q, q, q, q, causal=False, alignment="top-left", window=(None, 3))
    assert wanted.is_plain
    assert (wanted.causal, wanted.causal_offset) == (True, 3)
