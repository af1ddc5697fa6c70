"""Checks which tensors can be used at all, before anything else is checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from kernels.attention.cuda.errors import Unsupported

PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
is_transformed: Any = getattr(torch._C._functorch, "is_functorch_wrapped_tensor", lambda _: False)
"""Whether a tensor stands for others within torch.func.vmap, grad or jvp: it has no memory of its own."""


def refuse_tensors(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises TypeError for anything but a tensor, and `Unsupported` for a tensor whose memory does not simply hold its
    elements, or that wants a derivative."""
    refuse_strange(tensors)
    refuse_derivatives(tensors)


def refuse_strange(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises TypeError for anything but a tensor, `Unsupported` if its memory does not simply hold its elements."""
    for name, x in tensors.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, not {type(x).__name__}: q, k and v must be tensors")
        if is_transformed(x):
            raise Unsupported(f"{name} is inside torch.func.vmap, grad or jvp, which these kernels do not support")
        if x.layout != torch.strided or x.is_nested:
            kind = "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
            raise Unsupported(f"{name} must be a dense tensor, not a {kind} one")
        if x.is_neg():
            raise Unsupported(f"{name} is a view that negates when it is read: pass {name}.resolve_neg()")


def wanting_gradient(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """The names of the tensors that want a gradient now."""
    return [name for name, x in tensors.items() if x.requires_grad] if torch.is_grad_enabled() else []


def refuse_derivatives(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises `Unsupported` where a result would need a derivative and cannot have one."""
    wants = wanting_gradient(tensors)
    if wants:
        raise Unsupported(
            f"there is no gradient of {', '.join(wants)}: bound calls, out=, engine=, slopes, paged caches, float8 and "
            "second derivatives have no backward pass. Detach the tensors, or call this under torch.no_grad()"
        )
    refuse_tangents(tensors)


def refuse_tangents(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises `Unsupported` for dual tensors of forward-mode differentiation."""
    if has_tangents(tensors.values()):
        raise Unsupported("there is no forward-mode derivative: the inputs must not be dual tensors")


def has_tangents(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether any is a dual tensor of forward-mode differentiation."""
    within: bool = forward_ad._current_level >= 0
    return within and any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)


def plain_tensor(x: torch.Tensor) -> torch.Tensor:
    """A tensor as PyTorch's own class. Raises `Unsupported` for a subclass that computes its operators itself."""
    if type(x) in PLAIN_TYPES:
        return x
    if type(x).__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl:
        problem_text = "computes its operators itself, so its memory may not hold its elements"
        raise Unsupported(f"a {type(x).__name__} {problem_text}: pass a plain torch.Tensor")
    with torch._C.DisableTorchFunctionSubclass():
        return x.as_subclass(torch.Tensor)


def refuse_overlaps(out: torch.Tensor, others: Mapping[str, torch.Tensor]) -> None:
    """Raises `Unsupported` where elements of `out` share memory with each other or with an input's."""
    if overlaps_itself(out):
        raise Unsupported(f"elements of out share memory: sizes {tuple(out.shape)}, strides {out.stride()}")
    for name, x in others.items():
        if x.numel() and out.numel() and may_share(out, x):
            raise Unsupported(f"out and {name} share memory, so results would overwrite inputs: pass another out")


def overlaps_itself(x: torch.Tensor) -> bool:
    """Whether two elements of a tensor may be at the same address."""
    return x.numel() > 0 and not strides_nest(x.shape, x.stride())


def strides_nest(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether each stride is larger than the reach of all smaller ones, so that no two elements are at the same
    address."""
    reach = 0
    for stride, size in sorted((stride, size) for stride, size in zip(strides, sizes, strict=True) if size > 1):
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def memory_span(x: torch.Tensor) -> tuple[int, int]:
    """The address of the first byte of a tensor, and the address after its last byte."""
    length = 1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + length * x.element_size()


def may_share(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have a byte in common. Exact for those laid out alike (views into one packed tensor); where
    layouts differ, tensors that only interleave count as sharing."""
    (a_from, a_to), (b_from, b_to) = memory_span(a), memory_span(b)
    if a_to <= b_from or b_to <= a_from:
        return False
    apart = b_from - a_from
    if a.stride() != b.stride() or a.element_size() != b.element_size() or apart % a.element_size():
        return True
    return elements_meet(apart // a.element_size(), a, b)


def elements_meet(apart: int, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether elements of tensors of the same strides meet, the second starting so many elements behind the first.

    Where the strides nest, the smaller ones reach less than one step of the larger, whose count is then one of two.
    """
    sizes = [max(pair) for pair in zip(a.shape, b.shape, strict=True)]
    if not strides_nest(sizes, a.stride()):
        return True
    distances = {apart}
    for stride, of_a, of_b in sorted(zip(a.stride(), a.shape, b.shape, strict=True), reverse=True):
        if max(of_a, of_b) > 1:
            counts = ((rest, count) for rest in distances for count in (rest // stride, rest // stride + 1))
            distances = {rest - count * stride for rest, count in counts if -of_b < count < of_a}
    return 0 in distances
