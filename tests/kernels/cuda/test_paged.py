"""Keys in pages on the CPU: the kernels' own source and plans, a fiber for each thread, against float64."""

from __future__ import annotations

import dataclasses
import math
import random
import shutil
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.plan.planning import Machine
from kernels.attention.cuda.plan.posing import Window
from kernels.attention.cuda.plan.posing_paged import paged_problem_of
from kernels.attention.cuda.plan.variants import CHIPS, SCALAR_TILES, SOURCE, Combine
from kernels.attention.cuda.run.launching import Way
from kernels.attention.cuda.ways.decode import Decode, DecodeKernel, DecodeTile, plan_decode
from kernels.attention.cuda.ways.general import PAGED, WIDE_64, General, GeneralKernel, plan_general
from tests.kernels.cuda.compiled import SANITIZED, WITH_COMPILER, program_of
from tests.kernels.cuda.exactly import assert_agree
from tests.kernels.cuda.paged_cases import Cache, draw_cache, expected, rows_of
from tests.kernels.cuda.simt_ways import HostBuffers, Program, compile_program

pytestmark = WITH_COMPILER

TURING, HOPPER = (next(chip for chip in CHIPS if chip.name == name) for name in ("turing", "hopper"))
MACHINE = Machine(HOPPER, 132, 50 << 20)
DECODE = DecodeKernel("float16", 64, DecodeTile(16, 32, 4, 2), True)
DECODE_128 = DecodeKernel("bfloat16", 128, DecodeTile(16, 16, 4, 3), True)
GENERAL = GeneralKernel("float16", 64, True, PAGED, HOPPER.small[64, True])
AMPERE = (
    DECODE,
    DECODE_128,
    GENERAL,
    GeneralKernel("float16", 64, True, PAGED, WIDE_64),
    GeneralKernel("bfloat16", 128, True, PAGED, HOPPER.small[128, True]),
    GeneralKernel("float16", 64, False, PAGED, SCALAR_TILES[64]),
    Combine("float16"),
    Combine("bfloat16"),
)
STAGED = DecodeKernel("float16", 64, DecodeTile(16, 32, 4, 1), True)
STAGED_256 = DecodeKernel("float16", 256, DecodeTile(16, 16, 2, 1), True)
STAGED_GENERAL = GeneralKernel("float16", 64, True, PAGED, TURING.small[64, True])
STAGED_KERNELS = (STAGED, STAGED_256, STAGED_GENERAL, Combine("float16"))
FORMS = ("decode", "general", "wide", "packed")


ampere = program_of(lambda folder: compile_program(AMPERE, 800, folder))


turing = program_of(lambda folder: compile_program(STAGED_KERNELS, 750, folder))


