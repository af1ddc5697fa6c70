"""What of the Hopper kernels can be judged without one: their sources, their plans, the files that scripts write."""

from __future__ import annotations

import dataclasses
import random

import pytest

from kernels.attention.cuda.compile import wgmma
from kernels.attention.cuda.plan.planning import Layout, Machine, Problem
from kernels.attention.cuda.plan.variants import chip_of
from kernels.attention.cuda.ways import hopper, hopper_kernels

CHIP = chip_of(90)
assert CHIP is not None
MACHINE = Machine(chip=CHIP, sm_count=132, l2_bytes=50 << 20, hopper=True)


def problem(**changes: object) -> Problem:
    """16 heads of 1000 rows, head dimension 128, dense."""
    sizes = {"batch": 4, "heads": 16, "kv_heads": 16, "seq_q": 1000, "seq_k": 1000, "head_dim": 128} | {
        name: value for name, value in changes.items() if name in Problem.__slots__
    }
    q = Layout(16 * 1000 * 128, 1000 * 128, 128, 4096)
    base = {"dtype": "bfloat16", "causal": True, "causal_offset": 0, "q": q, "k": q, "v": q, "out": q}
    return Problem(**{**base, **sizes})  # type: ignore[arg-type]


def test_the_wgmma_wrappers_are_what_their_script_writes() -> None:
    assert wgmma.HEADER.read_text() == wgmma.header_text()
    assert wgmma.main(["--check"]) == 0


def test_every_kernel_has_a_name_of_its_own_and_fits_a_block() -> None:
    kernels = list(hopper_kernels.hopper_table())
    assert len({kernel.name for kernel in kernels}) == len(kernels)
    assert CHIP is not None
    for kernel in kernels:
        assert kernel.shared_bytes + 1024 <= CHIP.shared_bytes_per_block  # barriers, and alignment to a kilobyte
        assert kernel.threads <= 1024


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_dim": 264}, "at most 256"),
        ({"head_dim": 100}, "rows that start on 16-byte boundaries"),
        ({"dtype": "float32"}, "at most 256"),
        ({"q": Layout(16 * 1000 * 128, 1000 * 128, 128, 4098)}, "rows that start on 16-byte boundaries"),
        ({"k": Layout(16 * 1000 * 128, 0, 128, 4096)}, "cannot describe these strides"),
    ],
)
def test_what_a_tensor_map_cannot_describe_is_refused_with_the_reason(changes: dict[str, object], reason: str) -> None:
    refused = dataclasses.replace(problem(), **changes)  # type: ignore[arg-type]
    assert reason in (hopper.hopper_refusal(refused, MACHINE) or "")
    assert hopper.hopper_ways(refused, MACHINE) == []


def test_other_chips_get_none_of_these_kernels() -> None:
    assert hopper.hopper_ways(problem(), dataclasses.replace(MACHINE, hopper=False)) == []


def test_sections_hold_each_head_once_and_their_keys_and_values_fit_the_cache_share() -> None:
    draw = random.Random(7)
    for _ in range(300):
        group = draw.choice((1, 2, 8))
        kv_heads, batch, seq = draw.randint(1, 40), draw.randint(1, 8), draw.randint(1, 20000)
        one = problem(batch=batch, heads=kv_heads * group, kv_heads=kv_heads, seq_q=seq, seq_k=seq)
        heads, section = batch * kv_heads * group, hopper.concurrent_heads(one, MACHINE)
        assert section % group == 0
        bytes_of_one = 2 * seq * 128 * 2
        assert section == group or section // group * bytes_of_one <= hopper.L2_SHARE * MACHINE.l2_bytes
        for way in hopper.hopper_ways(one, MACHINE):
            rows = way.kernel.shape.rows
            assert way.tiles(one) >= heads * -(-seq // rows)  # surplus heads of the last section are passed over
