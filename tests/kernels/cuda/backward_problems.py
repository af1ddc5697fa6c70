"""Backward problems for tests of plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kernels.attention.cuda.backward.plan import BackwardProblem, Gradients
from kernels.attention.cuda.plan.planning import Layout, Machine, Problem
from kernels.attention.cuda.plan.variants import CHIPS

TURING, AMPERE, ADA, HOPPER = CHIPS
MACHINE = Machine(HOPPER, 132, 60 << 20, hopper=True)


def posed(
    *, batch: int = 4, heads: int = 16, kv_heads: int = 16, seq: int = 4096, head_dim: int = 128, **changes: Any
) -> BackwardProblem:
    own = Layout(heads * seq * head_dim, seq * head_dim, head_dim)
    forward = Problem(
        dtype="bfloat16", batch=batch, heads=heads, kv_heads=kv_heads, seq_q=seq, seq_k=seq, head_dim=head_dim,
        causal=changes.pop("causal", True), causal_offset=0, q=own, k=own, v=own, out=own,
    )  # fmt: skip
    scale = changes.pop("scale", 0.1)
    return BackwardProblem(replace(forward, **changes), Gradients(own, own, own, own), scale, 0)


FEW = {"batch": 2, "heads": 8, "kv_heads": 8, "seq": 128, "head_dim": 64}
