"""The kernels for few keys, run on the CPU with a fiber for each thread, against attention in float64."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.plan.posing import problem_of
from kernels.attention.cuda.ways.small import Small, SmallKernel, in_registers, in_shared
from tests.kernels.cuda import exactly
from tests.kernels.cuda.compiled import SANITIZED, WITH_COMPILER, program_of
from tests.kernels.cuda.exactly import Tensors, assert_agree, exact, limits
from tests.kernels.cuda.simt_ways import HostBuffers, Program, compile_program

pytestmark = WITH_COMPILER

FOUR = SmallKernel("bfloat16", 64, True, in_registers(16, 4, 16))
ONE = SmallKernel("float16", 64, True, in_registers(16, 1, 64))
WIDE = SmallKernel("float16", 64, False, in_registers(32, 4, 32))
DEEP = SmallKernel("bfloat16", 128, True, in_registers(16, 8, 16))
SHARED = SmallKernel("float16", 64, True, in_shared(2, 4, 64))
SHARED_DEEP = SmallKernel("bfloat16", 128, False, in_shared(2, 4, 32))
OVER_ALL = SmallKernel("float16", 64, False, in_shared(4, 4, 64))
MANY = SmallKernel("bfloat16", 64, False, in_registers(16, 8, 16))
SHARED_MANY = SmallKernel("float16", 64, True, in_shared(1, 8, 16))
KERNELS = (FOUR, ONE, WIDE, DEEP, SHARED, SHARED_DEEP, OVER_ALL, MANY, SHARED_MANY)


runner = program_of(lambda folder: compile_program(KERNELS, 800, folder, parameters="SmallParams"))


def draw(kernel: SmallKernel, heads: int, kv_heads: int, seq_q: int, seq_k: int, head_dim: int) -> Tensors:
    return exactly.draw(kernel.dtype, 2, heads, kv_heads, seq_q, seq_k, head_dim)


def attend(
    program: Program,
    kernel: SmallKernel,
    tensors: Tensors,
    scratch: Path,
    *,
    alignment: str = "top-left",
    with_lse: bool = True,
    **how: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp, into poisoned memory."""
    q, k, v = tensors
    out, lse = torch.full_like(q, math.nan), torch.full(q.shape[:3], math.nan)
    problem = problem_of(q, k, v, out, causal=kernel.causal, alignment=alignment)
    buffers = HostBuffers(lse.data_ptr() if with_lse else 0)
    steps = Small(kernel).steps(problem, q.shape[3] ** -0.5, buffers)  # type: ignore[arg-type]
    program.run(steps, [q, k, v, out, lse], scratch, **how)
    return out, lse


def assert_right(
    program: Program,
    kernel: SmallKernel,
    tensors: Tensors,
    scratch: Path,
    *,
    alignment: str = "top-left",
    **how: bool,
) -> None:
    answer = attend(program, kernel, tensors, scratch, alignment=alignment, **how)
    ends = limits(tensors[0], tensors[1], causal=kernel.causal, alignment=alignment)
    assert_agree(*answer, *exact(*tensors, *ends))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_every_kind_agrees_with_float64_however_copies_and_warps_are_timed(
    runner: Program, tmp_path: Path, kernel: SmallKernel
) -> None:
    keys = kernel.shape.all_keys
    for eager, reverse in ((False, False), (True, True)):
        tensors = draw(kernel, 2, 1, 67, keys - 3, kernel.head_dim)
        assert_right(runner, kernel, tensors, tmp_path, eager=eager, reverse=reverse)


@pytest.mark.parametrize("seq", [1, 7, 15, 16, 17, 63, 64])
@pytest.mark.parametrize("kernel", [FOUR, ONE], ids=lambda kernel: kernel.name)
def test_any_number_of_rows_and_keys_that_fits_is_right(
    runner: Program, tmp_path: Path, kernel: SmallKernel, seq: int
) -> None:
    assert_right(runner, kernel, draw(kernel, 2, 2, seq, seq, 64), tmp_path)


