"""Calls with their tensors bound, to be made as often as wanted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from kernels.attention.cuda import inputs
from kernels.attention.cuda.dispatch import choose, ways
from kernels.attention.cuda.driver import driver
from kernels.attention.cuda.engine import Engine, engine_of
from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.general import General, plan_general
from kernels.attention.cuda.launching import Bound, Buffers, Way
from kernels.attention.cuda.planning import Problem, check_kind, plan
from kernels.attention.cuda.portable import Portable
from kernels.attention.cuda.posing import Window, problem_of, varlen_problem_of
from kernels.attention.cuda.quick import Options


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
    given = {"q": q, "k": k, "v": v} | ({} if attn_mask is None else {"attn_mask": attn_mask})
    check_tensors(given, out, engine)
    problem = problem_of(q, k, v, out, causal=causal, alignment=causal_alignment, window=window, mask=attn_mask)
    return bind_problem(
        problem,
        given,
        out,
        scale=scale,
        lse=lse,
        lse_shape=q.shape[:3],
        splits=splits,
        way=way,
        buffers=buffers or Buffers.now(engine or engine_of(q.device)),
    )


def check_tensors(given: Mapping[str, torch.Tensor], out: torch.Tensor, engine: Engine | None) -> None:
    """Raises `Unsupported` or TypeError for tensors that no kernel can read, or write without harm."""
    inputs.refuse({**given, "out": out})
    inputs.refuse_overlaps(out, given)
    q = given["q"]
    wanted = engine.device.type if engine else "cuda"
    if q.device.type != wanted:
        raise Unsupported(f"the CUDA kernel needs tensors on a {wanted.upper()} device, not on {q.device}")


def bind_problem(
    problem: Problem,
    given: Mapping[str, torch.Tensor],
    out: torch.Tensor,
    *,
    scale: float | None,
    lse: torch.Tensor | None,
    lse_shape: torch.Size,
    buffers: Buffers,
    splits: int | None = None,
    way: str | None = None,
) -> Bound:
    """The problem's way, bound to the tensors that pose it, which it keeps alive."""
    q = given["q"]
    if lse is not None:
        if lse.shape != lse_shape or lse.dtype != torch.float32 or not lse.is_contiguous() or lse.device != q.device:
            raise ValueError(f"lse must be contiguous float32 {tuple(lse_shape)} on the device of q")
        buffers.lse = lse.data_ptr()
    if scale is None:
        scale = 1.0 / math.sqrt(problem.head_dim)
    if not math.isfinite(scale):
        raise Unsupported(f"scale must be finite, not {scale}")
    if not problem.has_keys:
        check_kind(problem, buffers.engine.machine)
        return Unseen(out, lse, buffers)
    problem = replace(problem, sign=(scale > 0.0) - (scale < 0.0))
    driver().enter(buffers.engine.device.index)
    taken = way_for(problem, buffers.engine, way=way, splits=splits)
    return Bound.of(taken, problem, abs(scale) or 1.0, buffers, (*given.values(), out, lse))


class Unseen(Bound):
    """A call in which no row sees a key, or there are no rows: zeros, and log-sum-exps of minus infinity."""

    def __init__(self, out: torch.Tensor, lse: torch.Tensor | None, buffers: Buffers) -> None:
        super().__init__("nothing", lambda _: [], buffers, (out, lse))
        self.out, self.sums = out, lse

    def __call__(self) -> None:
        self.out.zero_()
        if self.sums is not None:
            self.sums.fill_(-math.inf)


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
    buffers: Buffers | None = None,
) -> Bound:
    """A call with its tensors bound; the lengths are read anew on the device by every call. As `attention_varlen`.

    `lse`, if given, is contiguous float32 [H, total_q].
    """
    if buffers is not None:
        engine = buffers.engine
    starts = (cu_seqlens_q, cu_seqlens_k)
    given = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    check_tensors(given, out, engine)
    problem = varlen_problem_of(
        q, k, v, out, *starts, max_seqlen_q, max_seqlen_k, causal=causal, alignment=causal_alignment, window=window
    )
    return bind_problem(
        problem,
        given,
        out,
        scale=scale,
        lse=lse,
        lse_shape=torch.Size((q.shape[1], q.shape[0])),
        splits=splits,
        way=way,
        buffers=buffers or Buffers.now(engine or engine_of(q.device)),
    )


def bind_call(
    tensors: dict[str, torch.Tensor],
    out: torch.Tensor,
    lse: torch.Tensor | None,
    options: Options,
    buffers: Buffers,
    *,
    way: str | None = None,
    splits: int | None = None,
) -> Bound:
    """A call of `Quick`, bound."""
    q, k, v = (tensors[name] for name in "qkv")
    if options.longest is None:
        return bind(
            q,
            k,
            v,
            out,
            causal=options.causal,
            scale=options.scale,
            causal_alignment=options.alignment,
            window=options.window,
            attn_mask=tensors.get("mask"),
            lse=lse,
            way=way,
            splits=splits,
            buffers=buffers,
        )
    return bind_varlen(
        q,
        k,
        v,
        out,
        tensors["q_starts"],
        tensors["k_starts"],
        *options.longest,
        causal=options.causal,
        scale=options.scale,
        causal_alignment=options.alignment,
        window=options.window,
        lse=lse,
        way=way,
        splits=splits,
        buffers=buffers,
    )
