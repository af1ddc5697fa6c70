"""What a remembered call launches, checked launch by launch against a libcuda of our own."""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import pytest
import torch

from kernels.attention.cuda.calls.binding import bind_call
from kernels.attention.cuda.calls.likeness import check_by_guard, check_by_key
from kernels.attention.cuda.calls.moving import Answer
from kernels.attention.cuda.calls.quick import PLANS_PER_GENERATION, Options, Quick
from kernels.attention.cuda.calls.registered import as_operator
from kernels.attention.cuda.operator import bind_attention
from kernels.attention.cuda.run.driver import TensorMap
from kernels.attention.cuda.ways.hopper_kernels import HopperParameters
from kernels.attention.cuda.ways.small import SmallParameters
from tests.kernels.cuda import quick_calls
from tests.kernels.cuda.quick_calls import call, draw
from tests.kernels.cuda.stub_driver import WITH_STUB, Launch, Map, OnCpu, Stub

pytestmark = WITH_STUB
engine = quick_calls.engine


def without_counter(launch: Launch) -> bytes:
    """A launch's record, but for the address of its kernel's counter."""
    if launch.count != 4:
        return bytes(launch)
    copy = Launch.from_buffer_copy(bytes(launch))
    start = Launch.arguments.offset + 3 * 512 + HopperParameters.counter.offset
    ctypes_bytes = bytearray(bytes(copy))
    ctypes_bytes[start : start + 8] = bytes(8)
    return bytes(ctypes_bytes)


def assert_as_a_fresh_one(
    stub: Stub, engine: OnCpu, tensors: list[torch.Tensor], answer: Answer, before: int, **options: Any
) -> None:
    """What has been launched since `before` is what binding the same tensors anew launches."""
    out, lse = answer if isinstance(answer, tuple) else (answer, None)
    made = [without_counter(stub.launch(n)) for n in range(before, stub.launches)]
    middle = stub.launches
    bind_attention(
        *tensors,
        out,
        causal=options.get("causal", False),
        scale=options.get("scale"),
        causal_alignment=options.get("alignment", "top-left"),
        lse=lse,
        engine=engine,
    )()
    assert made == [without_counter(stub.launch(n)) for n in range(middle, stub.launches)]


def test_sinks_need_no_launch_of_their_own_on_hopper(stub: Stub, engine: OnCpu) -> None:
    tensors, sinks = draw(2, 4, 300, 64), torch.randn(4)
    out, before = torch.empty_like(tensors[0]), stub.launches
    bound = bind_attention(*tensors, out, causal=True, window=(100, None), sinks=sinks, engine=engine)
    bound()
    launched = 1 if engine.machine.hopper else 2
    assert (stub.launches, bound.way.endswith("+sinks")) == (before + launched, True)
    if engine.machine.hopper:
        assert stub.launch().argument(3, HopperParameters).sinks == sinks.data_ptr()


def test_a_remembered_call_launches_what_a_fresh_one_would(stub: Stub, engine: OnCpu, quick: Quick) -> None:
    chance = random.Random(7)
    shapes = [(2, 4, 64, 64), (1, 4, 100, 128), (2, 2, 7, 40), (1, 2, 300, 64), (1, 1, 20, 256), (1, 2, 33, 37)]
    for _ in range(150):
        shape = chance.choice(shapes)
        kv_heads = chance.choice([head for head in (1, 2, 4) if shape[1] % head == 0])
        tensors = draw(*shape, kv_heads=kv_heads, dtype=chance.choice((torch.float16, torch.bfloat16)))
        if chance.random() < 0.3:
            tensors = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors]
        options = {
            "causal": chance.random() < 0.5,
            "scale": chance.choice((None, 0.25)),
            "alignment": chance.choice(("top-left", "bottom-right")),
            "lse": chance.random() < 0.3,
        }
        before = stub.launches
        answer = call(quick, tensors, **options)
        assert isinstance(answer, tuple) == options["lse"]
        assert_as_a_fresh_one(stub, engine, tensors, answer, before, **options)


def test_a_call_like_the_one_before_is_not_bound_again(engine: OnCpu) -> None:
    bound = []

    def counting(*args: Any, **kwargs: Any) -> Any:
        bound.append(1)
        return bind_call(*args, **kwargs)

    quick = Quick(counting, lambda device: engine, as_operator)
    for _ in range(5):
        call(quick, draw(2, 4, 64, 64))
        call(quick, draw(2, 4, 64, 64), lse=True)
        call(quick, draw(2, 4, 65, 64))
    assert len(bound) == 3


