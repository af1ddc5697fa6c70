"""The gradients of attention: dQ, dK and dV from Q, K, V, the output, its log-sum-exps and the output's gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from kernels.attention.cuda.backward.kernels import BackwardParameters, SinksBackwardKernel
from kernels.attention.cuda.backward.plan import BackwardProblem, Gradients, PairBackward, layout_strides
from kernels.attention.cuda.backward.ways import BackwardWay, backward_ways
from kernels.attention.cuda.calls.quick import Options, lse_shape
from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.plan import inputs
from kernels.attention.cuda.plan.parameters import Divisor
from kernels.attention.cuda.plan.planning import Layout, Problem, check_kind, scale_of
from kernels.attention.cuda.plan.posing import (
    DTYPE_NAMES,
    Shaping,
    packed_layout,
    problem_of,
    tensor_layout,
    varlen_problem_of,
)
from kernels.attention.cuda.plan.variants import wide_padded
from kernels.attention.cuda.run.driver import cuda_driver
from kernels.attention.cuda.run.engine import Engine, engine_of
from kernels.attention.cuda.run.launching import Bound, Buffers, Step

NAMES = ("q", "k", "v")


def problem_for(tensors: Mapping[str, torch.Tensor], out: torch.Tensor, options: Options) -> Problem:
    """The forward problem that a call's tensors and options pose."""
    q, k, v = (tensors[name] for name in NAMES)
    mask_options = {"causal": options.causal, "alignment": options.alignment, "window": options.window}
    shaping = Shaping(options.softcap, tensors.get("slopes"), dropout=options.dropout, seed=tensors.get("seed"))
    mask_options |= {"shaping": shaping}
    if options.longest is None:
        posed = problem_of(q, k, v, out, mask=tensors.get("mask"), **mask_options)  # type: ignore[arg-type]
    else:
        starts = tensors["q_starts"], tensors["k_starts"]
        posed = varlen_problem_of(q, k, v, out, *starts, *options.longest, **mask_options)  # type: ignore[arg-type]
    return replace(posed, invariant=options.invariant)


def readable_gradient(dout: torch.Tensor) -> torch.Tensor:
    """The gradient in a form that kernels can read, as autograd may pass any strides, even those of an expanded
    number."""
    steps = [step for step, size in zip(dout.stride(), dout.shape, strict=True) if size > 1]
    plain = dout.stride(-1) == 1 or dout.shape[-1] == 1
    lies_well = all(step > 0 and step % 8 == 0 for step in steps[:-1]) and dout.data_ptr() % 16 == 0
    return dout if plain and lies_well else dout.clone(memory_format=torch.contiguous_format)


@dataclass(frozen=True, slots=True)
class BackwardTerms:
    """How a backward pass is computed."""

    deterministic: bool = False
    way: str | None = None
    engine: Engine | None = None


if TYPE_CHECKING:
    from typing import TypedDict, Unpack

    class BackwardTermsGiven(TypedDict, total=False):
        """The fields of `BackwardTerms`, as keywords of a call."""

        deterministic: bool
        way: str | None
        engine: Engine | None


def bind_backward(
    tensors: Mapping[str, torch.Tensor],
    out: torch.Tensor,
    lse: torch.Tensor,
    dout: torch.Tensor,
    gradients: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    options: Options,
    *,
    dlse: torch.Tensor | None = None,
    **given: Unpack[BackwardTermsGiven],
) -> Bound:
    """A backward pass with its tensors bound, to be made as often as wanted; it writes all of `gradients`.

    `tensors` are q, k, v and, where there are, mask or q_starts and k_starts; `lse` is float32, contiguous, as the
    forward pass gave it. `deterministic`: the same bits in every run. `way` names one, or the beginning of its name.
    """
    terms = BackwardTerms(**given)
    read = {**tensors, "out": out, "lse": lse, "dout": dout, **({} if dlse is None else {"dlse": dlse})}
    with torch.no_grad():
        inputs.refuse_tensors(read)
    q = tensors["q"]
    for name, x, like in zip(
        ("dout", "dq", "dk", "dv"), (dout, *gradients), (out, *(tensors[n] for n in NAMES)), strict=True
    ):
        if x.shape != like.shape or x.dtype != like.dtype or x.device != like.device:
            raise ValueError(f"{name} must be {tuple(like.shape)} {like.dtype} on {like.device}")
    sums = lse_shape(q, paged=False)
    for name, x in (("lse", lse), ("dlse", dlse)):
        if x is not None and (x.shape != sums or x.dtype != torch.float32 or not x.is_contiguous()):
            raise ValueError(f"{name} must be contiguous float32 {sums}")
    buffers = Buffers.now(terms.engine or engine_of(q.device))
    forward = problem_for(tensors, out, options)
    kept = (*read.values(), *gradients)
    if not forward.has_keys:
        check_kind(forward, buffers.engine.machine)
        return Nothing(gradients, buffers)
    place = tensor_layout if options.longest is None else packed_layout
    where: list[Layout] = [
        place(x, name) for name, x in zip(("dout", "dq", "dk", "dv"), (dout, *gradients), strict=True)
    ]
    scale = scale_of(options.scale, forward.head_dim)
    problem = BackwardProblem(forward, Gradients(*where), scale, lse.data_ptr(), 0 if dlse is None else dlse.data_ptr())
    cuda_driver().enter(buffers.engine.device.index)
    taken = way_for(problem, buffers.engine, terms.deterministic, terms.way)
    return Bound(taken.name, lambda made: taken.steps(problem, made), buffers, kept)


