"""The problem that a call's tensors pose: sizes, layouts and what is seen, checked against each other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.plan.planning import Dropping, Float8, Layout, Lengths, Mask, Problem, Slopes
from kernels.attention.cuda.plan.variants import WIDE_HEAD_DIMS
from kernels.attention.dropout import keep_scale, least_word

DTYPE_NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}
FLOAT8 = torch.float8_e4m3fn
ALIGNMENTS = ("top-left", "bottom-right")
Window = tuple[int | None, int | None]
NEEDS_SEED = "dropout_p needs dropout_seed, int64 [2] on the device of q: the seed and an offset"
WINDOW_RULE = "window must be (left, right), each a number of keys, or -1 or None for no limit"


@dataclass(frozen=True, slots=True)
class Shaping:
    """What a call does to its scores beside hiding some: a limit of +-`softcap`, 0 for none; `slopes`, by which they
    fall with the distance; and `sinks`, which take part of the weights. `q_scale`, `k_scale` and `v_scale` are by what
    elements of eight bits are multiplied. A weight is dropped with a probability of `dropout`, by `seed`."""

    softcap: float = 0.0
    slopes: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None
    dropout: float = 0.0
    seed: torch.Tensor | None = None
    q_scale: torch.Tensor | None = None

    def dropping(self, device: torch.device) -> Dropping | None:
        """The dropout of a call; None if no weight is ever dropped. Raises ValueError or TypeError."""
        if not least_word(dropout_of(self.dropout)):
            return None
        seed = self.seed
        if seed is None:
            raise ValueError(NEEDS_SEED)
        if seed.shape != (2,) or seed.dtype != torch.int64 or not seed.is_contiguous() or seed.device != device:
            raise ValueError(
                f"dropout_seed must be contiguous int64 [2] on {device}, not {seed.dtype} {tuple(seed.shape)} on "
                f"{seed.device}"
            )
        return Dropping(seed.data_ptr(), least_word(self.dropout), keep_scale(self.dropout))

    def float8(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kv_heads: int) -> Float8 | None:
        """The scales of keys and values of eight bits, and of such a Q; None for others. Raises `Unsupported` or
        ValueError."""
        scales = {"k_scale": self.k_scale, "v_scale": self.v_scale}
        if q.dtype == FLOAT8:
            scales = {"q_scale": self.q_scale, **scales}
        elif self.q_scale is not None:
            raise ValueError(f"q_scale is for a q of float8_e4m3fn, not of {q.dtype}")
        if FLOAT8 not in (q.dtype, k.dtype, v.dtype):
            if self.k_scale is not None or self.v_scale is not None:
                raise ValueError(f"k_scale and v_scale are for float8_e4m3fn keys and values, not for {k.dtype}")
            return None
        for name, x in scales.items():
            if x is None:
                what = "elements of q" if name == "q_scale" else "keys and values"
                raise ValueError(
                    f"{name} is missing, float32 [{kv_heads}]: what {what} of float8_e4m3fn are multiplied by"
                )
            if x.shape != (kv_heads,) or x.dtype != torch.float32 or not x.is_contiguous() or x.device != q.device:
                raise ValueError(
                    f"{name} must be contiguous float32 [{kv_heads}] on {q.device}, one for each head of K, not "
                    f"{x.dtype} {tuple(x.shape)} on {x.device}"
                )
        assert self.k_scale is not None
        assert self.v_scale is not None
        q_scale = 0 if self.q_scale is None else self.q_scale.data_ptr()
        return Float8(self.k_scale.data_ptr(), self.v_scale.data_ptr(), q_scale)

    def fields(self, q: torch.Tensor, v: torch.Tensor, sizes: tuple[int, int], level: int) -> dict[str, Any]:
        """The fields of a problem of so many batches and heads of Q, in which key i + level is the nearest to query i.
        Raises `Unsupported`, ValueError or TypeError."""
        for name, x, shapes in (("alibi_slopes", self.slopes, (sizes, sizes[1:])), ("sinks", self.sinks, (sizes[1:],))):
            if x is None:
                continue
            if x.shape not in shapes or (x.shape[-1] > 1 and x.stride(-1) != 1):
                raise ValueError(f"{name} must be {' or '.join(map(str, shapes))}, contiguous, not {tuple(x.shape)}")
            if x.dtype != torch.float32 or x.device != q.device:
                raise Unsupported(f"{name} must be float32 on {q.device}, not {x.dtype} on {x.device}")
        slopes = None
        if self.slopes is not None:
            slopes = Slopes(self.slopes.data_ptr(), self.slopes.stride(0) if self.slopes.dim() == 2 else 0, level)
        return {
            "value_dim": v.shape[-1],
            "softcap": softcap_of(self.softcap),
            "slopes": slopes,
            "sinks": 0 if self.sinks is None else self.sinks.data_ptr(),
            "dropout": self.dropping(q.device),
        }


UNSHAPED = Shaping()


def softcap_of(given: object) -> float:
    """The limit of scores. Raises TypeError or ValueError."""
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise TypeError(f"softcap must be a number, not a {type(given).__name__}")
    if not 0.0 <= given < math.inf:
        raise ValueError(f"softcap must be positive and finite, or 0 for no limit, not {given}")
    return float(given)


def dropout_of(given: object) -> float:
    """The probability with which a weight is dropped. Raises TypeError or ValueError."""
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise TypeError(f"dropout_p must be a number, not a {type(given).__name__}")
    if not 0.0 <= given < 1.0:
        raise ValueError(f"dropout_p must be at least 0 and less than 1, not {given}")
    return float(given)


def tensor_layout(tensor: torch.Tensor, name: str) -> Layout:
    """A tensor's layout; a dimension of size 1 is never stepped over, so its stride does not matter."""
    sizes, strides = tensor.shape, tensor.stride()
    if sizes[3] > 1 and strides[3] != 1:
        raise Unsupported(f"the last dimension of {name} must be contiguous; its stride is {strides[3]}")
    batch, head, row = (stride if size > 1 else 0 for size, stride in zip(sizes[:3], strides[:3], strict=True))
    return Layout(batch, head, row, tensor.data_ptr())


