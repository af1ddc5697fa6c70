"""Attention's arithmetic and least traffic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

BYTES: Final = {"float16": 2, "bfloat16": 2, "float32": 4}
CONVENTION: Final = "4 × batch × heads × seq_q × seq_k × head_dim operations a call, half of that where causal"


def of_case(axes: Mapping[str, str]) -> tuple[float, float] | None:
    """The operations of a call and the bytes that it must move (Q, K and V read once, the output written once), from
    its axes as they stand in the files; None where one is missing or no number."""
    try:
        batch, heads, kv_heads, seq_q, seq_k, head_dim = (
            int(axes[name]) for name in ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim")
        )
        size = BYTES[axes["dtype"]]
        causal = axes["causal"] == "true"
    except (KeyError, ValueError):
        return None
    if min(batch, heads, kv_heads, seq_q, seq_k, head_dim) < 1:
        return None
    flop = 4.0 * batch * heads * seq_q * seq_k * head_dim * (0.5 if causal else 1.0)
    return flop, 2.0 * batch * head_dim * size * (heads * seq_q + kv_heads * seq_k)