def compute(
    program: Program,
    cache: Cache,
    scratch: Path,
    *,
    form: str = "decode",
    causal: bool = False,
    alignment: str = "bottom-right",
    window: Window | None = None,
    splits: int = 1,
    tile: DecodeTile = DECODE.tile,
    machine: Machine = MACHINE,
    hints: tuple[int | None, int | None] = (None, None),
    scale: float | None = None,
    **how: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp, into poisoned memory."""
    q = cache.q
    sums = (q.shape[1], q.shape[0]) if q.dim() == 3 else (q.shape[0], q.shape[2], q.shape[1])
    out, lse = torch.full_like(q, math.nan), torch.full(sums, math.nan)
    given = {"block_table": cache.table, "seqused_k": cache.lengths}
    given |= {} if cache.starts is None else {"cu_seqlens_q": cache.starts}
    posed = paged_problem_of(q, cache.k, cache.v, out, given, *hints, causal=causal, alignment=alignment, window=window)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    posed = dataclasses.replace(posed, sign=(scale > 0) - (scale < 0))
    way: Way
    if form == "decode":
        way = Decode(plan_decode(posed, machine, tile=tile, splits=splits))
    else:
        pack = {"packed": posed.group, "wide": 1}.get(form)
        wide = WIDE_64 if form == "wide" else None
        way = General(plan_general(posed, machine, splits=splits, pack=pack, tile=wide))
    buffers = HostBuffers(lse.data_ptr())
    steps = way.steps(posed, abs(scale) or 1.0, buffers)  # type: ignore[arg-type]
    program.run(steps, [*cache.tensors, out, lse, *buffers.memory], scratch, **how)
    return out, lse


def assert_right(
    cache: Cache,
    found: tuple[torch.Tensor, torch.Tensor],
    *,
    causal: bool = False,
    alignment: str = "bottom-right",
    window: Window | None = None,
    scale: float | None = None,
) -> None:
    out, lse = found
    for b in range(cache.batch):
        want, want_lse = expected(cache, b, causal=causal, alignment=alignment, window=window, scale=scale)
        got = rows_of(out, cache.starts, b)
        sums = lse[b] if cache.starts is None else lse[:, int(cache.starts[b]) : int(cache.starts[b + 1])]
        assert_agree(got.transpose(0, 1), sums, want.transpose(0, 1), want_lse, 1e-3)


@pytest.mark.parametrize("page", [1, 5, 16, 24, 32, 64, 256])
@pytest.mark.parametrize("splits", [1, 3])
def test_decoding_finds_each_key_in_its_page(ampere: Program, tmp_path: Path, page: int, splits: int) -> None:
    cache = draw_cache((300, 1, 77, 512), 1, page=page, seed=page, shared=1)
    assert_right(cache, compute(ampere, cache, tmp_path, splits=splits))
    wide = draw_cache((65, 200), 3, page=page, heads=8, head_dim=128, dtype=torch.bfloat16, seed=page)
    found = compute(ampere, wide, tmp_path, splits=splits, tile=DECODE_128.tile, causal=True, eager=True, reverse=True)
    assert_right(wide, found, causal=True)


@pytest.mark.parametrize("page", [1, 7, 16, 64, 256])
@pytest.mark.parametrize("form", ["general", "wide", "packed"])
def test_a_chunk_of_a_prompt_sees_the_keys_before_it_and_its_own(
    ampere: Program, tmp_path: Path, page: int, form: str
) -> None:
    cache = draw_cache((200, 70, 300), 70, page=page, seed=page, shared=2)
    for splits in (1, 2):
        found = compute(ampere, cache, tmp_path, form=form, causal=True, splits=splits, eager=splits == 2)
        assert_right(cache, found, causal=True)


@pytest.mark.parametrize("form", FORMS)
def test_sequences_with_different_numbers_of_queries_lie_one_behind_the_other(
    ampere: Program, tmp_path: Path, form: str
) -> None:
    queries = (3, 1, 0, 9) if form == "decode" else (70, 1, 0, 130)
    cache = draw_cache((170, 80, 20, 140), queries, page=16, seed=3)
    for hints in ((None, None), (1, 1), (max(queries), 170)):
        found = compute(ampere, cache, tmp_path, form=form, causal=True, splits=2, hints=hints)
        assert_right(cache, found, causal=True)


@pytest.mark.parametrize("form", FORMS)
def test_a_sequence_without_keys_is_zero_and_its_table_is_not_read(ampere: Program, tmp_path: Path, form: str) -> None:
    cache = draw_cache((0, 40, 0), 2, page=16)
    assert_right(cache, compute(ampere, cache, tmp_path, form=form))
    assert_right(cache, compute(ampere, cache, tmp_path, form=form, causal=True, splits=2), causal=True)


@pytest.mark.parametrize("form", FORMS)
def test_queries_before_the_first_key_see_nothing(ampere: Program, tmp_path: Path, form: str) -> None:
    cache = draw_cache((2, 5), 5, page=16)
    assert_right(cache, compute(ampere, cache, tmp_path, form=form, causal=True), causal=True)


@pytest.mark.parametrize("form", FORMS)
def test_no_sequence_has_more_keys_than_its_row_of_the_table(ampere: Program, tmp_path: Path, form: str) -> None:
    cache = draw_cache((48, 32), 1, page=16, spare=0)
    told = dataclasses.replace(cache, lengths=torch.tensor([1000, 32], dtype=torch.int32))
    assert_right(cache, compute(ampere, told, tmp_path, form=form))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
@pytest.mark.parametrize("window", [(40, 0), (0, 0), (100, 3), (None, 10)])
def test_windows_are_those_of_keys_one_behind_the_other(
    ampere: Program, tmp_path: Path, form: str, window: Window, alignment: str
) -> None:
    cache = draw_cache((190, 33), 5, page=16, seed=9)
    found = compute(ampere, cache, tmp_path, form=form, window=window, alignment=alignment, splits=2)
    assert_right(cache, found, window=window, alignment=alignment)


def test_a_scale_that_is_not_positive_is_one_like_any_other(ampere: Program, tmp_path: Path) -> None:
    cache = draw_cache((100, 33), 5, page=16)
    for scale in (-0.3, 0.0):
        assert_right(cache, compute(ampere, cache, tmp_path, form="general", scale=scale), scale=scale)


def test_rows_off_their_boundary_and_pages_by_head_are_read_where_they_lie(ampere: Program, tmp_path: Path) -> None:
    odd = draw_cache((100, 33), 70, page=16, head_dim=37)
    assert_right(odd, compute(ampere, odd, tmp_path, form="general", causal=True), causal=True)
    for form in FORMS:
        cache = draw_cache((100, 33), 6, page=16, heads_first=True)
        both = torch.stack([cache.k, cache.v], 1)  # K and V of a page side by side
        split = dataclasses.replace(cache, k=both[:, 0], v=both[:, 1], both=both)
        assert_right(cache, compute(ampere, cache, tmp_path, form=form, causal=True), causal=True)
        assert_right(split, compute(ampere, split, tmp_path, form=form, causal=True), causal=True)


def test_any_table_agrees_with_float64(ampere: Program, tmp_path: Path) -> None:
    chance = random.Random(20261122)
    for number in range(30):
        form = chance.choice(FORMS)
        batch, packed = chance.randint(1, 4), chance.random() < 0.4
        most = 16 if form == "decode" else 90
        queries = [chance.randint(0, most) for _ in range(batch)] if packed else chance.randint(1, most)
        if packed and not sum(queries):  # type: ignore[arg-type]
            continue
        cache = draw_cache(
            [chance.choice((0, 1, chance.randint(1, 260))) for _ in range(batch)],
            queries,
            page=chance.choice((1, 2, 3, 8, 16, 32, 48, 64, 100, 128, 256)),
            heads=chance.choice((2, 4, 6)),
            head_dim=chance.choice((64, 40, 8)),
            seed=number,
            shared=chance.randint(0, 3),
            spare=chance.randint(0, 4),
            heads_first=chance.random() < 0.3,
        )
        left, right = (chance.choice((None, None, chance.randint(0, 100))) for _ in range(2))
        seen = {
            "causal": chance.random() < 0.5,
            "alignment": chance.choice(("top-left", "bottom-right")),
            "window": (left, right),
        }
        found = compute(
            ampere,
            cache,
            tmp_path,
            form=form,
            splits=chance.choice((1, 1, 2, 5)),
            hints=chance.choice(((None, None), (1, 1))),
            eager=chance.random() < 0.5,
            reverse=chance.random() < 0.5,
            **seen,  # type: ignore[arg-type]
        )
        assert_right(cache, found, **seen)  # type: ignore[arg-type]


@pytest.mark.parametrize("page", [1, 16, 48, 64])
def test_the_turing_path_agrees_with_float64(turing: Program, tmp_path: Path, page: int) -> None:
    machine = Machine(TURING, 40, 4 << 20)
    cache = draw_cache((150, 0, 77), 3, page=page, shared=1)
    for splits in (1, 3):
        found = compute(turing, cache, tmp_path, splits=splits, tile=STAGED.tile, machine=machine, causal=True)
        assert_right(cache, found, causal=True)
    assert_right(cache, compute(turing, cache, tmp_path, form="general", machine=machine, causal=True), causal=True)
    large = draw_cache((70, 130), 1, page=page, head_dim=256)
    assert_right(large, compute(turing, large, tmp_path, tile=STAGED_256.tile, machine=machine))


def runs(program: Program, scratch: Path, page: int = 24) -> None:
    cache = draw_cache((333, 40), 2, page=page, heads=8)
    for eager in (False, True):
        for form in ("decode", "packed"):
            assert_right(
                cache, compute(program, cache, scratch, form=form, splits=2, eager=eager, causal=True), causal=True
            )


def test_the_source_is_clean_under_the_address_sanitizer(tmp_path: Path) -> None:
    program = compile_program((DECODE, GENERAL, Combine("float16")), 800, tmp_path, flags=SANITIZED)
    for page in (16, 24, 32):
        runs(program, tmp_path, page)


def test_pages_bring_no_race(tmp_path: Path) -> None:
    runs(compile_program((DECODE, GENERAL, Combine("float16")), 800, tmp_path, races=True), tmp_path)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("decode.cuh", "pages = pages_of(ahead + C::WARPS);", "pages = pages_of(ahead);"),
        ("decode.cuh", "key < last ? key : last", "key"),
        ("paged.cuh", "key - divide(key, p.page) * (int)p.page.divisor", "key"),
        ("scope.cuh", "p.k_lengths[s.batch] < p.seq_k ? p.k_lengths[s.batch] : p.seq_k", "p.seq_k"),
    ],
)
def test_a_wrong_page_is_noticed(tmp_path: Path, name: str, old: str, new: str) -> None:
    source = tmp_path / "source"
    shutil.copytree(SOURCE, source)
    text = (source / name).read_text()
    assert text.count(old) == 1
    (source / name).write_text(text.replace(old, new))
    program = compile_program((DECODE, Combine("float16")), 800, tmp_path, source=source, flags=SANITIZED)
    cache = draw_cache((333, 719), 1, page=24, spare=0)
    with pytest.raises(AssertionError):
        assert_right(cache, compute(program, cache, tmp_path))
