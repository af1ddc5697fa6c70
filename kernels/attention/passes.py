"""Backward passes, alone and after their forward passes, as the harness calls them: ours and PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from kernels.attention import correctness
from kernels.attention.baseline import Sdpa, dispatched_backend, refusal_reason
from kernels.attention.case import Case
from kernels.attention.interface import Unavailable
from kernels.attention.problem import Inputs
from kernels.harness.workload import Call

Tensors = tuple[torch.Tensor, ...]
Gradients = Callable[[], Tensors]


def bind_output(case: Case, inputs: Inputs, engine: Any, lse: torch.Tensor | None) -> tuple[Any, torch.Tensor]:
    """Our forward pass on CUDA tensors, and the output that it writes. Raises `Unavailable`."""
    from kernels.attention.cuda.calls.binding import bind_attention

    q, s = inputs.q, case.shape
    out = q.new_full((*q.shape[:-1], s.width), torch.nan)
    window = (s.window - 1, 0) if s.window else None
    terms: Any = {"causal": s.causal, "window": window, "lse": lse, "sinks": inputs.sinks, "engine": engine}
    terms |= {"dropout_p": s.dropout, "dropout_seed": inputs.seed}
    return bind_attention(q, inputs.k, inputs.v, out, **terms), out


def our_output(case: Case, inputs: Inputs, engine: Any, *, lse: bool = False) -> Call:
    """Our forward pass on CUDA tensors, with the log-sum-exps if they are wanted. Raises `Unavailable`."""
    q = inputs.q
    bound, out = bind_output(case, inputs, engine, torch.full(q.shape[:3], torch.nan, device=q.device) if lse else None)

    def call() -> torch.Tensor:
        bound()
        return out

    return Call(bound.kernels, call, poisoned=partial(correctness.poison_memory, q, through_torch=True))


def our_call(case: Case, inputs: Inputs, engine: Any) -> Call:
    """Our kernels on CUDA tensors; each launch is bound to its own memory. Raises `Unavailable`."""
    from kernels.attention.cuda.calls.backward import bind_backward, sinks_gradient
    from kernels.attention.cuda.calls.quick import Options

    q, k, v, sinks, s = inputs.q, inputs.k, inputs.v, inputs.sinks, case.shape
    lse = torch.full(q.shape[:3], torch.nan, device=q.device)
    forward, out = bind_output(case, inputs, engine, lse)
    forward()
    gradients = (torch.full_like(q, torch.nan), torch.full_like(k, torch.nan), torch.full_like(v, torch.nan))
    tensors = {"q": q, "k": k, "v": v} | ({} if inputs.seed is None else {"seed": inputs.seed})
    deterministic = torch.are_deterministic_algorithms_enabled()
    options = Options(s.causal, window=(s.window - 1, 0) if s.window else None, dropout=s.dropout)
    bound = bind_backward(
        tensors, out, lse, inputs.slope, gradients, options, engine=engine, deterministic=deterministic
    )

    def backward() -> Tensors:
        bound()
        if sinks is None:
            return gradients
        return (*gradients, sinks_gradient(inputs.slope, None, out, lse, sinks, None))

    def both() -> Tensors:
        forward()
        return (out, *backward())

    poisoned = partial(correctness.poison_memory, q, through_torch=True)
    if case.direction == "backward":
        return Call(bound.kernels, backward, poisoned=poisoned)
    return Call(f"{forward.kernels}+{bound.kernels}", both, poisoned=poisoned)


def baseline_call(sdpa: Sdpa, case: Case, inputs: Inputs) -> Call:
    """PyTorch's passes, pinned to a backend or to none. Raises `Unavailable` with PyTorch's reason."""
    with torch.inference_mode(False), torch.enable_grad(), sdpa.scope():
        inputs_copy = Inputs(*(x.clone() for x in (inputs.q, inputs.k, inputs.v, inputs.slope)))
        try:
            ran = sdpa.pinned if case.direction == "both" else ran_by(sdpa.pinned, inputs_copy, case)
            plan = both_passes(inputs_copy, case) if case.direction == "both" else backward_of(ran, inputs_copy, case)
            plan()
        except torch.OutOfMemoryError as exc:
            raise Unavailable(f"{sdpa.pinned}: out of memory") from exc
        except (RuntimeError, NotImplementedError, TypeError) as exc:
            raise Unavailable(f"{sdpa.pinned}: {refusal_reason(sdpa.pinned, str(exc), [])}") from exc
    poisoned = partial(correctness.poison_memory, inputs.q, through_torch=False)
    name = sdpa.pinned if ran == sdpa.pinned else f"{sdpa.pinned}:{ran}"
    return Call(name, plan, sdpa.scope, poisoned)


def ran_by(pinned: str, given: Inputs, case: Case) -> str:
    """The pinned backend; without one, the backend that PyTorch uses on a GPU, or `default` where that is not known.
    The backend's operator can be captured in a graph, while autograd's call of it, on another stream, cannot."""
    if pinned != "default" or given.q.device.type != "cuda":
        return pinned
    q, k, v = (x.detach().requires_grad_() for x in (given.q, given.k, given.v))
    return dispatched_backend(lambda: output_with_graph(Inputs(q, k, v), case)) or pinned


def output_with_graph(given: Inputs, case: Case) -> torch.Tensor:
    """PyTorch's output, with its autograd graph."""
    shared = case.shape.heads != case.shape.kv_heads
    attention = torch.nn.functional.scaled_dot_product_attention
    out: torch.Tensor = attention(given.q, given.k, given.v, is_causal=case.shape.causal, enable_gqa=shared)
    return out


