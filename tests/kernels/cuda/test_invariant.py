"""Batch-invariant calls on the CPU: the bits of a row, whatever its neighbours, the batch, the hints and the pages."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.backward.plan import BackwardProblem, Gradients
from kernels.attention.cuda.backward.ways import backward_ways
from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.plan.planning import Machine, Problem
from kernels.attention.cuda.plan.posing import problem_of, varlen_problem_of
from kernels.attention.cuda.plan.posing_paged import paged_problem_of
from kernels.attention.cuda.plan.variants import CHIPS, Combine
from kernels.attention.cuda.ways.decode import INVARIANT_KEYS, TILES, Decode, DecodeKernel
from kernels.attention.cuda.ways.dispatch import choose_way
from kernels.attention.cuda.ways.general import PAGED, General, GeneralKernel
from kernels.attention.cuda.ways.hopper import HopperWay
from tests.kernels.cuda.compiled import WITH_COMPILER, program_of
from tests.kernels.cuda.hopper_runner import SHUFFLED, HopperProgram, Schedule, compile_hopper
from tests.kernels.cuda.paged_cases import Cache, draw_cache, gathered
from tests.kernels.cuda.simt_ways import HostBuffers, Program, compile_program
from tests.kernels.cuda.stub_driver import WITH_STUB, stub_libcuda

pytestmark = [WITH_COMPILER, WITH_STUB]

HOPPER = next(chip for chip in CHIPS if chip.name == "hopper")
SMALL = HOPPER.small[64, True]
Bits = tuple[torch.Tensor, torch.Tensor]
KERNELS = (
    *(DecodeKernel("float16", 64, TILES["hopper"][64, 16], paged) for paged in (False, True)),
    *(GeneralKernel("float16", 64, True, mask, SMALL) for mask in (None, PAGED)),
    Combine("float16"),
)


def machine(sm_count: int = 132, *, hopper: bool = False) -> Machine:
    return Machine(HOPPER, sm_count, 50 << 20, hopper)


program = program_of(lambda folder: compile_program(KERNELS, 800, folder))


def run(program: Program, posed: Problem, tensors: Sequence[torch.Tensor], scratch: Path, *, invariant: bool) -> type:
    """Computes a problem by the way that is chosen, whose kind is returned; `tensors` end with out and lse."""
    way, _ = choose_way(replace(posed, invariant=invariant), machine())
    buffers = HostBuffers(tensors[-1].data_ptr())
    steps = way.steps(posed, 0.125, buffers)  # type: ignore[arg-type]
    program.run(steps, [*tensors, *buffers.memory], scratch)
    return type(way)


def over_pages(
    program: Program, cache: Cache, hints: tuple[int | None, int | None], scratch: Path, *, invariant: bool = True
) -> list[Bits]:
    """Each sequence's output and log-sum-exps."""
    q, starts = cache.q, cache.starts
    sums = (q.shape[1], q.shape[0]) if starts is not None else (q.shape[0], q.shape[2], q.shape[1])
    out, lse = torch.full_like(q, math.nan), torch.full(sums, math.nan)
    given = {"block_table": cache.table, "seqused_k": cache.lengths}
    given |= {} if starts is None else {"cu_seqlens_q": starts}
    posed = paged_problem_of(
        q, cache.k, cache.v, out, given, *hints, causal=True, alignment="bottom-right", window=None
    )
    kind = run(program, posed, [*cache.tensors, out, lse], scratch, invariant=invariant)
    assert kind is (Decode if starts is None else General)
    if starts is None:
        return [(out[b], lse[b]) for b in range(cache.batch)]
    ends = itertools.pairwise(starts.tolist())
    return [(out[first:last], lse[:, first:last]) for first, last in ends]


