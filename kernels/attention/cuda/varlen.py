"""Attention over sequences of different lengths, one behind the other in packed tensors.

out = attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=True)
"""

from __future__ import annotations

import torch

from kernels.attention.cuda.calls.binding import bind_varlen
from kernels.attention.cuda.calls.quick import QKV, Answer, Options
from kernels.attention.cuda.operator import call_given
from kernels.attention.cuda.plan.posing import Window, longest_of, window_of
from kernels.attention.cuda.run.engine import Engine

__all__ = ["attention_varlen", "bind_varlen"]

PACKED: tuple[str, ...] = (*QKV, "q_starts", "k_starts")


def attention_varlen(  # noqa: PLR0913 - as flash-attn has them
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool = False,
    scale: float | None = None,
    causal_alignment: str = "bottom-right",
    window: Window | None = None,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    batch_invariant: bool = False,
    dropout_p: float = 0.0,
    dropout_seed: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    return_lse: bool = False,
    engine: Engine | None = None,
) -> Answer:
    """Each sequence's own attention. q is [total_q, H, D], k and v [total_k, H_kv, D].

    Sequence b is rows cu_seqlens[b] .. cu_seqlens[b + 1] - 1 of its tensors; both arrays are int32 on the device and
    never read by the host, so nothing waits. `max_seqlen_q` and `max_seqlen_k` should be the longest lengths: kernels
    are chosen by them, and every row is computed whatever they are. A sequence may be empty. `causal_alignment` is
    `bottom-right` unless told otherwise; the rest is as for `attention`. The log-sum-exp is float32 [H, total_q].
    Under torch.compile it becomes the operator spotbench::attention_varlen.
    """
    longest = longest_of("max_seqlen_q", max_seqlen_q), longest_of("max_seqlen_k", max_seqlen_k)
    given = dict(zip(PACKED, (q, k, v, cu_seqlens_q, cu_seqlens_k), strict=True))
    shape_options = {"slopes": alibi_slopes, "sinks": sinks, "seed": dropout_seed, "out": out}
    terms = causal, scale, causal_alignment, return_lse, window_of(window)
    options = Options(*terms, PACKED, longest, softcap, batch_invariant, dropout_p)
    return call_given({**given, **shape_options}, options, engine)
