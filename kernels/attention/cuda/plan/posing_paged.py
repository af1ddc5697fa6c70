"""The problem that queries over a paged cache pose: its tensors checked against each other."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.plan.planning import Layout, Lengths, Pages, Problem
from kernels.attention.cuda.plan.posing import (
    UNSHAPED,
    Shaping,
    Window,
    check_kinds,
    check_widths,
    dtype_name,
    key_limits,
    longest_of,
    packed_layout,
    pairs_of,
    planned_length,
    tensor_layout,
    window_of,
)

MOST_KEYS = 2**30 - 1
"""The most keys of a sequence: key numbers have 32 bits, with room for the limits of a window."""


def check_paged_shapes(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, packed: bool) -> None:
    """Raises ValueError where sizes contradict each other, `Unsupported` for those that fit and have no kernel."""
    rank, wanted = (3, "[total_q, H, D], because cu_seqlens_q is given") if packed else (4, "[B, S_q, H, D]")
    if q.dim() != rank:
        raise ValueError(f"q must be {wanted}; it has {q.dim()} dimensions")
    if not (k_cache.dim() == v_cache.dim() == 4):
        dimensions = k_cache.dim(), v_cache.dim()
        raise ValueError(
            "k_cache and v_cache must be [pages, page_size, H_kv, D]; they have {} and {} dimensions".format(
                *dimensions
            )
        )
    heads, kv_heads = q.shape[-2], k_cache.shape[2]
    if k_cache.shape[:3] != v_cache.shape[:3] or q.shape[-1] != k_cache.shape[-1] or (heads and not kv_heads):
        sizes = tuple(q.shape), tuple(k_cache.shape), tuple(v_cache.shape)
        raise ValueError("shapes do not fit: q {}, k_cache {}, v_cache {}".format(*sizes))
    if k_cache.shape[1] < 1:
        raise ValueError(f"a page must have a key: k_cache is {tuple(k_cache.shape)}, [pages, page_size, H_kv, D]")
    check_widths(q, v_cache)
    if kv_heads and heads % kv_heads:
        raise Unsupported(f"{heads} heads of Q cannot share {kv_heads} heads of K and V equally")


def check_table(q: torch.Tensor, given: Mapping[str, torch.Tensor]) -> int:
    """The number of sequences that the table, the lengths and the starts agree on. Raises ValueError."""
    table, lengths, starts = given["block_table"], given["seqused_k"], given.get("cu_seqlens_q")
    for name, x, dimensions in (
        ("block_table", table, "[sequences, most pages]"),
        ("seqused_k", lengths, "[sequences]"),
        ("cu_seqlens_q", starts, "[sequences + 1]"),
    ):
        if x is None:
            continue
        if x.dtype != torch.int32:
            raise ValueError(f"{name} must be int32, not {x.dtype}: pass {name}.to(torch.int32)")
        if x.dim() != dimensions.count(",") + 1:
            raise ValueError(f"{name} must be {dimensions}; it has {x.dim()} dimensions")
        if x.device != q.device:
            raise ValueError(
                f"{name} is on {x.device}, and must be on the device of q, {q.device}: pass {name}.to(q.device)"
            )
        if x.shape[-1] > 1 and x.stride(-1) != 1:
            raise ValueError(f"the last dimension of {name} must be contiguous: pass {name}.contiguous()")
    batch: int = table.shape[0]
    of_q = q.shape[0] if starts is None else starts.shape[0] - 1
    if not (batch == lengths.shape[0] == of_q):
        source = "q" if starts is None else "cu_seqlens_q"
        raise ValueError(
            f"block_table has {batch} sequences, seqused_k {lengths.shape[0]} and {source} {of_q}: they must be equal"
        )
    return batch


def pages_layout(cache: torch.Tensor, name: str) -> Layout:
    """The layout of a [pages, page_size, H_kv, D] cache, with pages as batches."""
    return tensor_layout(pairs_of(cache).transpose(1, 2), name)


def queries_of(
    q: torch.Tensor, out: torch.Tensor, starts: torch.Tensor | None, max_seqlen_q: int | None, align_ends: bool
) -> tuple[int, Lengths | None, Layout, Layout]:
    """The longest sequence of queries, the starts of packed sequences, and the layouts of q and out. Packed sequences
    without a given longest length are planned for as if all had the same length."""
    if starts is None:
        return (
            q.shape[1],
            None,
            tensor_layout(pairs_of(q).transpose(1, 2), "q"),
            tensor_layout(out.transpose(1, 2), "out"),
        )
    average = -(-q.shape[0] // max(1, starts.shape[0] - 1))
    longest = average if max_seqlen_q is None else longest_of("max_seqlen_q", max_seqlen_q)
    lengths = Lengths(starts.data_ptr(), 0, q.shape[0], align_ends)
    return planned_length(longest, q.shape[0]), lengths, packed_layout(pairs_of(q), "q"), packed_layout(out, "out")


def paged_problem_of(  # noqa: PLR0913 - the tensors of a call
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor,
    given: Mapping[str, torch.Tensor],
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    *,
    causal: bool,
    alignment: str,
    window: Window | None,
    shaping: Shaping = UNSHAPED,
) -> Problem:
    """The problem that these tensors pose. Raises `Unsupported`, or ValueError where they contradict each other.

    `given` has `block_table`, `seqused_k` and, where q is packed, `cu_seqlens_q`.
    """
    table = given["block_table"]
    check_paged_shapes(q, k_cache, v_cache, "cu_seqlens_q" in given)
    float8 = shaping.float8(q, k_cache, v_cache, k_cache.shape[2])
    check_kinds(q, k_cache, v_cache, out, alignment, float8)
    batch, size, align_ends = check_table(q, given), k_cache.shape[1], alignment == "bottom-right"
    most = min(table.shape[1] * size, MOST_KEYS) if k_cache.shape[0] else 0
    seq_q, lengths, q_layout, out_layout = queries_of(q, out, given.get("cu_seqlens_q"), max_seqlen_q, align_ends)
    right, left = key_limits(causal, window_of(window), 0)
    return Problem(
        dtype=dtype_name(q, out),
        batch=batch,
        heads=q.shape[-2],
        kv_heads=k_cache.shape[2],
        seq_q=seq_q,
        seq_k=most if max_seqlen_k is None else planned_length(longest_of("max_seqlen_k", max_seqlen_k), most),
        head_dim=q.shape[-1],
        causal=right is not None,
        causal_offset=right or 0,
        q=q_layout,
        k=pages_layout(k_cache, "k_cache"),
        v=pages_layout(v_cache, "v_cache"),
        out=out_layout,
        window_offset=left,
        float8=float8,
        lengths=lengths,
        pages=Pages(
            table.data_ptr(), given["seqused_k"].data_ptr(), table.stride(0), size, most, align_ends, k_cache.shape[0]
        ),
        **shaping.fields(q, v_cache, (batch, q.shape[-2]), 0),
    )