def test_the_output_is_new_each_time_and_lies_like_q(stub: Stub, quick: Quick) -> None:
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in draw(2, 4, 64, 64))
    first, second = call(quick, [q, k, v]), call(quick, [q, k, v])
    assert isinstance(first, torch.Tensor)
    assert isinstance(second, torch.Tensor)
    assert first.data_ptr() != second.data_ptr()
    assert first.stride() == second.stride() == q.stride()
    assert (first.dtype, first.shape) == (q.dtype, q.shape)


def test_a_tensor_off_its_boundary_takes_the_kernels_that_can_read_it(stub: Stub, engine: OnCpu, quick: Quick) -> None:
    tensors = draw(1, 2, 64, 64)
    call(quick, tensors)
    aligned = stub.launch().name
    for which in range(3):
        storage = torch.randn(2 * 64 * 64 + 8).to(torch.bfloat16)
        moved = list(tensors)
        moved[which] = storage[1 : 1 + 2 * 64 * 64].view(1, 2, 64, 64)
        for _ in range(2):
            before = stub.launches
            answer = call(quick, moved)
            assert b"scalar" in stub.launch().name
            assert_as_a_fresh_one(stub, engine, moved, answer, before)
        call(quick, tensors)
        assert stub.launch().name == aligned


def test_a_misaligned_mask_takes_a_kernel_that_reads_it_and_an_aligned_one_follows(stub: Stub) -> None:
    engine = OnCpu(hopper=True)
    quick, storage = Quick(bind_call, lambda device: engine, as_operator), torch.randn(3 * 64 * 64)
    assert storage.data_ptr() % 16 == 0
    options = Options(names=("q", "k", "v", "mask"))
    for place in (0, 64, 1, 128, 3, 1, 0):
        mask = storage[place : place + 64 * 64].view(64, 64)
        quick.call((*draw(1, 2, 64, 64), mask), options)
        assert stub.launch().name.startswith(b"fa90" if place % 4 == 0 else b"general")
        if place % 4 == 0:
            assert Map.from_buffer_copy(bytes(stub.launch().argument(3, TensorMap))).address == mask.data_ptr()
            assert stub.launch().argument(4, HopperParameters).mask == mask.data_ptr()


def test_tensors_that_are_one_and_the_same_are_read_as_such(stub: Stub, engine: OnCpu, quick: Quick) -> None:
    x = draw(1, 2, 64, 64)[0]
    for _ in range(3):
        before = stub.launches
        answer = call(quick, [x, x, x])
        assert_as_a_fresh_one(stub, engine, [x, x, x], answer, before)


def test_gradients_are_the_operators_and_nothing_remembered_goes_past_it(stub: Stub, quick: Quick) -> None:
    q, k, v = draw(1, 2, 64, 64)
    wants = q.clone().requires_grad_()
    for _ in range(3):
        with pytest.raises(NotImplementedError, match="spotbench::attention"):
            call(quick, [wants, k, v])
        with torch.no_grad():
            call(quick, [wants, k, v])
        call(quick, [q, k, v])
        with torch.inference_mode():
            call(quick, draw(1, 2, 64, 64))
    with pytest.raises(NotImplementedError, match="spotbench::attention"):
        call(quick, [wants, k, v])


def test_tensor_maps_follow_the_tensors(stub: Stub) -> None:
    engine = OnCpu(hopper=True)
    quick = Quick(bind_call, lambda device: engine, as_operator)
    for _ in range(4):
        tensors = draw(2, 4, 640, 64, kv_heads=2)
        call(quick, tensors)
        launch = stub.launch()
        for number, tensor in enumerate(tensors):
            bytes_of = bytes(launch.argument(number, TensorMap))
            seen = Map.from_buffer_copy(bytes_of)
            assert seen.address == tensor.data_ptr()
            assert list(seen.sizes) == list(reversed(tensor.shape))
            assert list(seen.strides) == [2 * stride for stride in reversed(tensor.stride()[:3])]


