"""The correctness suite on a GPU: native code, and the PTX that a T4, an A100 and an L4 run, translated by the driver."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch

from kernels.attention.cuda.compile.compiler import Target
from kernels.attention.cuda.errors import BuildFailed, Unsupported
from kernels.attention.cuda.operator import attention, bind_attention
from kernels.attention.cuda.run.engine import Engine
from tests.kernels.cuda.exactly import exact
from tests.kernels.cuda.ladder import LADDER, bind_rung
from tests.kernels.cuda.on_gpu import DEV, FROBENIUS, ON_GPU, Poisoned, assert_replays_alike, dtypes_of, failures, randn
from tests.kernels.cuda.on_gpu import engine as engine

pytestmark = ON_GPU

LENGTHS = (1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 257, 511, 513, 1000, 1023)
LENGTHS += (1025, 2049)
HEAD_DIMS = (1, 8, 20, 32, 64, 72, 96, 128, 160, 256)


def visible(seq_q: int, seq_k: int, offset: int) -> torch.Tensor:
    rows, keys = torch.arange(seq_q, device=DEV)[:, None], torch.arange(seq_k, device=DEV)[None]
    return keys <= rows + offset


def in_dtype(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, offset: int, scale: float
) -> torch.Tensor:
    """PyTorch's own answer in the inputs' type: the yardstick of the FlashAttention tests."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = q @ (k * scale).mT
    if causal:
        scores = scores.masked_fill(~visible(q.shape[2], k.shape[2], offset), -math.inf)
    return torch.softmax(scores, -1).nan_to_num(0.0) @ v


