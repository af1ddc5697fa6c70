"""Caches in pages: drawn at random, and computed in float64 from the keys taken out of their pages."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

NOWHERE = -(2**31)
"""What the entries of a table hold that nobody may read."""


@dataclass
class Cache:
    """`q` is [B, S_q, H, D], or packed with `starts`; what no sequence's key lies in is NaN. `both` is what K and V are
    views of, if they lie in one tensor."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    table: torch.Tensor
    lengths: torch.Tensor
    starts: torch.Tensor | None = None
    both: torch.Tensor | None = None

    @property
    def batch(self) -> int:
        return self.lengths.shape[0]

    def queries(self, b: int) -> torch.Tensor:
        """[S_q, H, D], a view."""
        return rows_of(self.q, self.starts, b)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All that the kernels read."""
        keys = [self.k, self.v] if self.both is None else [self.both]
        return [self.q, *keys, self.table, self.lengths, *([] if self.starts is None else [self.starts])]


def rows_of(x: torch.Tensor, starts: torch.Tensor | None, b: int) -> torch.Tensor:
    """A sequence's rows of what is laid out like q."""
    return x[b] if starts is None else x[int(starts[b]) : int(starts[b + 1])]


def draw_cache(
    lengths: Sequence[int],
    queries: int | Sequence[int],
    *,
    page: int,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 64,
    dtype: torch.dtype = torch.float16,
    seed: int = 0,
    shared: int = 0,
    spare: int = 2,
    heads_first: bool = False,
    device: str = "cpu",
) -> Cache:
    """A cache of sequences of such lengths; `queries` of each, or of all alike.

    The first `shared` whole pages are the same for all sequences that have them; `spare` entries of the table are
    beyond the longest. With `heads_first` a page is [H_kv, page, D] in memory.
    """
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    taken = [-(-length // page) for length in lengths]
    places = list(range(sum(taken) + shared + 3))
    chance.shuffle(places)
    table = torch.full((len(lengths), max(taken) + spare), NOWHERE, dtype=torch.int32)
    common = [places.pop() for _ in range(shared)]
    owned = torch.zeros(len(places) + shared, page, dtype=torch.bool)
    for b, length in enumerate(lengths):
        for number in range(taken[b]):
            whole = (number + 1) * page <= length
            table[b, number] = common[number] if number < shared and whole else places.pop()
        keys = torch.arange(length)
        owned[table[b, keys // page].long(), keys % page] = True
    k, v = (torch.randn(*owned.shape, kv_heads, head_dim, generator=generator).to(dtype) for _ in range(2))
    for x in (k, v):
        x[~owned] = math.nan
    if heads_first:
        k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
    starts = None
    if isinstance(queries, int):
        q = torch.randn(len(lengths), queries, heads, head_dim, generator=generator).to(dtype)
    else:
        q = torch.randn(sum(queries), heads, head_dim, generator=generator).to(dtype)
        starts = torch.tensor([0, *queries], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    made = Cache(q, k, v, table, torch.tensor(lengths, dtype=torch.int32), starts)
    for name in ("q", "k", "v", "table", "lengths", "starts"):
        x = getattr(made, name)
        if x is not None and device != "cpu":
            setattr(made, name, x.to(device))
    return made


def gathered(cache: torch.Tensor, table: torch.Tensor, length: int) -> torch.Tensor:
    """A sequence's keys or values, [length, H_kv, D], from its row of the table."""
    page, keys = cache.shape[1], torch.arange(length)
    return cache[table[keys // page].long(), keys % page]


def expected(
    cache: Cache,
    b: int,
    *,
    causal: bool = False,
    alignment: str = "bottom-right",
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A sequence's output, [S_q, H, D], and its log-sum-exp, [H, S_q], in float64, by the definition."""
    q, length = cache.queries(b).double(), int(cache.lengths[b])
    k, v = (gathered(x, cache.table[b], length).double() for x in (cache.k, cache.v))
    seq_q, heads, head_dim = q.shape
    group = heads // cache.k.shape[2]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = torch.einsum("ihd,jhd->hij", q, k) * (1 / math.sqrt(head_dim) if scale is None else scale)
    shift = length - seq_q if alignment == "bottom-right" else 0
    left, right = window or (None, None)
    right = 0 if causal else right
    own, key = torch.arange(seq_q)[:, None] + shift, torch.arange(length)
    if right is not None:
        scores = scores.masked_fill(key > own + right, -math.inf)
    if left is not None:
        scores = scores.masked_fill(key < own - left, -math.inf)
    lse = torch.logsumexp(scores, -1) if length else scores.new_full((heads, seq_q), -math.inf)
    weights = torch.exp(scores - lse.nan_to_num(neginf=0.0)[..., None])
    return torch.einsum("hij,jhd->ihd", weights, v), lse
