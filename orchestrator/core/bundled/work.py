"""How many operations a call of attention computes, and the fewest bytes that it moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from orchestrator.core.bundled.passes import AXIS, FORWARD, MOVED, PRODUCTS

BYTES: Final = {"float16": 2, "bfloat16": 2, "float32": 4}
CONVENTION: Final = "4 × batch × heads × seq_q × seq_k × head_dim operations a call, half of that where causal"
OTHERS: Final = "; 10 in place of 4 for a backward pass, 14 for both passes"


def convention(axes: Iterable[Mapping[str, str]]) -> str:
    """The text that explains how the operations of these cases are counted."""
    return CONVENTION + (OTHERS if any(AXIS in one for one in axes) else "")


def of_case(axes: Mapping[str, str]) -> tuple[float, float] | None:
    """(operations, bytes) of one call, from the axes of its case and its pass; None if an axis is missing or not a
    number. The bytes are the fewest that a call must move: Q, K and V are read once and the output is written once.
    With a backward pass they are the output, Q, K and V, and the gradient of each."""
    try:
        batch, heads, kv_heads, seq_q, seq_k, head_dim = (
            int(axes[name]) for name in ("batch", "heads", "kv_heads", "seq_q", "seq_k", "head_dim")
        )
        size = BYTES[axes["dtype"]]
        causal = axes["causal"] == "true"
        products, tensors = (of[axes.get(AXIS, FORWARD)] for of in (PRODUCTS, MOVED))
    except (KeyError, ValueError):
        return None
    if min(batch, heads, kv_heads, seq_q, seq_k, head_dim) < 1:
        return None
    flop = 2.0 * products * batch * heads * seq_q * seq_k * head_dim * (0.5 if causal else 1.0)
    return flop, float(tensors) * batch * head_dim * size * (heads * seq_q + kv_heads * seq_k)
