"""Attention in float64, and how far a result is from it."""

from __future__ import annotations

import torch

ROWS = 2048


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp of every head from the rounded inputs, [B, H, S_q, D] and [B, H, S_q].

    Causal is top-left. A head and some rows at a time, so that the scores fit the memory.
    """
    batch, heads, seq_q, head_dim = q.shape
    group = heads // k.shape[1]
    out = torch.empty(q.shape, dtype=torch.float64, device=q.device)
    sums = torch.empty(q.shape[:3], dtype=torch.float64, device=q.device)
    keys = torch.arange(k.shape[2], device=q.device)
    for b in range(batch):
        for h in range(heads):
            k64, v64 = k[b, h // group].double(), v[b, h // group].double()
            for start in range(0, seq_q, ROWS):
                rows = slice(start, min(start + ROWS, seq_q))
                seen = min(rows.stop, k.shape[2]) if causal else k.shape[2]
                scores = (q[b, h, rows].double() @ k64[:seen].T).mul_(head_dim**-0.5)
                if causal:
                    own = torch.arange(rows.start, rows.stop, device=q.device)
                    scores.masked_fill_(keys[None, :seen] > own[:, None], float("-inf"))
                peak = scores.amax(-1, keepdim=True)
                weights = scores.sub_(peak).exp_()
                total = weights.sum(-1, keepdim=True)
                out[b, h, rows] = (weights @ v64[:seen]) / total
                sums[b, h, rows] = (peak + total.log()).squeeze(-1)
    return out, sums


def difference(result: torch.Tensor, wanted: torch.Tensor) -> dict[str, float]:
    """The largest absolute difference, and the Frobenius norm of all of it relative to the answer's."""
    off = result.double() - wanted
    return {"max_abs": off.abs().max().item(), "relative": (off.norm() / wanted.norm()).item()}
