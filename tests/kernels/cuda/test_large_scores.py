"""Scores of any size: a softmax of huge numbers is a choice, not NaN. Each kind of kernel on the CPU, against float64.

Inputs are small integers times powers of two, so that every score is exact in float32 and the answer is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.plan.planning import Machine, plan_problem
from kernels.attention.cuda.plan.posing import problem_of
from kernels.attention.cuda.plan.variants import CHIPS, Combine, Kernel
from kernels.attention.cuda.run.launching import Way
from kernels.attention.cuda.ways.decode import Decode, DecodeKernel, DecodeTile, plan_decode
from kernels.attention.cuda.ways.general import General, GeneralKernel, plan_general
from kernels.attention.cuda.ways.hopper_kernels import SHAPES, HopperKernel
from kernels.attention.cuda.ways.portable import Portable
from kernels.attention.cuda.ways.small import Small, SmallKernel, in_registers, in_shared
from kernels.attention.cuda.ways.small_hopper import GroupKernel, GroupShape
from tests.kernels.cuda.compiled import WITH_COMPILER, program_of
from tests.kernels.cuda.exactly import ERROR, exact
from tests.kernels.cuda.hopper_cases import Case, attend
from tests.kernels.cuda.hopper_runner import SHUFFLED, HopperProgram, compile_hopper
from tests.kernels.cuda.simt_ways import HostBuffers, Program, compile_program
from tests.kernels.cuda.stub_driver import WITH_STUB, program_with_stub

pytestmark = [WITH_COMPILER, WITH_STUB]

HOPPER = next(chip for chip in CHIPS if chip.name == "hopper")
MACHINE = Machine(HOPPER, 132, 50 << 20)
ROWS, KEYS = 96, 120
PLAIN = Kernel("bfloat16", 64, True, True, HOPPER.small[64, True])
FREE = GeneralKernel("bfloat16", 64, True, None, HOPPER.small[64, True])
HALF = GeneralKernel("float16", 64, True, None, HOPPER.small[64, True])
BIASED = GeneralKernel("bfloat16", 64, True, "float32", HOPPER.small[64, True])
DECODING = DecodeKernel("bfloat16", 64, DecodeTile(16, 32, 4, 2))
PORTABLE = (PLAIN, FREE, HALF, BIASED, DECODING, Combine("bfloat16"), Combine("float16"))
REGISTERS = SmallKernel("bfloat16", 64, True, in_registers(16, 4, 32))
SHARED = SmallKernel("float16", 64, False, in_shared(2, 4, 32))
PERSISTENT = HopperKernel("bfloat16", 64, True, False, SHAPES[64, True][1])
PING_PONG = HopperKernel("float16", 128, False, False, SHAPES[128, False][1])
GROUPS = GroupKernel("bfloat16", 64, True, GroupShape(1, 2, 64, 2))

Run = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


portable = program_of(lambda folder: compile_program(PORTABLE, 800, folder))


small = program_of(lambda folder: compile_program((REGISTERS, SHARED), 800, folder, parameters="SmallParams"))


hopper = program_with_stub(lambda folder: compile_hopper((PERSISTENT, PING_PONG), "HopperParams", folder))


groups = program_with_stub(lambda folder: compile_hopper((GROUPS,), "SmallParams", folder))


def whole(generator: torch.Generator, rows: int, head_dim: int) -> torch.Tensor:
    return torch.randint(-3, 4, (1, 1, rows, head_dim), generator=generator).float()


def draw(dtype: torch.dtype, head_dim: int = 64, rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows of q by turns small, and large up to the largest that float32 scores have room for."""
    generator = torch.Generator().manual_seed(11)
    largest = 100 if dtype == torch.bfloat16 else 12
    powers = torch.tensor([0, -3, 12, 0, largest // 2, -2, largest, 9])[torch.arange(rows) % 8]
    q = whole(generator, rows, head_dim) * torch.exp2(powers.float())[:, None]
    k = whole(generator, KEYS, head_dim) * (1.0 if dtype == torch.bfloat16 else 2.0**10)
    if dtype == torch.float16:
        k[:, :, ::2] *= 2.0**-10
    v = torch.randn(1, 1, KEYS, head_dim, generator=generator)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def assert_right(run: Run, dtype: torch.dtype, *, causal: bool, head_dim: int = 64, rows: int = ROWS) -> None:
    """Right in every row; and a row's bits do not depend on how large its neighbours are."""
    q, k, v = draw(dtype, head_dim, rows)
    got, (want, _) = run(q, k, v), exact(q, k, v, 0 if causal else None)
    assert bool(got.isfinite().all())
    wrong = (got.double() - want).norm(dim=-1) / want.norm(dim=-1)
    assert wrong.max().item() < 4 * ERROR[dtype], f"row {wrong.flatten().argmax().item()} is off by {wrong.max():.2g}"
    calm = q.clone()
    modest = torch.arange(rows) % 8 < 2
    calm[:, :, ~modest] = q[:, :, :1]
    assert torch.equal(run(calm, k, v)[:, :, modest], got[:, :, modest])


def in_ways(program: Program, scratch: Path, way: Way, causal: bool, mask: torch.Tensor | None = None) -> Run:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = torch.full_like(q, math.nan)
        problem = problem_of(q, k, v, out, causal=causal, alignment="top-left", mask=mask)
        buffers = HostBuffers()
        steps = way.steps(problem, 0.125, buffers)  # type: ignore[arg-type]
        program.run(steps, [q, k, v, out, *buffers.memory] + ([] if mask is None else [mask]), scratch)
        return out

    return run


def posed(dtype: torch.dtype, rows: int, causal: bool, mask: torch.Tensor | None = None) -> tuple[object, ...]:
    q, k, v = draw(dtype, rows=rows)
    return (problem_of(q, k, v, q, causal=causal, alignment="top-left", mask=mask),)


@pytest.mark.parametrize("splits", [1, 2])
def test_the_portable_kernel(portable: Program, tmp_path: Path, splits: int) -> None:
    [problem] = posed(torch.bfloat16, ROWS, True)
    way = Portable(plan_problem(problem, MACHINE, splits=splits))  # type: ignore[arg-type]
    assert_right(in_ways(portable, tmp_path, way, True), torch.bfloat16, causal=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_the_kernel_with_features(portable: Program, tmp_path: Path, dtype: torch.dtype, causal: bool) -> None:
    [problem] = posed(dtype, ROWS, causal)
    way = General(plan_general(problem, MACHINE, splits=2))  # type: ignore[arg-type]
    assert_right(in_ways(portable, tmp_path, way, causal), dtype, causal=causal)


def test_masked_scores(portable: Program, tmp_path: Path) -> None:
    mask = torch.zeros(ROWS, KEYS)
    [problem] = posed(torch.bfloat16, ROWS, False, mask)
    way = General(plan_general(problem, MACHINE, splits=1))  # type: ignore[arg-type]
    assert_right(in_ways(portable, tmp_path, way, False, mask), torch.bfloat16, causal=False)


@pytest.mark.parametrize("splits", [1, 3])
def test_decoding(portable: Program, tmp_path: Path, splits: int) -> None:
    [problem] = posed(torch.bfloat16, 16, False)
    way = Decode(plan_decode(problem, MACHINE, tile=DECODING.tile, splits=splits))  # type: ignore[arg-type]
    assert_right(in_ways(portable, tmp_path, way, False), torch.bfloat16, causal=False, rows=16)


@pytest.mark.parametrize("kernel", [REGISTERS, SHARED], ids=lambda kernel: kernel.name)
def test_the_kernels_for_few_keys(small: Program, tmp_path: Path, kernel: SmallKernel) -> None:
    run = in_ways(small, tmp_path, Small(kernel), kernel.causal)
    assert_right(run, getattr(torch, kernel.dtype), causal=kernel.causal)


@pytest.mark.parametrize("kernel", [PERSISTENT, PING_PONG], ids=lambda kernel: kernel.name)
def test_the_hopper_kernel(hopper: HopperProgram, tmp_path: Path, kernel: HopperKernel) -> None:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attend(hopper, kernel, (q, k, v), tmp_path, SHUFFLED, Case())[0]

    assert_right(run, getattr(torch, kernel.dtype), causal=kernel.right, head_dim=kernel.head_dim)


def test_the_hopper_kernel_for_few_keys(groups: HopperProgram, tmp_path: Path) -> None:
    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attend(groups, GROUPS, (q, k, v), tmp_path, SHUFFLED, Case())[0]

    assert_right(run, torch.bfloat16, causal=True)
