"""Scaled dot-product attention on a CUDA device, by our own kernels.

    out = attention(q, k, v, causal=True)
    out, lse = attention(q, k, v, causal=True, return_lse=True)
    run = bind(q, k, v, out, causal=True); run(); run()

Shapes are [B, H, S, D]; K and V may have fewer heads than Q. Whatever is not supported raises `Unsupported`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from kernels.attention.cuda.dispatch import choose, ways
from kernels.attention.cuda.driver import driver
from kernels.attention.cuda.engine import Engine, engine_of, engines
from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.general import General, plan_general
from kernels.attention.cuda.launching import Bound, Buffers, Way
from kernels.attention.cuda.planning import Layout, Mask, Problem, plan
from kernels.attention.cuda.portable import Portable
from kernels.attention.cuda.quick import Quick

DTYPE_NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}
ALIGNMENTS = ("top-left", "bottom-right")


def layout(tensor: torch.Tensor, name: str) -> Layout:
    """A tensor's layout; a dimension of size 1 is never stepped over, so its stride does not matter."""
    sizes, strides = tensor.shape, tensor.stride()
    if sizes[3] > 1 and strides[3] != 1:
        raise Unsupported(f"the last dimension of {name} must be contiguous; its stride is {strides[3]}")
    batch, head, row = (stride if size > 1 else 0 for size, stride in zip(sizes[:3], strides[:3], strict=True))
    return Layout(batch, head, row, tensor.data_ptr())


Window = tuple[int | None, int | None]


def problem_of(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    *,
    causal: bool,
    alignment: str,
    window: Window | None = None,
    mask: torch.Tensor | None = None,
) -> Problem:
    """The problem that these tensors pose. Raises `Unsupported`, or ValueError where they contradict each other."""
    if not (q.dim() == k.dim() == v.dim() == 4):
        raise ValueError(f"q, k and v must be [B, H, S, D]; they have {q.dim()}, {k.dim()} and {v.dim()} dimensions")
    if k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    check_kinds(q, k, v, out, alignment)
    batch, heads, seq_q, head_dim = q.shape
    seq_k = k.shape[2]
    right, left = limits(causal, window, seq_k - seq_q if alignment == "bottom-right" else 0)
    return Problem(
        dtype=DTYPE_NAMES.get(q.dtype, str(q.dtype)),
        batch=batch,
        heads=heads,
        kv_heads=k.shape[1],
        seq_q=seq_q,
        seq_k=seq_k,
        head_dim=head_dim,
        causal=right is not None,
        causal_offset=right or 0,
        q=layout(q, "q"),
        k=layout(k, "k"),
        v=layout(v, "v"),
        out=layout(out, "out"),
        window_offset=left,
        mask=None if mask is None else mask_of(mask, (batch, heads, seq_q, seq_k), q),
    )


def check_kinds(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, alignment: str) -> None:
    """What holds for padded and packed tensors alike."""
    if out.shape != q.shape or out.dtype != q.dtype:
        raise ValueError(f"out must be {tuple(q.shape)} {q.dtype}, not {tuple(out.shape)} {out.dtype}")
    if not (q.dtype == k.dtype == v.dtype):
        raise Unsupported(f"q, k and v must have one dtype, not {q.dtype}, {k.dtype} and {v.dtype}")
    if any(tensor.device != q.device for tensor in (q, k, v, out)):
        raise Unsupported("q, k, v and out must be on one device")
    if alignment not in ALIGNMENTS:
        raise ValueError(f"causal_alignment is one of {', '.join(ALIGNMENTS)}, not {alignment!r}")


def limits(causal: bool, window: Window | None, shift: int) -> tuple[int | None, int | None]:
    """Of the keys that row r sees, the last and the first, less r; None where there is no such limit.

    `window` is (left, right): row r sees the keys r + shift - left .. r + shift + right. None or -1 is no limit, as in
    flash-attn; `causal` is a right of 0. Raises ValueError for any other negative number.
    """
    left, right = (None if side == -1 else side for side in window or (None, None))
    if (left or 0) < 0 or (right or 0) < 0:
        raise ValueError(f"window is (left, right), each a count of keys, or -1 or None for all; not {window}")
    if causal:
        right = 0
    far = 2**30 - 1
    return None if right is None else min(right + shift, far), None if left is None else max(shift - left, -far)


