"""The answer every implementation is judged by: attention in float64, from the inputs as rounded to their dtype."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

CHUNK_ELEMENTS = 1 << 24
"""Scores held at once, in elements of 8 bytes: bounds the memory of long sequences to a few hundred MB."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The exact output [B, H, S_q, D] and log(sum(exp(scores))) [B, H, S_q], both float64."""

    out: torch.Tensor
    lse: torch.Tensor


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    scale: float | None = None,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> Reference:
    """softmax(scale * Q K^T) V in float64 on the device of `q`; shapes as in `AttentionKernel`."""
    batch, heads, seq_q, head_dim = q.shape
    kv_heads, seq_k = k.shape[1], k.shape[2]
    factor = 1.0 / math.sqrt(head_dim) if scale is None else scale
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float64, device=q.device)
    rows = max(1, min(seq_q, chunk_elements // seq_k))
    keys = torch.arange(seq_k, device=q.device)
    for b in range(batch):
        for h in range(heads):
            group = h * kv_heads // heads
            k64, v64 = k[b, group].double(), v[b, group].double()
            for first in range(0, seq_q, rows):
                part = slice(first, min(first + rows, seq_q))
                scores = (q[b, h, part].double() @ k64.T) * factor
                if causal:
                    position = torch.arange(part.start, part.stop, device=q.device)
                    scores = scores.masked_fill(keys[None, :] > position[:, None], -math.inf)
                lse[b, h, part] = torch.logsumexp(scores, dim=-1)
                out[b, h, part] = torch.softmax(scores, dim=-1) @ v64
    return Reference(out, lse)


@dataclass(frozen=True, slots=True)
class Gradients:
    """Of Q, K and V, float64, shaped like them."""

    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor


def attention_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dout: torch.Tensor,
    *,
    causal: bool,
    scale: float | None = None,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> Gradients:
    """The gradients of the sum of `dout` times the output, in float64 on the device of `q`."""
    batch, heads, seq_q, head_dim = q.shape
    kv_heads, seq_k = k.shape[1], k.shape[2]
    factor = 1.0 / math.sqrt(head_dim) if scale is None else scale
    dq, dk, dv = (torch.zeros(x.shape, dtype=torch.float64, device=q.device) for x in (q, k, v))
    rows = max(1, min(seq_q, chunk_elements // seq_k))
    keys = torch.arange(seq_k, device=q.device)
    for b in range(batch):
        for h in range(heads):
            group = h * kv_heads // heads
            k64, v64 = k[b, group].double(), v[b, group].double()
            for first in range(0, seq_q, rows):
                part = slice(first, min(first + rows, seq_q))
                q64, slope = q[b, h, part].double(), dout[b, h, part].double()
                scores = (q64 @ k64.T) * factor
                if causal:
                    position = torch.arange(part.start, part.stop, device=q.device)
                    scores = scores.masked_fill(keys[None, :] > position[:, None], -math.inf)
                weights = torch.softmax(scores, dim=-1)
                of_weights = slope @ v64.T
                of_scores = weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True))
                dv[b, group] += weights.T @ slope
                dk[b, group] += factor * (of_scores.T @ q64)
                dq[b, h, part] = factor * (of_scores @ k64)
    return Gradients(dq, dk, dv)