def problem_of(  # noqa: PLR0913 - the tensors of a call
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    *,
    causal: bool,
    alignment: str,
    window: Window | None = None,
    mask: torch.Tensor | None = None,
    shaping: Shaping = UNSHAPED,
) -> Problem:
    """The problem that these tensors pose. Raises `Unsupported`, or ValueError where they contradict each other."""
    check_rank(q, k, v, 4)
    check_shapes(q, k, v, (0,))
    float8 = shaping.float8(q, k, v, k.shape[1])
    check_kinds(q, k, v, out, alignment, float8)
    batch, heads, seq_q, head_dim = q.shape
    seq_k = k.shape[2]
    window = window_of(window)
    right, left = key_limits(causal, window, seq_k - seq_q if alignment == "bottom-right" else 0)
    return Problem(
        dtype=dtype_name(q, out),
        batch=batch,
        heads=heads,
        kv_heads=k.shape[1],
        seq_q=seq_q,
        seq_k=seq_k,
        head_dim=head_dim,
        causal=right is not None,
        causal_offset=right or 0,
        q=tensor_layout(pairs_of(q), "q"),
        k=tensor_layout(pairs_of(k), "k"),
        v=tensor_layout(pairs_of(v), "v"),
        out=tensor_layout(out, "out"),
        window_offset=left,
        float8=float8,
        mask=None if mask is None else mask_of(mask, (batch, heads, seq_q, seq_k), q),
        **shaping.fields(q, v, (batch, heads), seq_k - seq_q if alignment == "bottom-right" else 0),
    )


def check_rank(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rank: int) -> None:
    """Raises ValueError for tensors of another rank."""
    if not (q.dim() == k.dim() == v.dim() == rank):
        wanted, ranks = "[B, H, S, D]" if rank == 4 else "[total, H, D]", (q.dim(), k.dim(), v.dim())
        raise ValueError("q, k and v must be {}; they have {}, {} and {} dimensions".format(wanted, *ranks))