def mask_of(mask: torch.Tensor, shape: tuple[int, int, int, int], q: torch.Tensor) -> Mask:
    """A mask's layout, broadcast to [B, H, S_q, S_k] without a copy. Raises `Unsupported` or ValueError."""
    if mask.dtype not in (torch.bool, torch.float32, q.dtype):
        raise Unsupported(f"a mask is boolean, float32 or {q.dtype} like q, not {mask.dtype}")
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


def bind(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    causal_alignment: str = "top-left",
    window: Window | None = None,
    attn_mask: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    splits: int | None = None,
    way: str | None = None,
    engine: Engine | None = None,
    buffers: Buffers | None = None,
) -> Bound:
    """A call with its tensors bound, to be made as often as wanted. Arguments as for `attention`.

    `out` is [B, H, S_q, D] with any strides; `lse`, if given, contiguous float32 [B, H, S_q]; `splits` takes the
    portable kernel and cuts the keys into that many parts; `way` names the way to take, or the beginning of its name;
    `buffers` is where the kernels get other memory from.
    """
    if buffers is not None:
        engine = buffers.engine
    check_device(q, engine)
    problem = problem_of(q, k, v, out, causal=causal, alignment=causal_alignment, window=window, mask=attn_mask)
    return bind_problem(
        problem,
        (q, k, v, out, attn_mask),
        scale=scale,
        lse=lse,
        lse_shape=q.shape[:3],
        splits=splits,
        way=way,
        buffers=buffers or Buffers(engine or engine_of(q.device)),
    )


def check_device(q: torch.Tensor, engine: Engine | None) -> None:
    wanted = engine.device.type if engine else "cuda"
    if q.device.type != wanted:
        raise Unsupported(f"the CUDA kernel needs tensors on a {wanted.upper()} device, not on {q.device}")


def bind_problem(
    problem: Problem,
    tensors: Sequence[torch.Tensor | None],
    *,
    scale: float | None,
    lse: torch.Tensor | None,
    lse_shape: torch.Size,
    buffers: Buffers,
    splits: int | None = None,
    way: str | None = None,
) -> Bound:
    """The problem's way, bound to the tensors that pose it, which it keeps alive."""
    if scale is None:
        scale = 1.0 / math.sqrt(problem.head_dim)
    if not (math.isfinite(scale) and scale > 0.0):
        raise Unsupported(f"scale must be positive and finite, not {scale}")
    q = tensors[0]
    assert q is not None
    engine = buffers.engine
    driver().enter(engine.device.index)
    if lse is not None:
        if lse.shape != lse_shape or lse.dtype != torch.float32 or not lse.is_contiguous() or lse.device != q.device:
            raise ValueError(f"lse must be contiguous float32 {tuple(lse_shape)} on the device of q")
        buffers.lse = lse.data_ptr()
    taken = way_for(problem, engine, way=way, splits=splits)
    steps = taken.steps(problem, scale, buffers)
    return Bound(engine, taken.name, steps, (*tensors, lse, buffers))