def test_plans_are_bounded_and_forgotten_ones_are_made_again(stub: Stub, engine: OnCpu, quick: Quick) -> None:
    for seq in range(1, 3 * PLANS_PER_GENERATION):
        call(quick, draw(1, 1, seq, 8))
    assert len(quick.plans.young) <= PLANS_PER_GENERATION
    assert len(quick.plans.old) <= PLANS_PER_GENERATION
    for seq in (1, 5, 3 * PLANS_PER_GENERATION - 1):
        tensors = draw(1, 1, seq, 8)
        before = stub.launches
        answer = call(quick, tensors)
        assert_as_a_fresh_one(stub, engine, tensors, answer, before)


def test_a_plan_holds_no_tensor(stub: Stub, quick: Quick) -> None:
    tensors = draw(1, 2, 64, 64)
    answer = call(quick, tensors)
    assert isinstance(answer, torch.Tensor)
    watched = [weakref.ref(x) for x in (*tensors, answer)]
    del tensors, answer
    gc.collect()
    assert [one() for one in watched] == [None] * 4


@pytest.mark.parametrize("checker", [check_by_key, check_by_guard])
def test_both_checks_tell_like_from_unlike(checker: Any) -> None:
    q, k, v = draw(2, 4, 16, 64)
    check = checker(q, k, v)
    assert check(*draw(2, 4, 16, 64))
    assert not check(*draw(2, 4, 17, 64))
    assert not check(*draw(2, 4, 16, 64, dtype=torch.float16))
    assert not check(q.transpose(1, 2).contiguous().transpose(1, 2), k, v)
    assert not check(q, k, v.clone().requires_grad_())
    assert not check(torch.empty(q.shape, dtype=q.dtype, device="meta"), k, v)
    wants = checker(q.clone().requires_grad_(), k, v)
    assert not wants(q.clone().requires_grad_(), k, v)


@pytest.mark.parametrize("checker", [check_by_key, check_by_guard])
def test_one_tensor_given_twice_is_another_case_than_two_alike(checker: Any) -> None:
    q, k, v = draw(2, 4, 16, 64)
    twice, different, thrice = checker(q, k, k), checker(q, k, v), checker(q, q, q)
    assert twice(v, q, q)
    assert thrice(k, k, k)
    assert not twice(*draw(2, 4, 16, 64)[:2], draw(2, 4, 17, 64)[0])
    assert not thrice(q.half(), q, q)
    longer = draw(2, 4, 17, 64)[0]
    assert not twice(longer, q, q)
    assert not twice(q, longer, longer)
    if checker is check_by_guard:
        assert not twice(q, k, v)
        assert not thrice(q, k, v)
        assert not different(q, k, k)


def test_small_kernels_are_remembered_like_all_others(stub: Stub) -> None:
    for dependent in (False, True):
        name = "small-r16k4x16-dependent" if dependent else "small-r16k4x16"
        engine = OnCpu(hopper=True)
        quick = Quick(lambda *a, name=name, **o: bind_call(*a, way=name, **o), lambda device, e=engine: e, as_operator)
        for _ in range(3):
            tensors = draw(2, 4, 60, 64)
            answer = call(quick, tensors, lse=True)
            launch = stub.launch()
            given = launch.argument(0, SmallParameters)
            assert launch.name.startswith(b"small_bf16_d64_full_r16k4x16")
            assert bool(launch.dependent) == dependent
            assert list(launch.grid) == [4, 4, 2]
            assert [given.q, given.k, given.v] == [x.data_ptr() for x in tensors]
            assert (given.out, given.lse) == (answer[0].data_ptr(), answer[1].data_ptr())


@pytest.mark.parametrize("cluster", ["", "c4"])
def test_small_kernels_with_tensor_maps_follow_their_tensors(stub: Stub, cluster: str) -> None:
    engine = OnCpu(hopper=True)
    way = f"small-w64k2x128b4{cluster}"
    quick = Quick(lambda *a, **o: bind_call(*a, way=way, **o), lambda device: engine, as_operator)
    for _ in range(3):
        tensors = draw(2, 4, 500, 64, kv_heads=2)
        answer = call(quick, tensors, causal=True)
        launch = stub.launch()
        maps = [Map.from_buffer_copy(bytes(launch.argument(number, TensorMap))) for number in range(3)]
        assert [one.address for one in maps] == [x.data_ptr() for x in tensors]
        assert [one.box[1] for one in maps] == [64, *[32 if cluster else 128] * 2]
        given = launch.argument(3, SmallParameters)
        assert (given.out, given.row_tiles) == (answer.data_ptr(), 8)
        assert list(launch.grid) == [8, 4, 2]
