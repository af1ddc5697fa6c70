"""Which kernels a backward pass takes in the deterministic mode: pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kernels.attention.cuda.backward.costs import TURN, three_launches, three_launches_in_turns
from kernels.attention.cuda.backward.kernels import BackwardParameters, Order
from kernels.attention.cuda.backward.plan import BackwardProblem, HopperBackward, cyclic_refusal
from kernels.attention.cuda.backward.ways import backward_ways
from kernels.attention.cuda.plan.planning import Layout, Machine
from tests.kernels.cuda.backward_problems import FEW, MACHINE, posed
from tests.kernels.cuda.simt_ways import HostBuffers
from tests.kernels.cuda.stress import SHAPES
from tests.kernels.cuda.stub_driver import WITH_STUB, Stub


def repeating(problem: BackwardProblem, machine: Machine = MACHINE) -> str:
    """What the deterministic mode takes."""
    return next(way.name for way in backward_ways(problem, machine) if way.same_bits)


def test_the_deterministic_mode_has_the_pair_or_few_keys_where_there_is_no_hopper() -> None:
    elsewhere = replace(MACHINE, hopper=False)
    assert repeating(posed(**{**FEW, "seq": 512}), elsewhere).startswith("backward-small-")
    for sizes in ({"seq": 4096}, {"seq": 1024, "batch": 4}):
        assert repeating(posed(**{**FEW, **sizes}), elsewhere) == "backward-pair"


ORDERED, CYCLIC, ROWS_128 = "backward90-ordered", "backward90-cyclic", "backward-few90-128"


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [
        ({"seq": 512}, ORDERED),
        ({"seq": 16384}, ORDERED),
        ({"seq": 512, "head_dim": 64}, ORDERED),
        ({"seq": 512, "window_offset": -100}, ORDERED),
        ({"seq": 512, "causal": False, "window_offset": -100}, ORDERED),
        ({"seq": 512, "causal": False}, CYCLIC),
        ({"seq": 512, "head_dim": 64, "causal": False}, CYCLIC),
        ({"seq": 4096, "seq_k": 4224, "causal": False}, ORDERED),
    ],
)
def test_the_deterministic_mode_takes_sums_in_an_order_where_blocks_are_many(sizes: dict[str, Any], taken: str) -> None:
    assert backward_ways(posed(**sizes), MACHINE)[0].name == "backward90"
    assert repeating(posed(**sizes)) == taken


def test_launches_repeat_in_every_deterministic_kernel_for_hopper() -> None:
    taken = {
        repeating(posed(batch=b, heads=h, kv_heads=kv, seq=seq_q, seq_k=seq_k, head_dim=head_dim, causal=causal))
        for b, h, kv, seq_q, seq_k, head_dim, causal in SHAPES
    }
    for kind in (ORDERED, CYCLIC, "backward-few90-64", ROWS_128, "backward-small"):
        assert any(name.startswith(kind) for name in taken), kind


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
        # 154.5 us are expected of `backward90` with either mask, 154.5 and 226 in the order of the keys; 178 and 235 of
        # one launch. In a cyclic order as much as in any.
        ({"seq": 4096, "batch": 1, "heads": 4, "kv_heads": 4, "head_dim": 128}, "backward90", ORDERED),
        ({"seq": 4096, "batch": 1, "heads": 4, "kv_heads": 4, "head_dim": 128, "causal": False}, "backward90", CYCLIC),
        # 29.2 of `backward90`, 29.2 and 43.6 in the order of the keys; 32.7 and 36.0 of one launch.
        ({"seq": 1024}, "backward90", ORDERED),
        ({"seq": 1024, "causal": False}, "backward90", CYCLIC),
        # 93.3 of `backward90`, 93.3 and 157 in the order of the keys; 96.5 and 120 of one launch.
        ({"seq": 4096, "batch": 1, "heads": 4, "kv_heads": 4}, "backward90", ORDERED),
        ({"seq": 4096, "batch": 1, "heads": 4, "kv_heads": 4, "causal": False}, "backward90", CYCLIC),
        # 35.9 of `backward90`, 47.4 in the order of the keys; 49.3 of one launch.
        ({"seq": 768, "head_dim": 128, "causal": False}, "backward90", CYCLIC),
        # Four times as many tiles of keys as of queries: 226 in the order of the keys, 304 in a cyclic order.
        (
            {"seq": 2048, "seq_k": 8192, "batch": 1, "heads": 4, "kv_heads": 4, "head_dim": 128, "causal": False},
            "backward90",
            ORDERED,
        ),
    ],
)
def test_with_few_rounds_the_deterministic_mode_takes_what_should_end_first(
    sizes: dict[str, Any], first: str, taken: str
) -> None:
    problem = posed(**{**FEW, **sizes})
    assert backward_ways(problem, MACHINE)[0].name == first
    assert repeating(problem) == taken


@WITH_STUB
@pytest.mark.parametrize(
    ("sizes", "blocks", "heads"),
    [({"seq": 4096}, 128, 4), ({"seq": 1024}, 128, 16), ({"seq": 3000}, 120, 5), ({"seq": 16896}, 132, 1)],
)
def test_in_a_cyclic_order_a_heads_tiles_share_an_sm_and_a_blocks_tiles_a_place(
    stub: Stub, sizes: dict[str, Any], blocks: int, heads: int
) -> None:
    problem = posed(**{**sizes, "causal": False})
    assert cyclic_refusal(problem, MACHINE) is None
    prepare, main, _ = HopperBackward(MACHINE, order=Order.CYCLIC).steps(problem, HostBuffers())  # type: ignore[arg-type]
    parameters = main.arguments[-1]
    assert isinstance(parameters, BackwardParameters)
    assert (main.grid, main.cooperative, main.dependent) == ((blocks, 1, 1), True, False)
    assert blocks == heads * parameters.tiles.divisor == heads * parameters.section_tiles.divisor
    assert prepare.entry.name.endswith("_keeps")


def test_a_cyclic_order_is_refused_under_a_causal_mask_and_for_more_tiles_than_sms() -> None:
    assert "causal" in (cyclic_refusal(posed(), MACHINE) or "")
    assert "132 tiles" in (cyclic_refusal(posed(seq=16897, causal=False), MACHINE) or "")
    assert "positive" in (cyclic_refusal(posed(causal=False, scale=-1.0), MACHINE) or "")


def test_where_one_launch_cannot_be_the_deterministic_mode_orders_hoppers_sums() -> None:
    problem = posed(**{**FEW, "seq": 1024, "out": Layout(0, 0, 64)})
    assert repeating(problem) == ORDERED
