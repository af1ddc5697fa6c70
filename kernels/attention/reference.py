"""The answer every implementation is judged by: attention in float64, from the inputs as rounded to their dtype."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch

from kernels.attention.dropout import Dropout

CHUNK_ELEMENTS = 1 << 24
"""The most scores in memory at once, in elements of 8 bytes. It limits the memory for long sequences to a few hundred
MB."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The exact output [B, H, S_q, D] and log(sum(exp(scores))) [B, H, S_q], both float64."""

    out: torch.Tensor
    lse: torch.Tensor


@dataclass(frozen=True, slots=True)
class Terms:
    """What a case may have beside Q, K, V and a causal mask: a `window`, how many of the last keys a row sees, 0 for
    all; `sinks` [H], a score for each head that takes its share of the weights and has no value; and `dropout`."""

    window: int = 0
    sinks: torch.Tensor | None = None
    dropout: Dropout | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it has none of them."""
        return self.window == 0 and self.sinks is None and self.dropout is None

    def hidden(self, position: torch.Tensor, seq_k: int, causal: bool) -> torch.Tensor | None:
        """Which keys the rows at these positions do not see, [rows, S_k]; None if they see all."""
        if not causal:
            return None
        keys, rows = torch.arange(seq_k, device=position.device)[None, :], position[:, None]
        return (keys > rows) | (keys <= rows - self.window) if self.window else keys > rows

    def weights(self, scores: torch.Tensor, head: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The weights of the keys, from the scores of rows of a head; and, if there are sinks, that of its sink."""
        if self.sinks is None:
            return torch.softmax(scores, dim=-1), None
        column = self.sinks[head].to(scores.dtype).expand(scores.shape[0], 1)
        weights = torch.softmax(torch.cat((scores, column), dim=-1), dim=-1)
        return weights[:, :-1], weights[:, -1]

    def drop(self, x: torch.Tensor, head: int, first_row: int) -> torch.Tensor:
        """Weights or their gradients [rows, S_k] after dropout, of a head that is counted over all batches."""
        if self.dropout is None:
            return x
        rows, keys = torch.arange(x.shape[0], device=x.device), torch.arange(x.shape[1], device=x.device)
        return x * self.dropout.kept(head, rows + first_row, keys).to(x.dtype) * self.dropout.scale


PLAIN = Terms()


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    scale: float | None = None,
    chunk_elements: int = CHUNK_ELEMENTS,
    terms: Terms = PLAIN,
) -> Reference:
    """softmax(scale * Q K^T) V in float64 on the device of `q`; shapes as in `AttentionKernel`."""
    out = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=torch.float64, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float64, device=q.device)
    for part in _parts(q, k, v, causal, _factor(q, scale), (terms, chunk_elements)):
        sums = torch.logsumexp(part.scores, dim=-1)
        lse[part.place] = sums if terms.sinks is None else torch.logaddexp(sums, terms.sinks[part.place[1]].double())
        weights, _ = terms.weights(part.scores, part.place[1])
        out[part.place] = terms.drop(weights, *part.counted(q)) @ part.v
    return Reference(out, lse)


@dataclass(frozen=True, slots=True)
class Gradients:
    """The gradients of Q, K and V, and of the sinks if there are any, in float64, with their shapes."""

    dq: torch.Tensor
    dk: torch.Tensor
    dv: torch.Tensor
    dsinks: torch.Tensor | None = None


def attention_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dout: torch.Tensor,
    *,
    causal: bool,
    chunk_elements: int = CHUNK_ELEMENTS,
    terms: Terms = PLAIN,
) -> Gradients:
    """The gradients of the sum of `dout` times the output, in float64 on the device of `q`."""
    factor = _factor(q, None)
    dq, dk, dv = (torch.zeros(x.shape, dtype=torch.float64, device=q.device) for x in (q, k, v))
    dsinks = None if terms.sinks is None else torch.zeros_like(terms.sinks, dtype=torch.float64)
    for part in _parts(q, k, v, causal, factor, (terms, chunk_elements)):
        slope, head = dout[part.place].double(), part.place[1]
        weights, of_sink = terms.weights(part.scores, head)
        of_weights = terms.drop(slope @ part.v.T, *part.counted(q))
        mean = (weights * of_weights).sum(-1, keepdim=True)
        of_scores = weights * (of_weights - mean)
        if dsinks is not None and of_sink is not None:
            dsinks[head] -= of_sink @ mean[:, 0]
        dv[part.group] += terms.drop(weights, *part.counted(q)).T @ slope
        dk[part.group] += factor * (of_scores.T @ part.q)
        dq[part.place] = factor * (of_scores @ part.k)
    return Gradients(dq, dk, dv, dsinks)


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

    def counted(self, q: torch.Tensor) -> tuple[int, int]:
        """The head, counted over all batches, and the first row."""
        batch, head, rows = self.place
        return batch * q.shape[1] + head, rows.start


def _factor(q: torch.Tensor, scale: float | None) -> float:
    return 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale


def _parts(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, factor: float, how: tuple[Terms, int]
) -> Iterator[_Part]:
    """All rows of Q in parts that have at most so many scores; `how` has the terms and that number."""
    terms, chunk_elements = how
    batch, heads, seq_q, _ = q.shape
    kv_heads, seq_k = k.shape[1], k.shape[2]
    rows = max(1, min(seq_q, chunk_elements // seq_k))
    for b, h in product(range(batch), range(heads)):
        group = (b, h * kv_heads // heads)
        k64, v64 = k[group].double(), v[group].double()
        for first in range(0, seq_q, rows):
            place = (b, h, slice(first, min(first + rows, seq_q)))
            q64 = q[place].double()
            scores = (q64 @ k64.T) * factor
            hidden = terms.hidden(torch.arange(place[2].start, place[2].stop, device=q.device), seq_k, causal)
            if hidden is not None:
                scores = scores.masked_fill(hidden, -math.inf)
            yield _Part(place, group, q64, k64, v64, scores)
