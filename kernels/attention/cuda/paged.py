"""Attention over a cache with keys and values in pages, as inference servers keep them.

out = attention_paged(q, k_cache, v_cache, block_table, seqused_k, causal=True)
"""

from __future__ import annotations

import torch

from kernels.attention.cuda.calls.binding import bind_paged
from kernels.attention.cuda.calls.quick import PAGED, Answer, Options
from kernels.attention.cuda.operator import call_given
from kernels.attention.cuda.plan.posing import Window, longest_of, window_of
from kernels.attention.cuda.run.engine import Engine

__all__ = ["attention_paged", "bind_paged"]


def attention_paged(  # noqa: PLR0913 - what a paged cache takes
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_table: torch.Tensor,
    seqused_k: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    causal: bool = False,
    scale: float | None = None,
    causal_alignment: str = "bottom-right",
    window: Window | None = None,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    q_scale: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None,
    v_scale: torch.Tensor | None = None,
    batch_invariant: bool = False,
    out: torch.Tensor | None = None,
    return_lse: bool = False,
    engine: Engine | None = None,
) -> Answer:
    """Each sequence's queries over its keys, which lie in pages anywhere in a cache: decoding, and prefill in chunks.

    `k_cache` and `v_cache` are [pages, page_size, H_kv, D], any strides but a contiguous last dimension, any page size.
    Key j of sequence b is row j % page_size of page block_table[b, j // page_size]. `block_table` [B, most pages] and
    `seqused_k` [B], the keys of each sequence, those of the present queries included, are int32 on the device and never
    read by the host, so nothing waits and a graph may capture it. Entries of the table for keys that there are must
    name pages of the cache: one that does not is an access to memory out of bounds, which nothing here can see. The
    others are not read and may be anything. A sequence without keys gives zeros, with log-sum-exp -inf; no sequence has
    more keys than its row of the table names. Pages may be shared.

    q is [B, S_q, H, D]; or, with `cu_seqlens_q`, int32 [B + 1] on the device, [total_q, H, D], as for
    `attention_varlen`. The queries of a sequence are its last ones: `causal_alignment` is `bottom-right` unless told
    otherwise. `max_seqlen_q` and `max_seqlen_k` choose kernels, and change no row; by default they are the average of
    q's sequences, and what the table has room for. The cache, or q too, may be float8_e4m3fn: `q_scale`, `k_scale` and
    `v_scale`, positive float32 [H_kv] on the device, multiply the elements of a head of K, D is a multiple of 16 up to
    256, of many queries 16 rows are computed at a time, and the output of such a q is bfloat16, or as `out` is. The
    rest is as for `attention`. The output is like q, the log-sum-exp float32 [B, H, S_q] or [H, total_q]. An input that
    wants a gradient is refused. Under torch.compile it becomes the operator spotbench::attention_paged.
    """
    longest = longest_hint("max_seqlen_q", max_seqlen_q), longest_hint("max_seqlen_k", max_seqlen_k)
    given = {"q": q, "k": k_cache, "v": v_cache, "block_table": block_table, "k_lengths": seqused_k}
    given |= {"q_starts": cu_seqlens_q, "slopes": alibi_slopes, "sinks": sinks, "q_scale": q_scale}
    given |= {"k_scale": k_scale, "v_scale": v_scale}
    terms = causal, scale, causal_alignment, return_lse, window_of(window)
    return call_given({**given, "out": out}, Options(*terms, PAGED, longest, softcap, batch_invariant), engine)


def longest_hint(name: str, longest: int | None) -> int:
    """The value of `Options.longest`."""
    return -1 if longest is None else longest_of(name, longest)
