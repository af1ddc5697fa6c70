"""Attention over sequences of different lengths, one behind the other in packed tensors.

out = attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=True)
"""

from __future__ import annotations

import torch

from kernels.attention.cuda.engine import Engine, engine_of
from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.launching import Bound, Buffers
from kernels.attention.cuda.operator import DTYPE_NAMES, Window, bind_problem, check_device, check_kinds, limits
from kernels.attention.cuda.planning import Layout, Lengths, Problem


def packed_layout(tensor: torch.Tensor, name: str) -> Layout:
    """Of a [total, H, D] tensor, as one batch."""
    sizes, strides = tensor.shape, tensor.stride()
    if sizes[2] > 1 and strides[2] != 1:
        raise Unsupported(f"the last dimension of {name} must be contiguous; its stride is {strides[2]}")
    row, head = (stride if size > 1 else 0 for size, stride in zip(sizes[:2], strides[:2], strict=True))
    return Layout(0, head, row, tensor.data_ptr())


def varlen_problem_of(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool,
    alignment: str,
    window: Window | None,
) -> Problem:
    """The problem that packed tensors pose. Raises `Unsupported`, or ValueError where they contradict each other."""
    if not (q.dim() == k.dim() == v.dim() == 3):
        raise ValueError(f"q, k and v must be [total, H, D]; they have {q.dim()}, {k.dim()} and {v.dim()} dimensions")
    if k.shape != v.shape or q.shape[2] != k.shape[2]:
        raise ValueError(f"shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    check_kinds(q, k, v, out, alignment)
    for name, starts in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if starts.dtype != torch.int32 or starts.dim() != 1 or not starts.is_contiguous() or starts.device != q.device:
            raise ValueError(f"{name} must be contiguous int32 [sequences + 1] on the device of q")
    if cu_seqlens_q.shape != cu_seqlens_k.shape or cu_seqlens_q.shape[0] < 2:
        raise ValueError("cu_seqlens_q and cu_seqlens_k must have one entry more than there are sequences, at least 2")
    if q.shape[0] < 1 or k.shape[0] < 1:
        raise Unsupported("there must be at least one row of Q and one of K")
    right, left = limits(causal, window, 0)
    return Problem(
        dtype=DTYPE_NAMES.get(q.dtype, str(q.dtype)),
        batch=cu_seqlens_q.shape[0] - 1,
        heads=q.shape[1],
        kv_heads=k.shape[1],
        seq_q=max_seqlen_q,
        seq_k=max_seqlen_k,
        head_dim=q.shape[2],
        causal=right is not None,
        causal_offset=right or 0,
        q=packed_layout(q, "q"),
        k=packed_layout(k, "k"),
        v=packed_layout(v, "v"),
        out=packed_layout(out, "out"),
        window_offset=left,
        lengths=Lengths(cu_seqlens_q.data_ptr(), cu_seqlens_k.data_ptr(), q.shape[0], alignment == "bottom-right"),
    )


def bind_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool = False,
    scale: float | None = None,
    causal_alignment: str = "bottom-right",
    window: Window | None = None,
    lse: torch.Tensor | None = None,
    way: str | None = None,
    splits: int | None = None,
    engine: Engine | None = None,
) -> Bound:
    """A call with its tensors bound; the lengths are read anew on the device by every call. As `attention_varlen`.

    `lse`, if given, is contiguous float32 [H, total_q].
    """
    check_device(q, engine)
    buffers = Buffers(engine or engine_of(q.device))
    starts = (cu_seqlens_q, cu_seqlens_k)
    problem = varlen_problem_of(
        q, k, v, out, *starts, max_seqlen_q, max_seqlen_k, causal=causal, alignment=causal_alignment, window=window
    )
    shape = torch.Size((q.shape[1], q.shape[0]))
    return bind_problem(
        problem,
        (q, k, v, out, *starts),
        scale=scale,
        lse=lse,
        lse_shape=shape,
        splits=splits,
        way=way,
        buffers=buffers,
    )


def attention_varlen(
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
    out: torch.Tensor | None = None,
    return_lse: bool = False,
    engine: Engine | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Each sequence's own attention. q is [total_q, H, D], k and v [total_k, H_kv, D].

    Sequence b is rows cu_seqlens[b] .. cu_seqlens[b + 1] - 1 of its tensors; both arrays are int32 on the device and
    never read by the host, so nothing waits. `max_seqlen_q` and `max_seqlen_k` are at least the longest lengths: rows
    of Q beyond the first are not computed. A sequence may be empty. `causal_alignment` is `bottom-right` unless told
    otherwise; the rest is as for `attention`. The log-sum-exp is float32 [H, total_q].
    """
    if out is None:
        out = torch.empty_like(q)
    lse = torch.empty((q.shape[1], q.shape[0]), dtype=torch.float32, device=q.device) if return_lse else None
    bind_varlen(
        q,
        k,
        v,
        out,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        causal=causal,
        scale=scale,
        causal_alignment=causal_alignment,
        window=window,
        lse=lse,
        engine=engine,
    )()
    return out if lse is None else (out, lse)
