"""Attention with gradients where nobody watches: autograd's own function, without the dispatcher's ways through Python.

Whatever must see operators (torch.compile, tracing, modes, subclasses, a second derivative) gets them, by `gradients`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol

import torch

from kernels.attention.cuda.gradients import Three
from kernels.attention.cuda.quick import Answer, Options, listening
from kernels.attention.cuda.registered import Pair, operator_arguments

Launch = Callable[[tuple[torch.Tensor, ...], Options], Answer]
"""`Quick.launch`."""


class Compute(Protocol):
    """`QuickBackward.compute`."""

    def __call__(self, given: tuple[torch.Tensor, ...], options: Options) -> Three: ...


class Direct(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """Launches at once, and at once again for the gradients."""

    @staticmethod
    def forward(ctx: Any, launch: Launch, compute: Compute, options: Options, *tensors: torch.Tensor) -> Pair:
        """The output and the log-sum-exp, both of which may be differentiated."""
        out, lse = launch(tensors, options)
        ctx.compute, ctx.options = compute, options
        ctx.save_for_backward(*tensors, out, lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor | None, dlse: torch.Tensor | None) -> Any:
        """For each of `forward`'s arguments its gradient, None for those that have none."""
        saved, options = ctx.saved_tensors, ctx.options
        dout = torch.zeros_like(saved[-2]) if dout is None else dout
        if torch.is_grad_enabled() or listening() or type(dout) is not torch.Tensor:
            found = by_operator(saved, dout, dlse, options)
        else:
            found = ctx.compute((*saved, dout) if dlse is None else (*saved, dout, dlse), options)
        wanted = [x if needed else None for x, needed in zip(found, ctx.needs_input_grad[3:6], strict=True)]
        return None, None, None, *wanted, *[None] * (len(saved) - 5)


def by_operator(
    saved: tuple[torch.Tensor, ...], dout: torch.Tensor, dlse: torch.Tensor | None, options: Options
) -> Three:
    """The same gradients, or the same refusal, where somebody watches."""
    *tensors, out, lse = saved
    name, given = operator_arguments(dict(zip(options.names, tensors, strict=True)), options)
    three: Three = getattr(torch.ops.spotbench, f"{name}_backward")(dout, dlse, out, lse, *given)
    return three


@lru_cache
def with_lse(options: Options) -> Options:
    """The backward pass needs the log-sum-exp whether or not the caller wants it."""
    return options._replace(return_lse=True)


def differentiable_by(launch: Launch, compute: Compute) -> Launch:
    """Any call whose q, k or v want a gradient, now; nobody watches."""

    def attention(tensors: tuple[torch.Tensor, ...], options: Options) -> Answer:
        pair: Pair = Direct.apply(launch, compute, with_lse(options), *tensors)
        return pair if options.return_lse else pair[0]

    return attention
