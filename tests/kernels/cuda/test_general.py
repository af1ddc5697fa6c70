"""Windows, masks, lengths and packed heads on the CPU: the kernel's own source and plan, against float64."""

from __future__ import annotations

import dataclasses
import math
import random
from pathlib import Path

import pytest
import torch

from kernels.attention.cuda.plan.planning import Machine
from kernels.attention.cuda.plan.posing import Window, problem_of, varlen_problem_of
from kernels.attention.cuda.plan.variants import CHIPS, SCALAR_TILES, Combine, Tile
from kernels.attention.cuda.run.launching import Way
from kernels.attention.cuda.ways.decode import Decode, DecodeKernel, DecodeTile, plan_decode
from kernels.attention.cuda.ways.general import NARROW_128, General, GeneralKernel, plan_general
from tests.kernels.cuda.compiled import SANITIZED, WITH_COMPILER, program_of
from tests.kernels.cuda.exactly import assert_agree, exact, limits
from tests.kernels.cuda.simt_ways import HostBuffers, Program, compile_program

pytestmark = WITH_COMPILER

TURING = next(chip for chip in CHIPS if chip.name == "turing")
HOPPER = next(chip for chip in CHIPS if chip.name == "hopper")
MACHINE = Machine(HOPPER, 132, 50 << 20)
SMALL, WIDE = HOPPER.small[64, True], Tile(128, 64, 4, 2, False)
DECODE = DecodeKernel("float16", 64, DecodeTile(16, 32, 4, 2))
AMPERE = (
    GeneralKernel("float16", 64, True, None, SMALL),
    GeneralKernel("float16", 64, True, None, WIDE),
    GeneralKernel("bfloat16", 128, True, None, SMALL),
    GeneralKernel("float16", 64, False, None, SCALAR_TILES[64]),
    GeneralKernel("float16", 64, True, "bool", SMALL),
    GeneralKernel("float16", 64, True, "float16", SMALL),
    GeneralKernel("float16", 64, True, "float32", SMALL),
    GeneralKernel("bfloat16", 64, True, "bfloat16", SMALL),
    DECODE,
    Combine("float16"),
    Combine("bfloat16"),
)
STAGED = TURING.small[64, True]
TURING_KERNELS = (
    GeneralKernel("float16", 64, True, None, STAGED),
    GeneralKernel("float16", 64, True, "bool", STAGED),
    GeneralKernel("float16", 128, True, "float32", NARROW_128),
)


ampere = program_of(lambda folder: compile_program(AMPERE, 800, folder))


turing = program_of(lambda folder: compile_program(TURING_KERNELS, 750, folder))