def taken(cache: Cache, order: Sequence[int], chance: random.Random) -> Cache:
    """Some sequences of a cache, in an order, their keys in other pages, of another size, and a wider table."""
    page, pieces = chance.choice((5, 16, 32, 48)), []
    lengths = [int(cache.lengths[b]) for b in order]
    counts = None if cache.starts is None else [cache.queries(b).shape[0] for b in order]
    made = draw_cache(
        lengths, 1 if counts is None else counts, page=page, seed=chance.randrange(99), spare=chance.randrange(40)
    )
    for place, b in enumerate(order):
        keys = torch.arange(lengths[place])
        at = made.table[place, keys // page].long(), keys % page
        for to, of in ((made.k, cache.k), (made.v, cache.v)):
            to[at] = gathered(of, cache.table[b], lengths[place])
        pieces.append(cache.queries(b))
    made.q = torch.cat(pieces) if cache.starts is not None else torch.stack(pieces)
    return made


def same(one: Bits, other: Bits) -> bool:
    return torch.equal(one[0].view(torch.int16), other[0].view(torch.int16)) and torch.equal(
        one[1].view(torch.int32), other[1].view(torch.int32)
    )


LENGTHS = (INVARIANT_KEYS + 88, 1, 77, 2 * INVARIANT_KEYS + 1, 0, INVARIANT_KEYS)


@pytest.mark.parametrize("queries", [1, (3, 1, 70, 20, 2, 9)], ids=["decode", "packed"])
def test_a_row_has_the_same_bits_beside_any_neighbours_in_any_pages(
    program: Program, tmp_path: Path, queries: int | tuple[int, ...]
) -> None:
    chance = random.Random(4)
    cache = draw_cache(LENGTHS, queries, page=16, seed=1)
    want = over_pages(program, cache, (None, None), tmp_path)
    for _ in range(6):
        order = chance.choices(range(len(LENGTHS)), k=chance.randrange(1, 9))
        hints = chance.choice((None, 1, 300)), chance.choice((None, 1, 4000))
        found = over_pages(program, taken(cache, order, chance), hints, tmp_path)
        for b, bits in zip(order, found, strict=True):
            assert same(bits, want[b]), (order, b, hints)


def test_without_the_mode_a_neighbour_changes_bits(program: Program, tmp_path: Path) -> None:
    """What the other tests look for is there to be found."""
    chance = random.Random(4)
    cache = draw_cache(LENGTHS, 1, page=16, seed=1)
    hints = 1, 4000
    alone = over_pages(program, taken(cache, (0,), chance), hints, tmp_path, invariant=False)
    beside = over_pages(program, taken(cache, (0,) * 40, chance), hints, tmp_path, invariant=False)
    assert not same(alone[0], beside[0])


def test_keys_in_pages_give_the_bits_of_keys_in_one_piece(program: Program, tmp_path: Path) -> None:
    cache = draw_cache((LENGTHS[0],) * 2, 1, page=16, seed=2)
    want = over_pages(program, cache, (None, None), tmp_path)
    q = cache.q.transpose(1, 2)
    k, v = (
        torch.stack([gathered(x, cache.table[b], LENGTHS[0]) for b in range(2)]).transpose(1, 2)
        for x in (cache.k, cache.v)
    )
    out, lse = torch.full_like(q, math.nan), torch.full(q.shape[:3], math.nan)
    posed = problem_of(q, k, v, out, causal=True, alignment="bottom-right")
    assert run(program, posed, [q, k, v, out, lse], tmp_path, invariant=True) is Decode
    for b in range(2):
        assert same((out[b].transpose(0, 1), lse[b]), want[b])


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HopperProgram]:
    folder = tmp_path_factory.mktemp("packed")
    q = torch.zeros(8, 4, 64, dtype=torch.float16)
    starts = torch.tensor([0, 8], dtype=torch.int32)
    posed = varlen_problem_of(q, q, q, q, starts, starts, 8, 8, causal=True, alignment="bottom-right", window=None)
    way, _ = choose_way(replace(posed, invariant=True), machine(hopper=True))
    assert isinstance(way, HopperWay)
    with stub_libcuda(folder):
        yield compile_hopper((way.kernel,), "HopperParams", folder)


