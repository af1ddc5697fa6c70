"""Attention with gradients by a function of autograd, without the dispatcher's detours through Python.

It is used where nothing has to see operators. torch.compile, tracing, modes, subclasses and second derivatives do need
operators, and get them from `gradients`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

from kernels.attention.cuda.calls.gradients import Three, bias_of
from kernels.attention.cuda.calls.moving import Answer, Call
from kernels.attention.cuda.calls.quick import Options, listening
from kernels.attention.cuda.calls.registered import operator_arguments

Compute = Callable[[tuple[torch.Tensor, ...], Options], Three]
"""`QuickBackward.compute`."""


class Launcher(Protocol):
    """`Quick`."""

    def launch(self, tensors: tuple[torch.Tensor, ...], options: Options) -> Answer:
        """Launches now, and returns the output and the log-sum-exps."""

    def remembered(self, tensors: tuple[torch.Tensor, ...], options: Options) -> Call | None:
        """The function that launches calls like this one, if it is known."""


class Way:
    """How calls like one are computed and differentiated. `options` request the log-sum-exps, which the backward pass
    needs; `pair` says whether the caller wants them too. `known` launches without checking the tensors again, which the
    caller has compared; it belongs to one thread, as plans do."""

    __slots__ = ("compute", "known", "launcher", "nothing", "options", "pair", "sinks")

    def __init__(self, launcher: Launcher, compute: Compute, options: Options) -> None:
        self.launcher, self.compute, self.pair = launcher, compute, options.return_lse
        self.options = options._replace(return_lse=True)
        self.sinks = options.names.index("sinks") if "sinks" in options.names else 0
        self.nothing: tuple[None, ...] = (None,) * (len(options.names) - 3)
        self.known: Call | None = None

    def launch(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        """The output and the log-sum-exps."""
        answer = self.launcher.launch(tensors, self.options)
        self.known = self.launcher.remembered(tensors, self.options)
        return answer


class Direct(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """The function of autograd: it launches directly, for the output and for the gradients."""

    @staticmethod
    def forward(ctx: Any, way: Way, *tensors: torch.Tensor) -> Answer:
        """The output and, if it is wanted, the log-sum-exp; both may be differentiated."""
        known_way = way.known
        found: Any = None if known_way is None else known_way(*tensors)
        out, lse = way.launch(tensors) if found is None else found
        ctx.way = way
        ctx.save_for_backward(*tensors, out, lse)
        ctx.set_materialize_grads(False)
        return (out, lse) if way.pair else out

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None = None) -> Any:
        """The gradient of each argument of `forward`, None where there is none. Autograd drops those that are not
        needed."""
        way, saved = ctx.way, ctx.saved_tensors
        dout = torch.zeros_like(saved[-2]) if dout is None else dout
        options, nothing = way.options, way.nothing
        place = options.names.index("mask") if "mask" in options.names else 0
        if place and ctx.needs_input_grad[1 + place]:
            *tensors, out, lse = saved
            name, given = operator_arguments(dict(zip(options.names, tensors, strict=True)), options)
            dmask = bias_of(name, given, (dout, dlse, out, lse))
            nothing = (*nothing[: place - 3], dmask, *nothing[place - 2 :])
        if way.sinks:  # the log-sum-exps hold all that the other gradients need of them
            *tensors, out, lse = saved
            starts = tensors[options.names.index("q_starts")] if "q_starts" in options.names else None
            dsinks = torch.ops.spotbench.attention_sinks_backward(dout, dlse, out, lse, tensors[way.sinks], starts)
            saved = (*tensors[: way.sinks], *tensors[way.sinks + 1 :], out, lse)
            options = options._replace(names=tuple(name for name in options.names if name != "sinks"))
            nothing = (*nothing[: way.sinks - 3], dsinks, *nothing[way.sinks - 2 :])
        if torch.is_grad_enabled() or listening() or type(dout) is not torch.Tensor:
            gradients = by_operator(saved, dout, dlse, options)
        else:
            gradients = way.compute((*saved, dout) if dlse is None else (*saved, dout, dlse), options)
        return None, *gradients, *nothing


def by_operator(
    saved: tuple[torch.Tensor, ...], dout: torch.Tensor, dlse: torch.Tensor | None, options: Options
) -> Three:
    """The same gradients, or the same refusal, by the operator, where something has to see it."""
    *tensors, out, lse = saved
    name, given = operator_arguments(dict(zip(options.names, tensors, strict=True)), options)
    three: Three = getattr(torch.ops.spotbench, f"{name}_backward")(dout, dlse, out, lse, *given)
    return three


apply: Callable[..., Answer] = super(torch.autograd.Function, Direct).apply
"""`Direct.apply` without its check for functorch's transforms, which the caller has excluded."""


Compiled = Callable[[tuple[torch.Tensor, ...], Options, Callable[..., Answer]], Callable[..., Answer] | None]
"""`Native.call`: returns the function that computes calls like this one, with the help of Python; None for calls that
are not compiled."""


def differentiable_by(
    launcher: Launcher, compute: Compute, compiled: Compiled | None = None
) -> Callable[[tuple[torch.Tensor, ...], Options], Callable[..., Answer]]:
    """A function that returns, for tensors and options, the function for calls like these whose q, k or v want a
    gradient and whose operators nothing has to see. Each result belongs to the thread that it was made for."""

    def make(tensors: tuple[torch.Tensor, ...], options: Options) -> Callable[..., Answer]:
        by_python = partial(apply, Way(launcher, compute, options))
        return (compiled and compiled(tensors, options, by_python)) or by_python

    return make