def draw(*shape: int, seed: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """[B, H, S, D], a view of a [B, S, H, D] tensor."""
    b, h, s, d = shape
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(b, s, h, d, generator=generator).to(dtype).transpose(1, 2)


def assert_right(
    program: Program,
    tensors: list[torch.Tensor],
    scratch: Path,
    *,
    causal: bool = False,
    alignment: str = "top-left",
    window: Window | None = None,
    mask: torch.Tensor | None = None,
    tile: Tile | None = None,
    splits: int = 1,
    pack: int | None = None,
    machine: Machine = MACHINE,
    decode: bool = False,
    scale: float | None = None,
    **how: bool,
) -> None:
    q, k, v = tensors
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    out, lse = torch.full_like(q, math.nan), torch.full(q.shape[:3], math.nan)
    problem = problem_of(q, k, v, out, causal=causal, alignment=alignment, window=window, mask=mask)
    problem = dataclasses.replace(problem, sign=(scale > 0) - (scale < 0))
    way: Way = General(plan_general(problem, machine, splits=splits, tile=tile, pack=pack))
    if decode:
        way = Decode(plan_decode(problem, machine, tile=DECODE.tile, splits=splits))
    buffers = HostBuffers(lse.data_ptr())
    steps = way.steps(problem, abs(scale) or 1.0, buffers)  # type: ignore[arg-type]
    given = [q, k, v, out, lse, *buffers.memory] + ([] if mask is None else [mask])
    program.run(steps, given, scratch, **how)
    ends = limits(q, k, causal=causal, alignment=alignment, window=window)
    assert_agree(out, lse, *exact(q, k, v, *ends, mask=mask, scale=scale), 1e-3)


def problem(
    heads: int,
    kv_heads: int,
    seq_q: int,
    seq_k: int,
    head_dim: int,
    *,
    batch: int = 1,
    dtype: torch.dtype = torch.float16,
) -> list[torch.Tensor]:
    shapes = ((heads, seq_q), (kv_heads, seq_k), (kv_heads, seq_k))
    return [draw(batch, h, s, head_dim, seed=seq_q * 1000 + seq_k + i, dtype=dtype) for i, (h, s) in enumerate(shapes)]


@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
@pytest.mark.parametrize("window", [(0, 0), (70, 0), (63, 64), (None, 5), (130, None), (1, 200), (100, -1)])
def test_a_window_hides_what_lies_outside_of_it(
    ampere: Program, tmp_path: Path, window: Window, alignment: str
) -> None:
    meaning = tuple(None if side == -1 else side for side in window)
    for seq_q, seq_k, splits in ((130, 260, 1), (200, 90, 2)):
        tensors = problem(2, 1, seq_q, seq_k, 64)
        assert_right(ampere, tensors, tmp_path, window=meaning, alignment=alignment, splits=splits)  # type: ignore[arg-type]


def test_windows_and_causality_agree_with_float64_at_random(ampere: Program, tmp_path: Path) -> None:
    chance = random.Random(20261121)
    for number in range(24):
        group, kv_heads = chance.choice((1, 2, 3, 8)), chance.choice((1, 2))
        wide = chance.random() < 0.3
        seq_q, seq_k = chance.choice((1, 3, 20, 65, 140)), chance.randint(1, 300)
        left, right = (chance.choice((None, 0, chance.randint(0, 200))) for _ in range(2))
        head_dim = chance.choice((64, 40, 37))
        tensors = [
            draw(2, h, s, head_dim, seed=number + i)
            for i, (h, s) in enumerate(((kv_heads * group, seq_q), (kv_heads, seq_k), (kv_heads, seq_k)))
        ]
        assert_right(
            ampere,
            tensors,
            tmp_path,
            causal=chance.random() < 0.5,
            alignment=chance.choice(("top-left", "bottom-right")),
            window=(left, right),
            tile=WIDE if wide and head_dim != 37 else None,
            splits=chance.choice((1, 1, 3)),
            eager=chance.random() < 0.5,
            reverse=chance.random() < 0.5,
        )


@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
@pytest.mark.parametrize("window", [(40, 0), (0, 0), (100, 3), (None, 10)])
def test_decoding_knows_windows_too(ampere: Program, tmp_path: Path, window: Window, alignment: str) -> None:
    for seq_q, splits in ((1, 1), (5, 3)):
        tensors = problem(8, 2, seq_q, 333, 64)
        assert_right(ampere, tensors, tmp_path, window=window, alignment=alignment, splits=splits, decode=True)


@pytest.mark.parametrize(("seq_q", "group"), [(1, 8), (16, 8), (20, 3), (33, 4)])
def test_packed_heads_give_what_single_heads_give(ampere: Program, tmp_path: Path, seq_q: int, group: int) -> None:
    for tensors in (
        problem(2 * group, 2, seq_q, 150, 64),
        problem(2 * group, 2, seq_q, 150, 128, dtype=torch.bfloat16),
    ):
        for pack in (1, group):
            assert_right(ampere, tensors, tmp_path, causal=True, alignment="bottom-right", pack=pack, splits=2)


@pytest.mark.parametrize(
    "shape", [(2, 4, 70, 130), (1, 4, 70, 130), (2, 1, 1, 130), (1, 1, 70, 1), (70, 130), (4, 1, 130)]
)
@pytest.mark.parametrize("kind", [torch.bool, torch.float16, torch.float32])
def test_a_mask_of_any_shape_that_broadcasts_is_applied(
    ampere: Program, tmp_path: Path, shape: tuple[int, ...], kind: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(len(shape))
    mask = (
        torch.rand(shape, generator=generator) > 0.4
        if kind == torch.bool
        else torch.randn(shape, generator=generator).to(kind)
    )
    assert_right(ampere, problem(4, 2, 70, 130, 64, batch=2), tmp_path, mask=mask)


@pytest.mark.parametrize("scale", [-0.125, -1.0, 0.0, -0.0])
def test_a_scale_that_is_not_positive_is_one_like_any_other(ampere: Program, tmp_path: Path, scale: float) -> None:
    assert_right(ampere, problem(4, 2, 70, 130, 64), tmp_path, scale=scale, causal=True, splits=2)
    assert_right(
        ampere,
        problem(4, 2, 70, 130, 64, dtype=torch.bfloat16),
        tmp_path,
        scale=scale,
        window=(50, 3),
        mask=torch.randn(70, 130).bfloat16(),
    )
    assert_right(ampere, problem(2, 1, 67, 131, 37), tmp_path, scale=scale)


def test_a_strided_mask_and_a_bfloat16_one_are_applied(ampere: Program, tmp_path: Path) -> None:
    mask = torch.randn(1, 1, 261, 75).to(torch.bfloat16)[:, :, ::2].mT[:, :, 5:]
    tensors = problem(2, 2, 70, 131, 64, dtype=torch.bfloat16)
    assert_right(ampere, tensors, tmp_path, mask=mask, causal=True, window=(90, 0), alignment="bottom-right")


def test_a_mask_is_applied_to_packed_heads_and_split_keys(ampere: Program, tmp_path: Path) -> None:
    mask = torch.randn(1, 8, 5, 200)
    assert_right(ampere, problem(8, 2, 5, 200, 64), tmp_path, mask=mask, splits=3)


@pytest.mark.parametrize("hidden", [-math.inf, torch.finfo(torch.float32).min, -1e4])
def test_rows_whose_mask_hides_every_key(ampere: Program, tmp_path: Path, hidden: float) -> None:
    # Minus infinity hides; the most negative number that is one weighs all keys the same, as in PyTorch.
    mask = torch.zeros(1, 1, 70, 130)
    mask[:, :, 10:20] = hidden
    mask[:, :, 30, 64:] = hidden
    assert_right(ampere, problem(2, 2, 70, 130, 64), tmp_path, mask=mask)
    boolean = torch.ones(70, 130, dtype=torch.bool)
    boolean[10:20] = False
    assert_right(ampere, problem(2, 2, 70, 130, 64), tmp_path, mask=boolean, splits=2)


def test_the_turing_path_agrees_with_float64(turing: Program, tmp_path: Path) -> None:
    machine = Machine(TURING, 40, 4 << 20)
    assert_right(turing, problem(4, 1, 70, 150, 64), tmp_path, window=(60, 3), machine=machine)
    assert_right(turing, problem(4, 1, 10, 150, 64), tmp_path, mask=torch.rand(10, 150) > 0.5, machine=machine)
    assert_right(turing, problem(2, 1, 66, 70, 128), tmp_path, mask=torch.randn(66, 70), causal=True, machine=machine)


LENGTHS = (((5, 130, 1, 64), (70, 130, 0, 200)), ((0, 3, 66), (9, 0, 65)), ((1, 1, 1), (300, 1, 17)))


@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
@pytest.mark.parametrize(("lengths_q", "lengths_k"), LENGTHS)
@pytest.mark.parametrize("form", ["one part", "three parts", "packed", "decode"])
@pytest.mark.parametrize("told", [1.0, 0.4, 0.0], ids=["told", "told less", "told nothing"])
def test_sequences_of_different_lengths_are_computed_each_by_itself(
    ampere: Program,
    tmp_path: Path,
    lengths_q: tuple[int, ...],
    lengths_k: tuple[int, ...],
    alignment: str,
    form: str,
    told: float,
) -> None:
    heads, kv_heads, window = 4, 2, (50, 0)
    if form == "decode" and max(lengths_q) > 32:
        lengths_q = tuple(min(length, 3 if told == 1.0 else 30) for length in lengths_q)
    q, k, v = (
        draw(1, h, sum(lengths), 64, seed=h + i)[0].transpose(0, 1)
        for i, (h, lengths) in enumerate(((heads, lengths_q), (kv_heads, lengths_k), (kv_heads, lengths_k)))
    )
    starts = [
        torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        for lengths in (lengths_q, lengths_k)
    ]
    out, lse = torch.full_like(q, math.nan), torch.full((heads, q.shape[0]), math.nan)
    posed = varlen_problem_of(
        q,
        k,
        v,
        out,
        *starts,
        int(told * max(lengths_q)),
        int(told * max(lengths_k)),
        causal=False,
        alignment=alignment,
        window=window,
    )
    splits, pack = (3 if form in ("three parts", "decode") else 1), (2 if form == "packed" else 1)
    way: Way = General(plan_general(posed, MACHINE, splits=splits, pack=pack))
    if form == "decode":
        way = Decode(plan_decode(posed, MACHINE, tile=DECODE.tile, splits=splits))
    buffers = HostBuffers(lse.data_ptr())
    steps = way.steps(posed, 0.125, buffers)  # type: ignore[arg-type]
    ampere.run(steps, [q, k, v, out, lse, *starts, *buffers.memory], tmp_path)
    for b, seq_q in enumerate(lengths_q):
        if seq_q == 0:
            continue
        own = [
            x[int(s[b]) : int(s[b + 1])].transpose(0, 1)[None]
            for x, s in ((q, starts[0]), (k, starts[1]), (v, starts[1]))
        ]
        ends = limits(own[0], own[1], causal=False, alignment=alignment, window=window)
        rows = slice(int(starts[0][b]), int(starts[0][b + 1]))
        assert_agree(out[rows].transpose(0, 1)[None], lse[None, :, rows], *exact(*own, *ends), 1e-3)


def test_the_source_is_clean_under_the_address_sanitizer(tmp_path: Path) -> None:
    program = compile_program((AMPERE[0], AMPERE[3], AMPERE[6], Combine("float16")), 800, tmp_path, flags=SANITIZED)
    assert_right(program, problem(6, 2, 21, 131, 40), tmp_path, window=(50, 3), alignment="bottom-right", splits=2)
    assert_right(program, problem(2, 1, 67, 131, 37), tmp_path, window=(50, 3), eager=True)
    assert_right(program, problem(2, 2, 65, 67, 64), tmp_path, mask=torch.randn(65, 67), causal=True)
