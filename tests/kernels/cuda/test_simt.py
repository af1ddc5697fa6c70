"""The kernels' own source, run on the CPU with a fiber for each thread, against attention in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.plan.planning import Launch
from kernels.attention.cuda.plan.posing import Problem, problem_of
from kernels.attention.cuda.plan.variants import CHIPS, SCALAR_TILES, Combine, Kernel, Tile
from kernels.attention.cuda.run.launching import Step
from kernels.attention.cuda.ways.portable import Portable
from tests.kernels.cuda import exactly
from tests.kernels.cuda.compiled import SANITIZED, WITH_COMPILER, program_of
from tests.kernels.cuda.exactly import Tensors, assert_agree, exact, limits
from tests.kernels.cuda.ladder import Rung
from tests.kernels.cuda.simt_ways import HostBuffers, Program, compile_program

pytestmark = WITH_COMPILER

TURING = next(chip for chip in CHIPS if chip.name == "turing")
HOPPER = next(chip for chip in CHIPS if chip.name == "hopper")

AHEAD_64 = Kernel("float16", 64, True, True, HOPPER.small[64, True])
WIDE_128 = Kernel("bfloat16", 128, False, True, HOPPER.large[128, False])
SINGLE_64 = Kernel("bfloat16", 64, True, True, Tile(128, 64, 4, 1, True))
SCALAR_64 = Kernel("float16", 64, True, False, SCALAR_TILES[64])
RUNGS = (Rung("naive", "float16", 64, True), Rung("tiled", "bfloat16", 64, False), Rung("tiled", "float16", 64, True))
AMPERE = (AHEAD_64, WIDE_128, SINGLE_64, SCALAR_64, Combine("float16"), Combine("bfloat16"), *RUNGS)
STAGED_64 = Kernel("float16", 64, True, True, TURING.large[64, True])
STAGED_256 = Kernel("float16", 256, False, True, TURING.large[256, False])
TURING_KERNELS = (STAGED_64, STAGED_256, Combine("float16"))


ampere = program_of(lambda folder: compile_program(AMPERE, 800, folder))


turing = program_of(lambda folder: compile_program(TURING_KERNELS, 750, folder))


def draw(kernel: Kernel | Rung, heads: int, kv_heads: int, seq_q: int, seq_k: int, head_dim: int) -> Tensors:
    return exactly.draw(kernel.dtype, 1, heads, kv_heads, seq_q, seq_k, head_dim)


def steps_of(kernel: Kernel | Rung, problem: Problem, splits: int, buffers: HostBuffers) -> list[Step]:
    """The launches of a kernel that nobody has planned: heads in sections of two, and keys in about so many parts."""
    # A lower rung has no plan of its own: it takes whole heads, and this kernel stands in for the launch's shape.
    shape = kernel if isinstance(kernel, Kernel) else Kernel(kernel.dtype, 64, False, True, Tile(64, 64, 4, 1, True))
    tiles, row_tiles = -(-problem.seq_k // shape.tile.keys), -(-problem.seq_q // shape.tile.rows)
    per_split = -(-tiles // splits)
    all_heads = problem.batch * problem.heads
    section = min(2, all_heads) if shape.causal else all_heads
    blocks = -(-all_heads // section) * section * row_tiles
    way = Portable(Launch(shape, blocks, row_tiles, section, -(-tiles // per_split), per_split))
    steps = way.steps(problem, 1 / math.sqrt(problem.head_dim), buffers)  # type: ignore[arg-type]
    if isinstance(kernel, Kernel):
        return steps
    blocks = -(-all_heads * problem.seq_q // kernel.rows) if kernel.rung == "naive" else blocks
    return [replace(steps[0], entry=kernel, grid=(blocks, 1, 1))]


def attend(
    program: Program,
    kernel: Kernel | Rung,
    tensors: Tensors,
    scratch: Path,
    *,
    alignment: str = "top-left",
    splits: int = 1,
    **how: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp, into poisoned memory."""
    q, k, v = tensors
    out, lse = torch.full_like(q, math.nan), torch.full(q.shape[:3], math.nan)
    problem = problem_of(q, k, v, out, causal=kernel.causal, alignment=alignment)
    buffers = HostBuffers(lse.data_ptr())
    steps = steps_of(kernel, problem, splits, buffers)
    program.run(steps, [q, k, v, out, lse, *buffers.memory], scratch, **how)
    return out, lse


