"""Who shares a kernel's counter with whom: nobody, ever, that may run beside it. Checked at the driver's border."""

from __future__ import annotations

import gc
import itertools
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
import torch

from kernels.attention.cuda.calls.quick import Quick
from kernels.attention.cuda.errors import CudaError
from kernels.attention.cuda.operator import bind_attention
from kernels.attention.cuda.plan.parameters import Parameters
from kernels.attention.cuda.run.counters import PER_THREAD_STREAM, Counters
from kernels.attention.cuda.run.launching import Bound, Buffers
from kernels.attention.cuda.ways.hopper_kernels import HopperParameters
from tests.kernels.cuda.stub_driver import WITH_STUB, Launch, OnCpu, Stub

pytestmark = WITH_STUB


def draw(batch: int, heads: int, seq_q: int, seq_k: int, kv_heads: int, head_dim: int = 64) -> list[torch.Tensor]:
    sizes = [(batch, heads, seq_q, head_dim), *[(batch, kv_heads, seq_k, head_dim)] * 2]
    return [torch.zeros(size, dtype=torch.bfloat16) for size in sizes]


PERSISTENT = (1, 8, 600, 600, 8)
"""Takes the Hopper kernel, which hands out its tiles by a counter."""
DECODING = (2, 8, 1, 4096, 2)
"""Takes the decoding kernel, which counts the parts of each of its 4 items."""


def counter_of(launch: Launch) -> tuple[int, int]:
    """The address and the bytes that a launch counts in; (0, 0) for one that does not count."""
    if launch.name.startswith(b"fa90"):
        return int(launch.argument(3, HopperParameters).counter), 8
    if launch.name.startswith(b"decode"):
        return int(launch.argument(0, Parameters).tickets or 0), 4 * launch.grid[0]
    return 0, 0


@dataclass
class World:
    """Every launch so far, by who made it: a stream's eager calls are one party, each captured launch is its own."""

    stub: Stub
    bytes_of: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def see(self, before: int, party: Callable[[int], tuple[str, ...]]) -> int:
        """Books the launches made since; asserts that none counts where another party does. How many counted."""
        counted = 0
        for number in range(before, self.stub.launches):
            address, size = counter_of(self.stub.launch(number))
            if not size or not address:
                continue
            counted += 1
            assert self.stub.is_zero(address, size), "a counter is not the driver's own memory, or not zero"
            owner = party(number)
            for byte in range(address, address + size, 4):
                assert self.bytes_of.setdefault(byte, owner) == owner, f"{owner} shares with {self.bytes_of[byte]}"
        return counted


def test_no_captured_launch_shares_a_counter_with_any_other_whatever_the_order(
    stub: Stub, engine: OnCpu, quick: Quick
) -> None:
    chance, world = random.Random(5), World(stub)
    shapes = [PERSISTENT, DECODING, (1, 8, 600, 700, 8), (3, 8, 1, 2048, 2), (1, 16, 1, 8192, 2)]
    counted = 0
    for graph in range(40):
        engine.host.stream = chance.choice((0x1000, 0x2000, 0x3000))
        stream = engine.host.stream
        before = stub.launches
        with stub.capture(engine.host):
            for _ in range(chance.randrange(1, 60)):
                quick.attention(*draw(*chance.choice(shapes)), False, None, "top-left", chance.random() < 0.5)
        counted += world.see(before, lambda number, graph=graph: ("graph", str(graph), str(number)))
        for _ in range(chance.randrange(3)):
            engine.host.stream = chance.choice((stream, 0x4000 + graph))
            before = stub.launches
            quick.attention(*draw(*chance.choice(shapes)), False, None, "top-left", False)
            counted += world.see(before, lambda _: ("eager", str(engine.host.stream)))
    assert counted > 800
    assert stub.library.stub_open_streams() == 0


def test_memory_that_a_capture_asks_for_is_zeroed_outside_of_it_and_breaks_nothing(stub: Stub, engine: OnCpu) -> None:
    before = stub.library.stub_allocations()
    engine.host.is_capturing = True
    with stub.capture(engine.host):
        slots = {engine.counters.take(8192) for _ in range(1000)}
    assert stub.library.stub_allocations() - before == 1000 * 8192 // Counters.POOL_BYTES + 1
    assert len(slots) == 1000
    assert all(stub.is_zero(slot, 8192) for slot in slots)
    ordered = sorted(slots)
    assert all(b - a >= 8192 for a, b in itertools.pairwise(ordered))


def test_a_kernel_first_needed_in_a_capture_is_loaded_in_it(stub: Stub, engine: OnCpu, quick: Quick) -> None:
    assert engine.functions == {}
    with stub.capture(engine.host):
        quick.attention(*draw(*PERSISTENT), False, None, "top-left", False)
    assert engine.functions