def test_packed_rows_have_the_same_bits_on_hoppers_kernel_in_any_order(packed: HopperProgram, tmp_path: Path) -> None:
    chance, sizes = random.Random(1), ((200, 200), (3, 90), (1, 1), (70, 130))
    generator = torch.Generator().manual_seed(3)
    sequences = [
        [torch.randn(rows, 2, 64, generator=generator).half() for rows in (queries, keys, keys)]
        for queries, keys in sizes
    ]

    def attend(order: Sequence[int], longest: int, blocks: int, schedule: Schedule) -> list[Bits]:
        q, k, v = (torch.cat([sequences[b][place] for b in order]) for place in range(3))
        starts = [
            torch.tensor([0, *itertools.accumulate(sizes[b][at] for b in order)], dtype=torch.int32) for at in (0, 1)
        ]
        out, lse = torch.full_like(q, math.nan), torch.full((2, q.shape[0]), math.nan)
        posed = varlen_problem_of(
            q, k, v, out, *starts, longest, longest, causal=True, alignment="bottom-right", window=None
        )
        way, _ = choose_way(replace(posed, invariant=True), machine(blocks, hopper=True))
        buffers = HostBuffers(lse.data_ptr())
        [step] = way.steps(posed, 0.125, buffers)  # type: ignore[arg-type]
        packed.run(step, [q, k, v, out, lse, *starts, *buffers.memory], tmp_path, schedule)
        return [(out[a:b], lse[:, a:b]) for a, b in itertools.pairwise(starts[0].tolist())]

    want = attend(range(4), 200, 3, Schedule())
    for _ in range(3):
        order = chance.choices(range(4), k=chance.randrange(1, 6))
        found = attend(order, chance.choice((1, 500)), chance.choice((1, 2, 5)), SHUFFLED)
        assert all(same(bits, want[b]) for b, bits in zip(order, found, strict=True)), order


def layouts_of(problem: Problem) -> Gradients:
    return Gradients(problem.out, problem.q, problem.k, problem.v)


@pytest.mark.parametrize("hopper", [True, False])
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
def test_the_kernel_depends_on_no_batch(hopper: bool, head_dim: int) -> None:
    chance = random.Random(head_dim)
    for _ in range(40):
        heads, group = chance.choice((1, 2, 8)), chance.choice((1, 4))
        rows, keys, causal = chance.choice((1, 7, 64, 500)), chance.choice((40, 700, 9000)), chance.random() < 0.5
        mask = chance.choice(
            (None, torch.zeros(rows, keys, device="meta"), torch.zeros(keys, dtype=torch.bool, device="meta"))
        )
        names = set()
        for batch in (1, 2, 3, 64):
            q = torch.empty(batch, heads * group, rows, head_dim, dtype=torch.float16, device="meta")
            k = torch.empty(batch, heads, keys, head_dim, dtype=torch.float16, device="meta")
            of = {"causal": causal, "alignment": "bottom-right", "mask": mask}
            posed = replace(problem_of(q, k, k, q, **of), invariant=True)  # type: ignore[arg-type]
            way, _ = choose_way(posed, machine(hopper=hopper))
            of_gradients = [
                one.name
                for one in backward_ways(BackwardProblem(posed, layouts_of(posed), 0.1, 16), machine(hopper=hopper))
            ]
            launch = way.launch.least_tiles if isinstance(way, Decode) else 0
            name = way.name.partition("-pack")[0] if isinstance(way, General) else way.name
            names.add((name, launch, *of_gradients))
        assert len(names) == 1, names


def test_queries_with_gaps_over_pages_are_refused_for_a_batch_alone() -> None:
    cache = draw_cache((300, 200), 200, page=16)
    gaps = torch.empty(2, 400, 4, 64, dtype=torch.float16)[:, :200]
    given = {"block_table": cache.table, "seqused_k": cache.lengths}
    posed = paged_problem_of(
        gaps, cache.k, cache.v, cache.q, given, None, None, causal=True, alignment="bottom-right", window=None
    )
    with pytest.raises(Unsupported, match=r"pass q\.contiguous"):
        choose_way(replace(posed, invariant=True), machine(hopper=True))