def way_for(problem: Problem, engine: Engine, *, way: str | None, splits: int | None) -> Way:
    """The way that `way` or `splits` asks for, else the best. Raises `Unsupported`."""
    if splits is not None:
        if problem.is_plain:
            return Portable(plan(problem, engine.machine, splits=splits))
        return General(plan_general(problem, engine.machine, splits=splits))
    if way is None:
        return choose(problem, engine.machine)[0]
    there_are = ways(problem, engine.machine, dependent=way.endswith("-dependent"))
    found = [one for one in there_are if one.name == way or one.name.startswith(f"{way}-")]
    if not found:
        names = ", ".join(one.name for one in there_are) or "none"
        raise Unsupported(f"no way named {way!r} computes this problem; there are {names}")
    return found[0]


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    scale: float,
    causal_alignment: str,
    left: int,
    right: int,
    attn_mask: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp; what the registered operator calls. A side of the window that is -1 has no limit."""
    if attn_mask is None and left == right == -1:
        answer = quick.attention(q, k, v, causal, scale, causal_alignment, True)
        assert isinstance(answer, tuple)
        return answer
    out = torch.empty_like(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    bound = bind(
        q,
        k,
        v,
        out,
        causal=causal,
        scale=scale,
        causal_alignment=causal_alignment,
        lse=lse,
        window=(left, right),
        attn_mask=attn_mask,
    )
    bound()
    return out, lse


def forward_shapes(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    scale: float,
    causal_alignment: str,
    left: int,
    right: int,
    attn_mask: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `forward` returns, without its contents: for the compiler's tracing."""
    del k, v, causal, scale, causal_alignment, left, right, attn_mask
    return torch.empty_like(q), torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)


# define and impl rather than torch.library.custom_op, whose wrapper costs about three times as much a call.
library = torch.library.Library("spotbench", "FRAGMENT")
library.define(
    "attention(Tensor q, Tensor k, Tensor v, bool causal, float scale, str alignment, "
    "int left, int right, Tensor? mask) -> (Tensor, Tensor)"
)
library.impl("attention", forward, "CUDA")
torch.library.register_fake("spotbench::attention", forward_shapes, lib=library)


def as_operator(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    scale: float | None,
    alignment: str,
    lse: bool,
    window: Window | None = None,
    attn_mask: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """A call that PyTorch's compiler, modes and subclasses can see."""
    if scale is None:
        scale = 1.0 / math.sqrt(q.shape[-1])
    left, right = (-1 if side is None else side for side in window or (None, None))
    result, sums = torch.ops.spotbench.attention(q, k, v, causal, scale, alignment, left, right, attn_mask)
    return (result, sums) if lse else result


quick = Quick(bind, engine_of, as_operator)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    causal_alignment: str = "top-left",
    window: Window | None = None,
    attn_mask: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    return_lse: bool = False,
    engine: Engine | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale Q K^T + mask) V, accumulated in float32.

    q is [B, H, S_q, D], k and v [B, H_kv, S_k, D], float16 or bfloat16, D at most 256, any strides but a contiguous
    last dimension; H is a multiple of H_kv, and head h of Q reads head h // (H / H_kv) of K and V. `scale` defaults to
    1/sqrt(D). `causal` hides key j from query i when j > i (`top-left`, as in PyTorch) or when j > i + S_k - S_q
    (`bottom-right`); `window` (left, right) hides it when j < i - left or j > i + right, aligned likewise, None or -1
    being no limit. `attn_mask` broadcasts to [B, H, S_q, S_k]: boolean, True where a key is seen, or a number to add to
    the scaled score, float32 or like q. A key is seen if nothing hides it. A row that sees no key, or only keys to
    which the mask adds -inf, is zero, with log-sum-exp -inf.

    Returns the output, like q, and with `return_lse` also log(sum(exp(scores))), float32 [B, H, S_q]. Under
    torch.compile it becomes the operator spotbench::attention. Raises `Unsupported`; never computes by other means.
    """
    plain = window is None and attn_mask is None
    if out is None and (engine is None or engine is engines.get(engine.device.index)):
        if torch.compiler.is_compiling():
            return as_operator(q, k, v, causal, scale, causal_alignment, return_lse, window, attn_mask)
        if plain:
            return quick.attention(q, k, v, causal, scale, causal_alignment, return_lse)
    if out is None:
        out = torch.empty_like(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if return_lse else None
    bound = bind(
        q,
        k,
        v,
        out,
        causal=causal,
        scale=scale,
        causal_alignment=causal_alignment,
        window=window,
        attn_mask=attn_mask,
        lse=lse,
        engine=engine,
    )
    bound()
    return out if lse is None else (out, lse)