@pytest.mark.parametrize("shape", [PERSISTENT, DECODING], ids=["persistent", "decoding"])
def test_a_bound_call_counts_for_one_stream_or_one_captured_launch_at_a_time(
    stub: Stub, engine: OnCpu, shape: tuple[int, ...]
) -> None:
    world = World(stub)
    q, k, v = draw(*shape)
    call = bind_attention(q, k, v, torch.empty_like(q), engine=engine)

    def made(*party: str) -> int:
        before = stub.launches
        call()
        assert world.see(before, lambda number: (*party, str(number)) if party[0] == "graph" else party) > 0
        assert stub.launch().stream == engine.host.stream
        return counter_of(stub.launch(before))[0]

    first = made("eager", "a")
    assert made("eager", "a") == first
    with stub.capture(engine.host):
        captured = [made("graph"), made("graph")]
    assert made("eager", "a") == first
    engine.host.stream = 0x2000
    other = made("eager", "b")
    with stub.capture(engine.host):
        captured.append(made("graph"))
    engine.host.stream = 0x1000
    assert made("eager", "a") == first
    assert len({first, other, *captured}) == 5


def test_a_slot_of_a_captured_launch_outlives_the_call_that_took_it(stub: Stub, engine: OnCpu) -> None:
    world = World(stub)
    for number in range(300):
        q, k, v = draw(*DECODING)
        before = stub.launches
        with stub.capture(engine.host):
            bind_attention(q, k, v, torch.empty_like(q), engine=engine)()
        world.see(before, lambda _, number=number: ("graph", str(number)))
        gc.collect() if number % 50 == 0 else None
        before = stub.launches
        bind_attention(q, k, v, torch.empty_like(q), engine=engine)()
        world.see(before, lambda _: ("eager",))


def test_parts_of_split_keys_are_made_anew_for_each_captured_launch(stub: Stub, engine: OnCpu) -> None:
    q, k, v = draw(*DECODING)
    call = bind_attention(q, k, v, torch.empty_like(q), engine=engine)
    call()
    eager = call.buffers
    assert [len(eager.kept), len(eager.counters)] == [1, 1]
    with stub.capture(engine.host):
        call()
        first = call.buffers
        call()
    assert eager is not first is not call.buffers
    call()
    assert not call.buffers.capturing


def test_a_bound_call_without_state_is_never_made_anew(stub: Stub, engine: OnCpu) -> None:
    q, k, v = draw(1, 2, 64, 64, 2)
    call = bind_attention(q, k, v, torch.empty_like(q), engine=engine)
    steps = call.steps
    call()
    engine.host.stream = 0x2000
    with stub.capture(engine.host):
        call()
    assert call.steps is steps


def test_threads_that_capture_and_call_at_once_share_nothing(stub: Stub, engine: OnCpu) -> None:
    taken: list[int] = []

    def work(number: int) -> list[int]:
        counters = engine.counters
        mine = [counters.take(64) for _ in range(20_000)]
        return [*mine, counters.of_stream(0x9000 + number, size=64)]

    with ThreadPoolExecutor(8) as pool:
        for made in pool.map(work, range(8)):
            taken += made
    assert len(set(taken)) == len(taken)
    shared = {engine.counters.of_stream(0x9000, size=64) for _ in range(5)}
    assert shared <= set(taken)


def test_two_threads_that_ask_for_one_streams_slot_get_the_same(stub: Stub, engine: OnCpu) -> None:
    gate = threading.Barrier(8)

    def work(number: int) -> list[int]:
        gate.wait()
        return [engine.counters.of_stream(stream) for stream in range(0x100, 0x100 + 500)]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, range(8)))
    assert all(one == found[0] for one in found)
    assert len(set(found[0])) == 500


def test_the_handle_that_is_another_stream_in_each_thread_has_a_slot_in_each(stub: Stub, engine: OnCpu) -> None:
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(engine.counters.of_stream, PER_THREAD_STREAM).result()
    ours = engine.counters.of_stream(PER_THREAD_STREAM)
    assert ours != theirs
    assert ours == engine.counters.of_stream(PER_THREAD_STREAM)


def test_a_full_device_is_an_error_that_names_what_was_asked_for_and_costs_nothing(stub: Stub, engine: OnCpu) -> None:
    stub.library.stub_full(10)
    with pytest.raises(CudaError, match=r"allocating 1048576 bytes for counters.*error 2"):
        engine.counters.take()
    stub.library.stub_full(1)
    assert stub.is_zero(engine.counters.take(), 32)  # what PyTorch held for nobody was enough
    assert stub.library.stub_open_streams() == 0


def test_buffers_know_the_stream_as_it_is_now(stub: Stub, engine: OnCpu) -> None:
    with stub.capture(engine.host):
        assert Buffers.now(engine).capturing
    engine.host.stream = 0x7000
    now = Buffers.now(engine)
    assert (now.stream, now.capturing, now.has_state) == (0x7000, False, False)
    assert isinstance(bind_attention(*draw(*PERSISTENT), torch.empty(1, 8, 600, 64).bfloat16(), engine=engine), Bound)
