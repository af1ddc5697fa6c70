"""Keys and values of eight bits, drawn at random, and what they mean."""

from __future__ import annotations

from typing import Final

import torch

EVERY_BYTE: Final = torch.arange(256, dtype=torch.uint8)


def draw_float8(
    dtype: torch.dtype,
    batch: int,
    kv_heads: int,
    group: int,
    seq_q: int,
    seq_k: int,
    head_dim: int,
    device: str = "cpu",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """q, k and v as [B, H, S, D] views of [B, S, H, D], and the scales of K and V by head of K."""
    generator = torch.Generator(device).manual_seed(seq_q * 1000 + seq_k)

    def draw(heads: int, rows: int) -> torch.Tensor:
        return torch.randn(batch, rows, heads, head_dim, generator=generator, device=device).transpose(1, 2)

    q, k, v = draw(kv_heads * group, seq_q).to(dtype), draw(kv_heads, seq_k), draw(kv_heads, seq_k)
    scales = [torch.rand(kv_heads, generator=generator, device=device) + 0.2 for _ in range(2)]
    k, v = ((x / by[:, None, None]).to(torch.float8_e4m3fn) for x, by in zip((k, v), scales, strict=True))
    return q, k, v, (scales[0], scales[1])


def widened(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """[..., H, S, D] or pages [..., S, H, D], in float64, times the scale of each head."""
    heads = (slice(None), None, None) if x.shape[1] == len(scale) else (slice(None), None)
    return x.double() * scale.double()[heads]
