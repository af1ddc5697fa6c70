"""Decoding on the CPU: the kernel's own source and its own plan, a fiber for each thread, against float64."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.plan.planning import Machine
from kernels.attention.cuda.plan.posing import problem_of
from kernels.attention.cuda.plan.variants import CHIPS, Combine
from kernels.attention.cuda.ways.decode import Decode, DecodeKernel, DecodeTile, plan_decode
from tests.kernels.cuda import exactly
from tests.kernels.cuda.compiled import SANITIZED, WITH_COMPILER, program_of
from tests.kernels.cuda.exactly import Tensors, assert_agree, exact, limits
from tests.kernels.cuda.simt_ways import HostBuffers, Program, compile_program

pytestmark = WITH_COMPILER

HALF_64 = DecodeKernel("float16", 64, DecodeTile(16, 32, 4, 2))
WIDE_64 = DecodeKernel("bfloat16", 64, DecodeTile(32, 32, 2, 3))
BRAIN_128 = DecodeKernel("bfloat16", 128, DecodeTile(16, 16, 4, 3))
HALF_256 = DecodeKernel("float16", 256, DecodeTile(16, 16, 2, 2))
AMPERE = (HALF_64, WIDE_64, BRAIN_128, HALF_256, Combine("float16"), Combine("bfloat16"))
STAGED_64 = DecodeKernel("float16", 64, DecodeTile(16, 32, 4, 1))
STAGED_128 = DecodeKernel("float16", 128, DecodeTile(16, 16, 2, 1))
STAGED_256 = DecodeKernel("float16", 256, DecodeTile(16, 16, 2, 1))
TURING = (STAGED_64, STAGED_128, STAGED_256)
MACHINE = Machine(next(chip for chip in CHIPS if chip.name == "hopper"), 132, 50 << 20)


ampere = program_of(lambda folder: compile_program(AMPERE, 800, folder))


turing = program_of(lambda folder: compile_program(TURING, 750, folder))


def draw(kernel: DecodeKernel, batch: int, kv_heads: int, group: int, seq_q: int, seq_k: int, head_dim: int) -> Tensors:
    return exactly.draw(kernel.dtype, batch, kv_heads * group, kv_heads, seq_q, seq_k, head_dim)


def assert_right(
    program: Program,
    kernel: DecodeKernel,
    tensors: Tensors,
    scratch: Path,
    *,
    causal: bool = False,
    alignment: str = "bottom-right",
    splits: int = 1,
    tickets: bool = True,
    **how: bool,
) -> None:
    """Into poisoned memory; the tickets must be zero afterwards."""
    q, k, v = tensors
    out, lse = torch.full_like(q, math.nan), torch.full(q.shape[:3], math.nan)
    problem = problem_of(q, k, v, out, causal=causal, alignment=alignment)
    launch = plan_decode(problem, MACHINE, tile=kernel.tile, splits=splits, tickets=tickets)
    buffers = HostBuffers(lse.data_ptr())
    steps = Decode(launch).steps(problem, 1 / math.sqrt(q.shape[3]), buffers)  # type: ignore[arg-type]
    assert len(steps) == (1 if splits == 1 or tickets else 2)
    program.run(steps, [q, k, v, out, lse, *buffers.memory], scratch, **how)
    if launch.tickets:
        assert not buffers.memory[-1].any(), "the next launch would find tickets taken"
    ends = limits(q, k, causal=causal, alignment=alignment)
    assert_agree(out, lse, *exact(q, k, v, *ends))


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(
    ("kernel", "sizes", "splits"),
    [
        (HALF_64, (8, 1, 700, 64), 1),
        (HALF_64, (1, 1, 333, 40), 3),
        (WIDE_64, (8, 4, 500, 64), 2),
        (BRAIN_128, (4, 3, 777, 128), 5),
        (BRAIN_128, (2, 1, 15, 104), 1),
        (HALF_256, (8, 1, 200, 256), 2),
        (HALF_256, (3, 2, 130, 136), 1),
    ],
)
def test_the_ampere_path_agrees_with_float64(
    ampere: Program, tmp_path: Path, kernel: DecodeKernel, sizes: tuple[int, int, int, int], splits: int, early: bool
) -> None:
    """Sizes: heads of a group, queries, keys, and the head dimension."""
    tensors = draw(kernel, 2, 2, *sizes)
    assert_right(ampere, kernel, tensors, tmp_path, causal=True, splits=splits, eager=early, reverse=early)


@pytest.mark.parametrize(
    ("kernel", "head_dim"), [(STAGED_64, 64), (STAGED_64, 24), (STAGED_128, 128), (STAGED_256, 256)]
)
@pytest.mark.parametrize("splits", [1, 3])
def test_the_turing_path_agrees_with_float64(
    turing: Program, tmp_path: Path, kernel: DecodeKernel, head_dim: int, splits: int
) -> None:
    assert_right(turing, kernel, draw(kernel, 1, 2, 4, 2, 411, head_dim), tmp_path, causal=True, splits=splits)


@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 1), (4, 2), (16, 200), (16, 16), (7, 64)])
def test_both_causal_alignments_agree_with_float64(
    ampere: Program, tmp_path: Path, alignment: str, seq_q: int, seq_k: int
) -> None:
    for splits in (1, 2):
        tensors = draw(HALF_64, 1, 1, 4, seq_q, seq_k, 64)
        assert_right(ampere, HALF_64, tensors, tmp_path, causal=True, alignment=alignment, splits=splits)


@pytest.mark.parametrize("tickets", [True, False])
def test_the_last_block_and_the_joining_kernel_both_join_the_parts(
    ampere: Program, tmp_path: Path, tickets: bool
) -> None:
    for kernel, splits in ((HALF_64, 7), (BRAIN_128, 40), (HALF_64, 128)):
        tensors = draw(kernel, 1, 2, 5, 3, 1111, kernel.head_dim)
        assert_right(ampere, kernel, tensors, tmp_path, causal=True, splits=splits, tickets=tickets)


@pytest.mark.parametrize("largest_first", [True, False])
def test_a_maximum_that_grows_or_shrinks_along_the_keys_is_rescaled_right(
    ampere: Program, tmp_path: Path, largest_first: bool
) -> None:
    q, k, v = draw(HALF_64, 1, 1, 8, 1, 900, 64)
    ramp = torch.linspace(0.2, 20.0, 900)
    k = (k.float() * (ramp.flip(0) if largest_first else ramp)[:, None]).to(k.dtype)
    for splits in (1, 4):
        assert_right(ampere, HALF_64, (q, k, v), tmp_path, splits=splits)


def test_the_source_is_clean_under_the_address_sanitizer(tmp_path: Path) -> None:
    program = compile_program((HALF_64, BRAIN_128), 800, tmp_path, flags=SANITIZED)
    assert_right(program, HALF_64, draw(HALF_64, 2, 1, 3, 2, 301, 40), tmp_path, causal=True, splits=3, eager=True)
    assert_right(program, BRAIN_128, draw(BRAIN_128, 1, 1, 1, 1, 70, 128), tmp_path)
