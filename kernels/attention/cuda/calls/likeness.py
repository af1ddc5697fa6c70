"""Checks whether a call's tensors are like those of an earlier call: types, sizes, strides, devices, gradients."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch

Check = Callable[..., bool]
"""A function that takes a call's tensors and returns whether they are like those of the plan."""


def key_of(*tensors: torch.Tensor) -> tuple[object, ...]:
    """Everything that a plan depends on, but its options and the remainders of the addresses."""
    return tuple((type(x), x.dtype, x.device, x.shape, x.stride(), x.requires_grad) for x in tensors)


def check_by_key(*tensors: torch.Tensor) -> Check:
    """A check in Python whether other tensors are like these, and none of them wants a gradient now."""
    key = key_of(*tensors)
    if any(x.requires_grad for x in tensors):
        return lambda *given: not torch.is_grad_enabled() and key_of(*given) == key
    return lambda *given: key_of(*given) == key


def check_by_guard(*tensors: torch.Tensor) -> Check:
    """The same by the guard that torch.compile puts before its graphs: in C++, and several times as fast.

    It also looks at what a tensor is dispatched by (inference mode, autocast, functorch), so a plan is kept for each.
    """
    check = guard_of(*tensors)
    if any(x.requires_grad for x in tensors):
        return lambda *given: not torch.is_grad_enabled() and check(*given)
    return check


def guard_of(*tensors: torch.Tensor) -> Check:
    """The guard of torch.compile. Tensors that are one tensor here must be one tensor in other calls too, and others
    not.

    It does not check whether gradients are enabled.
    """
    first = {id(x): place for place, x in reversed(list(enumerate(tensors)))}
    again = [(first[id(x)], place) for place, x in enumerate(tensors) if first[id(x)] != place]
    if not again:
        return guard_of_different(*tensors)
    places = sorted(first.values())
    check = guard_of_different(*(tensors[place] for place in places))
    if len(again) == 1 and len(places) > 1:
        (first_place, other), pick = again[0], itemgetter(*places)
        return lambda *given: given[first_place] is given[other] and check(*pick(given))
    return lambda *given: all(given[a] is given[b] for a, b in again) and check(*[given[place] for place in places])


def guard_of_different(*tensors: torch.Tensor) -> Check:
    """The plain guard of torch.compile, which never accepts one tensor that is given twice."""
    from torch._C._dynamo.guards import TensorGuards

    guards: Any = TensorGuards  # its stub is older than it is
    check: Check = guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check


def find_checker() -> Callable[..., Check]:
    """The check by the guard, if this PyTorch has it and it works, else the comparison in Python."""
    return check_by_guard if guard_works() else check_by_key


def find_guard() -> Callable[..., Check]:
    """The same check for callers that check by themselves whether gradients are enabled."""
    return guard_of if guard_works() else check_by_key


def guard_works() -> bool:
    """Whether torch.compile's guard works as needed."""
    a, b, c, d, e, f = (torch.empty(1, 2, 3, 4) for _ in range(6))
    longer, transposed = torch.empty(1, 2, 5, 4), torch.empty(1, 3, 2, 4).transpose(1, 2)
    try:
        check = check_by_guard(a, b, c)
        tells = [check(*given) for given in ((d, e, f), (d, e, longer), (d, transposed, f), (d.half(), e, f))]
    except Exception:
        return False
    return [bool(one) for one in tells] == [True, False, False, False]
