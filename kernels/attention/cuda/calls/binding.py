"""Calls with their tensors bound, to be made as often as wanted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from kernels.attention.cuda.calls.quick import Options, lse_shape
from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.plan import inputs
from kernels.attention.cuda.plan.planning import Problem, check_kind, plan_problem, scale_of
from kernels.attention.cuda.plan.posing import Shaping, Window, problem_of, varlen_problem_of
from kernels.attention.cuda.plan.posing_paged import paged_problem_of
from kernels.attention.cuda.run.driver import cuda_driver
from kernels.attention.cuda.run.engine import Engine, engine_of
from kernels.attention.cuda.run.launching import Bound, Buffers, Way
from kernels.attention.cuda.ways.dispatch import choose_way, list_ways
from kernels.attention.cuda.ways.float8 import Float8Way
from kernels.attention.cuda.ways.general import General, plan_general
from kernels.attention.cuda.ways.hopper import HopperWay
from kernels.attention.cuda.ways.portable import Portable, WithSinks


@dataclass(frozen=True, slots=True)
class Terms:
    """All of a call but its tensors: what a row sees, where the log-sum-exps go, and by what it is computed."""

    causal: bool = False
    scale: float | None = None
    causal_alignment: str = "top-left"
    window: Window | None = None
    softcap: float = 0.0
    alibi_slopes: torch.Tensor | None = None
    sinks: torch.Tensor | None = None
    q_scale: torch.Tensor | None = None
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None
    batch_invariant: bool = False
    dropout_p: float = 0.0
    dropout_seed: torch.Tensor | None = None
    lse: torch.Tensor | None = None
    splits: int | None = None
    way: str | None = None
    engine: Engine | None = None
    buffers: Buffers | None = None

    @property
    def shaping(self) -> Shaping:
        scales, dropout = (self.k_scale, self.v_scale), (self.dropout_p, self.dropout_seed)
        return Shaping(self.softcap, self.alibi_slopes, self.sinks, *scales, *dropout, q_scale=self.q_scale)

    @property
    def shaping_tensors(self) -> dict[str, torch.Tensor]:
        """Those that are given, by their names."""
        given = {"alibi_slopes": self.alibi_slopes, "sinks": self.sinks}
        given |= {"q_scale": self.q_scale, "k_scale": self.k_scale, "v_scale": self.v_scale}
        given |= {"dropout_seed": self.dropout_seed}
        return {name: x for name, x in given.items() if x is not None}

    @property
    def mask_options(self) -> dict[str, Any]:
        """What a row sees, by the names of the functions that pose problems."""
        shaping = self.shaping
        return {"causal": self.causal, "alignment": self.causal_alignment, "window": self.window, "shaping": shaping}

    def buffers_for(self, device: torch.device) -> Buffers:
        return self.buffers or Buffers.now(self.engine or engine_of(device))

    @property
    def device_type(self) -> str:
        engine = self.engine if self.buffers is None else self.buffers.engine
        return str(engine.device.type) if engine else "cuda"


if TYPE_CHECKING:
    from typing import TypedDict, Unpack

    class TermsGiven(TypedDict, total=False):
        """The fields of `Terms`, as keywords of a call."""

        causal: bool
        scale: float | None
        causal_alignment: str
        window: Window | None
        softcap: float
        alibi_slopes: torch.Tensor | None
        sinks: torch.Tensor | None
        q_scale: torch.Tensor | None
        k_scale: torch.Tensor | None
        v_scale: torch.Tensor | None
        batch_invariant: bool
        dropout_p: float
        dropout_seed: torch.Tensor | None
        lse: torch.Tensor | None
        splits: int | None
        way: str | None
        engine: Engine | None
        buffers: Buffers | None


def bind_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    **given: Unpack[TermsGiven],
) -> Bound:
    """A call with its tensors bound, to be made as often as wanted. Arguments as for `attention`.

    `out` is [B, H, S_q, D] with any strides; `lse`, if given, contiguous float32 [B, H, S_q]; `splits` takes the
    portable kernel and cuts the keys into that many parts; `way` names the way to take, or the beginning of its name;
    `buffers` is where the kernels get other memory from.
    """
    terms = Terms(**given)
    tensors = {"q": q, "k": k, "v": v} | ({} if attn_mask is None else {"attn_mask": attn_mask})
    tensors |= terms.shaping_tensors
    check_tensors(tensors, out, terms)
    problem = problem_of(q, k, v, out, mask=attn_mask, **terms.mask_options)
    return bind_problem(problem, tensors, out, terms)


def check_tensors(given: Mapping[str, torch.Tensor], out: torch.Tensor, terms: Terms) -> None:
    """Raises `Unsupported` or TypeError for tensors that no kernel can read, or write without harm."""
    inputs.refuse_tensors({**given, "out": out})
    inputs.refuse_overlaps(out, given)
    q, wanted = given["q"], terms.device_type
    if q.device.type != wanted:
        raise Unsupported(f"the CUDA kernel needs tensors on a {wanted.upper()} device, not on {q.device}")


def bind_problem(problem: Problem, given: Mapping[str, torch.Tensor], out: torch.Tensor, terms: Terms) -> Bound:
    """The problem's way, bound to the tensors that pose it, which it keeps alive."""
    q, lse, buffers = given["q"], terms.lse, terms.buffers_for(given["q"].device)
    if lse is not None:
        sums = lse_shape(q, paged=problem.pages is not None)
        if lse.shape != sums or lse.dtype != torch.float32 or not lse.is_contiguous() or lse.device != q.device:
            raise ValueError(f"lse must be contiguous float32 {sums} on the device of q")
        buffers.lse = lse.data_ptr()
    scale = scale_of(terms.scale, problem.head_dim)
    if not problem.has_keys:
        check_kind(problem, buffers.engine.machine)
        return Unseen(out, lse, buffers, terms.sinks)
    problem = replace(problem, sign=(scale > 0.0) - (scale < 0.0), invariant=terms.batch_invariant)
    cuda_driver().enter(buffers.engine.device.index)
    taken = way_for(problem, buffers.engine, way=terms.way, splits=terms.splits)
    if problem.sinks:
        taken = (taken.with_sinks() if isinstance(taken, (Float8Way, HopperWay)) else None) or WithSinks(taken)
    return Bound.of(taken, problem, abs(scale) or 1.0, buffers, (*given.values(), out, lse))


