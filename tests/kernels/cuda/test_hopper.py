"""What of the Hopper kernels can be judged without one: their sources and their plans."""

from __future__ import annotations

import dataclasses
import random
import re

import pytest

from kernels.attention.cuda.plan import variants
from kernels.attention.cuda.plan.planning import Dropping, Layout, Lengths, Machine, Pages, Problem
from kernels.attention.cuda.plan.variants import chip_of
from kernels.attention.cuda.ways import hopper, hopper_kernels
from kernels.attention.cuda.ways.dispatch import choose_way
from kernels.attention.cuda.ways.general import General

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


def test_each_wgmma_lists_every_register_once_and_then_its_other_operands() -> None:
    header = (variants.SOURCE / "hopper" / "wgmma.cuh").read_text().replace("\\\n", "")
    names = dict(re.findall(r"#define WGMMA_NAMES_(\d+) (.*)", header))
    assert [int(number) for text in names.values() for number in re.findall(r"%(\d+)", text)] == list(range(128))
    registers = dict(re.findall(r"#define WGMMA_C_(\d+) (.*)", header))
    runs = [re.findall(r"WGMMA_C_([48])\((\d+)\)", text) for text in registers.values()]
    every = [int(first) + i for text in runs for count, first in text for i in range(int(count))]
    assert every == list(range(128))
    assert names.keys() == registers.keys()
    for count, text in names.items():
        assert re.findall(r"%(\d+)", text)[-1] == str(int(count) - 1)
        size, first = re.findall(r"_([48])\((\d+)\)", registers[count])[-1]
        assert int(first) + int(size) == int(count)
    wrappers = re.findall(r"WGMMA_(?:SHARED|REGISTERS)\((?:wgmma_shared, )?\w+, \w+, (\d[\d, ]*\d)", header)
    assert len(wrappers) == 14 + 7
    for wrapper in wrappers:
        width, *numbers = map(int, wrapper.split(", "))
        assert numbers == list(range(width // 2, width // 2 + len(numbers)))


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


@pytest.mark.parametrize(
    ("head_dim", "value_dim", "widths"),
    [
        (192, 128, [(192, 128)]),
        (168, 8, [(192, 128)]),
        (192, 136, [(192, 0)]),
        (160, 128, [(160, 0)]),
        (256, 128, [(256, 0)]),
        (64, 128, [(128, 0)]),
        (40, 24, [(64, 0)]),
        (24, 72, [(128, 0), (96, 0)]),
        (192, 192, [(192, 0)]),
    ],
)
def test_k_and_v_of_two_widths_get_the_kernel_that_has_room_for_both(
    head_dim: int, value_dim: int, widths: list[tuple[int, int]]
) -> None:
    posed = problem(head_dim=head_dim, value_dim=value_dim)
    assert hopper.kernel_widths(posed) == widths
    kernels = [way.kernel for way in hopper.hopper_ways(posed, MACHINE)]
    assert {(kernel.head_dim, kernel.narrow) for kernel in kernels} == set(widths)
    assert all(kernel.value_dim >= value_dim for kernel in kernels)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"softcap": 2.0}, "softcap, slopes and dropout are not supported"),
        ({"dropout": Dropping(4096, 1, 2.0)}, "softcap, slopes and dropout are not supported"),
        ({"value_dim": 264}, "at most 256"),
        ({"value_dim": 100}, "multiple of 8"),
        ({"pages": Pages(4096, 4096, 8, 64, 512, True, 16)}, "one head dimension of at most 128"),
    ],
)
def test_two_widths_are_refused_with_the_reason_where_no_kernel_has_them(
    changes: dict[str, object], reason: str
) -> None:
    refused = dataclasses.replace(problem(head_dim=192, value_dim=128), **changes)  # type: ignore[arg-type]
    assert reason in (hopper.hopper_refusal(refused, MACHINE) or "")
    assert isinstance(choose_way(refused, MACHINE)[0], General)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "fa90-128x128s2p-v128"),
        ({"causal": False}, "fa90-128x128s2p-v128"),
        ({"window_offset": -100}, "fa90-128x128s2p-v128"),
        ({"lengths": Lengths(4096, 4096, 1000, True, 1000)}, "fa90-128x128s2p-v128"),
        ({"batch": 1, "seq_q": 200, "seq_k": 9000, "causal": False}, "fa90-128x128s2p-v128-split-4"),
        ({"seq_q": 3}, "fa90-128x128s2p-v128-split-2"),
        ({"seq_q": 3, "kv_heads": 4}, "general-64x32w4s1-shaped128-pack4"),
        ({"batch": 1, "seq_q": 3, "seq_k": 9000, "causal": False}, "fa90-128x128s2p-v128-split-8"),
        ({"batch": 1, "kv_heads": 4, "seq_q": 3, "seq_k": 9000}, "general-64x32w4s1-shaped128-pack4"),
        ({"batch": 1, "heads": 2, "kv_heads": 2, "seq_k": 9000, "window_offset": -8000}, "general-64x32w4s1-shaped128"),
        ({"invariant": True}, "fa90-128x128s2p-v128"),
        ({"invariant": True, "seq_q": 3}, "general-64x32w4s1-shaped128"),
    ],
)
def test_two_widths_go_to_hoppers_kernel_unless_the_rows_are_few(changes: dict[str, object], name: str) -> None:
    posed = dataclasses.replace(problem(head_dim=192, value_dim=128), **changes)  # type: ignore[arg-type]
    assert choose_way(posed, MACHINE)[0].name.startswith(name)


def test_the_way_of_two_widths_does_not_depend_on_the_batch_where_bits_may_not() -> None:
    posed = dataclasses.replace(problem(head_dim=192, value_dim=128), invariant=True)
    for changes in ({"batch": 1}, {"batch": 300}, {"seq_k": 100_000}, {"batch": 1, "seq_k": 100_000}):
        assert choose_way(dataclasses.replace(posed, **changes), MACHINE) == choose_way(posed, MACHINE)


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
