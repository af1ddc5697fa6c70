"""Which weights dropout keeps: a fixed function, with the right share of each row, column and head; and cases with it."""

from __future__ import annotations

import functools
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.attention import reference
from kernels.attention.case import Case, Shape
from kernels.attention.correctness import stepwise_output
from kernels.attention.dropout import Dropout, keep_scale, least_word, philox
from kernels.attention.gradient_gate import stepwise_gradients
from kernels.attention.implementations import Baseline, bundled_kernel
from kernels.attention.interface import Unavailable
from kernels.attention.problem import AttentionProblem
from kernels.attention.reference import Terms
from kernels.attention.workload import WORKLOAD
from kernels.harness.reading import BadSpec
from kernels.harness.workload import Site
from tests.kernels.harness_process import shape

ALL = 0xFFFFFFFF
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((ALL, ALL, ALL, ALL), (ALL, ALL), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0), "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
"""Of the published definition of Philox 4x32-10: counter, key, words."""
ROWS, KEYS = torch.arange(200), torch.arange(320)
SIGMAS = 5.0


def off(share: torch.Tensor, p: float, count: int) -> float:
    """By how many standard deviations the share of kept weights among `count` is off, at most."""
    return float((share - (1 - p)).abs().max()) / math.sqrt(p * (1 - p) / count)


def masks(p: float, seed: int, offset: int = 0, heads: int = 6) -> torch.Tensor:
    made = Dropout(p, seed, offset)
    return torch.stack([made.kept(head, ROWS, KEYS) for head in range(heads)])


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_the_words_are_those_of_the_published_definition(
    counter: tuple[int, ...], key: tuple[int, int], words: str
) -> None:
    assert " ".join(f"{int(x):08x}" for x in philox([torch.tensor(x) for x in counter], key)) == words


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_each_row_column_and_head_keeps_its_share_of_the_weights(p: float, seed: int) -> None:
    kept = masks(p, seed).double()
    for axes in itertools.chain.from_iterable(itertools.combinations(range(3), left) for left in (1, 2, 3)):
        count = math.prod(kept.shape[axis] for axis in axes)
        if count * min(p, 1 - p) >= 9:  # fewer are not near a normal distribution
            assert off(kept.mean(axes), p, count) < SIGMAS