class Unseen(Bound):
    """A call in which no row sees a key, or there are no rows: zeros, and log-sum-exps of minus infinity, or of the
    sinks."""

    def __init__(
        self, out: torch.Tensor, lse: torch.Tensor | None, buffers: Buffers, sinks: torch.Tensor | None = None
    ) -> None:
        super().__init__("nothing", lambda _: [], buffers, (out, lse))
        self.out, self.sums, self.sinks = out, lse, sinks

    def __call__(self) -> None:
        self.out.zero_()
        if self.sums is not None and self.sinks is not None:
            self.sums.copy_(self.sinks[:, None])
        elif self.sums is not None:
            self.sums.fill_(-math.inf)


def way_for(problem: Problem, engine: Engine, *, way: str | None, splits: int | None) -> Way:
    """The way that `way` or `splits` asks for, else the best. Raises `Unsupported`."""
    if splits is not None:
        if problem.is_plain:
            return Portable(plan_problem(problem, engine.machine, splits=splits))
        return General(plan_general(problem, engine.machine, splits=splits))
    if way is None:
        return choose_way(problem, engine.machine)[0]
    there_are = list_ways(problem, engine.machine, dependent=way.endswith("-dependent"))
    matching_ways = [one for one in there_are if one.name == way or one.name.startswith(f"{way}-")]
    if not matching_ways:
        names = ", ".join(one.name for one in there_are) or "none"
        raise Unsupported(f"no way named {way!r} computes this problem; there are {names}")
    return matching_ways[0]


def bind_varlen(  # noqa: PLR0913 - the tensors of a call
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    **given: Unpack[TermsGiven],
) -> Bound:
    """A call with its tensors bound; the lengths are read anew on the device by every call. As `attention_varlen`.

    `lse`, if given, is contiguous float32 [H, total_q]; `causal_alignment` is `bottom-right` unless told otherwise.
    """
    given.setdefault("causal_alignment", "bottom-right")
    terms = Terms(**given)
    starts = (cu_seqlens_q, cu_seqlens_k)
    tensors = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    tensors |= terms.shaping_tensors
    check_tensors(tensors, out, terms)
    problem = varlen_problem_of(q, k, v, out, *starts, max_seqlen_q, max_seqlen_k, **terms.mask_options)
    return bind_problem(problem, tensors, out, terms)


def bind_paged(  # noqa: PLR0913 - the tensors of a call
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor,
    block_table: torch.Tensor,
    seqused_k: torch.Tensor,
    *,
    cu_seqlens_q: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    **given: Unpack[TermsGiven],
) -> Bound:
    """A call with its tensors bound; table and lengths are read anew on the device by every call. As `attention_paged`.

    `lse`, if given, is contiguous float32 [B, H, S_q], or [H, total_q] where q is packed; `causal_alignment` is
    `bottom-right` unless told otherwise.
    """
    given.setdefault("causal_alignment", "bottom-right")
    terms = Terms(**given)
    tensors = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "block_table": block_table, "seqused_k": seqused_k}
    tensors |= {} if cu_seqlens_q is None else {"cu_seqlens_q": cu_seqlens_q}
    tensors |= terms.shaping_tensors
    check_tensors(tensors, out, terms)
    problem = paged_problem_of(q, k_cache, v_cache, out, tensors, max_seqlen_q, max_seqlen_k, **terms.mask_options)
    return bind_problem(problem, tensors, out, terms)


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
    terms: TermsGiven = {
        "causal": options.causal,
        "scale": options.scale,
        "causal_alignment": options.alignment,
        "window": options.window,
        "softcap": options.softcap,
        "alibi_slopes": tensors.get("slopes"),
        "sinks": tensors.get("sinks"),
        "q_scale": tensors.get("q_scale"),
        "k_scale": tensors.get("k_scale"),
        "v_scale": tensors.get("v_scale"),
        "batch_invariant": options.invariant,
        "dropout_p": options.dropout,
        "dropout_seed": tensors.get("seed"),
        "lse": lse,
        "way": way,
        "splits": splits,
        "buffers": buffers,
    }
    if options.paged:
        table, lengths, starts = tensors["block_table"], tensors["k_lengths"], tensors.get("q_starts")
        longest_q, longest_k = (None if one == -1 else one for one in options.longest or (-1, -1))
        longest = {"max_seqlen_q": longest_q, "max_seqlen_k": longest_k}
        return bind_paged(q, k, v, out, table, lengths, cu_seqlens_q=starts, **longest, **terms)
    if options.longest is None:
        return bind_attention(q, k, v, out, attn_mask=tensors.get("mask"), **terms)
    return bind_varlen(q, k, v, out, tensors["q_starts"], tensors["k_starts"], *options.longest, **terms)
