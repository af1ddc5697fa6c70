"""Attention for autograd: the backward operators of the operators, and the function that connects the two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from kernels.attention.cuda.calls.quick import QKV, Options
from kernels.attention.cuda.calls.registered import SHAPED, SHAPED_ARGUMENTS, Pair, library, sides_window, split_shaped
from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.plan import inputs

Three = tuple[Tensor, Tensor, Tensor]
SAVED = "Tensor dout, Tensor? dlse, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v"
OPTIONS = "bool causal, float scale, str alignment, int left, int right"
library.define(f"attention_backward({SAVED}, {OPTIONS}, Tensor? mask) -> (Tensor, Tensor, Tensor)")
library.define(
    f"attention_varlen_backward({SAVED}, Tensor q_starts, Tensor k_starts, int longest_q, int longest_k, {OPTIONS}) "
    "-> (Tensor, Tensor, Tensor)"
)
library.define(
    f"attention_shaped_backward(Tensor dout, Tensor? dlse, Tensor out, Tensor lse, {SHAPED_ARGUMENTS}) "
    "-> (Tensor, Tensor, Tensor)"
)
library.define(
    "attention_sinks_backward(Tensor dout, Tensor? dlse, Tensor out, Tensor lse, Tensor sinks, Tensor? q_starts) "
    "-> Tensor"
)
library.define(
    "attention_bias_backward(Tensor dout, Tensor? dlse, Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, "
    f"Tensor mask, Tensor? slopes, {OPTIONS}, float softcap, Tensor? seed, float dropout) -> Tensor"
)
NAMES = {
    "attention": (*QKV, "mask"),
    "attention_varlen": (*QKV, "q_starts", "k_starts"),
    "attention_shaped": SHAPED,
}
"""The operators with the names of their tensors, which are the first arguments, or the mask the last of all."""


Backward = Callable[[dict[str, Tensor], Tensor, Tensor, Tensor, Options, Tensor | None], Three]
"""`QuickBackward`: dQ, dK and dV from the named tensors, out, lse, dout, the options and dlse."""


def named_tensors(name: str, given: tuple[Any, ...]) -> dict[str, Tensor]:
    """An operator's tensors by their names."""
    if name == "attention_shaped":
        return {of: x for of, x in zip(SHAPED, given, strict=False) if x is not None}
    tensors = [x for x in given if isinstance(x, Tensor)]
    return dict(zip(NAMES[name], tensors, strict=False))


class Differentiable(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """An operator, by its name, and the operator that computes its gradients."""

    @staticmethod
    def forward(ctx: Any, name: str, *given: Any) -> Pair:
        """The operator's two results, both of which may be differentiated."""
        with torch._C._AutoDispatchBelowAutograd():
            out, lse = getattr(torch.ops.spotbench, name).default(*given)
        ctx.name = name
        ctx.places = [place for place, x in enumerate(given) if isinstance(x, Tensor)]
        ctx.rest = [None if isinstance(x, Tensor) else x for x in given]
        ctx.save_for_backward(out, lse, *(given[place] for place in ctx.places))
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor | None) -> Any:
        """The gradient of each argument of `forward`, None where there is none."""
        out, lse, *saved = ctx.saved_tensors
        given = list(ctx.rest)
        for place, x in zip(ctx.places, saved, strict=True):
            given[place] = x
        dout, dlse = slopes
        dout = torch.zeros_like(out) if dout is None else dout
        operator = getattr(torch.ops.spotbench, f"{ctx.name}_backward").default
        gradients = operator(dout, dlse, out, lse, *given)
        wanted = [x if needed else None for x, needed in zip(gradients, ctx.needs_input_grad[1:4], strict=True)]
        no_gradients: list[Tensor | None] = [None] * (len(given) - len(wanted))
        place = {"attention": 8, "attention_shaped": SHAPED.index("mask")}.get(ctx.name)
        if place is not None and ctx.needs_input_grad[1 + place]:
            no_gradients[place - len(wanted)] = bias_of(ctx.name, given, (dout, dlse, out, lse))
        sinks = named_tensors(ctx.name, tuple(given)).get("sinks")
        if sinks is not None and ctx.needs_input_grad[1 + SHAPED.index("sinks")]:
            starts = given[SHAPED.index("q_starts")]
            made = torch.ops.spotbench.attention_sinks_backward(dout, dlse, out, lse, sinks, starts)
            no_gradients[SHAPED.index("sinks") - len(wanted)] = made
        return None, *wanted, *no_gradients


def bias_of(name: str, given: Sequence[Any], results: tuple[Tensor | None, ...]) -> Tensor:
    """The gradient of the mask of an operator's arguments; `results`: dout, dlse, out and lse."""
    if name == "attention":
        *options, mask = given[3:]
        rest = (mask, None, *options, 0.0, None, 0.0)
    else:
        first = len(SHAPED) + 2
        rest = (*given[5:7], *given[first : first + 6], given[SHAPED.index("seed")], given[-1])
    made: Tensor = torch.ops.spotbench.attention_bias_backward(*results, *given[:3], *rest)
    return made


