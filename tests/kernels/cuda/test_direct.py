"""Remembered calls that want gradients: what they launch, who sees them, and what autograd is owed all the same."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from typing import Any

import pytest
import torch

from kernels.attention.cuda.backward.kernels import BackwardParameters
from kernels.attention.cuda.calls.likeness import check_by_key
from kernels.attention.cuda.calls.quick import QKV, Options
from kernels.attention.cuda.errors import Unsupported
from kernels.attention.cuda.plan.parameters import Parameters
from kernels.attention.cuda.run.driver import TensorMap
from kernels.attention.cuda.ways.hopper_kernels import HopperParameters
from kernels.attention.cuda.ways.small import SmallParameters
from tests.kernels.cuda.counted import LONG, SMALL, Counted, draw
from tests.kernels.cuda.stub_driver import WITH_STUB, Launch, Map, OnCpu, Stub

pytestmark = WITH_STUB


@pytest.fixture(params=[False, True], ids=["python", "compiled"])
def ours(request: pytest.FixtureRequest, stub: Stub) -> Counted:
    found: Counted = (
        request.getfixturevalue("compiled") if request.param else Counted(OnCpu(hopper=True), compiled=False)
    )
    return found


def forward_of(launch: Launch) -> Any:
    """What a forward launch was given."""
    kinds = (HopperParameters, SmallParameters, Parameters)
    kind = next(one for one in kinds if launch.sizes[launch.count - 1] == ctypes.sizeof(one))
    return launch.argument(launch.count - 1, kind)


def backward_of(launch: Launch) -> BackwardParameters:
    found: BackwardParameters = launch.argument(launch.count - 1, BackwardParameters)
    return found


@pytest.mark.parametrize("shape", [SMALL, LONG])
@pytest.mark.parametrize("lse", [False, True])
def test_a_remembered_call_reads_its_own_tensors_and_so_does_its_backward_pass(
    stub: Stub, ours: Counted, shape: tuple[int, ...], lse: bool
) -> None:
    for _ in range(4):
        tensors, slope = draw(shape), torch.randn(shape).bfloat16()
        before = stub.launches
        answer = ours(*tensors, lse=lse)
        assert isinstance(answer, tuple) == lse
        out = answer[0] if lse else answer
        first = backward = stub.launches
        given = forward_of(stub.launch(before))
        assert (given.out, bool(given.lse)) == (out.data_ptr(), True)
        if lse:
            assert given.lse == answer[1].data_ptr()
        made = torch.autograd.grad(out, tensors, slope)
        for number in range(first, stub.launches):
            passed = backward_of(stub.launch(number))
            assert (passed.lse, passed.out, passed.dout) == (given.lse, out.data_ptr(), slope.data_ptr())
            assert [passed.q, passed.k, passed.v] == [x.data_ptr() for x in tensors]
            assert [passed.dq, passed.dk, passed.dv] == [x.data_ptr() for x in made]
        assert stub.launches > backward
    assert (ours.prepared, ours.operators) == (1, 0)


def test_the_compiled_function_needs_python_for_the_first_pass_alone(compiled: Counted) -> None:
    for shape in (SMALL, LONG):
        before = compiled.passes
        for _ in range(5):
            tensors = draw(shape)
            torch.autograd.grad(compiled(*tensors), tensors, torch.randn(shape).bfloat16())
        assert compiled.passes == before + 1


def draw_of(kind: str) -> tuple[list[torch.Tensor], Options]:
    """A call with a mask, or with packed sequences."""
    if kind == "packed":
        starts = [torch.tensor([0, 40, 128], dtype=torch.int32) for _ in range(2)]
        return [*draw((128, 4, 64)), *starts], Options(names=(*QKV, "q_starts", "k_starts"), longest=(88, 88))
    mask = torch.randn(64, 64).bfloat16() if kind == "number" else torch.rand(2, 1, 64, 64) > 0.5
    return [*draw(), mask], Options(names=(*QKV, "mask"))


@pytest.mark.parametrize("kind", ["number", "boolean", "packed"])
@pytest.mark.parametrize("lse", [False, True])
def test_masks_and_packed_sequences_are_remembered_too(stub: Stub, ours: Counted, kind: str, lse: bool) -> None:
    for _ in range(4):
        tensors, options = draw_of(kind)
        before = stub.launches
        answer = ours.quick.call(tuple(tensors), options._replace(return_lse=lse))
        assert isinstance(answer, tuple) == lse
        out = answer[0] if isinstance(answer, tuple) else answer
        middle = stub.launches
        slope = torch.randn(out.shape).bfloat16()
        made = torch.autograd.grad(out, tensors[:3], slope)
        assert before < middle < stub.launches
        for number in range(middle, stub.launches):
            found = backward_of(stub.launch(number))
            want = dict(zip(options.names, tensors, strict=True)) | {"out": out, "dout": slope}
            want |= dict(zip(("dq", "dk", "dv"), made, strict=True))
            assert {name: getattr(found, name) for name in want} == {name: x.data_ptr() for name, x in want.items()}
            assert not isinstance(answer, tuple) or found.lse == answer[1].data_ptr()
    assert (ours.prepared, ours.operators) == (1, 0)
    assert ours.native is None or ours.passes == 1


def test_a_mask_off_its_boundary_takes_kernels_that_can_read_it(stub: Stub, ours: Counted) -> None:
    storage, options = torch.randn(3 * 64 * 64), Options(names=(*QKV, "mask"))
    assert storage.data_ptr() % 16 == 0
    for place in (0, 64, 1, 128, 3, 1, 0):
        mask, before = storage[place : place + 64 * 64].view(64, 64), stub.launches
        ours.quick.call((*draw(), mask), options)
        assert stub.launch(before).name.startswith(b"fa90" if place % 4 == 0 else b"general")
        assert forward_of(stub.launch(before)).mask == mask.data_ptr()
        if place % 4 == 0:
            assert Map.from_buffer_copy(stub.launch(before).argument(3, TensorMap)).address == mask.data_ptr()


def test_what_is_remembered_is_for_tensors_alike_in_all_that_matters(ours: Counted) -> None:
    likes = [draw(), draw(wants="q"), draw(wants="kv"), draw(LONG)]
    likes.append([x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in draw()])
    likes.append([x.detach().half().requires_grad_() for x in draw()])
    for _ in range(3):
        for tensors in likes:
            out = ours(*tensors)
            assert (out.shape, out.stride(), out.dtype) == (tensors[0].shape, tensors[0].stride(), tensors[0].dtype)
            out.sum().backward()
            assert [x.grad is not None for x in tensors] == [x.requires_grad for x in tensors]
    assert ours.prepared == len(likes)
    with torch.no_grad():
        assert ours(*draw()).grad_fn is None
    assert ours(*[x.detach() for x in draw()]).grad_fn is None
    assert ours.prepared == len(likes)


def test_one_tensor_given_twice_gets_the_sum(ours: Counted) -> None:
    for _ in range(3):
        q, k, v = draw()
        ours(q, k, k).sum().backward()
        assert q.grad is not None
        assert k.grad is not None
        ours(q, k, v).sum().backward()
        assert v.grad is not None
    assert ours.prepared == 2


def test_a_misaligned_tensor_takes_kernels_that_can_read_it_and_the_next_does_not(stub: Stub, ours: Counted) -> None:
    def launched(tensors: list[torch.Tensor]) -> bytes:
        before = stub.launches
        ours(*tensors)
        return bytes(stub.launch(before).name)

    aligned = launched(draw())
    for _ in range(2):
        q, k, v = draw()
        crooked = torch.empty(q.numel() + 1).bfloat16()[1:].view_as(q).requires_grad_()
        assert b"scalar" in launched([crooked, k, v])
        assert launched(draw()) == aligned


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("which", ["q", "k", "v", "out"])
def test_a_tensor_changed_in_place_before_the_backward_pass_is_noticed(ours: Counted, which: str, lse: bool) -> None:
    for _ in range(3):
        tensors = [x.detach().clone().requires_grad_() for x in draw()]
        given = [x * 1 for x in tensors]
        answer = ours(*given, lse=lse)
        out = answer[0] if lse else answer
        total = out.float().sum()
        with torch.no_grad():
            {**dict(zip("qkv", given, strict=True)), "out": out}[which].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            total.backward()


def test_a_graph_is_gone_through_once_unless_it_is_kept_and_then_gives_new_gradients(ours: Counted) -> None:
    for _ in range(2):
        tensors = draw()
        out = ours(*tensors)
        made = [torch.autograd.grad(out.sum(), tensors, retain_graph=keep) for keep in (True, True, False)]
        assert len({x.data_ptr() for three in made for x in three}) == 9
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(out.sum(), tensors)


def test_gradients_lie_apart_and_may_be_added_to_in_place(ours: Counted) -> None:
    for _ in range(2):
        tensors = draw()
        for _ in range(3):
            ours(*tensors).sum().backward()
        grads = [x.grad for x in tensors]
        assert all(x is not None and x._base is None for x in grads)
        assert len({x.untyped_storage().data_ptr() for x in grads if x is not None}) == 3


def test_hooks_see_what_is_saved_and_may_put_it_elsewhere(stub: Stub, ours: Counted) -> None:
    for _ in range(2):
        tensors, packed, unpacked = draw(), [], []

        def pack(x: torch.Tensor, packed: list[torch.Tensor] = packed) -> torch.Tensor:
            packed.append(x)
            return x.detach().clone()

        def unpack(x: torch.Tensor, unpacked: list[torch.Tensor] = unpacked) -> torch.Tensor:
            unpacked.append(x)
            return x

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            out = ours(*tensors)
        before = stub.launches
        out.sum().backward()
        assert len(packed) == len(unpacked) == 5
        passed = backward_of(stub.launch(before))
        read = [passed.q, passed.k, passed.v, passed.out, passed.lse]
        assert read == [x.data_ptr() for x in unpacked]


def test_a_hook_that_gives_another_layout_back_is_read_as_such(stub: Stub, ours: Counted) -> None:
    def turned(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).contiguous().transpose(1, 2) if x.dim() == 4 else x

    for change in (False, True, False, True):
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, turned if change else lambda x: x):
            out = ours(*draw())
        before = stub.launches
        out.sum().backward()
        assert backward_of(stub.launch(before)).at_q.row == (4 * 64 * 2 if change else 64 * 2)


def test_nothing_of_a_call_is_held_once_its_graph_is_gone(ours: Counted) -> None:
    for _ in range(2):
        tensors = draw()
        out = ours(*tensors)
        made = torch.autograd.grad(out.sum(), tensors)
        watched = [weakref.ref(x) for x in (*tensors, *made, out)]
        del tensors, made, out
        gc.collect()
        assert [one() for one in watched] == [None] * 7


def test_functorch_and_second_derivatives_are_refused_as_ever(ours: Counted) -> None:
    tensors = draw()
    for _ in range(2):
        ours(*tensors)
    with pytest.raises(Unsupported, match=r"torch\.func"):
        torch.func.grad(lambda q: ours(q, *tensors[1:]).sum())(tensors[0].detach())
    with pytest.raises((NotImplementedError, Unsupported)):
        torch.autograd.grad(ours(*tensors).sum(), tensors, create_graph=True)


def test_a_view_that_negates_is_refused_after_calls_like_it(ours: Counted) -> None:
    q, k, v = draw()
    for _ in range(2):
        ours(q, k, v)
    with pytest.raises(Unsupported, match="negates"):
        ours(torch._neg_view(q), k, v)


def test_what_tensors_are_dispatched_by_is_part_of_their_likeness(ours: Counted) -> None:
    for _ in range(3):
        ours(*draw()).sum().backward()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = ours(*draw())
        out.sum().backward()
    assert ours.prepared == 2


def test_without_the_guard_nothing_is_remembered_that_only_it_sees(ours: Counted) -> None:
    ours.quick.guard = check_by_key
    for count in range(1, 4):
        ours(*draw()).sum().backward()
        assert ours.prepared == count
    with pytest.raises(Unsupported, match="negates"):
        ours(torch._neg_view(draw()[0]), *draw()[1:])


def test_streams_and_captures_have_counters_of_their_own_forward_and_backward(stub: Stub, ours: Counted) -> None:
    def counters() -> tuple[int, int]:
        tensors, before = draw(LONG), stub.launches
        ours(*tensors).sum().backward()
        launches = [stub.launch(number) for number in range(before, stub.launches)]
        assert all(one.stream == ours.engine.host.stream for one in launches)
        forward = int(forward_of(launches[0]).counter)
        backward = max(int(backward_of(one).counter or 0) for one in launches[1:])
        return forward, backward

    first, again = counters(), counters()
    ours.engine.host.stream = 0x2000
    other = counters()
    with stub.capture(ours.engine.host):
        captured = [counters() for _ in range(3)]
    ours.engine.host.stream = 0x1000
    assert first == again == counters()
    assert all(all(pair) for pair in (first, other, *captured))
    assert len({one[0] for one in (first, other, *captured)}) == 5
    assert len({one[1] for one in (first, other, *captured)}) == 5


def test_threads_remember_for_themselves(ours: Counted) -> None:
    wrong: list[str] = []

    def work() -> None:
        for _ in range(20):
            tensors = draw()
            ours(*tensors).sum().backward()
            if any(x.grad is None for x in tensors):
                wrong.append("no gradient")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert ours.prepared == 4
