"""The harness's medians against clocks that share no code with it, on a calm host and on a slowed one."""

from __future__ import annotations

import math
import statistics
import threading

import pytest
import torch

from kernels.harness.streams import CudaStream
from kernels.harness.timers import GATE, timer_for
from kernels.harness.turns import Contender
from kernels.harness.workload import Unavailable
from tests.kernels.instruments import (
    CALM_SPIN_S,
    DEV,
    GRAPH_SPIN_S,
    LOADED_SPIN_S,
    by_cupti,
    by_events,
    by_loop,
    by_nvbench,
    by_own_graph,
    loader,
    middle,
    ours,
)
from tests.kernels.subjects import AS_THE_HARNESS_DOES, made

pytestmark = AS_THE_HARNESS_DOES
CELLS = [(1024, "bfloat16"), (4096, "float16")]
NAMES = ["bench", "sdpa:cudnn", "sdpa:flash"]


def agree(told: float, theirs: float) -> bool:
    return abs(told - theirs) <= max(0.5, 0.05 * theirs)


def test_there_is_a_gate_on_every_gpu() -> None:
    assert CudaStream(DEV).gated, CudaStream(DEV).why_no_gate


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("seq", "dtype"), CELLS)
def test_burst_agrees_with_events_behind_a_long_spin_also_while_the_host_is_slowed(
    seq: int, dtype: str, name: str
) -> None:
    one = made(seq, dtype, name)
    with one.scope():
        theirs = by_events(one.calls, CALM_SPIN_S)
        calm = ours(one, "burst")
        with loader():
            slowed = ours(one, "burst")
            theirs_slowed = by_events(one.calls, LOADED_SPIN_S)
    assert all(sample.hidden and sample.cover == GATE for sample in calm + slowed)
    assert agree(middle(calm), theirs)
    assert agree(middle(slowed), theirs_slowed)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("seq", "dtype"), CELLS)
def test_graph_and_sustained_agree_with_a_graph_and_a_loop_of_another(seq: int, dtype: str, name: str) -> None:
    one = made(seq, dtype, name)
    with one.scope():
        graph, theirs = [], []
        for _ in range(3):  # by turns, as a chip at its power limit is slower after work than after a rest
            graph += ours(one, "graph", 5)
            theirs.append(by_own_graph(one.calls, GRAPH_SPIN_S, samples=5))
        assert all(sample.hidden for sample in graph)
        assert agree(middle(graph), statistics.median(theirs))
        steady = ours(one, "sustained", 5)
        if all(sample.hidden for sample in steady):
            assert agree(middle(steady), by_loop(one.calls, middle(graph)))


@pytest.mark.parametrize("name", NAMES)
def test_burst_is_cuptis_kernel_time_and_a_few_microseconds_to_start_and_end(name: str) -> None:
    one = made(4096, "bfloat16", name)
    with one.scope():
        told = middle(ours(one, "burst"))
        numbers = iter(range(1000))
        theirs = by_cupti(lambda: one.calls[next(numbers) % len(one.calls)](), 15, 1, 0.002)
    assert not math.isnan(theirs)
    assert 0 < told - theirs < 6.0 + 0.02 * theirs


def test_burst_agrees_with_nvbench() -> None:
    pytest.importorskip("cuda.bench", reason="NVIDIA's NVBench (cuda-bench) is not installed")
    one = made(4096, "bfloat16", "bench")
    with one.scope():
        (theirs,) = by_nvbench([one.calls])
        told = middle(ours(one, "burst"))
    assert abs(told / theirs - 1) < 0.05


def test_what_waits_for_the_device_in_a_call_is_refused_in_burst_without_harm() -> None:
    tensor = torch.randn(1000, device=DEV)

    def waits() -> torch.Tensor:
        answer = tensor.sum()
        torch.cuda.synchronize()
        return answer + 1

    def call() -> torch.Tensor:
        return tensor.sum()

    with pytest.raises(Unavailable, match="cannot be hidden"):
        timer_for(DEV, "burst")(Contender("waits", (waits,), torch.no_grad))
    after = timer_for(DEV, "burst")(Contender("sum", (call,), torch.no_grad))
    assert after([call]).cover == GATE


def test_a_spin_that_is_tested_agrees_with_the_gate() -> None:
    one = made(1024, "bfloat16", "sdpa:cudnn")
    with one.scope():
        gated = timer_for(DEV, "burst")(Contender("x", one.calls, one.scope))
        spun = timer_for(DEV, "burst")(Contender("x", one.calls, one.scope))
        spun.cover = "spin"  # type: ignore[attr-defined]
        pairs = [(gated([call]), spun([call])) for call in one.calls[:30]]
    assert all(a.hidden and b.hidden for a, b in pairs)
    assert {b.cover for _, b in pairs} == {"spin"}
    assert agree(statistics.median(a.latency_us for a, _ in pairs), statistics.median(b.latency_us for _, b in pairs))


def test_a_thread_that_never_rests_does_not_keep_the_gate_from_opening() -> None:
    before = threading.active_count()
    one = made(1024, "bfloat16", "bench")
    with loader(), one.scope():
        assert all(sample.hidden for sample in ours(one, "burst", 10))
    assert threading.active_count() == before