def assert_right(
    program: Program,
    kernel: Kernel | Rung,
    tensors: Tensors,
    scratch: Path,
    *,
    alignment: str = "top-left",
    splits: int = 1,
    **how: bool,
) -> None:
    answer = attend(program, kernel, tensors, scratch, alignment=alignment, splits=splits, **how)
    ends = limits(tensors[0], tensors[1], causal=kernel.causal, alignment=alignment)
    assert_agree(*answer, *exact(*tensors, *ends))


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(
    ("kernel", "sizes"),
    [
        (AHEAD_64, (2, 1, 130, 130, 64)),
        (WIDE_128, (1, 1, 129, 193, 128)),
        (SINGLE_64, (3, 3, 129, 140, 48)),
        (SCALAR_64, (2, 2, 67, 65, 37)),
    ],
)
def test_the_ampere_path_agrees_with_float64(
    ampere: Program, tmp_path: Path, kernel: Kernel, sizes: tuple[int, int, int, int, int], early: bool
) -> None:
    """Sizes: heads of Q, of K, queries, keys, and the head dimension."""
    assert_right(ampere, kernel, draw(kernel, *sizes), tmp_path, eager=early, reverse=early)


@pytest.mark.parametrize(
    ("kernel", "seq_q", "seq_k", "head_dim"),
    [(STAGED_64, 130, 130, 64), (STAGED_64, 1, 70, 56), (STAGED_256, 65, 35, 256)],
)
def test_the_turing_path_agrees_with_float64(
    turing: Program, tmp_path: Path, kernel: Kernel, seq_q: int, seq_k: int, head_dim: int
) -> None:
    assert_right(turing, kernel, draw(kernel, 2, 1, seq_q, seq_k, head_dim), tmp_path)


@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 1), (15, 200), (100, 33), (64, 64)])
def test_both_causal_alignments_agree_with_float64(
    ampere: Program, tmp_path: Path, alignment: str, seq_q: int, seq_k: int
) -> None:
    assert_right(ampere, AHEAD_64, draw(AHEAD_64, 1, 1, seq_q, seq_k, 64), tmp_path, alignment=alignment)


@pytest.mark.parametrize("splits", [2, 4])
def test_split_keys_are_joined_right(ampere: Program, tmp_path: Path, splits: int) -> None:
    for kernel, alignment in ((AHEAD_64, "bottom-right"), (AHEAD_64, "top-left"), (WIDE_128, "top-left")):
        tensors = draw(kernel, 1, 1, 20, 270, kernel.head_dim)
        assert_right(ampere, kernel, tensors, tmp_path, splits=splits, alignment=alignment)


@pytest.mark.parametrize("rung", RUNGS, ids=lambda rung: rung.name)
def test_the_lower_rungs_agree_with_float64(ampere: Program, tmp_path: Path, rung: Rung) -> None:
    assert_right(ampere, rung, draw(rung, 2, 1, 67, 70, 48), tmp_path)


@pytest.mark.parametrize("largest_first", [True, False])
def test_a_maximum_that_grows_or_shrinks_along_the_keys_is_rescaled_right(
    ampere: Program, tmp_path: Path, largest_first: bool
) -> None:
    for kernel in (AHEAD_64, SINGLE_64):
        q, k, v = draw(kernel, 1, 1, 70, 300, 64)
        ramp = torch.linspace(0.2, 20.0, 300)
        k = (k.float() * (ramp.flip(0) if largest_first else ramp)[:, None]).to(k.dtype)
        assert_right(ampere, kernel, (q, k, v), tmp_path, alignment="bottom-right")


def test_heads_that_do_not_fill_the_last_section_are_all_computed(ampere: Program, tmp_path: Path) -> None:
    assert_right(ampere, AHEAD_64, draw(AHEAD_64, 5, 5, 66, 66, 64), tmp_path)


def test_a_causal_prefix_gives_the_same_bits(ampere: Program, tmp_path: Path) -> None:
    q, k, v = draw(AHEAD_64, 1, 1, 130, 130, 64)
    whole, _ = attend(ampere, AHEAD_64, (q, k, v), tmp_path)
    for n in (1, 64, 65, 100):
        got, _ = attend(ampere, AHEAD_64, (q[:, :, :n], k[:, :, :n], v[:, :, :n]), tmp_path)
        assert torch.equal(got, whole[:, :, :n])


def test_the_source_is_clean_under_the_address_sanitizer(tmp_path: Path) -> None:
    # Every buffer is an allocation of its own, exactly as large as it must be, and shared memory has checks of its own.
    runner = compile_program((AHEAD_64, SCALAR_64, Combine("float16")), 800, tmp_path, flags=SANITIZED)
    assert_right(runner, AHEAD_64, draw(AHEAD_64, 1, 1, 65, 67, 64), tmp_path, eager=True)
    assert_right(runner, AHEAD_64, draw(AHEAD_64, 1, 1, 3, 130, 40), tmp_path, splits=3, alignment="bottom-right")
    assert_right(runner, SCALAR_64, draw(SCALAR_64, 1, 1, 33, 65, 13), tmp_path)
