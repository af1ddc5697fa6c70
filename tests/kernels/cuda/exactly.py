"""Attention by its definition, in float64, on any device: what the kernels' answers are held against."""

from __future__ import annotations

import math

import torch

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Window = tuple[int | None, int | None]
ERROR = {torch.float16: 1.2e-3, torch.bfloat16: 8e-3}
"""Relative errors of a whole output, by its type."""


def draw(
    dtype: str, batch: int, heads: int, kv_heads: int, seq_q: int, seq_k: int, head_dim: int, value_dim: int = 0
) -> Tensors:
    """q, k and v as [B, H, S, D] views of [B, S, H, D]; v is as wide as k, or as `value_dim`."""
    generator = torch.Generator().manual_seed(seq_q * 1000 + seq_k)

    def one(count: int, seq: int, width: int) -> torch.Tensor:
        drawn = torch.randn(batch, seq, count, width, generator=generator)
        return drawn.to(getattr(torch, dtype)).transpose(1, 2)

    return one(heads, seq_q, head_dim), one(kv_heads, seq_k, head_dim), one(kv_heads, seq_k, value_dim or head_dim)


def limits(
    q: torch.Tensor, k: torch.Tensor, *, causal: bool, alignment: str = "top-left", window: Window | None = None
) -> tuple[int | None, int | None]:
    """How many keys beyond its own a row sees to the right, and from where on to the left; None: all."""
    shift = k.shape[2] - q.shape[2] if alignment == "bottom-right" else 0
    left, right = window or (None, None)
    ends = [end for end in (0 if causal else None, right) if end is not None]
    return (min(ends) + shift if ends else None), (None if left is None else shift - left)


def seen_keys(q: torch.Tensor, k: torch.Tensor, right: int | None = None, left: int | None = None) -> torch.Tensor:
    """[S_q, S_k]: row r sees keys r + left to r + right."""
    distance = torch.arange(k.shape[2], device=k.device)[None] - torch.arange(q.shape[2], device=q.device)[:, None]
    seen = torch.ones_like(distance, dtype=torch.bool)
    if right is not None:
        seen &= distance <= right
    if left is not None:
        seen &= distance >= left
    return seen


def exact(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    right: int | None = None,
    left: int | None = None,
    *,
    mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp; zeros and minus infinity for a row that sees no key."""
    k64, v64 = (x.double().repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = (q.double() @ k64.mT) * (1 / math.sqrt(q.shape[3]) if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.double()
    scores = scores.masked_fill(~seen_keys(q, k, right, left), -math.inf)
    weights = torch.softmax(scores, -1).masked_fill((scores == -math.inf).all(-1, keepdim=True), 0.0)
    return weights @ v64, torch.logsumexp(scores, -1)


def beside_sinks(out: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """An exact output [..., H, S, D] and its log-sum-exp, if each head has the score of a sink besides; `sinks` [H]."""
    both = torch.logaddexp(lse, sinks.double()[:, None])
    return out * (lse - both).exp().nan_to_num(0.0)[..., None], both  # no key and no sink: zeros


def assert_agree(
    got: torch.Tensor,
    lse: torch.Tensor,
    want: torch.Tensor,
    want_lse: torch.Tensor,
    lse_error: float = 1e-4,
    *,
    error: float | None = None,
) -> None:
    """An output and its log-sum-exp, [B, H, S, D] and [B, H, S], with the exact ones."""
    assert bool(got.isfinite().all()), "an element was not written, or is not a number"
    assert (got.double() - want).norm().item() <= (error or ERROR[got.dtype]) * want.norm().item()
    seen, least = want_lse.isfinite(), -2.0e38  # base 2 has no room for what is smaller
    assert torch.equal(lse.isneginf(), ~seen)
    assert bool((got[~seen] == 0).all()), "a row that sees nothing is not zero"
    off = (lse.double().clamp_min(least) - want_lse.clamp_min(least))[seen].abs()
    assert not bool(seen.any()) or off.max().item() < lse_error
