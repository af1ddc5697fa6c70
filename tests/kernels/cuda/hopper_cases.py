"""Problems for the Hopper kernels on the CPU: drawn, planned by the way's own plan, run, and answered in float64."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import torch

from kernels.attention.cuda.plan.planning import Machine
from kernels.attention.cuda.plan.posing import output_like, problem_of
from kernels.attention.cuda.plan.variants import Entry
from kernels.attention.cuda.run.launching import Step
from kernels.attention.cuda.ways import hopper
from kernels.attention.cuda.ways.hopper import HopperWay
from kernels.attention.cuda.ways.hopper_kernels import HopperKernel
from kernels.attention.cuda.ways.small_hopper import GroupKernel, SmallHopper
from tests.kernels.cuda import exactly
from tests.kernels.cuda.exactly import ERROR, Tensors, beside_sinks, exact, limits
from tests.kernels.cuda.hopper_runner import HopperProgram, Schedule
from tests.kernels.cuda.simt_ways import HostBuffers
from tests.kernels.cuda.stub_driver import HOPPER


@dataclasses.dataclass(frozen=True)
class Case:
    """What a call is asked for beside its tensors, and the device it runs on: `blocks` at a time."""

    alignment: str = "top-left"
    window: tuple[int, int | None] | None = None
    blocks: int = 3
    l2_bytes: int = 1 << 20
    with_lse: bool = True
    mask: torch.Tensor | None = None
    sinks: torch.Tensor | None = None


def draw(kernel: HopperKernel | GroupKernel, batch: int, heads: int, kv_heads: int, *sizes: int) -> Tensors:
    """q, k and v as [B, H, S, D] views of [B, S, H, D]; `sizes`: rows, keys, the head dimension if not the kernel's, and
    that of V if it differs."""
    seq_q, seq_k, *dims = sizes
    narrow = kernel.narrow if isinstance(kernel, HopperKernel) else 0
    return exactly.draw(kernel.dtype, batch, heads, kv_heads, seq_q, seq_k, *(dims or (kernel.head_dim, narrow)))


def attend(
    program: HopperProgram,
    kernel: HopperKernel | GroupKernel,
    tensors: Tensors,
    scratch: Path,
    schedule: Schedule,
    case: Case,
    *,
    entry: Entry | None = None,
    out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output and the log-sum-exp, each NaN where nothing was written. `entry` is launched in the kernel's place.

    Asserts that counters are zero again. Needs the stub of libcuda in place.
    """
    q, k, v = tensors
    made = output_like(q, v).fill_(math.nan) if out is None else out
    lse = torch.full(q.shape[:3], math.nan)
    buffers = HostBuffers(lse=lse.data_ptr() if case.with_lse else 0)
    causal = kernel.right if isinstance(kernel, HopperKernel) else kernel.causal
    causal = causal and case.window is None
    problem = problem_of(q, k, v, made, causal=causal, alignment=case.alignment, window=case.window, mask=case.mask)
    if case.sinks is not None:
        problem = dataclasses.replace(problem, sinks=case.sinks.data_ptr())
    way: HopperWay | SmallHopper
    if isinstance(kernel, HopperKernel):
        assert (problem.causal, problem.window_offset is not None) == (kernel.right, kernel.left)
        assert hopper.hopper_refusal(problem, Machine(HOPPER, 132, 50 << 20, hopper=True)) is None
        way = HopperWay(kernel, Machine(HOPPER, case.blocks, case.l2_bytes, hopper=True))
    else:
        way = SmallHopper(kernel)
    steps: list[Step] = way.steps(problem, 1 / math.sqrt(q.shape[3]), buffers)  # type: ignore[arg-type]
    [step] = steps
    step = dataclasses.replace(step, entry=entry or kernel)
    masks = [] if case.mask is None else [case.mask.view(torch.uint8) if case.mask.dtype == torch.bool else case.mask]
    masks += [] if case.sinks is None else [case.sinks]
    program.run(step, [q, k, v, made, lse, *masks, *buffers.memory], scratch, schedule)
    for counter in buffers.memory:
        assert not bool(counter.any()), "a counter is not zero after the launch"
    return made, lse


def limits_of(kernel: HopperKernel | GroupKernel, tensors: Tensors, case: Case) -> tuple[int | None, int | None]:
    """How many keys beyond its own a row sees to the right, and from where on to the left; None: all."""
    causal = kernel.right if isinstance(kernel, HopperKernel) else kernel.causal
    window = None if case.window is None else tuple(None if one < 0 else one for one in case.window)
    q, k, _ = tensors
    return limits(q, k, causal=causal and window is None, alignment=case.alignment, window=window)  # type: ignore[arg-type]


def complaint(
    kernel: HopperKernel | GroupKernel, tensors: Tensors, case: Case, out: torch.Tensor, lse: torch.Tensor
) -> str | None:
    """What is wrong with an answer; None if nothing is."""
    want, want_lse = exact(*tensors, *limits_of(kernel, tensors, case), mask=case.mask)
    if case.sinks is not None:
        want, want_lse = beside_sinks(want, want_lse, case.sinks)
    if not bool(out.isfinite().all()):
        return "an element was not written, or is not a number"
    error = (out.double() - want).norm().item()
    if error > ERROR[out.dtype] * want.norm().item():
        return f"the output is off by {error / want.norm().item():.2g}"
    if not case.with_lse:
        return None if bool(lse.isnan().all()) else "a log-sum-exp that nobody wants"
    seen = want_lse.isfinite()
    if not torch.equal(lse, torch.where(seen, lse, -math.inf)):
        return "a log-sum-exp is no number, or not minus infinity for a row that sees nothing"
    worst = (lse.double() - want_lse)[seen].abs().max().item() if bool(seen.any()) else 0.0
    return f"the log-sum-exp is off by {worst:.2g}" if not worst < 1e-4 else None
