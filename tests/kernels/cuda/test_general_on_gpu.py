"""Windows, masks, lengths and packed heads on a GPU: native code, and the PTX of a T4, an A100 and an L4."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kernels.attention.cuda import attention, attention_varlen, bind_attention, bind_varlen
from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.run.engine import Engine
from tests.kernels.cuda.exactly import exact, limits
from tests.kernels.cuda.on_gpu import DEV, FROBENIUS, ON_GPU, Poisoned, dtypes_of, failures
from tests.kernels.cuda.on_gpu import engine as engine

pytestmark = ON_GPU


def randn(*shape: int, seed: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*shape, device=DEV, generator=torch.Generator(DEV).manual_seed(seed)).to(dtype)


def wrong(out: torch.Tensor, lse: torch.Tensor, want: torch.Tensor, want_lse: torch.Tensor) -> str | None:
    frobenius = ((out.double() - want).norm() / want.norm().clamp_min(1e-30)).item()
    if not frobenius <= FROBENIUS[out.dtype]:
        return f"relative Frobenius error {frobenius:.3g}"
    if bool((want_lse.isinf() != lse.isinf()).any()):
        return "a row without keys has a finite log-sum-exp, or the other way round"
    if not bool((out[want_lse.isinf()] == 0).all()):
        return "a row without keys is not zero"
    off = (lse.double() - want_lse).nan_to_num(0.0, posinf=1.0, neginf=1.0).abs().max().item()
    return None if off <= 1e-3 else f"log-sum-exp off by {off:.3g}"


def verdict(
    engine: Engine,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    causal: bool = False,
    alignment: str = "top-left",
    window: tuple[int | None, int | None] | None = None,
    **options: Any,
) -> str | None:
    made = Poisoned(q)
    options |= {"causal": causal, "causal_alignment": alignment, "window": window, "attn_mask": mask}
    bind_attention(q, k, v, made.out, lse=made.lse, engine=engine, **options)()
    if not made.intact:
        return "wrote beside the output"
    ends = limits(q, k, causal=causal, alignment=alignment, window=window)
    return wrong(made.out, made.lse, *exact(q, k, v, *ends, mask=mask))


def draw(
    seed: int, batch: int, kv_heads: int, group: int, seq_q: int, seq_k: int, d: int, dtype: torch.dtype
) -> list[torch.Tensor]:
    shapes = ((kv_heads * group, seq_q), (kv_heads, seq_k), (kv_heads, seq_k))
    return [randn(batch, s, h, d, seed=seed + i, dtype=dtype).transpose(1, 2) for i, (h, s) in enumerate(shapes)]


@pytest.mark.parametrize("head_dim", [20, 64, 72, 128, 256])
def test_windows_agree_with_float64(engine: Engine, head_dim: int) -> None:
    cases = []
    for dtype, window, alignment in itertools.product(
        dtypes_of(engine), ((0, 0), (100, 0), (None, 30), (256, None), (7, 300)), ("top-left", "bottom-right")
    ):
        for seq_q, seq_k in ((1, 700), (65, 64), (500, 513), (1000, 300)):
            tensors = draw(seq_q, 1, 2, 2, seq_q, seq_k, head_dim, dtype)
            name = f"{dtype} {window} {alignment} q{seq_q} k{seq_k}"
            cases.append((name, verdict(engine, *tensors, window=window, alignment=alignment)))
    assert failures(cases) == []


def test_everything_at_random_agrees_with_float64(engine: Engine) -> None:
    chance, cases = random.Random(20261121), []
    for number in range(150):
        dtype, head_dim = chance.choice(dtypes_of(engine)), chance.choice((16, 37, 64, 96, 128, 256))
        batch, kv_heads, group = chance.randint(1, 2), chance.choice((1, 3)), chance.choice((1, 2, 8))
        seq_q, seq_k = chance.choice((1, 5, 31, 64, 200, 513)), chance.randint(1, 1500)
        window = tuple(chance.choice((None, 0, chance.randint(0, 900))) for _ in range(2))
        causal, alignment = chance.random() < 0.5, chance.choice(("top-left", "bottom-right"))
        kind = chance.choice((None, torch.bool, torch.float32, dtype))
        mask = None
        if kind is not None:
            shape = [size if chance.random() < 0.6 else 1 for size in (batch, kv_heads * group, seq_q, seq_k)]
            noise = randn(*shape, seed=number)
            mask = noise > -0.5 if kind == torch.bool else noise.to(kind)
        splits = chance.choice((None, None, 1, 3))
        tensors = draw(number, batch, kv_heads, group, seq_q, seq_k, head_dim, dtype)
        name = f"{dtype} b{batch} h{kv_heads}x{group} q{seq_q} k{seq_k} d{head_dim} {window} {causal} {alignment} {kind} {splits}"
        words = verdict(
            engine,
            *tensors,
            mask=mask,
            causal=causal,
            alignment=alignment,
            window=window,
            splits=splits,  # type: ignore[arg-type]
        )
        cases.append((name, words))
    assert failures(cases) == []


@pytest.mark.parametrize("kind", [torch.bool, torch.float16, torch.float32])
def test_masks_give_what_pytorch_gives(engine: Engine, kind: torch.dtype) -> None:
    q, k, v = draw(1, 2, 4, 1, 200, 300, 64, torch.float16)
    for shape in ((2, 4, 200, 300), (1, 1, 200, 300), (2, 1, 1, 300), (200, 300)):
        noise = randn(*shape, seed=len(shape))
        mask = noise > 0 if kind == torch.bool else noise.to(kind)
        with sdpa_kernel(SDPBackend.MATH):
            want = scaled_dot_product_attention(q, k, v, attn_mask=mask if kind != torch.float32 else mask.half())
        out = attention(q, k, v, attn_mask=mask, engine=engine)
        assert isinstance(out, torch.Tensor)
        assert (out.float() - want.float()).abs().max().item() < 4e-3


def test_hidden_rows_infinities_and_nan_in_a_mask_are_as_in_pytorch(engine: Engine) -> None:
    q, k, v = draw(2, 1, 2, 1, 70, 130, 64, torch.float16)
    for value in (-math.inf, math.inf, math.nan, torch.finfo(torch.float16).min):
        mask = torch.zeros(70, 130, device=DEV, dtype=torch.float16)
        mask[3] = value
        mask[5, 100] = value
        with sdpa_kernel(SDPBackend.MATH):
            want = scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out = attention(q, k, v, attn_mask=mask, engine=engine)
        assert isinstance(out, torch.Tensor)
        assert torch.equal(out.isnan(), want.isnan()), value
        assert (out - want).nan_to_num(0.0).abs().max().item() < 4e-3, value
    hidden = torch.ones(70, 130, device=DEV, dtype=torch.bool)
    hidden[3] = False
    out, lse = attention(q, k, v, attn_mask=hidden, return_lse=True, engine=engine)
    assert bool((out[:, :, 3] == 0).all())
    assert bool(lse[:, :, 3].isneginf().all())


@pytest.mark.parametrize("group", [2, 8])
def test_packing_the_heads_of_a_group_changes_only_rounding(engine: Engine, group: int) -> None:
    cases = []
    for seq_q, head_dim in itertools.product((1, 5, 16, 40), (64, 128)):
        q, k, v = draw(seq_q, 2, 2, group, seq_q, 400, head_dim, torch.float16)
        cases.append((f"q{seq_q}", verdict(engine, q, k, v, causal=True, alignment="bottom-right", way="general")))
    assert failures(cases) == []


@pytest.mark.parametrize("alignment", ["top-left", "bottom-right"])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_packed_sequences_are_computed_each_by_itself(engine: Engine, head_dim: int, alignment: str) -> None:
    chance, cases = random.Random(head_dim), []
    for number in range(12):
        dtype, heads, kv_heads = chance.choice(dtypes_of(engine)), 4, chance.choice((1, 2, 4))
        longest = chance.choice((3, 100, 700))
        lengths = [[chance.choice((0, 1, chance.randint(1, longest))) for _ in range(6)] + [1] for _ in range(2)]
        if number % 3 == 0:
            lengths[0] = [1] * 7  # decoding
        q = randn(sum(lengths[0]), heads, head_dim, seed=number, dtype=dtype)
        k, v = (randn(sum(lengths[1]), kv_heads, head_dim, seed=number + i, dtype=dtype) for i in (100, 200))
        starts = [torch.tensor([0, *x], device=DEV).cumsum(0).to(torch.int32) for x in lengths]
        causal, window = chance.random() < 0.5, chance.choice((None, (50, None), (20, 5)))
        out, lse = torch.full_like(q, math.nan), torch.full((heads, q.shape[0]), math.nan, device=DEV)
        bind_varlen(
            q,
            k,
            v,
            out,
            *starts,
            max(lengths[0]),
            max(*lengths[1], 1),
            causal=causal,
            causal_alignment=alignment,
            window=window,
            lse=lse,
            splits=chance.choice((None, None, 2)),
            engine=engine,
        )()
        ends = [x.tolist() for x in starts]
        for b, seq_q in enumerate(lengths[0]):
            if seq_q == 0:
                continue
            rows, keys = slice(ends[0][b], ends[0][b + 1]), slice(ends[1][b], ends[1][b + 1])
            own = [x.transpose(0, 1)[None] for x in (q[rows], k[keys], v[keys])]
            want = exact(*own, *limits(own[0], own[1], causal=causal, alignment=alignment, window=window))
            cases.append((f"{number} {b}", wrong(out[rows].transpose(0, 1)[None], lse[None, :, rows], *want)))
    assert failures(cases) == []


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_packed_sequences_are_launched_without_waiting_for_the_device(engine: Engine) -> None:
    q, k, v = (randn(100, 2, 64, seed=i) for i in range(3))
    starts = torch.tensor([0, 30, 100], device=DEV, dtype=torch.int32)
    attention_varlen(q, k, v, starts, starts, 70, 70, causal=True, engine=engine)
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        attention_varlen(q, k, v, starts, starts, 70, 70, causal=True, engine=engine)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_window_makes_a_long_sequence_linear(engine: Engine) -> None:
    # Tiles outside of the window are never loaded: what lies there may be anything.
    q, k, v = draw(7, 1, 1, 1, 4096, 4096, 64, torch.float16)
    clean = attention(q, k, v, causal=True, window=(256, 0), engine=engine)
    assert isinstance(clean, torch.Tensor)
    k, v = k.clone(), v.clone()
    k[:, :, :1024], v[:, :, :1024] = math.nan, math.nan
    out = attention(q, k, v, causal=True, window=(256, 0), engine=engine)
    assert isinstance(out, torch.Tensor)
    assert torch.equal(out[:, :, 1024 + 256 + 128 :], clean[:, :, 1024 + 256 + 128 :])


def test_two_hundred_runs_are_bitwise_the_same(engine: Engine) -> None:
    q, k, v = draw(3, 2, 2, 4, 300, 777, 128, torch.float16)
    mask = randn(1, 1, 300, 777, seed=5)
    for options in ({"window": (100, 5)}, {"attn_mask": mask}, {"attn_mask": mask > 0, "splits": 3}):
        out = torch.empty_like(q)
        call = bind_attention(q, k, v, out, engine=engine, **options)  # type: ignore[arg-type]
        call()
        first, differs = out.clone(), torch.zeros((), device=DEV, dtype=torch.int64)
        for _ in range(200):
            out.fill_(math.nan)
            call()
            differs += (out != first).any()
        assert int(differs) == 0, options


def test_torch_compile_traces_windows_and_masks() -> None:
    q, k, v = draw(4, 1, 2, 1, 100, 100, 64, torch.float16)
    mask = randn(100, 100, seed=1)

    def layer(x: torch.Tensor) -> torch.Tensor:
        out = attention(x * 2, k, v, causal=True, window=(30, 0), attn_mask=mask)
        assert isinstance(out, torch.Tensor)
        return out + 1

    assert torch.equal(torch.compile(layer, fullgraph=True, backend="aot_eager")(q), layer(q))


def test_what_is_not_supported_is_refused_with_a_reason(engine: Engine) -> None:
    q, k, v = draw(4, 1, 2, 1, 100, 100, 64, torch.float16)
    with pytest.raises(Unsupported, match="mask"):
        attention(q, k, v, attn_mask=torch.zeros(100, 100, device=DEV, dtype=torch.bfloat16), engine=engine)
    with pytest.raises(ValueError, match="broadcast"):
        attention(q, k, v, attn_mask=torch.zeros(99, 100, device=DEV), engine=engine)
    with pytest.raises(ValueError, match="window"):
        attention(q, k, v, window=(-2, 0), engine=engine)
    packed, starts = q[0].transpose(0, 1), torch.tensor([0, 100], device=DEV)
    with pytest.raises(ValueError, match="int32"):
        attention_varlen(packed, packed, packed, starts, starts, 100, 100, engine=engine)
