"""The harness's timers and CUPTI on the same launches of a real device."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from kernels.harness.cupti import Activity, trace_activities
from kernels.harness.streams import CudaStream
from kernels.harness.timers import CudaTimer
from kernels.harness.turns import Contender
from kernels.harness.watching import SAMPLES, Watched
from kernels.harness.watching import watch_samples as looked_at
from tests.kernels.instruments import DEV, watched
from tests.kernels.subjects import AS_THE_HARNESS_DOES, made

pytestmark = AS_THE_HARNESS_DOES
CELLS = [(512, "float16"), (4096, "bfloat16")]
NAMES = ["bench", "sdpa:cudnn", "sdpa:flash", "sdpa:math"]
REGIMES = ["burst", "graph", "sustained"]


def near(ours: float, theirs: float, share: float = 0.03) -> bool:
    return abs(ours - theirs) <= max(0.5, share * theirs)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("seq", "dtype"), CELLS)
def test_every_regime_is_within_three_per_cent_of_cuptis_time_of_the_same_launches(
    seq: int, dtype: str, name: str
) -> None:
    one = made(seq, dtype, name)
    for regime in REGIMES:
        found = watched(one, regime)
        assert isinstance(found, Watched), found
        assert found.samples == SAMPLES[regime]
        theirs = found.covered_us if regime == "burst" else found.cupti_us
        assert near(found.watched_us, theirs), (regime, found)
        assert found.kernel_us > 0
        assert found.kernels_per_call >= len(found.kernels) >= 1
        if regime == "burst":
            assert 0 < found.watched_us - found.cupti_us < 10.0 + 0.03 * found.cupti_us, found


def test_the_kernels_that_it_sees_are_those_of_the_implementation_and_not_the_gate() -> None:
    found = watched(made(4096, "bfloat16", "bench"), "burst")
    assert isinstance(found, Watched), found
    assert found.kernels_per_call == 1
    assert not any("gate" in kernel or "spin" in kernel for kernel in found.kernels)


class LyingStream(CudaStream):
    """Its events are a twentieth wrong."""

    def elapsed_us(self, start: Any, end: Any) -> float:
        return 1.05 * super().elapsed_us(start, end)


@pytest.mark.parametrize("regime", ["burst", "graph"])
def test_a_timer_that_is_wrong_by_a_twentieth_is_seen(regime: str) -> None:
    one = made(4096, "bfloat16", "bench")
    contender = Contender(one.name, one.calls, one.scope)
    with one.scope():
        timer = CudaTimer(regime, contender, 0.0, LyingStream(DEV))
    found = looked_at(timer, contender)
    assert isinstance(found, Watched), found
    theirs = found.cupti_us if math.isnan(found.covered_us) else found.covered_us
    assert found.watched_us / theirs == pytest.approx(1.05, abs=0.02)


def test_a_device_that_gave_up_at_a_gate_is_matched_by_its_last_try() -> None:
    one = made(512, "float16", "bench")
    turn = {"left": 3}

    def stops() -> object:
        turn["left"] -= 1
        if turn["left"] == 0:
            waiting = torch.cuda.Event()
            waiting.record()
            waiting.synchronize()  # only the gate's own patience ends this
        return one.calls[0]()

    contender = Contender(one.name, (one.calls[0],), one.scope)
    with one.scope():
        timer = CudaTimer("burst", contender, 0.0, CudaStream(DEV))
    once = Contender(one.name, (stops,), one.scope)  # type: ignore[arg-type]
    found = looked_at(timer, once)
    assert isinstance(found, Watched), found
    assert turn["left"] <= 0
    assert found.samples == SAMPLES["burst"]
    assert near(found.watched_us, found.covered_us)


def test_the_profiler_keeps_each_kernel_of_ten_graphs() -> None:
    tensor = torch.zeros(1 << 20, device=DEV)
    graph = torch.cuda.CUDAGraph()
    tensor.add_(1)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(25):
            tensor.add_(1)

    def replayed() -> None:
        for _ in range(10):
            graph.replay()
        torch.cuda.synchronize()

    found = trace_activities(replayed)
    assert all(isinstance(one, Activity) and one.length > 0 for one in found)
    assert len(found) == 250
