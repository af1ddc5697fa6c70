"""Laws of attention that the CPU kernel must obey, whatever the shape."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.attention import reference
from kernels.attention.case import Case, Shape
from kernels.attention.cpu.kernel import CpuAttention
from kernels.attention.interface import Unavailable
from tests.kernels.problems import Problem, problem, run, verdict

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TAILS = [1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 255, 256, 257, 289]


@settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    batch=st.integers(1, 3),
    group=st.integers(1, 4),
    kv_heads=st.integers(1, 3),
    seq_q=st.integers(1, 140),
    seq_k=st.integers(1, 600),
    head_dim=st.integers(1, 256),
    causal=st.booleans(),
    dtype=st.sampled_from(DTYPES),
)
def test_every_shape_agrees_with_the_reference(
    kernel: CpuAttention, batch: int, group: int, kv_heads: int, seq_q: int, seq_k: int, head_dim: int, causal: bool,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    check = verdict(kernel, problem(batch, group * kv_heads, kv_heads, seq_q, seq_k, head_dim, causal, dtype))
    assert check.passed, check.reason


@pytest.mark.parametrize("seq", TAILS)
@pytest.mark.parametrize("causal", [False, True])
def test_lengths_around_the_tile_edges_agree_with_the_reference(kernel: CpuAttention, seq: int, causal: bool) -> None:
    check = verdict(kernel, problem(seq_q=seq, causal=causal, head_dim=64))
    assert check.passed, check.reason


@pytest.mark.parametrize("head_dim", [1, 2, 15, 16, 17, 31, 32, 33, 48, 80, 127, 128, 129, 255, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_head_sizes_around_the_vector_width_agree_with_the_reference(
    kernel: CpuAttention, head_dim: int, dtype: torch.dtype
) -> None:
    check = verdict(kernel, problem(seq_q=19, seq_k=37, head_dim=head_dim, dtype=dtype))
    assert check.passed, check.reason


@pytest.mark.parametrize("head_dim", [17, 64])
def test_lse_is_the_logarithm_of_the_softmax_denominator(kernel: CpuAttention, head_dim: int) -> None:
    p = problem(batch=2, heads=4, kv_heads=2, seq_q=70, seq_k=300, head_dim=head_dim, causal=True)
    out, lse = torch.empty_like(p.q), torch.full(p.q.shape[:3], math.nan)
    kernel.run_into(out, p.q, p.k, p.v, causal=True, lse=lse)
    exact = reference.attention(p.q, p.k, p.v, causal=True).lse
    torch.testing.assert_close(lse.double(), exact, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_strides_give_the_bits_of_a_contiguous_call(kernel: CpuAttention, dtype: torch.dtype) -> None:
    p = problem(batch=2, heads=4, kv_heads=2, seq_q=33, seq_k=70, head_dim=48, dtype=dtype)
    straight = run(kernel, p)

    def sequence_first(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).contiguous().transpose(1, 2)

    def inside_something_larger(x: torch.Tensor) -> torch.Tensor:
        big = torch.full((x.shape[0], x.shape[1] + 1, x.shape[2] * 2, x.shape[3] + 3), math.nan, dtype=dtype)
        view = big[:, 1:, ::2, 1 : 1 + x.shape[3]]
        view.copy_(x)
        return view

    def head_dim_strided(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(2, 3).contiguous().transpose(2, 3)

    for laid_out in (sequence_first, inside_something_larger, head_dim_strided):
        again = run(kernel, Problem(laid_out(p.q), laid_out(p.k), laid_out(p.v)))
        assert torch.equal(again, straight), laid_out.__name__


def test_a_broadcast_key_is_read_through_its_zero_strides(kernel: CpuAttention) -> None:
    p = problem(batch=3, heads=4, seq_q=9, seq_k=21)
    k, v = p.k[:1, :1].expand(3, 4, 21, 32), p.v[:1, :1].expand(3, 4, 21, 32)
    copied = run(kernel, Problem(p.q, k.contiguous(), v.contiguous()))
    assert torch.equal(run(kernel, Problem(p.q, k, v)), copied)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_outside_the_output_is_written(kernel: CpuAttention, dtype: torch.dtype) -> None:
    p = problem(batch=2, heads=3, seq_q=13, seq_k=40, head_dim=20, dtype=dtype)
    canary = -1234.0
    big = torch.full((2, 3, 15, 24), canary, dtype=dtype)
    out = big[:, :, 1:14, 2:22]
    kernel.run_into(out, p.q, p.k, p.v, causal=False)
    assert torch.equal(out, run(kernel, p))
    out.fill_(canary)
    assert bool((big == canary).all())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_two_runs_give_the_same_bits(kernel: CpuAttention, causal: bool, dtype: torch.dtype) -> None:
    p = problem(batch=2, heads=8, kv_heads=4, seq_q=130, seq_k=300, head_dim=64, causal=causal, dtype=dtype)
    first = run(kernel, p)
    for _ in range(5):
        assert torch.equal(run(kernel, p), first)


@pytest.mark.parametrize("causal", [False, True])
def test_the_number_of_threads_changes_only_rounding(
    kernel: CpuAttention, threaded: CpuAttention, causal: bool
) -> None:
    p = problem(batch=2, heads=2, seq_q=300, seq_k=300, head_dim=64, causal=causal)
    alone, together = run(kernel, p), run(threaded, p)
    torch.testing.assert_close(together, alone, rtol=0, atol=2e-6)
    assert torch.equal(run(threaded, p), together)


def test_calls_from_many_threads_at_once_do_not_disturb_each_other(threaded: CpuAttention) -> None:
    problems = [problem(seq_q=100 + i, head_dim=64) for i in range(8)]
    expected = [threaded.run(p.q, p.k, p.v, causal=False) for p in problems]
    with ThreadPoolExecutor(4) as executor:
        found = list(executor.map(lambda p: threaded.run(p.q, p.k, p.v, causal=False), problems * 3))
    assert all(torch.equal(out, expected[i % 8]) for i, out in enumerate(found))


def test_a_prepared_plan_gives_the_bits_of_a_run_each_time_in_new_memory(kernel: CpuAttention) -> None:
    p = problem(seq_q=65, head_dim=64, causal=True)
    plan = kernel.prepare(p.q, p.k, p.v, True)
    first, second = plan(), plan()
    assert first.data_ptr() != second.data_ptr()
    assert torch.equal(first, second)
    assert torch.equal(first, run(kernel, p))


def test_a_plan_outlives_the_names_of_its_inputs(kernel: CpuAttention) -> None:
    p = problem(seq_q=65, head_dim=64)
    expected = run(kernel, p)
    strided = [t.transpose(2, 3).contiguous().transpose(2, 3) for t in (p.q, p.k, p.v)]  # forces copies within the plan
    plan = kernel.prepare(strided[0], strided[1], strided[2], False)
    del strided
    _filler = [torch.full_like(p.q, math.nan) for _ in range(16)]
    assert torch.equal(plan(), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_hot_values_reveal_weights_that_are_a_distribution(kernel: CpuAttention, dtype: torch.dtype) -> None:
    seq_k = 40
    p = problem(heads=2, seq_q=21, seq_k=seq_k, head_dim=seq_k, dtype=dtype)
    v = torch.eye(seq_k, dtype=dtype).expand(1, 2, seq_k, seq_k)
    weights = run(kernel, Problem(p.q, p.k, v)).double()
    exact = torch.softmax(p.q.double() @ p.k.double().transpose(2, 3) / math.sqrt(seq_k), dim=-1)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(weights, exact, rtol=max(4 * eps, 1e-5), atol=eps)
    assert bool((weights >= 0).all())
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 21, dtype=torch.float64), rtol=0, atol=eps * 4)


def test_a_causal_mask_gives_exactly_no_weight_to_the_future(kernel: CpuAttention) -> None:
    seq = 90
    p = problem(heads=1, seq_q=seq, head_dim=seq, causal=True)
    v = torch.eye(seq).expand(1, 1, seq, seq)
    weights = run(kernel, Problem(p.q, p.k, v, causal=True))[0, 0]
    assert torch.equal(torch.triu(weights, diagonal=1), torch.zeros(seq, seq))
    assert bool((torch.diagonal(weights) > 0).all())


@pytest.mark.parametrize("length", [1, 12, 33, 64, 257])
def test_a_causal_prefix_does_not_depend_on_what_follows(kernel: CpuAttention, length: int) -> None:
    p = problem(seq_q=300, head_dim=64, causal=True)
    whole = run(kernel, p)
    spoilt = Problem(p.q.clone(), p.k.clone(), p.v.clone(), causal=True)
    for x in (spoilt.k, spoilt.v):
        x[:, :, length:] = math.nan
    seen = run(kernel, spoilt)[:, :, :length]
    # A weight of 0 times NaN is NaN, so rows that share a strip with one that sees more are not judged here.
    untouched = seen[:, :, : max(0, length - 16)]
    assert torch.equal(untouched, whole[:, :, : untouched.shape[2]])
    short = run(kernel, Problem(p.q[:, :, :length], p.k[:, :, :length], p.v[:, :, :length], causal=True))
    torch.testing.assert_close(whole[:, :, :length], short, rtol=0, atol=2e-6)


def test_reordering_heads_and_batches_reorders_the_output_and_nothing_else(kernel: CpuAttention) -> None:
    p = problem(batch=3, heads=4, seq_q=37, seq_k=50, head_dim=40)
    whole = run(kernel, p)
    b, h = torch.randperm(3), torch.randperm(4)
    mixed = run(kernel, Problem(p.q[b][:, h], p.k[b][:, h], p.v[b][:, h]))
    assert torch.equal(mixed, whole[b][:, h])


def test_reordering_keys_together_with_values_changes_only_rounding(kernel: CpuAttention) -> None:
    p = problem(seq_q=20, seq_k=333, head_dim=64)
    order = torch.randperm(333)
    mixed = run(kernel, Problem(p.q, p.k[:, :, order], p.v[:, :, order]))
    torch.testing.assert_close(mixed, run(kernel, p), rtol=0, atol=2e-6)


def test_grouped_queries_equal_repeated_keys_and_values(kernel: CpuAttention) -> None:
    p = problem(batch=2, heads=6, kv_heads=2, seq_q=50, seq_k=80, head_dim=64, causal=True)
    k, v = (x.repeat_interleave(3, dim=1) for x in (p.k, p.v))
    torch.testing.assert_close(run(kernel, p), run(kernel, Problem(p.q, k, v, causal=True)), rtol=0, atol=2e-6)


def test_a_batch_of_many_heads_equals_its_parts(kernel: CpuAttention) -> None:
    p = problem(batch=4, heads=3, seq_q=5, seq_k=9, head_dim=8)
    whole = run(kernel, p)
    for b in range(4):
        part = run(kernel, Problem(p.q[b : b + 1], p.k[b : b + 1], p.v[b : b + 1]))
        torch.testing.assert_close(part, whole[b : b + 1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_constant_values_come_back_as_they_are(kernel: CpuAttention, dtype: torch.dtype) -> None:
    p = problem(seq_q=33, seq_k=300, head_dim=64, dtype=dtype)
    out = run(kernel, Problem(p.q, p.k, torch.full_like(p.v, 1.5)))
    torch.testing.assert_close(out, torch.full_like(out, 1.5), rtol=torch.finfo(dtype).eps * 16, atol=0)


def test_zero_queries_average_the_values(kernel: CpuAttention) -> None:
    p = problem(seq_q=4, seq_k=500, head_dim=64)
    out = run(kernel, Problem(torch.zeros_like(p.q), p.k, p.v))
    torch.testing.assert_close(out, p.v.mean(2, keepdim=True).expand_as(out), rtol=0, atol=1e-6)


@pytest.mark.parametrize("factor", [50.0, 200.0, 1e4])
def test_huge_scores_neither_overflow_nor_lose_the_winner(kernel: CpuAttention, factor: float) -> None:
    p = problem(seq_q=33, seq_k=290, head_dim=64)
    out = run(kernel, Problem(p.q * factor, p.k, p.v))
    exact = reference.attention(p.q * factor, p.k, p.v, causal=False).out
    # The error of a score is relative to its size, and the softmax turns it into an error relative to the weight.
    close = (out.double() - exact).abs().amax(-1) < 1e-6 * factor * 64
    assert bool(torch.isfinite(out).all())
    assert bool(close.all())


@pytest.mark.parametrize("direction", [1, -1], ids=["rising", "falling"])
def test_scores_that_rise_or_fall_along_the_keys_rescale_rightly(kernel: CpuAttention, direction: int) -> None:
    p = problem(seq_q=14, seq_k=1100, head_dim=16)
    ramp = torch.linspace(0, 40, 1100) if direction > 0 else torch.linspace(40, 0, 1100)
    k = torch.zeros_like(p.k)
    k[..., 0] = ramp
    q = torch.zeros_like(p.q)
    q[..., 0] = 4.0
    check = verdict(kernel, Problem(q, k, p.v))
    assert check.passed, check.reason


def test_scores_of_minus_infinity_weigh_nothing_even_when_they_fill_whole_blocks(kernel: CpuAttention) -> None:
    p = problem(heads=1, seq_q=14, seq_k=900, head_dim=16)
    q, k = p.q.clone(), p.k.clone()
    q[..., 0] = 1.0
    k[:, :, :700, 0] = -math.inf
    out = run(kernel, Problem(q, k, p.v))
    rest = reference.attention(q, k[:, :, 700:], p.v[:, :, 700:], causal=False).out
    torch.testing.assert_close(out.double(), rest, rtol=0, atol=2e-6)


def test_rows_without_any_finite_score_are_nan_as_in_pytorch(kernel: CpuAttention) -> None:
    p = problem(heads=1, seq_q=3, seq_k=20, head_dim=16)
    q, k = p.q.clone(), p.k.clone()
    q[..., 0] = 1.0
    k[..., 0] = -math.inf
    assert bool(run(kernel, Problem(q, k, p.v)).isnan().all())


@pytest.mark.parametrize("where", ["q", "k", "v"])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_what_is_not_a_number_reaches_exactly_the_heads_it_touches(
    kernel: CpuAttention, where: str, poison: float
) -> None:
    p = problem(batch=1, heads=4, kv_heads=2, seq_q=20, seq_k=70, head_dim=32)
    clean = run(kernel, p)
    spoilt = {"q": p.q.clone(), "k": p.k.clone(), "v": p.v.clone()}
    spoilt[where][0, 0, 5, 3] = poison
    out = run(kernel, Problem(spoilt["q"], spoilt["k"], spoilt["v"]))
    touched = [0] if where == "q" else [0, 1]
    rest = [h for h in range(4) if h not in touched]
    assert not bool(torch.isfinite(out[:, touched]).all())
    assert torch.equal(out[:, rest], clean[:, rest])
    exact = torch.nn.functional.scaled_dot_product_attention(
        spoilt["q"].double(), spoilt["k"].double(), spoilt["v"].double(), enable_gqa=True
    )
    assert torch.equal(torch.isfinite(out), torch.isfinite(exact))


def test_half_precision_outputs_round_to_nearest_even_and_overflow_to_infinity(kernel: CpuAttention) -> None:
    values = torch.tensor([65504.0, -65504.0, 6e-8, -6e-8, 1.0009765625, 0.0, -0.0, 2.0**-14], dtype=torch.float16)
    one = torch.ones(1, 1, 1, 8, dtype=torch.float16)
    out = kernel.run(one, one, values.view(1, 1, 1, 8), causal=False)
    assert torch.equal(out.view(-1), values)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_with_a_single_key_every_finite_half_number_survives_the_round_trip(
    kernel: CpuAttention, dtype: torch.dtype
) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    finite = every[torch.isfinite(every)]
    rows = torch.cat([finite, torch.zeros(-len(finite) % 256, dtype=dtype)]).view(-1, 1, 1, 256)
    ones = torch.ones_like(rows)
    assert torch.equal(kernel.run(ones, ones, rows, causal=False), rows)


@pytest.mark.parametrize("scale", [1.0, 0.01, 0.3])
def test_a_given_scale_replaces_the_usual_one(kernel: CpuAttention, scale: float) -> None:
    check = verdict(kernel, problem(seq_q=30, head_dim=64, scale=scale))
    assert check.passed, check.reason


def refused(kernel: CpuAttention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str:
    with pytest.raises(Unavailable) as told:
        kernel.run(q, k, v, causal=False)
    return str(told.value)


def test_what_the_kernel_cannot_do_is_refused_with_a_reason(kernel: CpuAttention) -> None:
    x = torch.randn(1, 4, 8, 16)
    assert "cannot share" in refused(kernel, x, x[:, :3], x[:, :3])
    assert "shapes do not fit" in refused(kernel, x, x, x[:, :, :4])
    assert "dtypes" in refused(kernel, x, x.half(), x.half())
    assert "dtypes" in refused(kernel, x.double(), x.double(), x.double())
    assert "empty" in refused(kernel, x, x[:, :, :0], x[:, :, :0])
    wide = torch.randn(1, 1, 2, 257)
    assert "head_dim 257" in refused(kernel, wide, wide, wide)
    shape = Shape(batch=1, heads=1, kv_heads=1, seq_q=2, seq_k=2, head_dim=257, causal=False)
    assert kernel.supports(Case(shape, "float32")) == "head_dim 257 is over 256"


def test_a_kernel_that_was_not_built_says_so() -> None:
    x = torch.randn(1, 1, 2, 8)
    assert "not built" in refused(CpuAttention(), x, x, x)
