"""Sequences of different lengths on the Hopper kernel, run on the CPU with a fiber for each thread, against float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.plan.planning import Machine
from kernels.attention.cuda.plan.posing import output_like, varlen_problem_of
from kernels.attention.cuda.ways.hopper import HopperWay
from kernels.attention.cuda.ways.hopper_kernels import NARROW_SHAPES, SHAPES, HopperKernel, Shape
from tests.kernels.cuda.compiled import WITH_COMPILER
from tests.kernels.cuda.exactly import ERROR, assert_agree, beside_sinks, exact, limits
from tests.kernels.cuda.hopper_runner import RELEASING, SHUFFLED, WAITING, HopperProgram, Schedule, compile_hopper
from tests.kernels.cuda.simt_ways import HostBuffers
from tests.kernels.cuda.stub_driver import HOPPER, WITH_STUB, program_with_stub

pytestmark = [WITH_COMPILER, WITH_STUB]

FULL = HopperKernel("bfloat16", 64, False, False, SHAPES[64, False][0], packed=True)
CAUSAL = HopperKernel("float16", 128, True, False, SHAPES[128, True][0], packed=True)
WINDOW = HopperKernel("bfloat16", 64, True, True, Shape(2, 64, 4), packed=True)
NARROW = HopperKernel("bfloat16", 192, True, False, NARROW_SHAPES[192, 128, True][0], packed=True, narrow=128)
KERNELS = (FULL, CAUSAL, WINDOW, NARROW)
TAKING_SINKS = tuple(replace(kernel, sinks=True) for kernel in KERNELS)
LENGTHS = ((1, 1), (200, 130), (0, 70), (64, 64), (70, 0), (33, 300), (260, 259))
SCHEDULES = (Schedule(), WAITING, RELEASING, SHUFFLED)


program = program_with_stub(lambda folder: compile_hopper((*KERNELS, *TAKING_SINKS), "HopperParams", folder))


def starts_of(lengths: Sequence[int]) -> torch.Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)


def draw(kernel: HopperKernel, lengths: Sequence[tuple[int, int]], heads: int, kv_heads: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(lengths))
    rows, keys = (sum(numbers) for numbers in zip(*lengths, strict=True))
    sizes = ((rows, heads, kernel.head_dim), (keys, kv_heads, kernel.head_dim), (keys, kv_heads, kernel.value_dim))
    return [torch.randn(size, generator=generator).to(getattr(torch, kernel.dtype)) for size in sizes]


def attend(
    program: HopperProgram,
    kernel: HopperKernel,
    tensors: list[torch.Tensor],
    lengths: Sequence[tuple[int, int]],
    scratch: Path,
    schedule: Schedule,
    alignment: str,
    blocks: int = 3,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output and the log-sum-exp, each NaN where nothing was written; asserts that the counter is zero again."""
    q, k, v = tensors
    out, lse = output_like(q, v).fill_(math.nan), torch.full((q.shape[1], q.shape[0]), math.nan)
    starts = starts_of([a for a, _ in lengths]), starts_of([b for _, b in lengths])
    problem = varlen_problem_of(
        q, k, v, out, *starts, 7, 7, causal=kernel.right and not kernel.left, alignment=alignment,
        window=(70, 5) if kernel.left else None,
    )  # fmt: skip
    given = [] if sinks is None else [sinks]
    problem = replace(problem, sinks=sum(x.data_ptr() for x in given))
    machine = Machine(HOPPER, blocks, 1 << 20, hopper=True)
    buffers = HostBuffers(lse=lse.data_ptr())
    [step] = HopperWay(kernel, machine).steps(problem, 1 / math.sqrt(q.shape[2]), buffers)  # type: ignore[arg-type]
    program.run(step, [q, k, v, out, lse, *starts, *given, *buffers.memory], scratch, schedule)
    assert not any(bool(counter.any()) for counter in buffers.memory)
    return out, lse


def expected(
    kernel: HopperKernel, tensors: list[torch.Tensor], lengths: Sequence[tuple[int, int]], alignment: str
) -> tuple[torch.Tensor, torch.Tensor]:
    at_q, at_k, outs, sums = 0, 0, [], []
    window = (70 if kernel.left else None, (5 if kernel.left else 0) if kernel.right else None)
    for rows, keys in lengths:
        spans = (slice(at_q, at_q + rows), slice(at_k, at_k + keys), slice(at_k, at_k + keys))
        q, k, v = (x[span].transpose(0, 1)[None] for x, span in zip(tensors, spans, strict=True))
        out, lse = exact(q, k, v, *limits(q, k, causal=False, alignment=alignment, window=window))
        outs.append(out[0])
        sums.append(lse[0])
        at_q, at_k = at_q + rows, at_k + keys
    return torch.cat(outs, 1), torch.cat(sums, 1)


@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.name)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_sequences_of_any_lengths_agree_with_float64_for_all_timings(
    program: HopperProgram, tmp_path: Path, kernel: HopperKernel, schedule: Schedule, alignment: str
) -> None:
    tensors = draw(kernel, LENGTHS, 2, 1)
    out, lse = attend(program, kernel, tensors, LENGTHS, tmp_path, schedule, alignment)
    assert_agree(out.transpose(0, 1), lse, *expected(kernel, tensors, LENGTHS, alignment))


@pytest.mark.parametrize("kernel", TAKING_SINKS, ids=lambda kernel: kernel.name)
def test_sinks_take_their_share_in_sequences_with_keys_and_without(
    program: HopperProgram, tmp_path: Path, kernel: HopperKernel
) -> None:
    tensors, sinks = draw(kernel, LENGTHS, 2, 1), torch.tensor([0.5, 3.0])
    out, lse = attend(program, kernel, tensors, LENGTHS, tmp_path, SHUFFLED, "bottom-right", sinks=sinks)
    want, want_lse = beside_sinks(*expected(kernel, tensors, LENGTHS, "bottom-right"), sinks)
    got = out.transpose(0, 1)
    assert (got.double() - want).norm() <= ERROR[got.dtype] * want.norm()
    assert bool((lse.double() - want_lse).abs().max() < 1e-4)


@pytest.mark.parametrize("blocks", [1, 4, 40])
def test_any_number_of_blocks_finds_every_tile_of_every_sequence_once(
    program: HopperProgram, tmp_path: Path, blocks: int
) -> None:
    lengths = [(length % 150, length % 90 + 1) for length in range(17, 17 * 23, 17)]
    tensors = draw(FULL, lengths, 3, 3)
    out, lse = attend(program, FULL, tensors, lengths, tmp_path, SHUFFLED, "bottom-right", blocks)
    assert_agree(out.transpose(0, 1), lse, *expected(FULL, tensors, lengths, "bottom-right"))


@pytest.mark.parametrize("kernel", [FULL, CAUSAL, NARROW], ids=lambda kernel: kernel.name)
def test_what_is_no_number_in_one_sequence_is_not_felt_in_another(
    program: HopperProgram, tmp_path: Path, kernel: HopperKernel
) -> None:
    lengths = [(70, 70), (90, 40), (60, 61)]
    tensors = draw(kernel, lengths, 2, 1)
    clean, _ = attend(program, kernel, tensors, lengths, tmp_path, RELEASING, "bottom-right")
    for tensor, (begin, end) in zip(tensors, ((70, 160), (70, 110), (70, 110)), strict=True):
        tensor[begin:end] = math.nan
    got, _ = attend(program, kernel, tensors, lengths, tmp_path, RELEASING, "bottom-right")
    assert torch.equal(got[:70], clean[:70])
    assert torch.equal(got[160:], clean[160:])
