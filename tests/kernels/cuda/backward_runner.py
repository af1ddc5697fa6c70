"""Problems of the backward pass: their exact gradients, and their kernels run on the CPU, a fiber for each thread."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from kernels.attention.cuda.backward.ampere import AmpereBackward
from kernels.attention.cuda.backward.plan import BackwardProblem, Gradients, PairBackward
from kernels.attention.cuda.backward.small import SmallBackward
from kernels.attention.cuda.calls.backward import NAMES, problem_for
from kernels.attention.cuda.calls.quick import Options
from kernels.attention.cuda.plan.planning import Layout, Machine
from kernels.attention.cuda.plan.posing import packed_layout, tensor_layout
from kernels.attention.cuda.plan.variants import Chip
from tests.kernels.cuda.simt_ways import HostBuffers, Program, compile_program

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
RELATIVE = {torch.bfloat16: 3.0e-3, torch.float16: 3.8e-4}
"""What the norm of a gradient's error may be of the gradient's own: a tenth above the gate of problems with many rows."""


compile_backward = partial(compile_program, parameters="BackwardParams")
"""As `compile_program`, of the portable backward kernels."""


@dataclass(frozen=True)
class Posed:
    """A backward pass: its tensors by name, and what comes out of it in float64."""

    tensors: dict[str, torch.Tensor]
    options: Options
    out: torch.Tensor
    lse: torch.Tensor
    dout: torch.Tensor
    exact: Three
    dlse: torch.Tensor | None = None
    memory: list[torch.Tensor] = field(default_factory=list)

    def gradients(self) -> Three:
        """Poisoned, laid out as the tensors are."""
        dq, dk, dv = (torch.full_like(self.tensors[name], math.nan) for name in NAMES)
        return dq, dk, dv

    def touched(self, gradients: Three, buffers: HostBuffers) -> list[torch.Tensor]:
        """All that the arguments of its launches point to."""
        given = [*self.tensors.values(), self.out, self.lse, self.dout, *gradients, *buffers.memory]
        return given if self.dlse is None else [*given, self.dlse]

    def lay_beside_nan(self) -> None:
        """Each of Q, K and V becomes a part of a tensor that goes on with rows of NaN."""
        for name in ("q", "k", "v"):
            batch, heads, rows, head_dim = self.tensors[name].shape
            wide = torch.full((batch, heads, rows + 20, head_dim), math.nan, dtype=self.dout.dtype)
            wide[:, :, :rows] = self.tensors[name]
            self.tensors[name] = wide[:, :, :rows]

    def make_scores_very_negative(self) -> None:
        """Each score of 64 columns is -2048: what lies beyond the keys, zeros, would weigh exp(2048)."""
        self.tensors["q"][:] = 16.0
        self.tensors["k"][:] = -16.0
        self.lse[:] = -2048.0 + math.log(self.tensors["k"].shape[2])

    def problem(self, gradients: Three) -> BackwardProblem:
        place = tensor_layout if self.options.longest is None else packed_layout
        where: list[Layout] = [place(x, "a gradient") for x in (self.dout, *gradients)]
        scale = self.options.scale if self.options.scale is not None else self.tensors["q"].shape[-1] ** -0.5
        forward = problem_for(self.tensors, self.out, self.options)
        dlse = 0 if self.dlse is None else self.dlse.data_ptr()
        return BackwardProblem(forward, Gradients(*where), scale, self.lse.data_ptr(), dlse)


def seen_of(seq_q: int, seq_k: int, options: Options) -> torch.Tensor:
    """Which keys a query sees, [S_q, S_k]."""
    shift = seq_k - seq_q if options.alignment == "bottom-right" else 0
    query, key = torch.arange(seq_q)[:, None] + shift, torch.arange(seq_k)[None]
    seen = torch.ones(seq_q, seq_k, dtype=torch.bool)
    left, right = options.window or (None, None)
    if options.causal:
        right = 0
    if left is not None and left != -1:
        seen &= key >= query - left
    if right is not None and right != -1:
        seen &= key <= query + right
    return seen


def exact_pass(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dout: torch.Tensor,
    seen: torch.Tensor,
    scale: float,
    bias: torch.Tensor | None = None,
    dlse: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, Three]:
    """Output, log-sum-exp and gradients in float64, by autograd."""
    given = tuple(x.detach().double().requires_grad_() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    scores = given[0] @ given[1].repeat_interleave(group, 1).mT * scale
    if bias is not None:
        scores = scores + bias.double()
    scores = scores.masked_fill(~seen, -math.inf)
    sums = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - sums.masked_fill(sums == -math.inf, 0.0)[..., None])
    out = weights @ given[2].repeat_interleave(group, 1)
    total = (out * dout.double()).sum()
    if dlse is not None:
        total = total + (sums.masked_fill(sums == -math.inf, 0.0) * dlse.double()).sum()
    dq, dk, dv = torch.autograd.grad(total, given)
    return out.detach(), sums.detach(), (dq, dk, dv)


def pose(
    dtype: torch.dtype,
    batch: int,
    heads: int,
    kv_heads: int,
    seq_q: int,
    seq_k: int,
    head_dim: int,
    options: Options,
    *,
    mask: torch.Tensor | None = None,
    with_dlse: bool = False,
    seed: int = 0,
    value_dim: int = 0,
) -> Posed:
    """Random tensors, laid out as [B, S, H, D]; V is as wide as K, or as `value_dim`."""
    generator = torch.Generator().manual_seed(seed)

    def draw(rows: int, count: int, width: int = value_dim or head_dim) -> torch.Tensor:
        return torch.randn(batch, rows, count, width, generator=generator).to(dtype).transpose(1, 2)

    q, k = draw(seq_q, heads, head_dim), draw(seq_k, kv_heads, head_dim)
    v, dout = draw(seq_k, kv_heads), draw(seq_q, heads)
    tensors, bias, seen = {"q": q, "k": k, "v": v}, None, seen_of(seq_q, seq_k, options)
    if mask is not None:
        tensors["mask"] = mask
        seen, bias = (seen & mask, None) if mask.dtype == torch.bool else (seen, mask)
    dlse = torch.randn(batch, heads, seq_q, generator=generator) if with_dlse else None
    scale = options.scale if options.scale is not None else 1.0 / math.sqrt(head_dim)
    out, lse, exact = exact_pass(q, k, v, dout, seen, scale, bias, dlse)
    laid = out.to(dtype).transpose(1, 2).contiguous().transpose(1, 2)
    return Posed(tensors, options, laid, lse.float().contiguous(), dout, exact, dlse)


def run_pair(program: Program, posed: Posed, chip: Chip, scratch: Path, **how: bool) -> Three:
    """The gradients by the two passes."""
    return run_with_workspace(program, posed, PairBackward(Machine(chip, 1, 1 << 20)), scratch, **how)


def run_with_workspace(
    program: Program,
    posed: Posed,
    way: PairBackward | AmpereBackward | SmallBackward,
    scratch: Path,
    *,
    has_memory: bool = True,
    **how: bool,
) -> Three:
    """The gradients by a way, which is given memory for more than them where it `has_memory`."""
    gradients, buffers = posed.gradients(), HostBuffers()
    steps = way.steps(posed.problem(gradients), buffers)  # type: ignore[arg-type]
    assert has_memory or not buffers.memory
    program.run(steps, posed.touched(gradients, buffers), scratch, **how)
    return gradients


def run_small(program: Program, posed: Posed, way: SmallBackward, scratch: Path, **how: bool) -> Three:
    """The gradients by the one launch, which is given no memory but theirs."""
    return run_with_workspace(program, posed, way, scratch, has_memory=False, **how)


def errors(found: Three, exact: Three) -> list[float]:
    """The norm of each gradient's error over the norm of the gradient; NaN where anything was not written."""
    return [
        float((one.double() - wanted).norm() / wanted.norm().clamp_min(1e-30))
        for one, wanted in zip(found, exact, strict=True)
    ]


def assert_right(found: tuple[torch.Tensor, ...], posed: Posed) -> None:
    """The gradients agree with float64."""
    if posed.tensors["k"].shape[-2] > 1:
        assert all(error <= RELATIVE[posed.out.dtype] for error in errors(found, posed.exact))
    else:  # one key: its weight is 1 whatever the scores, so there is nothing but rounding in dQ and dK
        assert max(float(one.abs().max()) for one in found[:2]) < 1e-2