@pytest.mark.parametrize("seq", [65, 127, 128])
def test_ragged_ends_beyond_one_tile_of_keys_are_right(runner: Program, tmp_path: Path, seq: int) -> None:
    for kernel in (WIDE, DEEP, SHARED_DEEP):
        assert_right(runner, kernel, draw(kernel, 1, 1, seq, seq, kernel.head_dim), tmp_path)


@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 64), (64, 1), (20, 50), (50, 20), (200, 60)])
def test_both_causal_alignments_and_cross_lengths_agree_with_float64(
    runner: Program, tmp_path: Path, alignment: str, seq_q: int, seq_k: int
) -> None:
    for kernel in (FOUR, ONE, SHARED):
        assert_right(runner, kernel, draw(kernel, 2, 1, seq_q, seq_k, 64), tmp_path, alignment=alignment)


@pytest.mark.parametrize("head_dim", [8, 24, 56, 72, 120])
def test_head_dimensions_that_are_multiples_of_eight_are_padded_right(
    runner: Program, tmp_path: Path, head_dim: int
) -> None:
    for kernel in (DEEP, SHARED_DEEP) if head_dim > 64 else (FOUR, SHARED):
        assert_right(runner, kernel, draw(kernel, 2, 1, 19, 60, head_dim), tmp_path)


@pytest.mark.parametrize("kernel", [FOUR, ONE, SHARED], ids=lambda kernel: kernel.name)
def test_a_value_that_is_no_number_spoils_the_rows_that_see_it_and_no_other(
    runner: Program, tmp_path: Path, kernel: SmallKernel
) -> None:
    q, k, v = draw(kernel, 1, 1, 40, 40, 64)
    clean, _ = attend(runner, kernel, (q, k, v), tmp_path)
    q[0, 0, 5] = math.nan
    q[1, 0, 7] = math.inf
    got, _ = attend(runner, kernel, (q, k, v), tmp_path)
    assert bool(got[0, 0, 5].isnan().all())
    assert bool(got[1, 0, 7].isnan().all())
    rest = torch.ones(2, 1, 40, dtype=torch.bool)
    rest[0, 0, 5] = rest[1, 0, 7] = False
    assert torch.equal(got[rest], clean[rest])


@pytest.mark.parametrize("kernel", [FOUR, SHARED], ids=lambda kernel: kernel.name)
def test_a_key_that_is_no_number_reaches_every_row_that_sees_it(
    runner: Program, tmp_path: Path, kernel: SmallKernel
) -> None:
    q, k, v = draw(kernel, 1, 1, 40, 40, 64)
    k[0, 0, 33] = math.nan
    got, lse = attend(runner, kernel, (q, k, v), tmp_path)
    assert bool(lse[0, 0, :33].isfinite().all())
    assert bool(lse[0, 0, 33:].isnan().all())
    assert bool(got[0, 0, 33:].isnan().all())
    assert bool(got[1].isfinite().all())


def test_large_scores_do_not_overflow(runner: Program, tmp_path: Path) -> None:
    for kernel in (FOUR, WIDE, SHARED):
        q, k, v = draw(kernel, 1, 1, 33, 64, 64)
        assert_right(runner, kernel, (q * 30, k, v), tmp_path)


def test_without_a_log_sum_exp_the_output_is_the_same(runner: Program, tmp_path: Path) -> None:
    for kernel in (FOUR, ONE, SHARED):
        q, k, v = draw(kernel, 2, 1, 40, 40, 64)
        with_lse, _ = attend(runner, kernel, (q, k, v), tmp_path)
        without, none = attend(runner, kernel, (q, k, v), tmp_path, with_lse=False)
        assert bool(none.isnan().all())
        assert torch.equal(with_lse, without)


def test_the_source_is_clean_under_the_address_sanitizer(tmp_path: Path) -> None:
    runner = compile_program((FOUR, ONE, SHARED), 800, tmp_path, flags=SANITIZED, parameters="SmallParams")
    for kernel in (FOUR, ONE, SHARED):
        assert_right(runner, kernel, draw(kernel, 2, 1, 33, 61, 64), tmp_path, eager=True)
        assert_right(runner, kernel, draw(kernel, 1, 1, 3, 17, 40), tmp_path, alignment="bottom-right")
