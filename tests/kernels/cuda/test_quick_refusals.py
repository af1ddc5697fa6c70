"""Which calls are not remembered, and what bad input raises."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from kernels.attention.cuda.calls.quick import Quick
from kernels.attention.cuda.errors import CudaError, Unsupported
from kernels.attention.cuda.operator import attention
from tests.kernels.cuda import quick_calls
from tests.kernels.cuda.quick_calls import call, draw
from tests.kernels.cuda.stub_driver import WITH_STUB, Stub

pytestmark = WITH_STUB
engine = quick_calls.engine


def test_a_refused_launch_is_an_error_and_the_next_one_is_not(stub: Stub, quick: Quick) -> None:
    tensors = draw(1, 2, 64, 64)
    call(quick, tensors)
    stub.library.stub_fail_next(701)
    with pytest.raises(CudaError, match="too many resources"):
        call(quick, tensors)
    before = stub.launches
    call(quick, tensors)
    assert stub.launches == before + 1


def test_bad_input_raises_what_it_always_raised(stub: Stub, quick: Quick) -> None:
    q, k, v = draw(1, 2, 64, 64)
    for _ in range(2):
        with pytest.raises(TypeError, match="must be tensors"):
            call(quick, [q, None, v])  # type: ignore[list-item]
        with pytest.raises(ValueError, match="do not fit"):
            call(quick, [q, k[:, :, :3], v])
        with pytest.raises(ValueError, match="causal_alignment"):
            call(quick, [q, k, v], alignment="middle")
        with pytest.raises(Unsupported, match="scale"):
            call(quick, [q, k, v], scale=math.nan)
        with pytest.raises(Unsupported, match="float32"):
            call(quick, [q.float(), k.float(), v.float()])
        call(quick, [q, k, v])


def test_fake_tensors_and_listening_modes_get_the_operator(stub: Stub, quick: Quick) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    tensors = draw(1, 2, 64, 64)
    call(quick, tensors)
    before = stub.launches
    with FakeTensorMode() as mode:
        faked = [mode.from_tensor(x) for x in tensors]
        out, lse = call(quick, faked, lse=True)
    assert (tuple(out.shape), tuple(lse.shape)) == ((1, 2, 64, 64), (1, 2, 64))
    assert stub.launches == before

    class Seen(TorchDispatchMode):
        names: list[str] = []  # noqa: RUF012

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(str(func))
            return tuple(torch.empty(()) for _ in range(2))

    with Seen():
        call(quick, tensors)
    assert Seen.names == ["spotbench.attention.default"]


def test_under_the_compiler_the_call_is_the_operator() -> None:
    names: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        names.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return lambda *given: (given[0],)

    compiled = torch.compile(lambda q, k, v: attention(q, k, v, causal=True), backend=backend, fullgraph=True)
    compiled(*draw(1, 2, 16, 64))
    assert any("spotbench.attention" in name for name in names)
