"""The correctness gate: an implementation that does not pass it on the same inputs has no timings."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from kernels.attention import reference
from kernels.attention.reference import PLAIN, Terms
from kernels.harness.workload import Check

RELATIVE_FROBENIUS = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1.2e-3}
"""The limit of ||out - exact|| / ||exact||. A limit for the maximum is not enough on long sequences, where the outputs
tend to 0."""

ULPS = {torch.float32: 16.0, torch.bfloat16: 1.0, torch.float16: 1.0}
"""The tolerance in addition to PyTorch's own error, in eps of the largest output: where PyTorch is exact, rounding is
no fault."""


@dataclass(frozen=True, slots=True)
class Yardstick:
    """The exact output of a case (float64 [B, H, S_q, D]), and the limits that follow from it."""

    exact: torch.Tensor
    dtype: torch.dtype
    absolute: float
    relative_to_torch: float

    @property
    def limit(self) -> float:
        """The largest absolute error that passes."""
        return min(self.absolute, self.relative_to_torch)

    def judge(self, output: torch.Tensor) -> Check:
        """The verdict on an output: `judge` with this yardstick."""
        return judge_output(output, self)


def exact_answer(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    max_abs_error: float,
    scale: float | None = None,
    terms: Terms = PLAIN,
) -> Yardstick:
    """The exact answer to a case, and the errors that pass.

    An error passes when it is at most `max_abs_error` and at most twice PyTorch's own error on the same inputs plus
    rounding (the criterion of the FlashAttention tests). Where the dtype itself cannot hold the exact answer that
    closely (bfloat16 numbers above 4 are 0.031 apart), twice the rounding error of the exact answer takes the place
    of `max_abs_error`. Where PyTorch's attention does not have the terms, its own error is that of the formula computed
    with it step by step.
    """
    exact = reference.attention(q, k, v, causal=causal, scale=scale, terms=terms).out
    rounding = (exact.to(q.dtype).double() - exact).abs().max().item()
    if terms.is_plain:
        ours = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )
    else:
        ours = stepwise_output(q, k, v, causal, scale, terms)
    torch_error = (ours.double() - exact).abs().max().item()
    slack = ULPS[q.dtype] * torch.finfo(q.dtype).eps * exact.abs().max().item()
    return Yardstick(
        exact=exact,
        dtype=q.dtype,
        absolute=max(max_abs_error, 2 * rounding),
        relative_to_torch=2 * torch_error + slack,
    )


def stepwise_output(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None, terms: Terms
) -> torch.Tensor:
    """The output by the formula, every step rounded to the inputs' type; a head at a time."""
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    hidden = terms.hidden(torch.arange(q.shape[2], device=q.device), k.shape[2], causal)
    for b, h in itertools.product(range(q.shape[0]), range(q.shape[1])):
        group = h * k.shape[1] // q.shape[1]
        scores = (q[b, h] @ k[b, group].T) * (q.shape[-1] ** -0.5 if scale is None else scale)
        scores = scores if hidden is None else scores.masked_fill(hidden, float("-inf"))
        out[b, h] = terms.drop(terms.weights(scores, h)[0], b * q.shape[1] + h, 0) @ v[b, group]
    return out


def judge_output(out: torch.Tensor, by: Yardstick) -> Check:
    """Compares an output with the exact answer. NaN, infinity, a wrong shape or a wrong dtype never pass."""
    defect = defect_of(out, by.exact, by.dtype)
    if defect:
        return Check(False, float("nan"), by.limit, f"output {defect}")
    difference = out.double() - by.exact
    error = difference.abs().max().item()
    frobenius = (difference.norm() / by.exact.norm().clamp_min(torch.finfo(torch.float64).tiny)).item()
    if not error <= by.limit:
        which = "the absolute limit" if by.absolute <= by.relative_to_torch else "twice PyTorch's own error"
        return Check(False, error, by.limit, f"max abs error {error:.3g} is over {by.limit:.3g} ({which})")
    if not frobenius <= RELATIVE_FROBENIUS[by.dtype]:
        reason = f"relative Frobenius error {frobenius:.3g} is over {RELATIVE_FROBENIUS[by.dtype]:.3g}"
        return Check(False, error, by.limit, reason)
    return Check(True, error, by.limit, "")


def defect_of(x: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype) -> str:
    """Why a tensor cannot be compared with the exact one: its shape, its dtype, NaN or infinity. Empty if it can."""
    if x.shape != exact.shape or x.dtype != dtype:
        return f"is {tuple(x.shape)} {x.dtype}, not {tuple(exact.shape)} {dtype}"
    strange = int((~torch.isfinite(x)).sum().item())
    return f"has {strange} of {x.numel()} elements that are NaN or infinite, or never written" if strange else ""


@contextmanager
def poison_memory(probe: torch.Tensor, *, through_torch: bool) -> Iterator[None]:
    """While this lasts, memory for outputs like `probe` starts out as NaN, so an element that is never written shows.

    With `through_torch`, every `torch.empty` is filled, by PyTorch's deterministic mode; that mode takes backends away
    from PyTorch's own attention, so without it only the memory the allocator is about to hand out again is filled.
    """
    if not through_torch:
        torch.full_like(probe, float("nan"))
        yield
        return
    before = torch.get_deterministic_debug_mode()
    filling = torch.utils.deterministic.fill_uninitialized_memory
    # use_deterministic_algorithms would import the compiler, which takes two seconds in every step of a run.
    torch.set_deterministic_debug_mode("warn")
    torch.utils.deterministic.fill_uninitialized_memory = True
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        torch.utils.deterministic.fill_uninitialized_memory = filling
