"""The gate passes what is as right as PyTorch and nothing else."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.attention import correctness, reference
from kernels.attention.correctness import Check, Yardstick
from tests.kernels.problems import problem

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def measured(dtype: torch.dtype = torch.float32, max_abs_error: float = 0.01) -> tuple[torch.Tensor, Yardstick]:
    p = problem(heads=4, kv_heads=2, seq_q=33, seq_k=65, head_dim=64, dtype=dtype)
    by = correctness.exact_answer(p.q, p.k, p.v, causal=False, max_abs_error=max_abs_error)
    out = torch.nn.functional.scaled_dot_product_attention(p.q, p.k, p.v, enable_gqa=True)
    return out, by


def judged(out: torch.Tensor, by: Yardstick) -> Check:
    check = correctness.judge_output(out, by)
    assert check.passed == (check.reason == "")
    return check


@pytest.mark.parametrize("dtype", DTYPES)
def test_pytorch_itself_passes(dtype: torch.dtype) -> None:
    out, by = measured(dtype)
    check = judged(out, by)
    assert check.passed, check.reason
    assert check.max_abs_error <= check.limit <= 0.01


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_one_element_that_is_not_finite_never_passes(dtype: torch.dtype, poison: float) -> None:
    out, by = measured(dtype, max_abs_error=1e30)
    out[0, 1, 2, 3] = poison
    check = judged(out, by)
    assert not check.passed
    assert "1 of 8448 elements" in check.reason
    assert math.isnan(check.max_abs_error)


def test_one_element_that_is_off_never_passes() -> None:
    right, by = measured()

    @given(st.integers(0, right.numel() - 1), st.floats(0.02, 10.0))
    @settings(max_examples=50, deadline=None, derandomize=True)
    def law(index: int, by_how_much: float) -> None:
        out = right.clone()
        out.view(-1)[index] += by_how_much
        check = judged(out, by)
        assert not check.passed
        assert check.max_abs_error == pytest.approx(by_how_much, abs=1e-4)

    law()


def test_an_error_within_the_absolute_limit_but_far_beyond_pytorchs_does_not_pass() -> None:
    out, by = measured()
    out[0, 0, 0, 0] += 0.001
    check = judged(out, by)
    assert not check.passed
    assert "twice PyTorch's own error" in check.reason


def test_an_error_beyond_the_absolute_limit_does_not_pass_however_wrong_pytorch_is() -> None:
    out, by = measured()
    lenient = Yardstick(by.exact, by.dtype, absolute=0.01, relative_to_torch=1.0)
    out[0, 0, 0, 0] += 0.02
    assert "the absolute limit" in judged(out, lenient).reason


def test_errors_that_are_small_everywhere_but_systematic_do_not_pass() -> None:
    out, by = measured()
    lenient = Yardstick(by.exact, by.dtype, absolute=1.0, relative_to_torch=1.0)
    assert "relative Frobenius" in judged(out * 1.001, lenient).reason


def test_another_shape_or_dtype_does_not_pass() -> None:
    out, by = measured()
    assert not judged(out[:, :, :-1], by).passed
    assert not judged(out.double(), by).passed


def test_where_the_dtype_cannot_hold_the_answer_closely_rounding_is_not_an_error() -> None:
    one = torch.ones(1, 1, 1, 8, dtype=torch.bfloat16)
    keys = torch.ones(1, 1, 2, 8, dtype=torch.bfloat16)
    values = torch.tensor([100.0, 101.5], dtype=torch.bfloat16).view(1, 1, 2, 1).expand(1, 1, 2, 8).contiguous()
    by = correctness.exact_answer(one, keys, values, causal=False, max_abs_error=0.01)
    exact = by.exact.to(torch.bfloat16)
    assert (exact.double() - by.exact).abs().max() > 0.01
    assert judged(exact, by).passed


@pytest.mark.parametrize("through_torch", [True, False])
def test_memory_that_is_never_written_shows_as_nan(through_torch: bool) -> None:
    like = torch.empty(1 << 16)
    with correctness.poison_memory(like, through_torch=through_torch):
        fresh = torch.empty(1 << 16)
    if through_torch:  # the other way depends on the allocator handing the same block out again
        assert bool(fresh.isnan().all())
    assert not torch.are_deterministic_algorithms_enabled()


def test_poisoning_ends_even_when_the_call_raises() -> None:
    with pytest.raises(ZeroDivisionError), correctness.poison_memory(torch.empty(4), through_torch=True):
        raise ZeroDivisionError
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("causal", [False, True])
def test_the_reference_agrees_with_pytorch_in_double_precision(causal: bool) -> None:
    p = problem(batch=2, heads=6, kv_heads=3, seq_q=40, seq_k=60, head_dim=24, causal=causal)
    exact = reference.attention(p.q, p.k, p.v, causal=causal)
    theirs = torch.nn.functional.scaled_dot_product_attention(
        p.q.double(), p.k.double(), p.v.double(), is_causal=causal, enable_gqa=True
    )
    torch.testing.assert_close(exact.out, theirs, rtol=1e-12, atol=1e-12)


def test_the_reference_in_chunks_is_the_reference_whole() -> None:
    p = problem(heads=2, seq_q=17, seq_k=23, head_dim=8, causal=True)
    whole = reference.attention(p.q, p.k, p.v, causal=True)
    for chunk in (1, 23, 100, 230):
        parts = reference.attention(p.q, p.k, p.v, causal=True, chunk_elements=chunk)
        torch.testing.assert_close(parts.out, whole.out, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(parts.lse, whole.lse, rtol=1e-12, atol=1e-12)