def check_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, shared: tuple[int, ...]) -> None:
    """Raises ValueError where sizes contradict each other, `Unsupported` for those that fit and have no kernel.

    `shared` are dimensions that q and k have in common beside the last.
    """
    fits = k.shape[:-1] == v.shape[:-1] and all(q.shape[axis] == k.shape[axis] for axis in (*shared, -1))
    heads, kv_heads = q.shape[1], k.shape[1]
    if not fits or (heads and not kv_heads):
        raise ValueError(f"shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    check_widths(q, v)
    if kv_heads and heads % kv_heads:
        raise Unsupported(f"{heads} heads of Q cannot share {kv_heads} heads of K and V equally")


def check_widths(q: torch.Tensor, v: torch.Tensor) -> None:
    """Raises `Unsupported` for head dimensions without elements."""
    least = min(q.shape[-1], v.shape[-1])
    if least < 1:
        raise Unsupported(f"the head dimension must be 1 to {WIDE_HEAD_DIMS[-1]}, not {least}")


def output_shape(q: torch.Tensor, v: torch.Tensor) -> tuple[int, ...]:
    """The shape of the output: that of q, as wide as v."""
    return (*q.shape[:-1], v.shape[-1])


def dtype_name(q: torch.Tensor, out: torch.Tensor) -> str:
    """The element type of a problem: that of q, or of the output where q has eight bits."""
    kind = out.dtype if q.dtype == FLOAT8 else q.dtype
    return DTYPE_NAMES.get(kind, str(kind))


def output_like(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Memory for the output: like q, with its order of dimensions, and as wide as v; bfloat16 where q has eight
    bits."""
    kind = torch.bfloat16 if q.dtype == FLOAT8 else q.dtype
    if v.shape[-1] == q.shape[-1]:
        return torch.empty_like(q, dtype=kind)
    order = sorted(range(q.dim() - 1), key=lambda axis: -q.stride(axis))
    made = q.new_empty([*(q.shape[axis] for axis in order), v.shape[-1]], dtype=kind)
    return made.permute([*(order.index(axis) for axis in range(q.dim() - 1)), q.dim() - 1])


def pairs_of(x: torch.Tensor) -> torch.Tensor:
    """A tensor with eight bits an element as one with sixteen; any other as it is. Raises `Unsupported`."""
    if x.element_size() != 1:
        return x
    try:
        return x.view(torch.int16)
    except RuntimeError as exc:
        raise Unsupported(
            f"float8 tensors need contiguous heads and even strides, not sizes {tuple(x.shape)} with strides "
            f"{x.stride()}"
        ) from exc


def check_kinds(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    alignment: str,
    float8: Float8 | None = None,
) -> None:
    """What holds for padded and packed tensors alike."""
    wanted = output_shape(q, v)
    kinds = (torch.bfloat16, torch.float16) if q.dtype == FLOAT8 else (q.dtype,)
    if out.shape != wanted or out.dtype not in kinds:
        raise ValueError(f"out must be {wanted} {' or '.join(map(str, kinds))}, not {tuple(out.shape)} {out.dtype}")
    if k.dtype != v.dtype or (q.dtype != k.dtype and (float8 is None or q.dtype == FLOAT8)):
        raise Unsupported(f"q, k and v must have one dtype, not {q.dtype}, {k.dtype} and {v.dtype}")
    if any(tensor.device != q.device for tensor in (q, k, v, out)):
        raise Unsupported("q, k, v and out must be on one device")
    if alignment not in ALIGNMENTS:
        raise ValueError(f"causal_alignment must be one of {', '.join(ALIGNMENTS)}, not {alignment!r}")


def window_of(window: object) -> Window | None:
    """Checks a window and returns it. Raises TypeError."""
    if window is None:
        return None
    sides = tuple(window) if isinstance(window, (tuple, list)) else ()
    if len(sides) != 2 or not all(side is None or (isinstance(side, int) and side is not True) for side in sides):
        raise TypeError(f"{WINDOW_RULE}, not {window!r}")
    return sides[0], sides[1]


def longest_of(name: str, longest: object) -> int:
    """The longest of some sequences, a hint to the plan. Raises TypeError or ValueError."""
    if not isinstance(longest, int):
        kind = type(longest).__name__
        raise TypeError(f"{name} must be an int, not a {kind}: the host chooses kernels by it, and waits for no tensor")
    if longest < 0:
        raise ValueError(f"{name} must not be negative, and is {longest}")
    return longest


def key_limits(causal: bool, window: Window | None, shift: int) -> tuple[int | None, int | None]:
    """Of the keys that row r sees, the last and the first, less r; None where there is no such limit.

    `window` is (left, right): row r sees the keys r + shift - left .. r + shift + right. None or -1 is no limit, as in
    flash-attn; `causal` is a right of 0. Raises ValueError for any other negative number.
    """
    left, right = (None if side == -1 else side for side in window or (None, None))
    if (left or 0) < 0 or (right or 0) < 0:
        raise ValueError(f"{WINDOW_RULE}, not {window}")
    if causal:
        right = 0
    far = 2**30 - 1
    return None if right is None else min(right + shift, far), None if left is None else max(shift - left, -far)


def mask_of(mask: torch.Tensor, shape: tuple[int, int, int, int], q: torch.Tensor) -> Mask:
    """A mask's layout, broadcast to [B, H, S_q, S_k] without a copy. Raises `Unsupported` or ValueError."""
    if mask.dtype not in (torch.bool, torch.float32, q.dtype):
        raise Unsupported(f"a mask must be boolean, float32 or {q.dtype} like q, not {mask.dtype}")
    if mask.device != q.device:
        raise Unsupported("the mask must be on the device of q")
    try:
        strides = mask.expand(shape).stride()
    except RuntimeError as exc:
        raise ValueError(f"a mask of shape {tuple(mask.shape)} does not broadcast to {shape}") from exc
    batch, head, row, key = (
        stride * mask.element_size() if size > 1 else 0 for size, stride in zip(shape, strides, strict=True)
    )
    name = "bool" if mask.dtype == torch.bool else DTYPE_NAMES[mask.dtype]
    return Mask(name, mask.data_ptr(), batch, head, row, key)


def packed_layout(tensor: torch.Tensor, name: str) -> Layout:
    """The layout of a [total, H, D] tensor, as one batch."""
    sizes, strides = tensor.shape, tensor.stride()
    if sizes[2] > 1 and strides[2] != 1:
        raise Unsupported(f"the last dimension of {name} must be contiguous; its stride is {strides[2]}")
    row, head = (stride if size > 1 else 0 for size, stride in zip(sizes[:2], strides[:2], strict=True))
    return Layout(0, head, row, tensor.data_ptr())


def planned_length(longest: int, total: int) -> int:
    """The length to plan for: `longest`, but at least 1 and at most all rows; 0 where there are no rows."""
    return min(max(longest, 1), total)


def varlen_problem_of(  # noqa: PLR0913 - the tensors of a call
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
    shaping: Shaping = UNSHAPED,
) -> Problem:
    """The problem that packed tensors pose. Raises `Unsupported`, or ValueError where they contradict each other."""
    check_rank(q, k, v, 3)
    check_shapes(q, k, v, ())
    check_kinds(q, k, v, out, alignment)
    for name, starts in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if starts.dtype != torch.int32 or starts.dim() != 1 or not starts.is_contiguous() or starts.device != q.device:
            raise ValueError(f"{name} must be contiguous int32 [sequences + 1] on the device of q")
    if cu_seqlens_q.shape != cu_seqlens_k.shape or cu_seqlens_q.shape[0] < 2:
        raise ValueError("cu_seqlens_q and cu_seqlens_k must have one entry more than there are sequences, at least 2")
    max_seqlen_q, max_seqlen_k = longest_of("max_seqlen_q", max_seqlen_q), longest_of("max_seqlen_k", max_seqlen_k)
    right, left = key_limits(causal, window_of(window), 0)
    return Problem(
        dtype=DTYPE_NAMES.get(q.dtype, str(q.dtype)),
        batch=cu_seqlens_q.shape[0] - 1,
        heads=q.shape[1],
        kv_heads=k.shape[1],
        seq_q=planned_length(max_seqlen_q, q.shape[0]),
        seq_k=planned_length(max_seqlen_k, k.shape[0]),
        head_dim=q.shape[2],
        causal=right is not None,
        causal_offset=right or 0,
        q=packed_layout(q, "q"),
        k=packed_layout(k, "k"),
        v=packed_layout(v, "v"),
        out=packed_layout(out, "out"),
        window_offset=left,
        **shaping.fields(q, v, (cu_seqlens_q.shape[0] - 1, q.shape[1]), 0),
        lengths=Lengths(
            cu_seqlens_q.data_ptr(), cu_seqlens_k.data_ptr(), q.shape[0], alignment == "bottom-right", k.shape[0]
        ),
    )
