"""The implementations of a spec, bound to a case's inputs: from here the kernel and PyTorch's backends look alike."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from kernels.attention import correctness, registry
from kernels.attention.baseline import Sdpa
from kernels.attention.case import Case
from kernels.attention.correctness import Check, Yardstick
from kernels.attention.interface import AttentionKernel, BuildFailed, BuildRecord, Plan, Unavailable
from kernels.harness.axes import Inputs
from kernels.harness.spec import original


@dataclass(frozen=True, slots=True)
class Bound:
    """An implementation ready to be called on one case's inputs; `copies` are the same call on copies of them."""

    implementation: str
    backend: str
    plan: Plan
    scope: Callable[[], AbstractContextManager[object]]
    copies: tuple[Plan, ...] = ()
    peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Built:
    """The bundled kernel, loaded."""

    kernel: AttentionKernel
    record: BuildRecord


def build(device: torch.device, threads: int, out_dir: Path, cache_dir: Path) -> Built:
    """The bundled kernel for this device, compiled or from the cache. Raises `BuildFailed`."""
    try:
        kernel = registry.find(device, threads=threads)
    except Unavailable as exc:
        raise BuildFailed(str(exc), remedy="measure the baselines only, or add a kernel for this device") from exc
    return Built(kernel, kernel.build(out_dir, cache_dir))


def bind(implementation: str, bench: Built | BuildFailed | None, case: Case, inputs: Inputs) -> Bound:
    """`implementation` on these inputs. Raises `Unavailable` if it cannot run, `BuildFailed` if it was not built."""
    q, k, v, causal = inputs.q, inputs.k, inputs.v, case.shape.causal
    if original(implementation) != "bench":
        baseline = Sdpa(original(implementation).removeprefix("sdpa:"))
        plan = baseline.prepare(q, k, v, causal)
        return Bound(implementation, baseline.resolved(q, k, v, causal), plan, baseline.scope)
    if bench is None:
        raise Unavailable("the kernel was not asked for")
    if isinstance(bench, BuildFailed):
        raise bench
    refusal = bench.kernel.supports(case)
    if refusal is not None:
        raise Unavailable(refusal)
    # A plan may allocate its output now or at each call: either way its memory starts out as NaN.
    with correctness.poisoned(q, through_torch=True):
        plan = bench.kernel.prepare(q, k, v, causal)
    return Bound(implementation, bench.kernel.name, plan, nullcontext)


def check(bound: Bound, by: Yardstick, inputs: Inputs) -> Check:
    """Judge one fresh output. What raises has not passed; but running out of memory raises `Unavailable`."""
    try:
        through_torch = original(bound.implementation) == "bench"
        with bound.scope(), correctness.poisoned(inputs.q, through_torch=through_torch):
            return correctness.judge(bound.plan(), by)
    except (torch.OutOfMemoryError, MemoryError) as exc:
        raise Unavailable(f"{bound.backend}: out of memory") from exc
    except RuntimeError as exc:
        return Check(False, float("nan"), by.limit, f"raised {type(exc).__name__}: {one_line(str(exc))}")


def check_copies(bound: Bound, by: Yardstick, inputs: Inputs) -> Check | None:
    """The first verdict on a copy that has not passed, or None. Copies hold the same values, so an output that equals
    the first to the last bit needs no more looking at. Raises as `check` does."""
    with bound.scope():
        first = bound.plan().clone()
    for plan in bound.copies:
        with bound.scope():
            same = torch.equal(plan(), first)
        if not same:
            verdict = check(replace(bound, plan=plan), by, inputs)
            if not verdict.passed:
                return replace(verdict, reason=f"on a copy of its inputs: {verdict.reason}")
    return None


def one_line(words: str) -> str:
    """The first line that says something, cut to what fits a result row."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    telling = next((line for line in lines if "error" in line.lower()), lines[0] if lines else "no message")
    return telling[:200]
