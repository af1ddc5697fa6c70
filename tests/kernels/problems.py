"""Builders of attention problems with defaults, and how far an answer may be from the exact one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kernels.attention import correctness
from kernels.attention.correctness import Check
from kernels.attention.cpu.kernel import CpuAttention


@dataclass(frozen=True)
class Problem:
    """Inputs of one call."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    causal: bool = False
    scale: float | None = None


def problem(
    batch: int = 1,
    heads: int = 2,
    kv_heads: int | None = None,
    seq_q: int = 16,
    seq_k: int | None = None,
    head_dim: int = 32,
    causal: bool = False,
    dtype: torch.dtype = torch.float32,
    scale: float | None = None,
) -> Problem:
    """Drawn from N(0, 1)."""
    shared = heads if kv_heads is None else kv_heads
    keys = seq_q if seq_k is None else seq_k
    return Problem(
        torch.randn(batch, heads, seq_q, head_dim).to(dtype),
        torch.randn(batch, shared, keys, head_dim).to(dtype),
        torch.randn(batch, shared, keys, head_dim).to(dtype),
        causal,
        scale,
    )


def run(kernel: CpuAttention, p: Problem) -> torch.Tensor:
    """The kernel's answer, with its output memory poisoned first."""
    with correctness.poison_memory(p.q, through_torch=True):
        return kernel.run(p.q, p.k, p.v, causal=p.causal, scale=p.scale)


def verdict(kernel: CpuAttention, p: Problem) -> Check:
    """The gate's verdict on the kernel's answer."""
    by = correctness.exact_answer(p.q, p.k, p.v, causal=p.causal, max_abs_error=math.inf, scale=p.scale)
    return correctness.judge_output(run(kernel, p), by)
