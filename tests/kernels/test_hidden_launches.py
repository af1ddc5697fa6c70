"""The launch is never in the number: laws over a device and a host of one timeline, and a host that is slowed."""

from __future__ import annotations

import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.attention.cuda.compile.compiler import Target, find_compiler
from kernels.attention.interface import BuildFailed, Plan, Unavailable
from kernels.harness import gate
from kernels.harness.timers import GATE, LEAST_BLOCK_US, SPIN, CudaTimer, Timed, empty_pair_us, host_us
from kernels.harness.turns import Contender
from kernels.harness.watching import is_cover
from tests.kernels.instruments import loader
from tests.kernels.simulated_stream import EVENT_US, RealHost, SimulatedHost, SimulatedStream, call, phases

SAMPLES = 60


def contender(*plans: Plan) -> Contender:
    return Contender("one", plans, nullcontext)


def timer(stream: SimulatedStream, plan: Plan, regime: str = "burst") -> CudaTimer:
    return CudaTimer(regime, contender(plan), 0.0, stream)


def samples(stream: SimulatedStream, plan: Plan, regime: str = "burst", count: int = SAMPLES) -> list[Timed]:
    own = timer(stream, plan, regime)
    return [own([plan] * own.calls_made) for _ in range(count)]


def median(taken: list[Timed]) -> float:
    return statistics.median(one.latency_us for one in taken)


class GuessedSpin:
    """How it was done once: a spin as long as five warm calls and 30 us, and no look at whether it had lasted."""

    def __init__(self, stream: SimulatedStream, plan: Plan) -> None:
        self.stream, self.start, self.end = stream, stream.event(), stream.event()
        self.spin_us = host_us(plan, stream.now_us) + 30.0

    def __call__(self, plan: Plan) -> float:
        self.stream.spin(self.spin_us)
        self.start.record()
        plan()
        self.end.record()
        self.end.synchronize()
        return self.stream.elapsed_us(self.start, self.end)


@pytest.fixture
def stream() -> SimulatedStream:
    return SimulatedStream(SimulatedHost())


def test_a_spin_of_a_guessed_length_is_seen_to_leak_by_this_device() -> None:
    stream = SimulatedStream(SimulatedHost(phases(1)))
    plan = call(stream, 25.0, 16.0)
    guessed = GuessedSpin(stream, plan)
    assert statistics.median(guessed(plan) for _ in range(400)) > 1.3 * 16.6


@pytest.mark.parametrize("gated", [True, False])
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    host=st.sampled_from([3.0, 15.0, 25.0, 60.0]),
    device=st.floats(4.0, 2000.0),
    speed=st.sampled_from([0.8, 1.0, 2.0]),
)
def test_a_slow_host_moves_the_median_of_burst_by_less_than_a_hundredth(
    gated: bool, seed: int, host: float, device: float, speed: float
) -> None:
    calm = SimulatedStream(SimulatedHost(), gated=gated)
    quiet = median(samples(calm, call(calm, host, device)))
    stream = SimulatedStream(SimulatedHost(phases(seed)), gated=gated, spin_speed=speed)
    taken = samples(stream, call(stream, host, device))
    assert all(one.hidden for one in taken)
    assert {one.cover for one in taken} == {GATE if gated else SPIN}
    assert all((one.cover_us or 0) >= LEAST_BLOCK_US for one in taken)
    if gated:
        assert all((one.cover_us or 0) >= (one.host_us or 0) for one in taken)
    assert abs(median(taken) / quiet - 1) < 0.01
    assert quiet == pytest.approx(device + EVENT_US)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_a_slow_host_moves_the_median_of_a_graph_by_less_than_a_hundredth(seed: int) -> None:
    stream = SimulatedStream(SimulatedHost(phases(seed)))
    taken = samples(stream, call(stream, 25.0, 12.0), "graph")
    assert all(one.hidden for one in taken)
    assert abs(median(taken) / 12.0 - 1) < 0.01


@pytest.mark.parametrize(("host", "device", "hidden"), [(4.0, 40.0, True), (40.0, 20.0, False), (22.0, 20.0, False)])
def test_calls_back_to_back_say_whether_the_device_ever_waited_for_the_host(
    stream: SimulatedStream, host: float, device: float, hidden: bool
) -> None:
    taken = samples(stream, call(stream, host, device), "sustained", 3)
    assert {one.hidden for one in taken} == {hidden}
    if hidden:
        assert median(taken) == pytest.approx(device, rel=0.01)


def test_back_to_back_counts_as_hidden_only_while_it_is_true_on_a_slow_host() -> None:
    stream = SimulatedStream(SimulatedHost(phases(3)))
    taken = samples(stream, call(stream, 8.0, 30.0), "sustained", 40)
    kinds = {one.hidden for one in taken}
    assert kinds == {True, False}
    assert all(one.latency_us == pytest.approx(30.0, rel=0.01) for one in taken if one.hidden)


def test_what_waits_for_the_device_is_not_timed_in_burst_and_the_reason_is_told(stream: SimulatedStream) -> None:
    with pytest.raises(Unavailable, match="cannot be hidden"):
        timer(stream, call(stream, 10.0, 20.0, waits=True))
    assert stream.given_up, "the device left the gates by itself"


