"""The criterion knows the type, the size of the answer, the problem and the baseline: honest kernels pass, others do not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernels.forms.definition import Arguments, in_double
from kernels.harness.criterion import (
    Errors,
    Exact,
    ReferenceRaised,
    allowed_errors,
    error_distance,
    exact_of,
    judge_output,
    matching_pieces,
    with_stale,
)

Function = Callable[..., Any]


def verdict(
    reference: Function, kernel: Function, *inputs: torch.Tensor, baseline: Function | None = None, **how: Any
) -> Any:
    """The criterion's word on `kernel`, with the baseline's own error known where there is a baseline."""
    given = Arguments(inputs, {})
    noise = torch.Generator().manual_seed(3)
    exact = exact_of(lambda a: reference(*a.args), given, noise, in_double)
    errors: Errors | None = None
    if baseline is not None:
        found, errors = judge_output(baseline(*inputs), exact, None, None)
        assert found.passed, f"the baseline: {found.reason}"
    return judge_output(kernel(*inputs), exact, None, errors, **how)[0]


def rms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def rms_torch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], w, 1e-6)


def rms_by_hand(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("seed", range(5))
def test_a_norm_by_hand_that_rounds_twice_is_right(dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    x, w = torch.randn(64, 1024).to(dtype), torch.randn(1024).to(dtype)
    assert verdict(rms, rms_by_hand, x, w, baseline=rms_torch).passed
    assert verdict(rms, rms_by_hand, x, w).passed, "also without a baseline"


@pytest.mark.parametrize("seed", range(5))
def test_a_dot_product_of_a_million_squares_is_right_and_one_per_cent_more_is_not(seed: int) -> None:
    x = torch.randn(1 << 20, generator=torch.Generator().manual_seed(seed))
    assert verdict(lambda a: (a * a).sum(), lambda a: a.dot(a), x).passed
    assert verdict(lambda a: (a * a).sum(), lambda a: a.square().sum(), x, baseline=lambda a: a.dot(a)).passed
    assert not verdict(lambda a: (a * a).sum(), lambda a: a.dot(a) * 1.01, x, baseline=lambda a: a.dot(a)).passed


@pytest.mark.parametrize("seed", range(5))
def test_a_sum_that_cancels_may_be_as_far_off_as_its_inputs_rounding_moves_it(seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(1 << 18)
    assert verdict(torch.sum, lambda a: a.flip(0).view(512, -1).sum(0).sum(), x).passed
    assert verdict(lambda a: (a - a.mean()).sum() + 1, lambda a: (a - a.mean()).sum() + 1, x).passed


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_softmax_and_products_by_pytorch_are_right(dtype: torch.dtype) -> None:
    x = torch.randn(64, 1000).to(dtype)
    assert verdict(lambda a: torch.softmax(a, -1), lambda a: torch.softmax(a, -1), x).passed
    a, b = torch.randn(64, 256).to(dtype), torch.randn(256, 32).to(dtype)
    assert verdict(torch.matmul, torch.matmul, a, b).passed


def tf32(x: torch.Tensor) -> torch.Tensor:
    """Rounded to ten bits of mantissa."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def test_lower_precision_is_found_out() -> None:
    a, b = torch.randn(128, 512), torch.randn(512, 128)
    assert not verdict(torch.matmul, lambda x, y: (x.half() @ y.half()).float(), a, b, baseline=torch.matmul).passed
    assert not verdict(torch.matmul, lambda x, y: tf32(x) @ tf32(y), a, b, baseline=torch.matmul).passed
    low = [one.half() for one in (a, b)]
    told = verdict(torch.matmul, lambda x, y: (x.bfloat16() @ y.bfloat16()).half(), *low, baseline=torch.matmul)
    assert not told.passed, "float16 by way of bfloat16"


