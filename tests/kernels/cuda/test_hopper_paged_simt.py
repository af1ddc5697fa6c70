"""Keys in pages on the Hopper kernel, run on the CPU with a fiber for each thread, against float64."""

from __future__ import annotations

import math
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.hopper import HopperWay, ways
from kernels.attention.cuda.hopper_kernels import PAGED_SHAPES, HopperKernel
from kernels.attention.cuda.planning import Machine
from kernels.attention.cuda.posing import Window
from kernels.attention.cuda.posing_paged import paged_problem_of
from tests.kernels.cuda.hopper_runner import RELEASING, SHUFFLED, WAITING, HopperProgram, Schedule, compile_hopper
from tests.kernels.cuda.paged_cases import Cache, draw_cache
from tests.kernels.cuda.simt_ways import HostBuffers
from tests.kernels.cuda.stub_driver import HOPPER, can_stub, stub_libcuda
from tests.kernels.cuda.test_paged import assert_right

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None or platform.system() != "Linux" or not can_stub(),
    reason="needs gcc and g++ on Linux to compile the kernels, and a machine whose libcuda is not in use",
)


def kernel(dtype: str, head_dim: int, right: bool, left: bool) -> HopperKernel:
    return HopperKernel(dtype, head_dim, right, left, PAGED_SHAPES[head_dim], packed=True, paged=True)


FULL, CAUSAL = kernel("bfloat16", 64, False, False), kernel("float16", 128, True, False)
NARROW, WINDOW = kernel("float16", 64, True, False), kernel("float16", 64, True, True)
KERNELS = (FULL, CAUSAL, NARROW, WINDOW)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HopperProgram]:
    folder = tmp_path_factory.mktemp("paged")
    with stub_libcuda(folder):
        yield compile_hopper(KERNELS, "HopperParams", folder)


def attend(
    program: HopperProgram,
    kernel: HopperKernel,
    cache: Cache,
    scratch: Path,
    *,
    schedule: Schedule = Schedule(),  # noqa: B008 - immutable
    alignment: str = "bottom-right",
    window: Window | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output and the log-sum-exp, each NaN where nothing was written; asserts that the counter is zero again."""
    q = cache.q
    sums = (q.shape[1], q.shape[0]) if q.dim() == 3 else (q.shape[0], q.shape[2], q.shape[1])
    out, lse = torch.full_like(q, math.nan), torch.full(sums, math.nan)
    given = {"block_table": cache.table, "seqused_k": cache.lengths}
    given |= {} if cache.starts is None else {"cu_seqlens_q": cache.starts}
    causal = kernel.right and not kernel.left
    posed = paged_problem_of(
        q, cache.k, cache.v, out, given, None, None, causal=causal, alignment=alignment, window=window
    )
    buffers = HostBuffers(lse=lse.data_ptr())
    way = HopperWay(kernel, Machine(HOPPER, 3, 1 << 20, hopper=True))
    [step] = way.steps(posed, 1 / math.sqrt(q.shape[-1]), buffers)  # type: ignore[arg-type]
    program.run(step, [*cache.tensors, out, lse, *buffers.memory], scratch, schedule)
    assert not any(bool(counter.any()) for counter in buffers.memory)
    return out, lse


SCHEDULES = (Schedule(), WAITING, RELEASING, SHUFFLED)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda one: one.name)
@pytest.mark.parametrize("kernel", [FULL, CAUSAL], ids=lambda one: one.name)
def test_a_chunk_of_a_prompt_finds_each_key_in_its_page(
    program: HopperProgram, tmp_path: Path, kernel: HopperKernel, schedule: Schedule
) -> None:
    dtype = getattr(torch, kernel.dtype)
    cache = draw_cache((200, 333), 130, page=16, head_dim=kernel.head_dim, dtype=dtype, shared=2)
    found = attend(program, kernel, cache, tmp_path, schedule=schedule)
    assert_right(cache, found, causal=kernel.right)


@pytest.mark.parametrize("page", [16, 48, 64, 128, 256])
def test_pages_of_any_multiple_of_sixteen_are_read(program: HopperProgram, tmp_path: Path, page: int) -> None:
    cache = draw_cache((300, 1, 140), 135, page=page, seed=page, heads_first=page == 48)
    assert_right(cache, attend(program, NARROW, cache, tmp_path), causal=True)
    found = attend(program, NARROW, cache, tmp_path, alignment="top-left", schedule=SHUFFLED)
    assert_right(cache, found, causal=True, alignment="top-left")


def test_sequences_of_different_lengths_lie_one_behind_the_other(program: HopperProgram, tmp_path: Path) -> None:
    cache = draw_cache((170, 80, 20, 0, 140), (70, 1, 0, 3, 130), page=16, head_dim=40, seed=3)
    for schedule in SCHEDULES:
        found = attend(program, NARROW, cache, tmp_path, schedule=schedule)
        assert_right(cache, found, causal=True)


@pytest.mark.parametrize("window", [(40, 0), (0, 0), (130, 3)])
def test_windows_are_those_of_keys_one_behind_the_other(program: HopperProgram, tmp_path: Path, window: Window) -> None:
    cache = draw_cache((400, 90), 140, page=32, seed=5)
    assert_right(cache, attend(program, WINDOW, cache, tmp_path, window=window), window=window)


def test_pages_bring_no_race(tmp_path: Path) -> None:
    with stub_libcuda(tmp_path):
        program = compile_hopper((NARROW,), "HopperParams", tmp_path, races=True)
        cache = draw_cache((150, 70), 130, page=16, heads=2, kv_heads=1)
        assert_right(cache, attend(program, NARROW, cache, tmp_path, schedule=SHUFFLED), causal=True)


def test_the_kernel_is_offered_where_its_copies_can_follow_the_pages() -> None:
    machine = Machine(HOPPER, 132, 60 << 20, hopper=True)

    def offered(queries: int, page: int, head_dim: int = 64) -> list[str]:
        cache = draw_cache((300, 170), queries, page=page, head_dim=head_dim)
        given = {"block_table": cache.table, "seqused_k": cache.lengths}
        posed = paged_problem_of(
            cache.q, cache.k, cache.v, cache.q, given, None, None, causal=True, alignment="bottom-right", window=None
        )
        return [way.name for way in ways(posed, machine)]

    assert offered(130, 16) == ["fa90-128x128s3p"]
    assert offered(130, 16, 128) == ["fa90-128x128s2"]
    assert offered(130, 8) == offered(1, 16) == offered(130, 16, 256) == []