def test_a_users_call_that_waits_for_the_device_is_timed_with_the_host_and_marked(stream: SimulatedStream) -> None:
    plan = call(stream, 10.0, 20.0, waits=True)
    own = CudaTimer("burst", contender(plan), 0.0, stream, exposed=True)
    tries = stream.ticket
    taken = [own([plan]) for _ in range(5)]
    assert {(one.hidden, one.cover) for one in taken} == {(False, "")}
    assert median(taken) > 40.0, "both kernels, and the host between them"
    assert stream.ticket == tries, "no gate is tried again"
    hidden = CudaTimer("burst", contender(call(stream, 10.0, 20.0)), 0.0, stream, exposed=True)
    assert hidden([call(stream, 10.0, 20.0)]).hidden


def test_what_waits_for_the_device_is_still_timed_back_to_back_and_marked(stream: SimulatedStream) -> None:
    taken = samples(stream, call(stream, 10.0, 20.0, waits=True), "sustained", 2)
    assert {one.hidden for one in taken} == {False}


def test_a_call_of_more_launches_than_the_stream_holds_is_never_called_hidden() -> None:
    stream = SimulatedStream(SimulatedHost(), depth=64)
    with pytest.raises(Unavailable, match="cannot be hidden"):
        timer(stream, call(stream, 100.0, 300.0, kernels=100))


def test_a_stop_of_the_host_behind_the_gate_costs_a_sample_and_not_a_number(stream: SimulatedStream) -> None:
    plan = call(stream, 10.0, 20.0)
    own, stops = timer(stream, plan), iter([True, False])

    def stopped_once() -> torch.Tensor:
        if next(stops):
            stream.host.spend(500_000.0)
        return plan()

    assert own([stopped_once]).latency_us == pytest.approx(20.0 + EVENT_US)
    assert own.cover == GATE
    assert len(stream.given_up) == 1


def test_a_call_that_raises_leaves_no_gate_shut(stream: SimulatedStream) -> None:
    own = timer(stream, call(stream, 10.0, 20.0))

    def fails() -> torch.Tensor:
        raise MemoryError

    with pytest.raises(MemoryError):
        own([fails])
    assert set(stream.opened) == set(range(1, stream.ticket + 1))


@pytest.mark.parametrize("gated", [True, False])
def test_the_cost_of_an_empty_pair_is_that_of_the_events_alone(gated: bool) -> None:
    stream = SimulatedStream(SimulatedHost(phases(5)), gated=gated)
    assert empty_pair_us(stream) == pytest.approx(EVENT_US)


@pytest.mark.parametrize(("gated", "off_us"), [(True, 15.0), (False, 1e-2)])
@pytest.mark.parametrize("host", [10.0, 90.0, 400.0])
def test_a_sample_says_how_long_the_device_was_kept_waiting_as_its_own_record_does(
    gated: bool, off_us: float, host: float
) -> None:
    """A gate is in its record from its start on the device, a few microseconds after its launch."""
    stream = SimulatedStream(SimulatedHost(), gated=gated)
    plan = call(stream, host, 30.0)
    own = timer(stream, plan)
    for _ in range(20):
        taken = own([plan])
        cover = [one for one in stream.record if is_cover(one.name)][-1]
        assert taken.cover_us == pytest.approx(cover.length / 1000, abs=off_us)


def test_every_sample_tells_how_long_the_host_took() -> None:
    stream = SimulatedStream(SimulatedHost(lambda: 3.0))
    assert all(75.0 < (one.host_us or 0) < 90.0 for one in samples(stream, call(stream, 25.0, 10.0)))


@contextmanager
def shared_processor() -> Iterator[None]:
    """One processor, and a busy process on it."""
    allowed = os.sched_getaffinity(0)
    one = {min(allowed)}
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(busy.pid, one)
        os.sched_setaffinity(0, one)
        yield
    finally:
        os.sched_setaffinity(0, allowed)
        busy.kill()
        busy.wait()


@pytest.mark.parametrize("slowed", [nullcontext, loader, shared_processor])
def test_a_real_host_that_is_slowed_moves_the_median_by_less_than_a_hundredth(slowed: Callable[[], object]) -> None:
    stream = SimulatedStream(RealHost())
    with slowed():  # type: ignore[attr-defined]
        taken = samples(stream, call(stream, 30.0, 50.0), count=25)
    assert all(one.hidden for one in taken)
    assert abs(median(taken) / (50.0 + EVENT_US) - 1) < 0.01


def test_an_enqueue_that_sleeps_moves_the_median_by_less_than_a_hundredth() -> None:
    stream, chance = SimulatedStream(RealHost()), random.Random(2)
    inner = call(stream, 5.0, 50.0)

    def sleepy() -> torch.Tensor:
        time.sleep(chance.uniform(0, 0.002))
        return inner()

    taken = samples(stream, sleepy, count=25)
    assert all(one.hidden for one in taken)
    assert abs(median(taken) / (50.0 + EVENT_US) - 1) < 0.01


@pytest.mark.parametrize("target", ["compute_75", "sm_75", "sm_90"])
def test_the_gates_kernel_compiles_for_old_and_new_chips_and_can_always_leave(target: str) -> None:
    try:
        compiler = find_compiler()
    except BuildFailed as exc:
        pytest.skip(str(exc))
    (compiled,) = compiler.compile([gate.SOURCE], {}, Target(target))
    assert b"gate" in compiled.image
    if target == "compute_75":
        text = compiled.image.decode()
        assert len(re.findall("%globaltimer", text)) >= 2, "it looks at the time before it waits, and while it does"
        assert "ld.relaxed.sys" in text
        assert "st.relaxed.sys" in text
        assert re.search(rf"add\.s64\s+%rd\d+, %rd\d+, {8 * gate.EXPIRED};", text), "where the host looks for it"
