"""Remembered calls on several streams and threads share nothing that one of them writes."""

from __future__ import annotations

import gc
import threading

import torch

from kernels.attention.cuda.calls.binding import bind_call
from kernels.attention.cuda.calls.quick import Quick
from kernels.attention.cuda.calls.registered import as_operator
from kernels.attention.cuda.run.driver import TensorMap
from kernels.attention.cuda.ways.hopper_kernels import HopperParameters
from tests.kernels.cuda import quick_calls
from tests.kernels.cuda.quick_calls import call, draw
from tests.kernels.cuda.stub_driver import WITH_STUB, Launch, Map, OnCpu, Stub

pytestmark = WITH_STUB
engine = quick_calls.engine


def test_kernels_with_a_counter_have_one_for_each_stream(stub: Stub) -> None:
    engine = OnCpu(hopper=True)
    quick = Quick(bind_call, lambda device: engine, as_operator)
    counters: dict[int, set[int]] = {}
    for _ in range(3):
        for stream in (0x1000, 0x2000):
            engine.host.stream = stream
            for seq in (600, 700):
                call(quick, draw(1, 8, seq, 64))
                launch = stub.launch()
                assert launch.stream == stream
                assert launch.name.startswith(b"fa90")
                counters.setdefault(stream, set()).add(launch.argument(3, HopperParameters).counter)
    assert len(counters[0x1000]) == len(counters[0x2000]) == 1
    assert counters[0x1000] != counters[0x2000]


def test_a_captured_launch_has_a_counter_that_no_other_launch_uses(stub: Stub) -> None:
    engine = OnCpu(hopper=True)
    quick = Quick(bind_call, lambda device: engine, as_operator)
    tensors = draw(1, 8, 600, 64)

    def counter() -> int:
        call(quick, tensors)
        return int(stub.launch().argument(3, HopperParameters).counter)

    eager = counter()
    engine.host.is_capturing = True
    captured = [counter(), counter()]
    engine.host.is_capturing = False
    gc.collect()
    later = [counter() for _ in range(3)]
    engine.host.stream = 0x3000
    later.append(counter())
    assert set(later[:3]) == {eager}
    assert len({eager, *captured, later[3]}) == 4


def test_parts_of_split_keys_are_kept_for_one_stream_alone(stub: Stub) -> None:
    engine = OnCpu(hopper=False)
    quick = Quick(lambda *a, **o: bind_call(*a, splits=4, **o), lambda device: engine, as_operator)
    partial: dict[int, set[int]] = {}
    for _ in range(3):
        for stream in (0x1000, 0x2000):
            engine.host.stream = stream
            before = stub.launches
            call(quick, [draw(1, 1, 64, 64)[0], *draw(1, 1, 8192, 64)[1:]])
            for number in range(before, stub.launches):
                launch = stub.launch(number)
                assert launch.stream == stream
                if launch.name.startswith(b"combine"):
                    # partial_out is the sixth address of AttentionParams
                    address = int.from_bytes(bytes(launch)[Launch.arguments.offset + 40 :][:8], "little")
                    partial.setdefault(stream, set()).add(address)
    assert partial[0x1000]
    assert not partial[0x1000] & partial[0x2000]


def test_threads_do_not_mix_up_their_tensors(stub: Stub, engine: OnCpu, quick: Quick) -> None:
    sets = [draw(1, 2, 64, 64) for _ in range(4)]
    seen: list[list[tuple[int, ...]]] = [[] for _ in sets]
    before = stub.launches

    def work(number: int) -> None:
        for _ in range(100):
            answer = call(quick, sets[number], causal=bool(number % 2))
            assert isinstance(answer, torch.Tensor)
            seen[number].append((*(x.data_ptr() for x in sets[number]), answer.data_ptr()))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(sets))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stub.launches - before == 400
    expected = sorted(one for each in seen for one in each)
    assert sorted(addresses(stub.launch(number)) for number in range(before, stub.launches)) == expected


def addresses(launch: Launch) -> tuple[int, ...]:
    """Of q, k, v and out."""
    if launch.count == 4:
        maps = [Map.from_buffer_copy(bytes(launch.argument(number, TensorMap))).address for number in range(3)]
        return (*maps, launch.argument(3, HopperParameters).out)
    first = bytes(launch)[Launch.arguments.offset :]
    return tuple(int.from_bytes(first[8 * i : 8 * i + 8], "little") for i in range(4))