def run(
    engine: Engine, *qkv: torch.Tensor, causal: bool = False, alignment: str = "top-left", **how: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Into poisoned outputs with canary rows before and after; fails if any canary dies or any element stays poison."""
    made = Poisoned(qkv[0])
    how = {"causal": causal, "causal_alignment": alignment, **how}
    bind_attention(*qkv, made.out, lse=made.lse, engine=engine, **how)()  # type: ignore[arg-type]
    assert made.intact, "wrote beside the output"
    return made.out, made.lse


def verdict(
    engine: Engine,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    alignment: str = "top-left",
    splits: int | None = None,
    scale: float | None = None,
) -> str | None:
    """None if the result is as good as it must be, else what is wrong with it."""
    offset = k.shape[2] - q.shape[2] if alignment == "bottom-right" else 0
    factor = scale if scale is not None else q.shape[3] ** -0.5
    out, lse = run(engine, q, k, v, causal=causal, alignment=alignment, splits=splits, scale=scale)
    want, want_lse = exact(q, k, v, offset if causal else None, scale=factor)
    torch_error = (in_dtype(q, k, v, causal=causal, offset=offset, scale=factor).double() - want).abs().max().item()
    error = (out.double() - want).abs().max().item()
    limit = 2 * torch_error + torch.finfo(q.dtype).eps * want.abs().max().item()
    frobenius = ((out.double() - want).norm() / want.norm().clamp_min(1e-30)).item()
    lse_off = (lse.double() - want_lse).nan_to_num(0.0, posinf=1.0, neginf=1.0).abs().max().item()
    lse_limit = 1e-4 + 1e-5 * want_lse[want_lse.isfinite()].abs().max().item() if want_lse.isfinite().any() else 1e-4
    if not error <= limit:
        return f"error {error:.3g} over {limit:.3g}"
    if not frobenius <= FROBENIUS[q.dtype]:
        return f"relative Frobenius error {frobenius:.3g}"
    if not lse_off <= lse_limit:
        return f"log-sum-exp off by {lse_off:.3g}"
    if bool((want_lse.isinf() != lse.isinf()).any()):
        return "a row without keys has a finite log-sum-exp, or the other way round"
    return None


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_every_length_agrees_with_float64(engine: Engine, head_dim: int) -> None:
    cases = []
    for dtype, causal in itertools.product(dtypes_of(engine), (False, True)):
        for seq_q, seq_k in (
            [(s, s) for s in LENGTHS]
            + [*itertools.pairwise(LENGTHS)]
            + [(b, a) for a, b in itertools.pairwise(LENGTHS)]
        ):
            q, k, v = (randn(1, 2, s, head_dim, dtype=dtype, seed=i) for i, s in enumerate((seq_q, seq_k, seq_k)))
            name = f"{dtype} q{seq_q} k{seq_k} d{head_dim} causal={causal}"
            cases.append((name, verdict(engine, q, k, v, causal=causal)))
    assert failures(cases) == []


def test_random_problems_agree_with_float64(engine: Engine) -> None:
    chance = random.Random(20261121)
    cases = []
    for number in range(150):
        dtype = chance.choice(dtypes_of(engine))
        kv_heads, group = chance.choice((1, 2, 3)), chance.choice((1, 2, 4, 8))
        batch, seq_q, seq_k = chance.choice((1, 2, 3)), chance.choice(LENGTHS), chance.choice(LENGTHS)
        head_dim, causal = chance.choice(HEAD_DIMS), chance.random() < 0.6
        alignment, bshd = chance.choice(("top-left", "bottom-right")), chance.random() < 0.5
        splits = chance.choice((None, 1, 2, 5))
        q = randn(batch, kv_heads * group, seq_q, head_dim, dtype=dtype, seed=number, bshd=bshd)
        k = randn(batch, kv_heads, seq_k, head_dim, dtype=dtype, seed=number + 1000, bshd=bshd)
        v = randn(batch, kv_heads, seq_k, head_dim, dtype=dtype, seed=number + 2000, bshd=not bshd)
        name = (
            f"{dtype} b{batch} h{kv_heads}x{group} q{seq_q} k{seq_k} d{head_dim} {causal} {alignment} {bshd} {splits}"
        )
        cases.append((name, verdict(engine, q, k, v, causal=causal, alignment=alignment, splits=splits)))
    assert failures(cases) == []


def test_the_classic_grid_is_within_two_thousandths(engine: Engine) -> None:
    for seq, causal in itertools.product((4, 8, 16, 32, 64, 128, 256, 512), (False, True)):
        q, k, v = (randn(2, 8, seq, 64, dtype=torch.float16, seed=i) for i in range(3))
        out, _ = run(engine, q, k, v, causal=causal)
        want, _ = exact(q, k, v, 0 if causal else None, scale=0.125)
        assert (out.double() - want).abs().max().item() < 2e-3, (seq, causal)


def test_a_one_hot_v_reveals_the_weights(engine: Engine) -> None:
    for dtype, causal in itertools.product(dtypes_of(engine), (False, True)):
        q, k = (randn(1, 2, s, 64, dtype=dtype, seed=s) for s in (129, 64))
        v = torch.eye(64, device=DEV, dtype=dtype).expand(1, 2, 64, 64)
        out, _ = run(engine, q, k, v, causal=causal)
        scores = (q.double() @ k.double().mT) * 0.125
        if causal:
            scores = scores.masked_fill(~visible(129, 64, 0), -math.inf)
        weights = torch.softmax(scores, -1)
        assert (out.double() - weights).abs().max().item() < (1e-3 if dtype is torch.float16 else 8e-3)
        if causal:
            assert bool((out[weights == 0] == 0).all()), "a hidden key has weight"


def test_permuting_heads_and_batches_permutes_the_result_bit_for_bit(engine: Engine) -> None:
    q, k, v = (randn(3, 4, 333, 64, dtype=torch.float16, seed=i) for i in range(3))
    out, lse = run(engine, q, k, v, causal=True)
    order_b, order_h = torch.tensor([2, 0, 1], device=DEV), torch.tensor([3, 1, 0, 2], device=DEV)
    moved = [x[order_b][:, order_h].contiguous() for x in (q, k, v)]
    out2, lse2 = run(engine, *moved, causal=True)
    assert torch.equal(out[order_b][:, order_h], out2)
    assert torch.equal(lse[order_b][:, order_h], lse2)


def test_a_causal_prefix_does_not_see_what_follows(engine: Engine) -> None:
    for head_dim in (64, 128):
        q, k, v = (randn(1, 2, 777, head_dim, dtype=torch.float16, seed=i) for i in range(3))
        whole, _ = run(engine, q, k, v, causal=True, splits=1)
        for n in (1, 63, 64, 65, 200, 513):
            part, _ = run(engine, q[:, :, :n], k[:, :, :n], v[:, :, :n], causal=True, splits=1)
            assert torch.equal(whole[:, :, :n], part), (head_dim, n)


def test_a_batch_element_does_not_depend_on_the_others(engine: Engine) -> None:
    q, k, v = (randn(40, 16, 300, 64, dtype=torch.float16, seed=i) for i in range(3))
    whole, _ = run(engine, q, k, v, splits=1)
    again, _ = run(engine, q, k, v, splits=1)
    assert torch.equal(whole, again)
    for b in (0, 17, 39):
        one, _ = run(engine, q[b : b + 1], k[b : b + 1], v[b : b + 1], splits=1)
        assert (one.float() - whole[b : b + 1].float()).abs().max().item() <= 2e-3


def test_two_hundred_runs_are_bitwise_the_same(engine: Engine) -> None:
    for head_dim, causal in itertools.product((64, 128, 256), (False, True)):
        q, k, v = (randn(2, 9, 777, head_dim, dtype=torch.float16, seed=i) for i in range(3))
        out = torch.empty_like(q)
        call = bind_attention(q, k, v, out, causal=causal, engine=engine)
        call()
        first, differs = out.clone(), torch.zeros((), device=DEV, dtype=torch.int64)
        for _ in range(200):
            out.fill_(math.nan)
            call()
            differs += (out != first).any()
        assert int(differs) == 0, (head_dim, causal)


def test_splitting_the_keys_changes_only_rounding(engine: Engine) -> None:
    q, k, v = (randn(2, 4, s, 128, dtype=torch.float16, seed=s) for s in (65, 2049, 2049))
    for causal, alignment in ((False, "top-left"), (True, "bottom-right"), (True, "top-left")):
        one, lse_one = run(engine, q, k, v, causal=causal, alignment=alignment, splits=1)
        for splits in (2, 3, 7, 30):
            many, lse_many = run(engine, q, k, v, causal=causal, alignment=alignment, splits=splits)
            assert (one.float() - many.float()).abs().max().item() < 2e-3
            assert (lse_one - lse_many).abs().max().item() < 1e-4


def test_strided_views_give_the_same_bits_as_copies(engine: Engine) -> None:
    q, k, v = (randn(2, 4, 300, 128, dtype=torch.float16, seed=i, bshd=True) for i in range(3))
    sliced = torch.randn(2, 9, 300, 128, device=DEV).half()[:, 1:9:2]
    for a, b, c in ((q, k, v), (sliced, k, v), (q[:, :, 5:], k[:, :, 3:], v[:, :, 3:])):
        out, _ = run(engine, a, b, c)
        copy, _ = run(engine, a.contiguous(), b.contiguous(), c.contiguous())
        assert torch.equal(out, copy)


def test_misaligned_pointers_and_odd_strides_are_computed(engine: Engine) -> None:
    cases = []
    for dtype in dtypes_of(engine):
        flat = torch.randn(2 * 3 * 200 * 64 + 8, device=DEV).to(dtype)
        for shift in (1, 3, 4):
            q = flat[shift : shift + 2 * 3 * 200 * 64].view(2, 3, 200, 64)
            cases.append((f"{dtype} shift {shift}", verdict(engine, q, q, q, causal=True)))
        wide = torch.randn(2, 3, 200, 67, device=DEV).to(dtype)[..., :64]
        cases.append((f"{dtype} row stride 67", verdict(engine, wide, wide, wide, causal=False)))
    assert failures(cases) == []


def test_more_than_65535_heads_in_all_are_computed(engine: Engine) -> None:
    q, k, v = (randn(1100, 64, 9, 32, dtype=torch.float16, seed=i) for i in range(3))
    out, _ = run(engine, q, k, v, causal=True)
    want, _ = exact(q, k, v, 0)
    assert (out.double() - want).abs().max().item() < 4e-3


def test_more_than_two_billion_elements_are_computed(engine: Engine) -> None:
    q = torch.empty(1, 1, 2**21 + 5, 1024, device=DEV, dtype=torch.float16)[..., 512:640]
    q.normal_()
    tail, k, v = q[:, :, -100:], q[:, :, -300:-100], q[:, :, -(2**21) : -(2**21) + 200]
    assert verdict(engine, tail, k, v, causal=False) is None
    big = torch.empty(2**16 + 3, 1, 300, 128, device=DEV, dtype=torch.float16)
    big[-2:].normal_()
    big[:-2].normal_()
    out, _ = attention(big, big, big, return_lse=True, engine=engine)
    want, _ = exact(big[-2:], big[-2:], big[-2:])
    assert (out[-2:].double() - want).abs().max().item() < 4e-3


def test_huge_logits_make_a_hard_choice(engine: Engine) -> None:
    cases = []
    for dtype, factor in itertools.product(dtypes_of(engine), (50.0, 200.0)):
        q, k, v = (randn(1, 2, 300, 64, dtype=dtype, seed=i) for i in range(3))
        cases.append((f"{dtype} x{factor}", verdict(engine, q, k, v, causal=True, scale=factor * 0.125)))
    assert failures([(name, words if words and "Frobenius" not in words else None) for name, words in cases]) == []


def test_a_zero_q_averages_v_and_a_constant_v_comes_back(engine: Engine) -> None:
    for dtype in dtypes_of(engine):
        q, k, v = (randn(1, 2, 300, 128, dtype=dtype, seed=i) for i in range(3))
        out, _ = run(engine, torch.zeros_like(q), k, v)
        assert (out.double() - v.double().mean(2, keepdim=True)).abs().max().item() < 4e-3
        constant = torch.full_like(v, 1.2345)
        out, _ = run(engine, q, k, constant, causal=True)
        ulp = torch.finfo(dtype).eps * 1.3
        assert (out.double() - constant.double()).abs().max().item() <= ulp


def test_growing_and_shrinking_keys_are_rescaled_right(engine: Engine) -> None:
    cases = []
    for dtype, ascending in itertools.product(dtypes_of(engine), (True, False)):
        q, k, v = (randn(1, 2, 1024, 64, dtype=dtype, seed=i) for i in range(3))
        ramp = torch.linspace(0.1, 12.0, 1024, device=DEV)
        k = (k.float() * (ramp if ascending else ramp.flip(0))[:, None]).to(dtype)
        cases.append((f"{dtype} {ascending}", verdict(engine, q, k, v, causal=False)))
    assert failures(cases) == []


def test_nan_and_infinity_reach_only_the_rows_that_see_them(engine: Engine) -> None:
    q, k, v = (randn(1, 2, 200, 64, dtype=torch.float16, seed=i) for i in range(3))
    clean, _ = run(engine, q, k, v, causal=True)
    for poison in (math.nan, math.inf):
        bad = k.clone()
        bad[0, 1, 100] = poison
        out, _ = run(engine, q, bad, v, causal=True)
        assert torch.equal(out[0, 0], clean[0, 0]), "another head is affected"
        assert torch.equal(out[0, 1, :100], clean[0, 1, :100]), "rows that do not see the key are affected"
        assert bool(out[0, 1, 100:].isnan().any()), "the poison vanished"
    bad = v.clone()
    bad[0, 1, 100, 5] = math.nan
    out, _ = run(engine, q, k, bad, causal=False)
    assert bool(out[0, 1, :, 5].isnan().all())
    assert not bool(out[0, 0].isnan().any())
    assert not bool(out[0, 1, :, :5].isnan().any())


def test_what_lies_beyond_the_last_key_is_never_used(engine: Engine) -> None:
    for dtype, length in itertools.product(dtypes_of(engine), (1, 63, 65, 130)):
        padded = [randn(1, 2, 256, 64, dtype=dtype, seed=i) for i in range(3)]
        for x in padded:
            x[:, :, length:] = math.nan
        q, k, v = (x[:, :, :length] for x in padded)
        assert verdict(engine, q, k, v, causal=False) is None


def test_the_largest_finite_values_do_not_overflow_inside(engine: Engine) -> None:
    q, k = (randn(1, 1, 100, 64, dtype=torch.float16, seed=i) for i in range(2))
    v = torch.full((1, 1, 100, 64), 65504.0, device=DEV, dtype=torch.float16)
    out, _ = run(engine, q, k, v)
    assert (out.double() - 65504.0).abs().max().item() <= 64.0


def test_rows_that_see_no_key_are_zero_with_minus_infinity(engine: Engine) -> None:
    q, k, v = (randn(1, 2, s, 64, dtype=torch.float16, seed=s) for s in (200, 70, 70))
    for splits in (1, 2):
        out, lse = run(engine, q, k, v, causal=True, alignment="bottom-right", splits=splits)
        assert bool((out[:, :, :130] == 0).all())
        assert bool(lse[:, :, :130].isneginf().all())
        assert bool(lse[:, :, 130:].isfinite().all())


def test_a_captured_graph_gives_the_same_bits(engine: Engine) -> None:
    q, k, v = (randn(2, 4, 300, 128, dtype=torch.float16, seed=i) for i in range(3))
    out = torch.empty_like(q)
    assert_replays_alike(bind_attention(q, k, v, out, causal=True, engine=engine), out)


@pytest.mark.parametrize("rung", LADDER)
def test_every_rung_of_the_ladder_agrees_with_float64(engine: Engine, rung: str) -> None:
    for head_dim, causal, seq_q, seq_k in itertools.product((37, 64, 128), (False, True), (1, 65, 300), (1, 33, 200)):
        q, k, v = (
            randn(2, h, s, head_dim, dtype=torch.float16, seed=s) for h, s in ((4, seq_q), (2, seq_k), (2, seq_k))
        )
        out = torch.full_like(q, math.nan)
        bind_rung(rung, q, k, v, out, causal=causal, engine=engine)()
        want, _ = exact(q, k, v, 0 if causal else None)
        assert ((out.double() - want).norm() / want.norm()).item() < 1.2e-3, (head_dim, causal, seq_q, seq_k)


def test_torch_compile_traces_the_registered_operator() -> None:
    q, k, v = (randn(1, 2, 100, 64, dtype=torch.float16, seed=i) for i in range(3))

    def layer(x: torch.Tensor) -> torch.Tensor:
        out = attention(x * 2, k, v, causal=True)
        assert isinstance(out, torch.Tensor)
        return out + 1

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q), layer(q))


def test_a_cubin_of_another_architecture_is_refused_loudly() -> None:
    from kernels.attention.cuda.plan.variants import Combine

    engine = Engine(torch.device(DEV), target=Target("sm_75"))
    with pytest.raises(BuildFailed, match="loading"):
        engine.function(Combine("float16"))


def test_what_is_not_supported_raises_and_never_falls_back(engine: Engine) -> None:
    q = randn(1, 2, 16, 64, dtype=torch.float16, seed=0)
    for bad, words in (
        ((q.float(), q.float(), q.float()), "float32"),
        ((q.repeat(1, 1, 1, 5),) * 3, "head dimensions"),
        ((q.mT.contiguous().mT,) * 3, "contiguous"),
        ((q, q.bfloat16(), q.bfloat16()), "one dtype"),
    ):
        with pytest.raises(Unsupported, match=words):
            attention(*bad, engine=engine)
    with pytest.raises(Unsupported, match="scale"):
        attention(q, q, q, scale=math.inf, engine=engine)
    if "bfloat16" not in engine.chip.dtypes:
        with pytest.raises(Unsupported, match="bfloat16"):
            attention(q.bfloat16(), q.bfloat16(), q.bfloat16(), engine=engine)
