"""Keys and values of eight bits on the CPU: the decoding kernels' own source and plans, against float64 of what they mean."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.operator import attention
from kernels.attention.cuda.plan.planning import Machine, plan_problem
from kernels.attention.cuda.plan.posing import Shaping, problem_of
from kernels.attention.cuda.plan.posing_paged import paged_problem_of
from kernels.attention.cuda.plan.variants import CHIPS, Chip, Combine
from kernels.attention.cuda.ways.decode import FLOAT8_TILES, Decode, DecodeKernel, plan_decode
from kernels.attention.cuda.ways.dispatch import list_ways
from kernels.attention.cuda.ways.general import plan_general
from tests.kernels.cuda.compiled import WITH_COMPILER
from tests.kernels.cuda.exactly import assert_agree, exact, limits
from tests.kernels.cuda.float8_cases import EVERY_BYTE, draw_float8, widened
from tests.kernels.cuda.paged_cases import draw_cache, expected
from tests.kernels.cuda.simt_ways import HostBuffers, Program, compile_program

pytestmark = WITH_COMPILER

CHIP: dict[str, Chip] = {chip.name: chip for chip in CHIPS}


def kernels_of(chip: str, dtypes: tuple[str, ...]) -> list[DecodeKernel | Combine]:
    tiles = FLOAT8_TILES[chip].items()
    kernels = [
        DecodeKernel(dtype, size, tile, paged, True) for dtype in dtypes for size, tile in tiles for paged in (0, 1)
    ]
    return [*kernels, *map(Combine, dtypes)]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Program]:
    return {
        "hopper": compile_program(
            kernels_of("hopper", ("float16", "bfloat16")), 900, tmp_path_factory.mktemp("hopper")
        ),
        "turing": compile_program(kernels_of("turing", ("float16",)), 750, tmp_path_factory.mktemp("turing")),
    }


@pytest.mark.parametrize(
    ("chip", "dtype", "group", "seq_q", "seq_k", "head_dim", "splits"),
    [
        ("hopper", "bfloat16", 4, 1, 700, 128, 3),
        ("hopper", "float16", 8, 2, 333, 64, 1),
        ("hopper", "bfloat16", 40, 1, 150, 80, 2),
        ("hopper", "float16", 1, 3, 95, 256, 1),
        ("turing", "float16", 8, 1, 411, 128, 2),
        ("turing", "float16", 2, 2, 90, 208, 1),
    ],
)
def test_contiguous_keys_of_eight_bits_agree_with_float64(
    programs: dict[str, Program], tmp_path: Path, chip: str, dtype: str, group: int, seq_q: int, seq_k: int,
    head_dim: int, splits: int,
) -> None:  # fmt: skip
    q, k, v, scales = draw_float8(getattr(torch, dtype), 2, 2, group, seq_q, seq_k, head_dim)
    out, lse = torch.full_like(q, math.nan), torch.full(q.shape[:3], math.nan)
    shaping = Shaping(k_scale=scales[0], v_scale=scales[1])
    problem = problem_of(q, k, v, out, causal=True, alignment="bottom-right", shaping=shaping)
    launch = plan_decode(problem, Machine(CHIP[chip], 132, 50 << 20), splits=splits)
    buffers = HostBuffers(lse.data_ptr())
    steps = Decode(launch).steps(problem, head_dim**-0.5, buffers)  # type: ignore[arg-type]
    programs[chip].run(
        steps, [q, k.view(torch.uint8), v.view(torch.uint8), *scales, out, lse, *buffers.memory], tmp_path
    )
    ends = limits(q, k, causal=True, alignment="bottom-right")
    assert_agree(out, lse, *exact(q, widened(k, scales[0]), widened(v, scales[1]), *ends))


@pytest.mark.parametrize("page", [16, 64, 24])
def test_pages_of_eight_bits_agree_with_float64(programs: dict[str, Program], tmp_path: Path, page: int) -> None:
    cache = draw_cache([70, 1, 300], 1, page=page, heads=8, kv_heads=2, head_dim=128, dtype=torch.bfloat16)
    scales = torch.tensor([0.5, 1.25]), torch.tensor([2.0, 0.3])
    cache.k, cache.v = (x.to(torch.float8_e4m3fn) for x in (cache.k, cache.v))
    out, lse = torch.full_like(cache.q, math.nan), torch.full((3, 8, 1), math.nan)
    given = {"block_table": cache.table, "seqused_k": cache.lengths}
    shaping = Shaping(k_scale=scales[0], v_scale=scales[1])
    terms = {"causal": True, "alignment": "bottom-right", "window": None, "shaping": shaping}
    problem = paged_problem_of(cache.q, cache.k, cache.v, out, given, None, None, **terms)  # type: ignore[arg-type]
    buffers = HostBuffers(lse.data_ptr())
    way = Decode(plan_decode(problem, Machine(CHIP["hopper"], 132, 50 << 20), splits=2))
    steps = way.steps(problem, 128**-0.5, buffers)  # type: ignore[arg-type]
    keys = [x.view(torch.uint8) for x in (cache.k, cache.v)]
    tensors = [cache.q, *keys, cache.table, cache.lengths, *scales, out, lse, *buffers.memory]
    programs["hopper"].run(steps, tensors, tmp_path)
    cache.k, cache.v = (widened(x, by).nan_to_num(0.0) for x, by in zip((cache.k, cache.v), scales, strict=True))
    for b in range(cache.batch):
        want, want_lse = expected(cache, b, causal=True)
        assert_agree(out[b][None].transpose(1, 2), lse[b][None], want[None].transpose(1, 2), want_lse[None])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_byte_means_what_pytorch_says(programs: dict[str, Program], tmp_path: Path, dtype: str) -> None:
    """One key has all the weight, so the output is its value; NaN stays NaN."""
    v = EVERY_BYTE.view(2, 1, 1, 128).view(torch.float8_e4m3fn)
    q, k = torch.zeros(2, 1, 1, 128, dtype=getattr(torch, dtype)), torch.zeros_like(v)
    out, lse, one = torch.empty_like(q), torch.empty(2, 1, 1), torch.ones(1)
    problem = problem_of(q, k, v, out, causal=False, alignment="top-left", shaping=Shaping(k_scale=one, v_scale=one))
    buffers = HostBuffers(lse.data_ptr())
    way = Decode(plan_decode(problem, Machine(CHIP["hopper"], 132, 50 << 20)))
    steps = way.steps(problem, 1.0, buffers)  # type: ignore[arg-type]
    programs["hopper"].run(steps, [q, k.view(torch.uint8), v.view(torch.uint8), one, out, lse], tmp_path)
    assert torch.equal(out.float().nan_to_num(1e9), v.float().nan_to_num(1e9))
    assert out.isnan().sum() == 2


@pytest.mark.parametrize(
    ("given", "float8"),
    [({}, False), ({"softcap": 3.0}, False), ({"sinks": torch.ones(8, device="meta")}, False), ({}, True)],
)
def test_the_compiler_sees_one_operator_whatever_is_given(given: dict[str, Any], float8: bool) -> None:
    q, k = (torch.empty(2, heads, 70, 64, dtype=torch.float16, device="meta") for heads in (8, 2))
    if float8:
        k, given = k.to(torch.float8_e4m3fn), {name: torch.ones(2, device="meta") for name in ("k_scale", "v_scale")}
    else:
        given = {**given, "attn_mask": torch.ones(70, 70, dtype=torch.bool, device="meta")}
    compiled = torch.compile(lambda: attention(q, k, k, **given), backend="eager", fullgraph=True)
    assert compiled().shape == q.shape


def test_no_kernel_of_another_way_is_planned_for_keys_of_eight_bits() -> None:
    """As `splits=2` of a bound call would: it would read pairs of elements as one."""
    q, k, v, scales = draw_float8(torch.float16, 1, 2, 4, 1, 640, 128)
    shaping, machine = Shaping(k_scale=scales[0], v_scale=scales[1]), Machine(CHIP["hopper"], 132, 50 << 20)
    problem = problem_of(q, k, v, torch.empty_like(q), causal=False, alignment="top-left", shaping=shaping)
    for plan in (plan_general, plan_problem):
        with pytest.raises(Unsupported, match="eight bits are computed by decoding alone"):
            plan(problem, machine, splits=2)


def refusal(change: dict[str, torch.Tensor | float]) -> str:
    q, k, v, scales = draw_float8(torch.float16, 1, 2, 4, 1, 64, 128)
    given = {"q": q, "k": k, "v": v, "k_scale": scales[0], "v_scale": scales[1], "softcap": 0.0, **change}
    q, k, v = (given.pop(name) for name in "qkv")  # type: ignore[misc]
    shaping = Shaping(**given)  # type: ignore[arg-type]
    with pytest.raises((Unsupported, ValueError)) as caught:
        list_ways(
            problem_of(q, k, v, torch.empty_like(q), causal=False, alignment="top-left", shaping=shaping),
            Machine(CHIP["hopper"], 132, 50 << 20),
        )
    return str(caught.value)


def test_what_keys_of_eight_bits_cannot_be_is_refused_in_words() -> None:
    wide = draw_float8(torch.float16, 1, 2, 4, 1, 64, 120)
    half = torch.zeros(1, 2, 64, 128, dtype=torch.float16)
    assert "v_scale is missing" in refusal({"v_scale": None})  # type: ignore[dict-item]
    assert "float32 [2]" in refusal({"k_scale": torch.ones(3)})
    assert "are for float8" in refusal({"k": half, "v": half})
    assert "must have one dtype" in refusal({"v": half})
    assert "multiple of 16" in refusal(dict(zip("qkv", wide, strict=False)))
    assert "no shaped scores" in refusal({"softcap": 2.0})
