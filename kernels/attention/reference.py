"""The answer every implementation is judged by: attention in float64, from the inputs as rounded to their dtype."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch

CHUNK_ELEMENTS = 1 << 24
"""The most scores in memory at once, in elements of 8 bytes. It limits the memory for long sequences to a few hundred
MB."""


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
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float64, device=q.device)
    for part in _parts(q, k, v, causal, _factor(q, scale), chunk_elements):
        lse[part.place] = torch.logsumexp(part.scores, dim=-1)
        out[part.place] = torch.softmax(part.scores, dim=-1) @ part.v
    return Reference(out, lse)


@dataclass(frozen=True, slots=True)
class Gradients:
    """The gradients of Q, K and V in float64, with their shapes."""

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
    factor = _factor(q, scale)
    dq, dk, dv = (torch.zeros(x.shape, dtype=torch.float64, device=q.device) for x in (q, k, v))
    for part in _parts(q, k, v, causal, factor, chunk_elements):
        slope = dout[part.place].double()
        weights = torch.softmax(part.scores, dim=-1)
        of_weights = slope @ part.v.T
        of_scores = weights * (of_weights - (weights * of_weights).sum(-1, keepdim=True))
        dv[part.group] += weights.T @ slope
        dk[part.group] += factor * (of_scores.T @ part.q)
        dq[part.place] = factor * (of_scores @ part.k)
    return Gradients(dq, dk, dv)


@dataclass(frozen=True, slots=True)
class _Part:
    """Some rows of one head, in float64. `place` is their index in Q, and `group` the index of their keys in K and
    V."""

    place: tuple[int, int, slice]
    group: tuple[int, int]
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scores: torch.Tensor
    """factor * Q K^T [rows, S_k], -inf where a key is hidden."""


def _factor(q: torch.Tensor, scale: float | None) -> float:
    return 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale


def _parts(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, factor: float, chunk_elements: int
) -> Iterator[_Part]:
    """All rows of Q in parts that have at most `chunk_elements` scores."""
    batch, heads, seq_q, _ = q.shape
    kv_heads, seq_k = k.shape[1], k.shape[2]
    rows = max(1, min(seq_q, chunk_elements // seq_k))
    keys = torch.arange(seq_k, device=q.device)
    for b, h in product(range(batch), range(heads)):
        group = (b, h * kv_heads // heads)
        k64, v64 = k[group].double(), v[group].double()
        for first in range(0, seq_q, rows):
            place = (b, h, slice(first, min(first + rows, seq_q)))
            q64 = q[place].double()
            scores = (q64 @ k64.T) * factor
            if causal:
                position = torch.arange(place[2].start, place[2].stop, device=q.device)
                scores = scores.masked_fill(keys[None, :] > position[:, None], -math.inf)
            yield _Part(place, group, q64, k64, v64, scores)
