"""Attention with capped scores, slopes, sinks and a V of another width, in float64: output, sums and all gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from kernels.attention.dropout import Dropout
from tests.kernels.cuda.exactly import Window, limits, seen_keys


@dataclass(frozen=True)
class Shaped:
    """A padded problem [B, S, H, D], seen as [B, H, S, D]. `sizes`: batch, heads of Q, of K, rows, keys, width of K, of
    V."""

    sizes: tuple[int, int, int, int, int, int, int]
    dtype: torch.dtype = torch.bfloat16
    causal: bool = False
    alignment: str = "top-left"
    window: Window | None = None
    softcap: float = 0.0
    slopes: bool = False
    sinks: bool = False
    mask: str | None = None
    dropout: float = 0.0
    seed: tuple[int, int] = (2**63 - 1, 1 << 40)
    device: str = "cpu"

    def draw(self) -> dict[str, torch.Tensor]:
        """The tensors by their names in a call, with scores that reach the cap."""
        batch, heads, kv_heads, rows, keys, width, value_width = self.sizes
        generator = torch.Generator().manual_seed(rows * 1000 + keys)

        def one(seq: int, count: int, columns: int) -> torch.Tensor:
            drawn = torch.randn(batch, seq, count, columns, generator=generator)
            return drawn.to(self.dtype).to(self.device).transpose(1, 2)

        made = {"q": one(rows, heads, width), "k": one(keys, kv_heads, width), "v": one(keys, kv_heads, value_width)}
        if self.mask is not None:
            mask = torch.randn(1, heads, rows, keys, generator=generator)
            made["attn_mask"] = (mask > -0.5 if self.mask == "bool" else mask).to(self.device)
        if self.slopes:
            made["alibi_slopes"] = torch.rand(batch, heads, generator=generator).to(self.device) * 0.3
        if self.sinks:
            made["sinks"] = torch.randn(heads, generator=generator).to(self.device)
        if self.dropout:
            made["dropout_seed"] = torch.tensor(self.seed, device=self.device)
        return made

    def kept(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        """What dropout multiplies each weight by, [B, H, rows, keys]."""
        q, k = given["q"], given["k"]
        dropout = Dropout(self.dropout, *self.seed)
        rows, keys = torch.arange(q.shape[2], device=q.device), torch.arange(k.shape[2], device=q.device)
        heads = [dropout.kept(head, rows, keys) for head in range(q.shape[0] * q.shape[1])]
        return torch.stack(heads).unflatten(0, q.shape[:2]).double() * dropout.scale

    @property
    def options(self) -> dict[str, Any]:
        """What a call takes beside tensors."""
        return {
            "causal": self.causal,
            "causal_alignment": self.alignment,
            "window": self.window,
            "softcap": self.softcap,
            "dropout_p": self.dropout,
        }

    def slope(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        """A gradient of the output."""
        q, v = given["q"], given["v"]
        generator = torch.Generator().manual_seed(7)
        batch, heads, rows, _ = q.shape
        drawn = torch.randn(batch, rows, heads, v.shape[-1], generator=generator)
        return drawn.to(q.dtype).to(q.device).transpose(1, 2)

    def exact(
        self, given: dict[str, torch.Tensor], dout: torch.Tensor | None = None, dlse: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
        """Output, log-sum-exp, and the gradients of q, k, v and sinks where `dout` is given."""
        wide = {
            name: given[name].detach().double().requires_grad_() for name in ("q", "k", "v", "sinks") if name in given
        }
        q, k, v = (wide[name] for name in "qkv")
        group = q.shape[1] // k.shape[1]
        scores = q @ k.repeat_interleave(group, 1).mT / math.sqrt(q.shape[-1])
        if self.softcap:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if "alibi_slopes" in given:
            level = k.shape[2] - q.shape[2] if self.alignment == "bottom-right" else 0
            rows, keys = torch.arange(q.shape[2], device=q.device), torch.arange(k.shape[2], device=q.device)
            distance = (rows[:, None] + level - keys[None]).abs().double()
            scores = scores - given["alibi_slopes"].double()[:, :, None, None] * distance
        mask = given.get("attn_mask")
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.double()
        ends = limits(q, k, causal=self.causal, alignment=self.alignment, window=self.window)
        scores = scores.masked_fill(~seen_keys(q, k, *ends), -math.inf)
        all_scores = scores
        if "sinks" in wide:
            sink = wide["sinks"][None, :, None, None].expand(*scores.shape[:3], 1)
            all_scores = torch.cat([scores, sink], -1)
        sums = torch.logsumexp(all_scores, -1)
        finite = sums.masked_fill(sums == -math.inf, 0.0)
        weights = torch.exp(scores - finite[..., None])
        weights = weights * self.kept(given) if self.dropout else weights
        out = weights @ v.repeat_interleave(group, 1)
        if dout is None:
            return out.detach(), sums.detach(), {}
        total = (out * dout.double()).sum()
        total = total if dlse is None else total + (finite * dlse.double()).sum()
        gradients = torch.autograd.grad(total, list(wide.values()))
        return out.detach(), sums.detach(), dict(zip(wide, gradients, strict=True))


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    """The norm of the error, over that of what is right."""
    return float((got.detach().double() - want).norm() / want.norm().clamp_min(1e-30))


CAPPED = Shaped((2, 4, 2, 70, 133, 64, 64), softcap=2.0, causal=True, alignment="bottom-right")
ALIBI = Shaped((2, 4, 2, 133, 70, 64, 64), torch.float16, slopes=True, alignment="bottom-right")
ALL = Shaped((2, 4, 1, 40, 90, 128, 128), softcap=3.0, slopes=True, sinks=True, window=(30, 10), mask="float32")
HIDDEN = Shaped((1, 2, 2, 90, 40, 64, 64), sinks=True, slopes=True, mask="bool", causal=True)
MLA = Shaped((1, 2, 1, 70, 90, 192, 128), causal=True)
WIDER_VALUES = Shaped((1, 2, 2, 33, 50, 40, 72), torch.float16, softcap=1.0)
ODD = Shaped((1, 2, 1, 33, 50, 37, 91), torch.float16, slopes=True, causal=True)
WIDEST = Shaped((1, 2, 1, 33, 50, 512, 512), causal=True)
ABSORBED = Shaped((1, 16, 1, 3, 70, 576, 512), causal=True, alignment="bottom-right")
DROPOUT = Shaped((2, 4, 2, 65, 65, 64, 64), causal=True, dropout=0.3)
DROPOUT_AND_ALL = Shaped(
    (2, 4, 1, 40, 90, 128, 128), softcap=3.0, slopes=True, sinks=True, window=(30, 10), mask="float32", dropout=0.6
)
DROPOUT_OF_ODD = Shaped((1, 2, 1, 33, 50, 37, 91), torch.float16, causal=True, dropout=0.2)
DROPOUT_OF_256 = Shaped((1, 2, 2, 20, 70, 256, 256), mask="bool", dropout=0.5)
CASES = {
    "capped": CAPPED,
    "alibi": ALIBI,
    "all-at-once": ALL,
    "rows-without-keys": HIDDEN,
    "192-and-128": MLA,
    "wider-values": WIDER_VALUES,
    "odd-widths": ODD,
    "512": WIDEST,
    "576-and-512": ABSORBED,
    "dropout": DROPOUT,
    "dropout-and-all": DROPOUT_AND_ALL,
    "dropout-of-odd-widths": DROPOUT_OF_ODD,
    "dropout-of-256": DROPOUT_OF_256,
}