def test_the_positions_of_a_row_within_any_tile_keep_the_same_share() -> None:
    kept = masks(0.5, 7).double()
    for width in (2, 4, 8, 16, 32, 64):
        by_place = kept[..., : 320 // width * width].unflatten(-1, (-1, width)).mean((0, 1, 2))
        assert off(by_place, 0.5, kept[..., : 320 // width * width].numel() // width) < SIGMAS


def test_other_seeds_offsets_heads_rows_and_keys_are_independent() -> None:
    p, first = 0.5, masks(0.5, 11)
    others = [masks(p, 12), masks(p, 11, 1), masks(p, 11, 1 << 32), masks(p, 11 + (1 << 32)), masks(p, -11)]
    others += [first.roll(1, axis) for axis in range(3)] + [first.roll(step, 2) for step in (2, 4, 8, 16)]
    for other in others:
        assert off((first == other).double().mean(), 0.5, first.numel()) < SIGMAS


def test_a_part_of_the_rows_and_keys_has_the_part_of_the_whole() -> None:
    whole = Dropout(0.3, 5).kept(3, ROWS, KEYS)
    part = Dropout(0.3, 5).kept(3, ROWS[67:130], KEYS[5:71])
    assert torch.equal(part, whole[67:130, 5:71])


def test_a_probability_is_taken_in_parts_of_2_to_the_32() -> None:
    assert [least_word(p) for p in (0.0, 2.0**-32, 0.5, 1 - 2**-24, 1 - 2.0**-53)] == [0, 1, 2**31, 2**32 - 256, ALL]
    assert [keep_scale(p) for p in (0.0, 0.5, 1 - 2**-24)] == [1.0, 2.0, 2.0**24]
    assert Dropout(0.0, 3).kept(0, ROWS, KEYS).all()
    assert not Dropout(1 - 2**-24, 3).kept(0, ROWS, KEYS).any()


class Remembered(Dropout):
    """Draws the words of a part once, however often it is asked for them."""

    def kept(self, head: int, rows: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return self.part(head, tuple(rows.tolist()), tuple(keys.tolist()))

    @functools.cache  # noqa: B019 - there is one for all tests
    def part(self, head: int, rows: tuple[int, ...], keys: tuple[int, ...]) -> torch.Tensor:
        return super().kept(head, torch.tensor(rows), torch.tensor(keys))


class Attention(torch.autograd.Function):
    """The reference with dropout, a window and sinks, forward and backward."""

    terms = Terms(5, None, Remembered(0.4, 2**63 - 1, 9))

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(q, k, v, sinks)
        terms = Terms(5, sinks, Attention.terms.dropout)
        return reference.attention(q, k, v, causal=True, chunk_elements=20, terms=terms).out

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> Any:
        q, k, v, sinks = ctx.saved_tensors
        terms = Terms(5, sinks, Attention.terms.dropout)
        found = reference.attention_backward(q, k, v, *slopes, causal=True, chunk_elements=20, terms=terms)
        return found.dq, found.dk, found.dv, found.dsinks


def test_the_reference_gradients_with_dropout_are_those_of_differences() -> None:
    generator = torch.Generator().manual_seed(1)
    sizes = (2, 4, 7, 3), (2, 2, 8, 3), (2, 2, 8, 5), (4,)
    given = tuple(torch.randn(size, generator=generator, dtype=torch.float64, requires_grad=True) for size in sizes)
    assert torch.autograd.gradcheck(Attention.apply, given)  # type: ignore[no-untyped-call]


DROPPING = Shape(2, 4, 2, 65, 65, 16, True, dropout=0.25)


@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
def test_a_case_with_dropout_is_judged_by_its_own_mask(direction: str) -> None:
    case = Case(DROPPING, "float16", direction)
    given = AttentionProblem().inputs(case, torch.Generator().manual_seed(1))
    assert case.id.startswith("b2-h4-kv2-q65-k65-d16-causal-p0.25-float16")
    assert given.seed is not None
    by = AttentionProblem().yardstick(case, given, 0.02)
    seed, offset = given.seed.tolist()
    for of, right in (((seed, offset), True), ((seed + 1, offset), False), ((seed, offset ^ 1), False)):
        terms = Terms(dropout=Dropout(0.25, *of))
        answer: Any = stepwise_output(given.q, given.k, given.v, True, None, terms)
        if direction != "forward":
            steps = stepwise_gradients(given.q, given.k, given.v, given.slope, True, terms)
            answer = steps if direction == "backward" else (answer, *steps)
        assert by.judge(answer).passed == right


def test_inputs_of_a_case_with_dropout_are_those_without_and_a_seed() -> None:
    with_seed, without = (
        AttentionProblem().inputs(Case(Shape(1, 2, 2, 9, 9, 8, False, dropout=p), "float16"), torch.Generator().manual_seed(3))
        for p in (0.5, 0.0)
    )  # fmt: skip
    assert torch.equal(with_seed.v, without.v)
    assert without.seed is None
    copied = AttentionProblem().copied(with_seed)
    assert with_seed.seed is not None
    assert copied.seed is not None
    assert torch.equal(copied.seed, with_seed.seed)
    assert copied.seed.data_ptr() != with_seed.seed.data_ptr()


def test_who_has_no_seeded_dropout_says_so(tmp_path: Path) -> None:
    case = Case(DROPPING, "float16")
    given = AttentionProblem().inputs(case, torch.Generator().manual_seed(1))
    site = Site(torch.device("cpu"), 1, tmp_path, tmp_path)
    for implementation in (Baseline("math"), bundled_kernel("bench", site)):
        with pytest.raises(Unavailable, match="is called here without dropout by a seeded counter"):
            implementation.bind(case, given)


@pytest.mark.parametrize("p", [1.0, 0.00001, -0.1, math.nan, "0.1", True])
def test_a_shape_has_no_other_dropout_than_an_id_can_name(p: object) -> None:
    with pytest.raises(BadSpec, match="dropout must be"):
        WORKLOAD.cases({"shapes": [shape(4, dropout=p)], "dtypes": ["float16"]}, "measure")