def test_one_wrong_element_and_a_little_everywhere_are_both_found() -> None:
    a, b = (torch.randn(256, 256).bfloat16() for _ in range(2))

    def one_off(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = x @ y
        out[3, 4] += 8
        return out

    assert not verdict(torch.matmul, one_off, a, b, baseline=torch.matmul).passed
    assert "root mean square" in verdict(torch.matmul, lambda x, y: (x @ y) * 1.015, a, b, baseline=torch.matmul).reason


def test_the_verdict_says_which_limit_decided() -> None:
    x = torch.randn(4096)
    assert "roundings of float32" in verdict(torch.sigmoid, lambda a: a.sigmoid() + 1e-2, x).reason
    assert "own sensitivity" in verdict(torch.exp, lambda a: a.exp() + 1e-2, x).reason
    own = verdict(torch.exp, lambda a: a.exp() + 1, x, tolerance={"rtol": 1e-6, "atol": 1e-6})
    assert "the workload's own tolerance" in own.reason


def test_structures_are_judged_leaf_by_leaf_and_integers_exactly() -> None:
    x = torch.randn(8, 64)
    top = lambda a: torch.topk(a, 4)  # noqa: E731
    assert verdict(lambda a: tuple(top(a)), lambda a: tuple(top(a)), x).passed
    assert "output[1]: " in verdict(lambda a: tuple(top(a)), lambda a: (top(a)[0], top(a)[1] + 1), x).reason
    assert "and the reference's is 2 outputs" in verdict(lambda a: tuple(top(a)), lambda a: top(a)[0], x).reason
    assert verdict(lambda a: {"y": a + 1}, lambda a: {"y": a + 1}, x).passed


def test_infinity_is_right_where_it_is_the_answer_and_nan_never() -> None:
    x = torch.tensor([0.0, 1.0, 2.0])
    assert verdict(torch.log, torch.log, x).passed
    assert "NaN or infinite" in verdict(torch.log, lambda a: a.log().clamp_min(-1e30) * float("nan"), x).reason
    with pytest.raises(ValueError, match="answers with NaN in 1 of 3"):
        verdict(lambda a: (a - 1).log(), torch.log, x)


def test_a_reference_that_differs_from_call_to_call_is_no_reference() -> None:
    with pytest.raises(ValueError, match="not deterministic"):
        verdict(lambda a: a + torch.randn(3), lambda a: a, torch.ones(3))


def test_a_long_sum_by_one_thread_is_right_and_one_in_half_precision_is_not() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for seed in range(5):
            x = torch.randn(1 << 20, generator=torch.Generator().manual_seed(seed))
            assert verdict(lambda a: (a * a).sum(), lambda a: a.dot(a), x).passed
            half = verdict(lambda a: (a * a).sum(), lambda a: (a.bfloat16() * a.bfloat16()).sum().float(), x)
            assert not half.passed
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 1000), (1000, 3), (5, 6, 7), (1, 1, 400)])
@pytest.mark.parametrize("most", [1, 10, 64])
def test_pieces_hold_every_element_once_and_no_more_than_asked(shape: tuple[int, ...], most: int) -> None:
    one = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
    parts = list(
        matching_pieces(one, one.clone().as_strided(one.shape, one.stride()) if one.numel() else one, most=most)
    )
    assert all(a.numel() <= most for a, _ in parts)
    assert sorted(value for a, _ in parts for value in a.reshape(-1).tolist()) == one.reshape(-1).tolist()
    assert all(torch.equal(a, b) for a, b in parts)
    assert all(a.untyped_storage().data_ptr() == one.untyped_storage().data_ptr() for a, _ in parts), "no copies"


def test_a_distance_skips_what_is_not_finite_and_has_both_norms() -> None:
    out, right = torch.tensor([1.0, 2.0, math.inf, 4.0]), torch.tensor([1.0, 2.5, math.inf, 2.0])
    assert error_distance(out, right) == (2.0, math.sqrt((0.25 + 4.0) / 4))


def test_a_workloads_tolerance_may_be_widened_by_what_the_baseline_itself_is_off() -> None:
    right = torch.full((8,), 100.0, dtype=torch.float64)
    exact = exact_of(lambda _: right, Arguments((torch.ones(8),), {}), None, in_double)
    strict, wide = {"rtol": 1e-4, "atol": 1e-4}, {"rtol": 1e-4, "atol": 1e-4, "baselines": 3.0}
    off = Errors(((0.05, 0.05),))

    def allowed(tolerance: dict[str, float], baseline: Errors | None, *, tf32: bool = False) -> float:
        return allowed_errors(right, torch.float32, exact, 0, baseline, tolerance, tf32)[0][0]

    assert allowed(strict, off) == pytest.approx(0.0101)
    assert allowed(wide, None) == pytest.approx(0.0101)
    assert allowed(wide, off) == pytest.approx(0.15)
    assert allowed(wide, None, tf32=True) == pytest.approx(4 * 2**-10 * 100), "a baseline that may multiply in TF32"
    assert allowed(strict, None, tf32=True) == pytest.approx(0.0101), "what the workload says, where it says no more"


def test_a_reference_without_a_generator_is_not_shaken_and_may_be_called_once() -> None:
    calls = []

    def reference(given: Arguments) -> torch.Tensor:
        calls.append(1)
        return given.args[0] * 2

    exact = exact_of(reference, Arguments((torch.ones(4),), {}), None, in_double, twice=False)
    assert len(calls) == 1
    assert exact.moved == ((0.0, 0.0),)
    assert exact.single == ()


def kernelbench(reference: Function, kernel: Function, *inputs: torch.Tensor, atol: float = 1e-4) -> Any:
    """The verdict under KernelBench's tolerance, with what justifies an error known, as where that would pass zeros."""
    given = Arguments(inputs, {})
    exact = exact_of(lambda a: reference(*a.args), given, torch.Generator().manual_seed(3), in_double)
    other = Arguments(tuple(torch.rand(one.shape, generator=torch.Generator().manual_seed(4)) for one in inputs), {})
    exact = with_stale(exact, exact_of(lambda a: reference(*a.args), other, None, in_double))
    return judge_output(kernel(*inputs), exact, None, None, {"rtol": atol, "atol": atol, "baselines": 3.0})[0]