def differentiable_function(name: str) -> Callable[..., Pair]:
    """The function that is registered with autograd for an operator."""

    def run(*given: Any) -> Pair:
        tensors = named_tensors(name, given)
        inputs.refuse_tangents(tensors)
        wanting = inputs.wanting_gradient(tensors)
        differentiable = set() if "k_scale" in tensors else {*QKV, "sinks", "mask"}
        if not set(wanting) <= differentiable:
            inputs.refuse_derivatives({key: x for key, x in tensors.items() if key not in differentiable})
        if wanting:
            pair: Pair = Differentiable.apply(name, *given)
        else:
            with torch._C._AutoDispatchBelowAutograd():
                pair = getattr(torch.ops.spotbench, name).default(*given)
        return pair

    return run


def once_differentiable(name: str) -> Callable[..., Three]:
    """The function that is registered with autograd for a backward operator; it has no second derivative."""

    def run(*given: Any) -> Three:
        tensors = {f"input {place}": x for place, x in enumerate(given) if isinstance(x, Tensor)}
        inputs.refuse_tangents(tensors)
        if inputs.wanting_gradient(tensors):
            raise Unsupported(
                "attention's gradients have no derivative of their own (a second backward pass): "
                "call autograd without create_graph=True, or differentiate PyTorch's math backend"
            )
        with torch._C._AutoDispatchBelowAutograd():
            three: Three = getattr(torch.ops.spotbench, name).default(*given)
        return three

    return run


def kernels_of(compute: Backward) -> dict[str, Callable[..., Three]]:
    """The backward operators' kernels by the operators' names, each called with the operator's arguments in order."""

    def attention_backward(dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor, *given: Any) -> Three:
        q, k, v, causal, scale, alignment, left, right, mask = given
        tensors = {"q": q, "k": k, "v": v} | ({} if mask is None else {"mask": mask})
        options = Options(causal, scale, alignment, True, sides_window(left, right), tuple(tensors))
        return run(tensors, out, lse, dout, dlse, options)

    def attention_varlen_backward(dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor, *given: Any) -> Three:
        *packed, longest_q, longest_k, causal, scale, alignment, left, right = given
        tensors = dict(zip(NAMES["attention_varlen"], packed, strict=True))
        options = Options(
            causal, scale, alignment, True, sides_window(left, right), tuple(tensors), (longest_q, longest_k)
        )
        return run(tensors, out, lse, dout, dlse, options)

    def attention_shaped_backward(dout: Tensor, dlse: Tensor | None, out: Tensor, lse: Tensor, *given: Any) -> Three:
        tensors, options = split_shaped(given)
        tensors.pop("sinks", None)  # the log-sum-exps hold all that the other gradients need of them
        return run(tensors, out, lse, dout, dlse, options._replace(names=tuple(tensors)))

    def run(
        tensors: dict[str, Tensor],
        out: Tensor,
        lse: Tensor,
        dout: Tensor,
        dlse: Tensor | None,
        options: Options,
    ) -> Three:
        plain = {name: inputs.plain_tensor(x) for name, x in tensors.items()}
        slope = None if dlse is None else inputs.plain_tensor(dlse)
        out, lse, dout = (inputs.plain_tensor(x) for x in (out, lse, dout))
        return compute(plain, out, lse, dout, options, slope)

    return {
        "attention_backward": attention_backward,
        "attention_varlen_backward": attention_varlen_backward,
        "attention_shaped_backward": attention_shaped_backward,
    }


def gradient_shapes(*given: Any) -> Three:
    """What a backward operator returns, without its contents: q, k and v follow dout, dlse, out and lse."""
    q, k, v = given[4:7]
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def shape_of_sinks(*given: Any) -> Tensor:
    """What the gradient of sinks is like."""
    return torch.empty_like(given[4])


def shape_of_bias(*given: Any) -> Tensor:
    """What the gradient of a mask is like."""
    return torch.empty_like(given[7], memory_format=torch.contiguous_format)


def register_gradients(compute: Backward, sinks: Callable[..., Tensor], bias: Callable[..., Tensor]) -> None:
    """Registers the gradients of the operators with autograd, and their kernels with the dispatcher."""
    for name in NAMES:
        library.impl(name, differentiable_function(name), "Autograd")
    kernels: list[tuple[str, Callable[..., Any], Callable[..., Any]]]
    kernels = [(name, kernel, gradient_shapes) for name, kernel in kernels_of(compute).items()]
    kernels += [("attention_sinks_backward", sinks, shape_of_sinks), ("attention_bias_backward", bias, shape_of_bias)]
    for name, kernel, shapes in kernels:
        library.impl(name, kernel, "CUDA")
        library.impl(name, once_differentiable(name), "Autograd")
        torch.library.register_fake(f"spotbench::{name}", shapes, lib=library)
