"""Calls that want gradients, by Python or by the compiled function, with a driver that only takes notes."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.attention.cuda.calls import native
from kernels.attention.cuda.calls.backward_quick import QuickBackward, Three
from kernels.attention.cuda.calls.binding import bind_call
from kernels.attention.cuda.calls.direct import differentiable_by
from kernels.attention.cuda.calls.native_plans import Native
from kernels.attention.cuda.calls.quick import Options, Quick
from kernels.attention.cuda.calls.registered import as_operator
from tests.kernels.cuda.stub_driver import OnCpu

SMALL, LONG = (2, 4, 64, 64), (2, 8, 1024, 64)
"""Sizes whose kernels have no state, and such whose kernels have a counter."""


class Watching(TorchDispatchMode):
    """Notes which operators it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Counted:
    """`Quick` with gradients, and how often it went the long way. `compiled`: by the function in C++."""

    def __init__(self, engine: OnCpu, *, compiled: bool) -> None:
        self.engine, self.prepared, self.operators, self.passes = engine, 0, 0, 0
        self.quick = Quick(bind_call, lambda device: engine, self.by_operator)
        self.backward = QuickBackward(lambda device: engine)
        self.native = Native(lambda device: engine, self.compute, self.stream_function()) if compiled else None
        make = differentiable_by(self.quick, self.compute, self.native and self.native.call)

        def differentiate(tensors: tuple[torch.Tensor, ...], options: Options) -> Any:
            self.prepared += 1
            return make(tensors, options)

        self.quick.differentiate = differentiate

    def stream_function(self) -> int:
        """The address of a C function that says what the engine's host says."""

        @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
        def current(device: int, stream: Any) -> int:
            stream[0] = self.engine.host.stream
            return 0

        self.current = current
        return native.address_of(current)

    def compute(self, given: tuple[torch.Tensor, ...], options: Options) -> Three:
        self.passes += 1
        return self.backward.compute(given, options)

    def by_operator(self, tensors: dict[str, torch.Tensor], options: Options) -> Any:
        self.operators += 1
        return as_operator(tensors, options)

    def __call__(self, *tensors: torch.Tensor, lse: bool = False) -> Any:
        return self.quick.attention(*tensors, True, None, "top-left", lse)  # type: ignore[call-arg]


def draw(shape: tuple[int, ...] = SMALL, wants: str = "qkv") -> list[torch.Tensor]:
    return [torch.randn(shape).bfloat16().requires_grad_(name in wants) for name in "qkv"]
