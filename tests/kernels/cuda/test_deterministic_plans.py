"""Which kernels a backward pass takes in the deterministic mode: pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kernels.attention.cuda.backward.costs import TURN, three_launches, three_launches_in_turns
from kernels.attention.cuda.backward.plan import BackwardProblem
from kernels.attention.cuda.backward.ways import backward_ways
from kernels.attention.cuda.plan.planning import Layout, Machine
from tests.kernels.cuda.backward_problems import FEW, MACHINE, posed


def repeating(problem: BackwardProblem, machine: Machine = MACHINE) -> str:
    """What the deterministic mode takes."""
    return next(way.name for way in backward_ways(problem, machine) if way.same_bits)


def test_the_deterministic_mode_has_the_pair_or_few_keys_where_there_is_no_hopper() -> None:
    elsewhere = replace(MACHINE, hopper=False)
    assert repeating(posed(**{**FEW, "seq": 512}), elsewhere).startswith("backward-small-")
    for sizes in ({"seq": 4096}, {"seq": 1024, "batch": 4}):
        assert repeating(posed(**{**FEW, **sizes}), elsewhere) == "backward-pair"


ORDERED, ROWS_128 = "backward90-ordered", "backward-few90-128"


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [
        ({"seq": 512}, ORDERED),
        ({"seq": 16384}, ORDERED),
        ({"seq": 512, "head_dim": 64}, ORDERED),
        ({"seq": 256, "batch": 16, "causal": False}, ORDERED),
        ({"seq": 1023, "causal": False}, ORDERED),
        ({"seq": 512, "head_dim": 64, "causal": False}, ORDERED),
        ({"seq": 4096, "head_dim": 72, "causal": False}, ORDERED),  # padded to 128
    ],
)
def test_the_deterministic_mode_takes_sums_in_an_order_where_blocks_are_many(sizes: dict[str, Any], taken: str) -> None:
    assert backward_ways(posed(**sizes), MACHINE)[0].name == "backward90"
    assert repeating(posed(**sizes)) == taken


def test_in_an_order_tiles_of_one_head_begin_a_turn_apart() -> None:
    few = {"batch": 1, "heads": 4, "kv_heads": 4, "seq": 4096}
    for head_dim in (64, 128):
        plain = posed(**few, head_dim=head_dim, causal=False)
        waits = three_launches_in_turns(plain, 132) - three_launches(plain, 132)
        assert waits == pytest.approx(31 * TURN[head_dim])  # of the 32 tiles of a head, which begin together
        causal = posed(**few, head_dim=head_dim)  # the next one is shorter by as much
        assert three_launches_in_turns(causal, 132) == pytest.approx(three_launches(causal, 132))


@pytest.mark.parametrize(
    ("sizes", "first", "taken"),
    [
        ({"seq": 512, "head_dim": 64}, ROWS_128, ROWS_128),
        ({"seq": 4096, "batch": 1, "heads": 1, "kv_heads": 1}, "backward-few90-64", "backward-few90-64"),
        # 154.5 us are expected of `backward90` with either mask, 154.5 and 226 in an order; 178 and 235 of one launch.
        ({"seq": 4096, "batch": 1, "heads": 4, "kv_heads": 4, "head_dim": 128}, "backward90", ORDERED),
        ({"seq": 4096, "batch": 1, "heads": 4, "kv_heads": 4, "head_dim": 128, "causal": False}, "backward90", ORDERED),
        # 29.2 of `backward90`, 29.2 and 43.6 in an order; 32.7 and 36.0 of one launch.
        ({"seq": 1024}, "backward90", ORDERED),
        ({"seq": 1024, "causal": False}, "backward90", ROWS_128),
        # 93.3 of `backward90`, 93.3 and 157 in an order; 96.5 and 120 of one launch.
        ({"seq": 4096, "batch": 1, "heads": 4, "kv_heads": 4}, "backward90", ORDERED),
        ({"seq": 4096, "batch": 1, "heads": 4, "kv_heads": 4, "causal": False}, "backward90", ROWS_128),
        # 35.9 of `backward90`, 47.4 in an order; 49.3 of one launch.
        ({"seq": 768, "head_dim": 128, "causal": False}, "backward90", ORDERED),
    ],
)
def test_with_few_rounds_of_blocks_the_deterministic_mode_takes_what_is_expected_to_end_first(
    sizes: dict[str, Any], first: str, taken: str
) -> None:
    problem = posed(**{**FEW, **sizes})
    assert backward_ways(problem, MACHINE)[0].name == first
    assert repeating(problem) == taken


def test_where_its_one_launch_cannot_be_the_deterministic_mode_has_hoppers_sums_in_an_order() -> None:
    problem = posed(**{**FEW, "seq": 1024, "out": Layout(0, 0, 64)})
    assert repeating(problem) == ORDERED
