"""Scaled dot-product attention on a CUDA device, by our own kernels.

    out = attention(q, k, v, causal=True)
    out, lse = attention(q, k, v, causal=True, return_lse=True)
    run = bind(q, k, v, out, causal=True); run(); run()

Shapes are [B, H, S, D]; K and V may have fewer heads than Q. Whatever is not supported raises `Unsupported`.
"""

from __future__ import annotations

import math

import torch

from kernels.attention.cuda.dispatch import choose, ways
from kernels.attention.cuda.driver import driver
from kernels.attention.cuda.engine import Engine, engine_of, engines
from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.launching import Bound, Buffers, Way
from kernels.attention.cuda.planning import Layout, Problem, plan
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


def problem_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, *, causal: bool, alignment: str
) -> Problem:
    """The problem that these tensors pose. Raises `Unsupported`, or ValueError where they contradict each other."""
    if not (q.dim() == k.dim() == v.dim() == 4):
        raise ValueError(f"q, k and v must be [B, H, S, D]; they have {q.dim()}, {k.dim()} and {v.dim()} dimensions")
    if k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    if out.shape != q.shape or out.dtype != q.dtype:
        raise ValueError(f"out must be {tuple(q.shape)} {q.dtype}, not {tuple(out.shape)} {out.dtype}")
    if not (q.dtype == k.dtype == v.dtype):
        raise Unsupported(f"q, k and v must have one dtype, not {q.dtype}, {k.dtype} and {v.dtype}")
    if any(tensor.device != q.device for tensor in (q, k, v, out)):
        raise Unsupported("q, k, v and out must be on one device")
    if alignment not in ALIGNMENTS:
        raise ValueError(f"causal_alignment is one of {', '.join(ALIGNMENTS)}, not {alignment!r}")
    batch, heads, seq_q, head_dim = q.shape
    seq_k = k.shape[2]
    return Problem(
        dtype=DTYPE_NAMES.get(q.dtype, str(q.dtype)),
        batch=batch,
        heads=heads,
        kv_heads=k.shape[1],
        seq_q=seq_q,
        seq_k=seq_k,
        head_dim=head_dim,
        causal=causal,
        causal_offset=seq_k - seq_q if alignment == "bottom-right" else 0,
        q=layout(q, "q"),
        k=layout(k, "k"),
        v=layout(v, "v"),
        out=layout(out, "out"),
    )


def bind(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    causal_alignment: str = "top-left",
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
    if scale is None:
        scale = 1.0 / math.sqrt(q.shape[-1])
    if not (math.isfinite(scale) and scale > 0.0):
        raise Unsupported(f"scale must be positive and finite, not {scale}")
    if buffers is not None:
        engine = buffers.engine
    elif engine is None:
        engine = engine_of(q.device)
    if q.device.type != engine.device.type:
        raise Unsupported(f"the CUDA kernel needs tensors on {engine.device}, not on {q.device}")
    problem = problem_of(q, k, v, out, causal=causal, alignment=causal_alignment)
    driver().enter(engine.device.index)
    buffers = buffers or Buffers(engine)
    if lse is not None:
        if lse.shape != q.shape[:3] or lse.dtype != torch.float32 or not lse.is_contiguous() or lse.device != q.device:
            raise ValueError("lse must be contiguous float32 [B, H, S_q] on the device of q")
        buffers.lse = lse.data_ptr()
    taken = way_for(problem, engine, way=way, splits=splits)
    steps = taken.steps(problem, scale, buffers)
    return Bound(engine, taken.name, steps, (q, k, v, out, lse, buffers))


def way_for(problem: Problem, engine: Engine, *, way: str | None, splits: int | None) -> Way:
    """The way that `way` or `splits` asks for, else the best. Raises `Unsupported`."""
    if splits is not None:
        return Portable(plan(problem, engine.machine, splits=splits))
    if way is None:
        return choose(problem, engine.machine)[0]
    there_are = ways(problem, engine.machine, dependent=way.endswith("-dependent"))
    found = [one for one in there_are if one.name == way or one.name.startswith(f"{way}-")]
    if not found:
        names = ", ".join(one.name for one in there_are) or "none"
        raise Unsupported(f"no way named {way!r} computes this problem; there are {names}")
    return found[0]


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, causal_alignment: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and log-sum-exp; what the registered operator calls."""
    answer = quick.attention(q, k, v, causal, scale, causal_alignment, True)
    assert isinstance(answer, tuple)
    return answer


def forward_shapes(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, causal_alignment: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `forward` returns, without its contents: for the compiler's tracing."""
    del k, v, causal, scale, causal_alignment
    return torch.empty_like(q), torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)


# define and impl rather than torch.library.custom_op, whose wrapper costs about three times as much a call.
library = torch.library.Library("spotbench", "FRAGMENT")
library.define("attention(Tensor q, Tensor k, Tensor v, bool causal, float scale, str alignment) -> (Tensor, Tensor)")
library.impl("attention", forward, "CUDA")
torch.library.register_fake("spotbench::attention", forward_shapes, lib=library)


def as_operator(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None, alignment: str, lse: bool
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """A call that PyTorch's compiler, modes and subclasses can see."""
    if scale is None:
        scale = 1.0 / math.sqrt(q.shape[-1])
    result, sums = torch.ops.spotbench.attention(q, k, v, causal, scale, alignment)
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
    out: torch.Tensor | None = None,
    return_lse: bool = False,
    engine: Engine | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale Q K^T) V, accumulated in float32.

    q is [B, H, S_q, D], k and v [B, H_kv, S_k, D], float16 or bfloat16, D at most 256, any strides but a contiguous
    last dimension; H is a multiple of H_kv, and head h of Q reads head h // (H / H_kv) of K and V. `scale` defaults to
    1/sqrt(D). `causal` hides key j from query i when j > i (`top-left`, as in PyTorch) or when j > i + S_k - S_q
    (`bottom-right`). A row that sees no key is zero, with log-sum-exp -inf.

    Returns the output, like q, and with `return_lse` also log(sum(exp(scores))), float32 [B, H, S_q]. Under
    torch.compile it becomes the operator spotbench::attention. Raises `Unsupported`; never computes by other means.
    """
    if out is None and (engine is None or engine is engines.get(engine.device.index)):
        if torch.compiler.is_compiling():
            return as_operator(q, k, v, causal, scale, causal_alignment, return_lse)
        return quick.attention(q, k, v, causal, scale, causal_alignment, return_lse)
    if out is None:
        out = torch.empty_like(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device) if return_lse else None
    bind(q, k, v, out, causal=causal, scale=scale, causal_alignment=causal_alignment, lse=lse, engine=engine)()
    return out if lse is None else (out, lse)