def way_for(problem: BackwardProblem, engine: Engine, deterministic: bool, way: str | None) -> BackwardWay:
    """The way that is named, else the first. Raises `Unsupported`."""
    there_are = backward_ways(problem, engine.machine)
    fitting = [
        one for one in there_are if (way is None or one.name.startswith(way)) and (one.same_bits or not deterministic)
    ]
    if not fitting:
        names = ", ".join(one.name for one in there_are)
        raise Unsupported(f"no way named {way!r} computes this backward pass; there are {names}")
    return fitting[0]


class Nothing(Bound):
    """A backward pass in which no row sees a key, or that has no rows: it writes zeros."""

    def __init__(self, gradients: tuple[torch.Tensor, ...], buffers: Buffers) -> None:
        super().__init__("nothing", lambda _: [], buffers, gradients)
        self.gradients = gradients

    def __call__(self) -> None:
        for gradient in self.gradients:
            gradient.zero_()


def sinks_gradient(
    dout: torch.Tensor,
    dlse: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    sinks: torch.Tensor,
    starts: torch.Tensor | None,
) -> torch.Tensor:
    """The gradient of sinks, from a call's results and their gradients; `starts` where sequences are packed."""
    made, slope = torch.empty_like(sinks), None if dlse is None else dlse.contiguous()
    with torch.cuda.device(sinks.device), torch.no_grad():
        of = Sinks.of(readable_gradient(dout), slope, out, lse, sinks, starts, made)
        cuda_driver().enter(engine_of(sinks.device).device.index)
        Bound("sinks", lambda _: [of.step], Buffers.now(engine_of(sinks.device)), of.kept)()
    return made


def bias_gradient(
    dout: torch.Tensor, dlse: torch.Tensor | None, out: torch.Tensor, lse: torch.Tensor, *given: Any
) -> torch.Tensor:
    """The gradient of a mask that is added to the scores, from a call's results and their gradients. `given`: q, k, v,
    the mask, slopes or None, and the options in the order of the operator."""
    q, k, v, mask, slopes, causal, scale, alignment, left, right, softcap, seed, dropout = given
    window = None if left == right == -1 else (left, right)
    named = {"q": q, "k": k, "v": v, "mask": mask, "slopes": slopes, "seed": seed}
    tensors = {name: x for name, x in named.items() if x is not None}
    options = Options(causal, scale, alignment, True, window, tuple(tensors), softcap=softcap, dropout=dropout)
    sizes = (*(1,) * (4 - mask.dim()), *mask.shape)
    made = torch.empty(*sizes[:2], q.shape[2], k.shape[2], dtype=torch.float32, device=q.device)
    with torch.cuda.device(q.device), torch.no_grad():
        dout, slope = readable_gradient(dout), None if dlse is None else dlse.contiguous()
        bind_bias(tensors, out, lse, dout, made, options, slope)()
    return made.sum_to_size(sizes).view(mask.shape).to(mask.dtype)


def bind_bias(
    tensors: Mapping[str, torch.Tensor],
    out: torch.Tensor,
    lse: torch.Tensor,
    dout: torch.Tensor,
    made: torch.Tensor,
    options: Options,
    dlse: torch.Tensor | None = None,
) -> Bound:
    """The gradient of an added mask, bound; `made` is float32, [B or 1, H or 1, S_q, S_k]."""
    forward, buffers = problem_for(tensors, out, options), Buffers.now(engine_of(dout.device))
    if not forward.has_keys:
        return Nothing((made,), buffers)
    check_kind(forward, buffers.engine.machine)
    where = [tensor_layout(x, "a tensor") for x in (dout, *(tensors[name] for name in NAMES))]
    sums = 0 if dlse is None else dlse.data_ptr()
    problem = BackwardProblem(
        forward, Gradients(*where), scale_of(options.scale, forward.head_dim), lse.data_ptr(), sums
    )
    place = tensor_layout(made, "the mask's gradient")
    cuda_driver().enter(buffers.engine.device.index)
    way = PairBackward(buffers.engine.machine)
    kept = (*tensors.values(), out, lse, dout, made, dlse)
    return Bound("bias", lambda of: way.bias_steps(problem, place, of), buffers, kept)


@dataclass(frozen=True, slots=True)
class Sinks:
    """The launch for the gradient of sinks, and the tensors that it needs."""

    step: Step
    kept: tuple[torch.Tensor | None, ...]

    @classmethod
    def of(
        cls,
        dout: torch.Tensor,
        dlse: torch.Tensor | None,
        out: torch.Tensor,
        lse: torch.Tensor,
        sinks: torch.Tensor,
        starts: torch.Tensor | None,
        made: torch.Tensor,
    ) -> Sinks:
        packed, place = starts is not None, tensor_layout if starts is None else packed_layout
        at = {"out": place(out, "out"), "dout": place(dout, "dout")}
        heads, rows = (out.shape[1], out.shape[0]) if packed else (out.shape[1], out.shape[2])
        parameters = BackwardParameters(
            **{name: one.address for name, one in at.items()},
            **{f"at_{name}": layout_strides(one) for name, one in at.items()},
            lse=lse.data_ptr(),
            dlse=0 if dlse is None else dlse.data_ptr(),
            q_starts=0 if starts is None else starts.data_ptr(),
            sinks=sinks.data_ptr(),
            dsinks=made.data_ptr(),
            heads=Divisor.of(heads),
            all_heads=heads * (1 if packed else out.shape[0]),
            items=0 if starts is None else starts.shape[0] - 1,
            seq_q=rows,
            value_dim=out.shape[-1],
        )
        vector = out.shape[-1] % 8 == 0 and all(one.is_vector for one in at.values())
        kernel = SinksBackwardKernel(DTYPE_NAMES[out.dtype], wide_padded(out.shape[-1]), vector)
        return cls(Step(kernel, (heads, 1, 1), (parameters,)), (dout, dlse, out, lse, sinks, starts, made))