SMALL_ANSWERS: dict[str, Function] = {
    "softmax of a long row": lambda x: torch.softmax(x, dim=1),
    "norm": lambda x: x / x.square().sum().sqrt(),
    "minimum": lambda x: x.square().amin(dim=1) * 1e-3,
    "small values": lambda x: x * 1e-5,
}


@pytest.mark.parametrize("name", SMALL_ANSWERS)
@pytest.mark.parametrize("atol", [1e-4, 1e-2])
def test_a_tolerance_that_would_pass_nothing_at_all_is_lowered(name: str, atol: float) -> None:
    reference, x = SMALL_ANSWERS[name], torch.rand(16, 16384, generator=torch.Generator().manual_seed(1))
    stale = torch.rand(16, 16384, generator=torch.Generator().manual_seed(2))
    right = reference(x)
    assert kernelbench(reference, reference, x, atol=atol).passed
    trivial = (torch.zeros_like(right), torch.full_like(right, float(right.mean())), reference(stale))
    for answer in (*trivial, *([x] if x.shape == right.shape else [])):
        verdict = kernelbench(reference, lambda _, answer=answer: answer, x, atol=atol)
        assert not verdict.passed, name


def test_an_answer_of_a_few_numbers_to_other_inputs_is_not_right_by_chance() -> None:
    """One number of one seed lies near that of another now and then: a share of their distance proves little."""

    def reference(given: Arguments) -> torch.Tensor:
        return given.args[0].square().mean() + 8

    def exact(seed: int) -> Exact:
        x = torch.rand(4096, generator=torch.Generator().manual_seed(seed))
        return exact_of(reference, Arguments((x,), {}), torch.Generator().manual_seed(3), in_double)

    passed = 0
    for seed in range(100):
        right = with_stale(exact(seed), exact(seed + 1000))
        stale = reference(Arguments((torch.rand(4096, generator=torch.Generator().manual_seed(seed + 2000)),), {}))
        passed += judge_output(stale, right, None, None, {"rtol": 1e-3, "atol": 1e-3, "baselines": 3.0})[0].passed
    assert passed <= 3, "within 64 roundings of float32 is right: 8 in 1,000 by chance"


def test_an_answer_that_is_rightly_zero_passes_under_any_tolerance() -> None:
    x = torch.rand(64, 64)
    assert kernelbench(lambda a: a - a, torch.zeros_like, x).passed
    assert kernelbench(lambda a: a * 0 + 3, lambda a: torch.full_like(a, 3), x).passed


def test_a_limit_that_rounding_justifies_never_passes_zeros() -> None:
    """A sum of terms that cancel: what rounding may do to it is as large as the answer itself."""
    torch.manual_seed(5)
    terms = torch.randn(64, 4096).half()
    x = torch.cat([terms, -terms * (1 + 2**-11)], dim=1)
    assert not verdict(lambda a: a.sum(-1), lambda a: torch.zeros(64).half(), x).passed


def test_integers_obey_the_workloads_tolerance_and_without_one_are_equal() -> None:
    right = torch.randint(-127, 127, (64, 64), dtype=torch.int8)
    off = right.clone()
    off[3, 5] += 1
    far = right.clone()
    far[3, 5] += 3
    exact = exact_of(lambda _: right, Arguments((torch.rand(64, 64),), {}), None, in_double)
    assert judge_output(off, exact, None, None, {"rtol": 0.0, "atol": 1.0})[0].passed
    assert not judge_output(far, exact, None, None, {"rtol": 0.0, "atol": 1.0})[0].passed
    assert not judge_output(off, exact, None, None)[0].passed
    assert not judge_output(torch.zeros_like(right), exact, None, None, {"rtol": 0.0, "atol": 200.0})[0].passed


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_answers_are_judged_after_widening(name: str) -> None:
    dtype = getattr(torch, name)
    x = torch.randn(64, 256)
    assert verdict(lambda a: a.to(dtype), lambda a: a.to(dtype), x).passed
    assert verdict(lambda a: a.to(dtype), lambda a: (a * 1.0001).to(dtype), x).passed, "ties fall either way"
    for wrong in (lambda a: (a * 0).to(dtype), lambda a: (a * 2).to(dtype), lambda a: (-a).to(dtype)):
        assert not verdict(lambda a: a.to(dtype), wrong, x).passed


def test_complex_and_boolean_answers_are_judged() -> None:
    x = torch.randn(16, 16)
    assert verdict(lambda a: torch.complex(a, a), lambda a: torch.complex(a, a), x).passed
    assert not verdict(lambda a: torch.complex(a, a), lambda a: torch.complex(a, -a), x).passed
    assert verdict(lambda a: a > 0, lambda a: a > 0, x).passed
    assert not verdict(lambda a: a > 0, lambda a: a >= -1, x).passed


def test_what_the_reference_raises_is_told_from_what_the_judge_lacks() -> None:
    def broken(_: Any) -> torch.Tensor:
        raise KeyError("no such row")

    with pytest.raises(ReferenceRaised):
        exact_of(broken, Arguments((torch.rand(4),), {}), None, in_double)
