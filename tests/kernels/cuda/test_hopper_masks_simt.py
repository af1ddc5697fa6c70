"""Masks that are tensors on the Hopper kernel, run on the CPU with a fiber for each thread, against float64."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.plan.planning import Layout, Machine, Mask, Problem
from kernels.attention.cuda.plan.posing import problem_of
from kernels.attention.cuda.ways import hopper
from kernels.attention.cuda.ways.dispatch import choose_way
from kernels.attention.cuda.ways.hopper import HopperWay
from kernels.attention.cuda.ways.hopper_kernels import MASKED_SHAPES, STAGED_SHAPES, HopperKernel, Shape, staged_shapes
from tests.kernels.cuda.compiled import WITH_COMPILER
from tests.kernels.cuda.hopper_cases import Case, attend, complaint, draw
from tests.kernels.cuda.hopper_runner import RELEASING, SHUFFLED, WAITING, HopperProgram, Schedule, compile_hopper
from tests.kernels.cuda.simt_ways import HostBuffers
from tests.kernels.cuda.stub_driver import HOPPER, WITH_STUB, program_with_stub

pytestmark = [WITH_COMPILER, WITH_STUB]

BOOL = HopperKernel("bfloat16", 64, False, False, MASKED_SHAPES[64, False][0], "bool")
HALF = HopperKernel("float16", 128, True, False, MASKED_SHAPES[128, False][0], "float16")
BRAIN = HopperKernel("bfloat16", 64, False, False, Shape(3, 64, 4, ping_pong=True), "bfloat16")
FLOAT = HopperKernel("bfloat16", 128, False, False, MASKED_SHAPES[128, True][0], "float32")
WINDOW = HopperKernel("bfloat16", 64, True, True, MASKED_SHAPES[64, False][0], "bool")
STAGED = HopperKernel("bfloat16", 64, False, False, STAGED_SHAPES[64, True][1], "float32")
SHARED = HopperKernel("bfloat16", 64, False, False, STAGED_SHAPES[64, True][0], "float32")
STAGED_HALF = HopperKernel("float16", 64, True, False, STAGED_SHAPES[64, False][0], "float16")
STAGED_WINDOW = HopperKernel("bfloat16", 128, True, True, STAGED_SHAPES[128, False][0], "bfloat16")
WIDE, WIDE_FLOAT, WIDE_BOOL, WIDE_WINDOW = (
    HopperKernel(dtype, 256, right, left, staged_shapes(256, mask)[0], mask)
    for dtype, right, left, mask in (
        ("bfloat16", False, False, "bfloat16"),
        ("bfloat16", True, False, "float32"),
        ("bfloat16", False, False, "bool"),
        ("float16", True, True, "bool"),
    )
)
STAGED_BOOL = HopperKernel("bfloat16", 64, False, False, Shape(2, 48, 2, ping_pong=True, masks=2), "bool")
STAGED_KERNELS = (STAGED, SHARED, STAGED_HALF, STAGED_WINDOW, STAGED_BOOL, WIDE, WIDE_FLOAT, WIDE_BOOL, WIDE_WINDOW)
NARROW = HopperKernel("bfloat16", 192, True, False, MASKED_SHAPES[192, False][0], "bool", narrow=128)
NARROW_STAGED = HopperKernel("bfloat16", 192, False, False, STAGED_SHAPES[192, False][0], "bfloat16", narrow=128)
KERNELS = (BOOL, HALF, BRAIN, FLOAT, WINDOW, NARROW, NARROW_STAGED, *STAGED_KERNELS)
DTYPES = {"bool": torch.bool, "float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


program = program_with_stub(lambda folder: compile_hopper(KERNELS, "HopperParams", folder))


def mask_for(kernel: HopperKernel, *shape: int) -> torch.Tensor:
    """Every third key hidden, or numbers of which some are -inf."""
    assert kernel.mask is not None
    generator = torch.Generator().manual_seed(sum(shape))
    hidden = torch.rand(shape, generator=generator) < 0.3
    if kernel.mask == "bool":
        return ~hidden
    numbers = torch.randn(shape, generator=generator).masked_fill(hidden, -math.inf)
    return numbers.to(DTYPES[kernel.mask])


def case_of(kernel: HopperKernel, mask: torch.Tensor) -> Case:
    return Case(mask=mask, window=(70, 5) if kernel.left else None)


@pytest.mark.parametrize("schedule", [Schedule(), WAITING, RELEASING, SHUFFLED], ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_mask_of_every_type_agrees_with_float64_for_all_timings(
    program: HopperProgram, tmp_path: Path, kernel: HopperKernel, schedule: Schedule
) -> None:
    batches = kernel.shape.sharers  # that share a head's mask
    keys = 272 if kernel.mask == "bool" and kernel.shape.masks else 264  # each row begins on 16 bytes
    tensors, case = draw(kernel, batches, 2, 1, 150, keys), case_of(kernel, mask_for(kernel, 1, 2, 150, keys))
    assert complaint(kernel, tensors, case, *attend(program, kernel, tensors, tmp_path, schedule, case)) is None


@pytest.mark.parametrize("shape", [(2, 1, 1, 72), (1, 3, 65, 72), (65, 72), (2, 3, 1, 72), (1, 72)])
@pytest.mark.parametrize("kernel", [BOOL, BRAIN, FLOAT], ids=lambda kernel: kernel.name)
def test_a_mask_is_broadcast_over_batches_heads_and_rows(
    program: HopperProgram, tmp_path: Path, kernel: HopperKernel, shape: tuple[int, ...]
) -> None:
    tensors, case = draw(kernel, 2, 3, 3, 65, 72), case_of(kernel, mask_for(kernel, *shape))
    assert complaint(kernel, tensors, case, *attend(program, kernel, tensors, tmp_path, SHUFFLED, case)) is None


@pytest.mark.parametrize("shape", [(2, 1, 65, 80), (1, 3, 65, 80), (65, 80), (2, 3, 65, 80)])
@pytest.mark.parametrize("kernel", [STAGED, STAGED_HALF, WIDE_BOOL], ids=lambda kernel: kernel.name)
def test_a_staged_mask_is_broadcast_over_batches_and_heads(
    program: HopperProgram, tmp_path: Path, kernel: HopperKernel, shape: tuple[int, ...]
) -> None:
    tensors, case = draw(kernel, 2, 3, 3, 65, 80), case_of(kernel, mask_for(kernel, *shape))
    assert complaint(kernel, tensors, case, *attend(program, kernel, tensors, tmp_path, SHUFFLED, case)) is None


@pytest.mark.parametrize(("batch", "heads", "shape"), [(4, 3, (1, 3)), (1, 4, (1, 1)), (3, 2, (3, 1)), (2, 2, (1, 1))])
def test_heads_and_batches_that_share_a_mask_are_computed_two_at_a_time(
    program: HopperProgram, tmp_path: Path, batch: int, heads: int, shape: tuple[int, int]
) -> None:
    tensors, case = draw(SHARED, batch, heads, 1, 150, 136), case_of(SHARED, mask_for(SHARED, *shape, 150, 136))
    assert complaint(SHARED, tensors, case, *attend(program, SHARED, tensors, tmp_path, SHUFFLED, case)) is None


@pytest.mark.parametrize("kernel", [STAGED, STAGED_HALF, STAGED_BOOL, WIDE], ids=lambda kernel: kernel.name)
def test_a_staged_mask_may_be_a_part_of_a_larger_one(
    program: HopperProgram, tmp_path: Path, kernel: HopperKernel
) -> None:
    part = mask_for(kernel, 1, 2, 80, 160)[:, :, 5:75, 16:152]
    tensors, case = draw(kernel, 1, 2, 2, 70, 136), case_of(kernel, part)
    assert complaint(kernel, tensors, case, *attend(program, kernel, tensors, tmp_path, SHUFFLED, case)) is None


@pytest.mark.parametrize(
    ("changes", "shapes"),
    [
        ({}, ["128x64s3pm2x2", "128x128s2pm2", "128x96s3p"]),
        ({"head": 64 * 256}, ["128x64s3pm2x2", "128x128s2pm2", "128x96s3p"]),
        ({"head": 64 * 256, "batch": 16 * 64 * 256}, ["128x128s2pm2", "128x96s3p"]),
        ({"row": 0}, ["128x96s3p"]),
        ({"row": 128}, ["128x96s3p"]),
        ({"dtype": "bool", "row": 64, "key": 1}, ["128x128s3p"]),
        ({"dtype": "bfloat16", "row": 128, "key": 2}, ["128x128s2pm2", "256x64s3pm2", "128x128s3p"]),
    ],
)
def test_numbers_pass_through_shared_memory_for_own_rows_and_for_two_shared_heads(
    changes: dict[str, object], shapes: list[str]
) -> None:
    machine, lies = Machine(HOPPER, 132, 50 << 20, hopper=True), Layout(16 * 64 * 64, 64 * 64, 64, 4096)
    mask = replace(Mask("float32", 4096, 0, 0, 256, 4), **changes)  # type: ignore[arg-type]
    posed = Problem("bfloat16", 2, 16, 16, 64, 64, 64, False, 0, lies, lies, lies, lies, mask=mask)
    machine = replace(machine, sm_count=4)
    assert [way.kernel.shape.name for way in hopper.hopper_ways(posed, machine)] == shapes
    odd = replace(posed, batch=1, heads=15, kv_heads=15)
    assert all(way.kernel.shape.sharers == 1 for way in hopper.hopper_ways(odd, machine))


@pytest.mark.parametrize(("heads", "first"), [(2, "128x128s2pm2"), (16, "128x128s2pm2"), (32, "256x64s3pm2")])
def test_large_tiles_are_taken_where_there_are_enough_of_them(heads: int, first: str) -> None:
    machine, lies = Machine(HOPPER, 132, 50 << 20, hopper=True), Layout(heads * 1024 * 64, 1024 * 64, 64, 4096)
    mask = Mask("bfloat16", 4096, 0, 0, 2048, 2)
    posed = Problem("bfloat16", 1, heads, heads, 1024, 1024, 64, False, 0, lies, lies, lies, lies, mask=mask)
    assert hopper.hopper_ways(posed, machine)[0].kernel.shape.name == first


@pytest.mark.parametrize(
    ("shape", "following"),
    [((1, 3, 65, 72), 2), ((3, 65, 72), 2), ((1, 1, 65, 72), 0), ((2, 3, 65, 72), 0), ((2, 1, 65, 72), 0)],
)
def test_batches_that_share_a_heads_mask_follow_each_other(
    program: HopperProgram, shape: tuple[int, ...], following: int
) -> None:
    del program  # the library is in place while it lives
    q, k, v = draw(FLOAT, 2, 3, 3, 65, 72)
    mask = mask_for(FLOAT, *shape)
    posed = problem_of(q, k, v, torch.empty_like(q), causal=False, alignment="top-left", window=None, mask=mask)
    way = HopperWay(FLOAT, Machine(HOPPER, 4, 50 << 20, hopper=True))
    [step] = way.steps(posed, 0.1, HostBuffers())  # type: ignore[arg-type]
    assert step.arguments[-1].batches.divisor == following


def test_a_mask_of_32_bits_is_sent_for_ahead_over_many_tiles_and_never_outside_of_it(
    program: HopperProgram, tmp_path: Path
) -> None:
    for seq_q, seq_k in ((70, 520), (10, 8)):
        tensors, case = draw(FLOAT, 2, 2, 2, seq_q, seq_k), Case(mask=mask_for(FLOAT, 1, 2, seq_q, seq_k))
        assert complaint(FLOAT, tensors, case, *attend(program, FLOAT, tensors, tmp_path, SHUFFLED, case)) is None


@pytest.mark.parametrize("kernel", [BOOL, BRAIN, FLOAT, STAGED, STAGED_BOOL, WIDE], ids=lambda kernel: kernel.name)
def test_a_row_of_which_the_mask_hides_every_key_is_zero(
    program: HopperProgram, tmp_path: Path, kernel: HopperKernel
) -> None:
    mask = mask_for(kernel, 1, 1, 70, 144)
    mask[:, :, 3] = mask[:, :, 64:67] = False if kernel.mask == "bool" else -math.inf
    tensors, case = draw(kernel, 1, 1, 1, 70, 144), case_of(kernel, mask)
    out, lse = attend(program, kernel, tensors, tmp_path, SHUFFLED, case)
    assert complaint(kernel, tensors, case, out, lse) is None
    assert bool((out[:, :, 3] == 0).all())


@pytest.mark.parametrize("kernel", [BRAIN, FLOAT, STAGED], ids=lambda kernel: kernel.name)
def test_the_most_negative_number_hides_a_key_only_beside_others(
    program: HopperProgram, tmp_path: Path, kernel: HopperKernel
) -> None:
    mask = mask_for(kernel, 1, 1, 70, 136)
    least = torch.finfo(mask.dtype).min
    mask = mask.masked_fill(mask == -math.inf, least)
    mask[:, :, 5] = least
    tensors = draw(kernel, 1, 1, 1, 70, 136)
    out, _ = attend(program, kernel, tensors, tmp_path, SHUFFLED, Case(mask=mask))
    mean = tensors[2].double().mean(2)
    assert bool(out.isfinite().all())
    assert (out[:, :, 5].double() - mean).norm() < 1e-2 * mean.norm()
    hidden = Case(mask=mask.masked_fill(mask == least, -math.inf), with_lse=False)
    hidden_out = attend(program, kernel, tensors, tmp_path, SHUFFLED, hidden)[0]
    rest = [row for row in range(70) if row != 5]
    assert torch.equal(out[:, :, rest], hidden_out[:, :, rest])


@pytest.mark.parametrize(
    ("changes", "shapes"),
    [
        ({}, ["128x48s2m2"]),
        ({"dtype": "bfloat16", "row": 128, "key": 2}, ["128x64s2m1"]),
        ({"dtype": "bool", "row": 64, "key": 1}, ["128x64s2m2"]),
        ({"dtype": "bool", "row": 72, "key": 1}, []),
        ({"row": 0}, []),
    ],
)
@pytest.mark.parametrize("head_dim", [200, 256])
def test_masks_of_the_widest_heads_pass_through_shared_memory_whatever_their_type(
    changes: dict[str, object], shapes: list[str], head_dim: int
) -> None:
    machine, lies = Machine(HOPPER, 132, 50 << 20, hopper=True), Layout(16 * 64 * 256, 64 * 256, 256, 4096)
    mask = replace(Mask("float32", 4096, 0, 0, 256, 4), **changes)  # type: ignore[arg-type]
    posed = Problem("bfloat16", 2, 16, 16, 64, 64, head_dim, False, 0, lies, lies, lies, lies, mask=mask)
    found = hopper.hopper_ways(posed, machine)
    assert [way.kernel.shape.name for way in found] == shapes
    for way in found:
        assert way.kernel.shared_bytes <= HOPPER.shared_bytes_per_block
    assert bool(hopper.hopper_refusal(posed, machine)) == (not found and mask.row > 0)
    assert choose_way(posed, machine)[0].name.startswith("fa90" if found or mask.row == 0 else "general")


@pytest.mark.parametrize(("heads", "rows", "taken"), [(8, 256, "general"), (16, 512, "fa90"), (8, 1024, "fa90")])
@pytest.mark.parametrize("head_dim", [128, 256])
def test_few_tiles_over_many_keys_are_left_to_the_kernel_that_cuts_keys(
    heads: int, rows: int, taken: str, head_dim: int
) -> None:
    machine = Machine(HOPPER, 132, 50 << 20, hopper=True)
    q, k = (Layout(heads * seq * head_dim, seq * head_dim, head_dim, 4096) for seq in (rows, 4096))
    mask = Mask("bfloat16", 4096, 0, 0, 8192, 2)
    posed = Problem("bfloat16", 1, heads, heads, rows, 4096, head_dim, False, 0, q, k, k, q, mask=mask)
    assert choose_way(posed, machine)[0].name.startswith(taken)


def test_masks_that_lie_otherwise_are_left_to_the_portable_kernel_with_the_reason() -> None:
    machine, lies = Machine(HOPPER, 132, 50 << 20, hopper=True), Layout(16 * 64 * 64, 64 * 64, 64, 4096)
    plain = Problem("bfloat16", 1, 16, 16, 64, 64, 64, False, 0, lies, lies, lies, lies)
    good = Mask("bool", 4096, 0, 0, 64, 1)
    assert hopper.hopper_ways(replace(plain, mask=good), machine)
    for bad in (
        replace(good, key=2),
        replace(good, key=0),
        replace(good, row=60),
        replace(good, address=4097),
        Mask("float32", 4096, 0, 0, 264, 4),
    ):
        assert "a mask's rows must be contiguous" in (hopper.hopper_refusal(replace(plain, mask=bad), machine) or "")
        assert hopper.hopper_ways(replace(plain, mask=bad), machine) == []
    assert hopper.hopper_refusal(replace(plain, mask=good, seq_k=60), machine) is not None
