"""Keys in pages on the Hopper kernel, run on the CPU with a fiber for each thread, against float64."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.plan.planning import Machine
from kernels.attention.cuda.plan.posing import Window
from kernels.attention.cuda.plan.posing_paged import paged_problem_of
from kernels.attention.cuda.ways.hopper import HopperWay, hopper_ways
from kernels.attention.cuda.ways.hopper_kernels import PAGED_SHAPES, HopperKernel
from tests.kernels.cuda.compiled import WITH_COMPILER, Failed
from tests.kernels.cuda.hopper_runner import RELEASING, SHUFFLED, WAITING, HopperProgram, Schedule, compile_hopper
from tests.kernels.cuda.paged_cases import Cache, draw_cache
from tests.kernels.cuda.simt_ways import HostBuffers
from tests.kernels.cuda.stub_driver import HOPPER, WITH_STUB, program_with_stub, stub_libcuda
from tests.kernels.cuda.test_hopper_mutants import OVERWRITTEN, READ_EARLY, Mutant, assert_found, mutants, without
from tests.kernels.cuda.test_paged import assert_right

pytestmark = [WITH_COMPILER, WITH_STUB]


def kernel(dtype: str, head_dim: int, right: bool, left: bool) -> HopperKernel:
    return HopperKernel(dtype, head_dim, right, left, PAGED_SHAPES[head_dim], packed=True, paged=True)


FULL, CAUSAL = kernel("bfloat16", 64, False, False), kernel("float16", 128, True, False)
NARROW, WINDOW = kernel("float16", 64, True, False), kernel("float16", 64, True, True)
AHEAD, AHEAD_WIDE = replace(NARROW, ahead=True), replace(kernel("bfloat16", 128, False, False), ahead=True)
KERNELS = (FULL, CAUSAL, NARROW, WINDOW, AHEAD, AHEAD_WIDE)

DIFFERENT = ("wrong: ",)
CONTROL = Mutant("ahead_as_it_is", (), (), AHEAD)
LOOK_UP = "        next = look_up(tile, tile.last - 1, lane);\n"
MUTANTS = mutants(
    AHEAD,
    (
        "no_wait_for_an_empty_place",
        ("one arrival too many", *OVERWRITTEN),
        without("      barrier_wait(empty, at.parity);\n"),
    ),
    (
        "values_of_the_pages_of_the_next_tile",
        DIFFERENT,
        ("v_full(at.stage), at, looked,", "v_full(at.stage), at, next,"),
    ),
    (
        "pages_that_are_not_looked_up_again",
        DIFFERENT,
        without("        if (n > tile.first) next = look_up(tile, n - 1, lane);\n"),
    ),
    ("one_row_for_all_pieces", DIFFERENT, ("shuffle(looked.row, piece)", "shuffle(looked.row, 0)")),
    ("one_page_for_all_pieces", DIFFERENT, ("shuffle(looked.page, piece)", "shuffle(looked.page, 0)")),
    (
        "too_few_bytes_expected_of_pages",
        ("deadlock", *READ_EARLY, *OVERWRITTEN),
        (
            "      barrier_arrive_expecting(full, CHUNKS * C::KV_CHUNK_BYTES);",
            "      barrier_arrive_expecting(full, CHUNKS * C::KV_CHUNK_BYTES / 2);",
        ),
    ),
    (
        "no_queries_for_rows_that_see_no_key",  # so that the next ones come too early
        ("one arrival too many", *OVERWRITTEN),
        (f"{LOOK_UP}      else  // rows that see no key\n        give_q(index, tile, parity, lane);\n", LOOK_UP),
    ),
)


mistaken = program_with_stub(lambda folder: compile_hopper((CONTROL, *MUTANTS), "HopperParams", folder))


program = program_with_stub(lambda folder: compile_hopper(KERNELS, "HopperParams", folder))


def attend(
    program: HopperProgram,
    kernel: HopperKernel,
    cache: Cache,
    scratch: Path,
    *,
    schedule: Schedule = Schedule(),  # noqa: B008 - immutable
    alignment: str = "bottom-right",
    window: Window | None = None,
    entry: Mutant | None = None,
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
    step = step if entry is None else replace(step, entry=entry)
    program.run(step, [*cache.tensors, out, lse, *buffers.memory], scratch, schedule)
    assert not any(bool(counter.any()) for counter in buffers.memory)
    return out, lse


SCHEDULES = (Schedule(), WAITING, RELEASING, SHUFFLED)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda one: one.name)
@pytest.mark.parametrize("kernel", [FULL, CAUSAL, AHEAD, AHEAD_WIDE], ids=lambda one: one.name)
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
    for kernel in (NARROW, AHEAD):
        assert_right(cache, attend(program, kernel, cache, tmp_path), causal=True)
        found = attend(program, kernel, cache, tmp_path, alignment="top-left", schedule=SHUFFLED)
        assert_right(cache, found, causal=True, alignment="top-left")


def test_sequences_of_different_lengths_lie_one_behind_the_other(program: HopperProgram, tmp_path: Path) -> None:
    cache = draw_cache((170, 80, 20, 0, 140), (70, 1, 0, 3, 130), page=16, head_dim=40, seed=3)
    for schedule, kernel in itertools.product(SCHEDULES, (NARROW, AHEAD)):
        found = attend(program, kernel, cache, tmp_path, schedule=schedule)
        assert_right(cache, found, causal=True)


@pytest.mark.parametrize("window", [(40, 0), (0, 0), (130, 3)])
def test_windows_are_those_of_keys_one_behind_the_other(program: HopperProgram, tmp_path: Path, window: Window) -> None:
    cache = draw_cache((400, 90), 140, page=32, seed=5)
    assert_right(cache, attend(program, WINDOW, cache, tmp_path, window=window), window=window)


def test_pages_bring_no_race(tmp_path: Path) -> None:
    with stub_libcuda(tmp_path):
        program = compile_hopper((NARROW, AHEAD), "HopperParams", tmp_path, races=True)
        cache = draw_cache((150, 70), 130, page=16, heads=2, kv_heads=1)
        for kernel in (NARROW, AHEAD):
            assert_right(cache, attend(program, kernel, cache, tmp_path, schedule=SHUFFLED), causal=True)


def test_the_kernel_is_offered_where_its_copies_can_follow_the_pages() -> None:
    machine = Machine(HOPPER, 132, 60 << 20, hopper=True)

    def offered(queries: int, page: int, head_dim: int = 64) -> list[str]:
        cache = draw_cache((300, 170), queries, page=page, head_dim=head_dim)
        given = {"block_table": cache.table, "seqused_k": cache.lengths}
        posed = paged_problem_of(
            cache.q, cache.k, cache.v, cache.q, given, None, None, causal=True, alignment="bottom-right", window=None
        )
        return [way.name for way in hopper_ways(posed, machine)]

    for page in (16, 32, 48, 96):
        assert offered(130, page) == ["fa90-128x128s3p-ahead", "fa90-128x128s3p"]
    for page in (64, 128, 192, 256):
        assert offered(130, page) == ["fa90-128x128s3p"]
    assert offered(130, 16, 128) == ["fa90-128x128s2-ahead", "fa90-128x128s2"]
    assert offered(130, 8) == offered(1, 16) == offered(130, 16, 256) == []


def test_a_copy_without_a_mistake_has_nothing_to_complain_of(mistaken: HopperProgram, tmp_path: Path) -> None:
    assert list(complaints(mistaken, CONTROL, tmp_path)) == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_in_looking_pages_up_ahead_is_found(mistaken: HopperProgram, tmp_path: Path, mutant: Mutant) -> None:
    assert_found(complaints(mistaken, mutant, tmp_path), mutant)


def complaints(program: HopperProgram, mutant: Mutant, scratch: Path) -> Iterator[str]:
    """What is wrong with a copy's answers: pages that end within a tile, and of a sequence no row that sees a key."""
    cache = draw_cache((300, 5, 140), 140, page=96, seed=7)
    for schedule in SCHEDULES:
        try:
            found = attend(program, AHEAD, cache, scratch, schedule=schedule, entry=mutant)
            assert_right(cache, found, causal=True)
        except (Failed, AssertionError) as one:
            yield f"{'failed' if isinstance(one, Failed) else 'wrong'}: {one}"