def both_passes(given: Inputs, case: Case) -> Gradients:
    """A forward and a backward pass through autograd."""
    wanting = [x.requires_grad_() for x in (given.q, given.k, given.v)]

    def plan() -> Tensors:
        with torch.inference_mode(False), torch.enable_grad():
            out = output_with_graph(given, case)
            return (out.detach(), *torch.autograd.grad(out, wanting, given.slope))

    return plan


def backward_of(name: str, given: Inputs, case: Case) -> Gradients:
    """The backward operator of a backend, called on what its forward operator saved; without a pinned backend, a call
    of autograd."""
    operators = {"cudnn": cudnn_backward, "flash": flash_backward, "efficient": efficient_backward}
    if given.q.device.type == "cuda" and name in operators:
        return operators[name](given, case.shape.causal)
    wanting = [x.requires_grad_() for x in (given.q, given.k, given.v)]
    out = output_with_graph(given, case)

    def plan() -> Tensors:
        with torch.inference_mode(False):
            gradients: Tensors = torch.autograd.grad(out, wanting, given.slope, retain_graph=True)
        return gradients

    return plan


def cudnn_backward(given: Inputs, causal: bool) -> Gradients:
    aten: Any = torch.ops.aten
    tensors = (given.q, given.k, given.v)
    forward_outputs = aten._scaled_dot_product_cudnn_attention(*tensors, None, True, 0.0, causal, False)
    out, lse, starts_q, starts_k, longest_q, longest_k, seed, offset, _ = forward_outputs
    backward_inputs = (out, lse, seed, offset, None, starts_q, starts_k, longest_q, longest_k, 0.0, causal)
    operator = aten._scaled_dot_product_cudnn_attention_backward
    return lambda: tuple(operator(given.slope, *tensors, *backward_inputs)[:3])


def flash_backward(given: Inputs, causal: bool) -> Gradients:
    aten: Any = torch.ops.aten
    tensors = (given.q, given.k, given.v)
    forward_outputs = aten._scaled_dot_product_flash_attention(*tensors, 0.0, causal, False)
    out, lse, starts_q, starts_k, longest_q, longest_k, seed, offset, _ = forward_outputs
    backward_inputs = (out, lse, starts_q, starts_k, longest_q, longest_k, 0.0, causal, seed, offset)
    operator = aten._scaled_dot_product_flash_attention_backward
    return lambda: tuple(operator(given.slope, *tensors, *backward_inputs)[:3])


def efficient_backward(given: Inputs, causal: bool) -> Gradients:
    aten: Any = torch.ops.aten
    tensors = (given.q, given.k, given.v)
    out, lse, seed, offset = aten._scaled_dot_product_efficient_attention(*tensors, None, True, 0.0, causal)
    backward_inputs = (None, out, lse, seed, offset, 0.0, (True, True, True, False), causal)
    operator = aten._scaled_dot_product_efficient_attention_backward
    return lambda: tuple(operator(given.slope, *tensors, *backward_inputs)[:3])
