"""The gate of backward passes: all three gradients are compared with float64, each by the norm and by the largest
error."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.attention import correctness, reference
from kernels.attention.correctness import Yardstick
from kernels.attention.reference import PLAIN, Terms
from kernels.harness.workload import Check

NAMES = ("dq", "dk", "dv", "dsinks")
"""The gradients in their order; the last one of cases with sinks alone."""
RELATIVE = {torch.float32: 1e-5, torch.bfloat16: 2.7e-3, torch.float16: 3.5e-4}
"""||x - exact|| / ||exact|| that always passes."""
SLACK = 1.2
"""An error also passes if its norm is at most this many times that of the formula computed step by step."""
FLOOR = 1e-5
"""An error of this share of the largest of the three gradients passes too. This is for gradients that are almost zero,
as dQ and dK with a single key."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest absolute error of a gradient that passes, and the largest norm of its error."""

    largest: float
    norm: float


@dataclass(frozen=True, slots=True)
class GradientYardstick:
    """The exact gradients, and with `out` also the exact output before them. `limits` has the limits of each one's
    error. That of the sinks is float32, as they are."""

    exact: tuple[torch.Tensor, ...]
    dtype: torch.dtype
    limits: tuple[Limits, ...]
    out: Yardstick | None = None

    @property
    def limit(self) -> float:
        """The largest absolute error that passes for any of the gradients."""
        return max(limits.largest for limits in self.limits)

    def judge(self, output: object) -> Check:
        """The verdict on (dq, dk, dv), or (out, dq, dk, dv): the first that fails, else the largest error. With sinks
        their gradient is the last."""
        given = output if isinstance(output, tuple) else ()
        names, dtypes = NAMES[: len(self.exact)], [*[self.dtype] * 3, torch.float32]
        if len(given) != len(names) + (self.out is not None) or not all(isinstance(x, torch.Tensor) for x in given):
            return Check(False, float("nan"), self.limit, f"the answer is not a tuple of (out,) {', '.join(names)}")
        if self.out is not None:
            verdict = self.out.judge(given[0])
            if not verdict.passed:
                return Check(False, verdict.max_abs_error, verdict.limit, f"out: {verdict.reason}")
        checks = [
            judge_gradient(name, x, exact, dtype, limits)
            for name, x, exact, dtype, limits in zip(
                names, given[-len(names) :], self.exact, dtypes[: len(names)], self.limits, strict=True
            )
        ]
        failed = next((check for check in checks if not check.passed), None)
        return failed or max(checks, key=lambda check: check.max_abs_error)


def judge_gradient(name: str, x: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype, limits: Limits) -> Check:
    """The verdict on one gradient. NaN, infinity, a wrong shape or a wrong dtype never pass."""
    limit = limits.largest
    defect = correctness.defect_of(x, exact, dtype)
    if defect:
        return Check(False, float("nan"), limit, f"{name} {defect}")
    difference = x.double() - exact
    error = difference.abs().max().item()
    norm = difference.norm().item()
    if not norm <= limits.norm:
        return Check(False, error, limit, f"{name}: norm of the error {norm:.3g} is over {limits.norm:.3g}")
    if not error <= limit:
        return Check(
            False, error, limit, f"{name}: max abs error {error:.3g} is over {limit:.3g} (twice the formula's)"
        )
    return Check(True, error, limit, "")


def gradient_yardstick(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dout: torch.Tensor,
    *,
    causal: bool,
    max_abs_error: float | None,
    terms: Terms = PLAIN,
) -> GradientYardstick:
    """The exact gradients and what may differ from them; with `max_abs_error` the output is judged too.

    The largest error may be twice that of the same formula computed step by step in the inputs' own type, plus
    rounding (the criterion of the FlashAttention tests), and the norm of the errors `SLACK` times that of the same.
    """
    exact = reference.attention_backward(q, k, v, dout, causal=causal, terms=terms)
    truth = (exact.dq, exact.dk, exact.dv, *(() if exact.dsinks is None else (exact.dsinks,)))
    steps = stepwise_gradients(q, k, v, dout, causal, terms)
    eps = torch.finfo(q.dtype).eps
    norms, peaks = ([float(each(x)) for x in truth] for each in (torch.linalg.vector_norm, largest_absolute))
    limits = []
    for one, right, norm, peak in zip(steps, truth, norms, peaks, strict=True):
        off = one.double() - right
        allowed = max(RELATIVE[q.dtype] * norm, SLACK * off.norm().item(), FLOOR * max(norms[:3]))
        limits.append(Limits(2 * largest_absolute(off) + 2 * eps * peak + FLOOR * max(peaks[:3]), allowed))
    out = None
    if max_abs_error is not None:
        out = correctness.exact_answer(q, k, v, causal=causal, max_abs_error=max_abs_error, terms=terms)
    return GradientYardstick(truth, q.dtype, tuple(limits), out)


def largest_absolute(x: torch.Tensor) -> float:
    """The largest absolute value."""
    return float(x.abs().max().item())


def stepwise_gradients(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor, causal: bool, terms: Terms = PLAIN
) -> tuple[torch.Tensor, ...]:
    """The gradients by the formula, every step rounded to the inputs' type; a head at a time. That of the sinks, if
    there are any, is the last."""
    group, scale = q.shape[1] // k.shape[1], q.shape[-1] ** -0.5
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    dsinks = None if terms.sinks is None else torch.zeros_like(terms.sinks)
    hidden = terms.hidden(torch.arange(q.shape[2], device=q.device), k.shape[2], causal)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            own_q, own_k, own_v, slope = q[b, h], k[b, h // group], v[b, h // group], dout[b, h]
            scores = (own_q @ own_k.T) * scale
            scores = scores if hidden is None else scores.masked_fill(hidden, float("-inf"))
            weights, of_sink = terms.weights(scores, h)
            counted = b * q.shape[1] + h
            of_weights = terms.drop(slope @ own_v.T, counted, 0)
            mean = (weights * of_weights).sum(-1, keepdim=True)
            of_scores = weights * (of_weights - mean)
            dv[b, h // group] += terms.drop(weights, counted, 0).T @ slope
            dk[b, h // group] += (of_scores.T @ own_q) * scale
            dq[b, h] = (of_scores @ own_k) * scale
            if dsinks is not None and of_sink is not None:
                dsinks[h] -= (of_sink * mean[:, 0]).sum()
    return (dq, dk, dv) if dsinks is None else (dq, dk, dv, dsinks)
