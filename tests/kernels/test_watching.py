"""Two clocks on the same launches: laws over a device that keeps a record of its kernels, as CUPTI does."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.attention.interface import Plan, Unavailable
from kernels.harness import cupti
from kernels.harness.cupti import Activity
from kernels.harness.second_clock import sample_cases
from kernels.harness.timers import CudaTimer
from kernels.harness.turns import Contender
from kernels.harness.watching import COLUMNS, SAMPLES, Missed, Watched, is_cover, watch_samples, watched_cells
from tests.kernels.simulated_stream import EVENT_US, Mark, SimulatedHost, SimulatedStream, call, phases

REGIMES = ("burst", "graph", "sustained")
Change = Callable[[list[Activity]], list[Activity]]


def nothing(_seconds: float) -> None:
    """No rest: the simulated device needs none."""


def looked_at(
    stream: SimulatedStream, regime: str, *plans: Plan, change: Change = lambda own: own, exposed: bool = False
) -> Watched | Missed:
    """What is said of the plans where the record has been changed so."""
    contender = Contender("one", plans, nullcontext)
    timer = CudaTimer(regime, contender, 0.0, stream, exposed=exposed)
    return watch_samples(timer, contender, lambda work: change(stream.traced(work)), nothing)


def compared(stream: SimulatedStream, regime: str, *plans: Plan) -> Watched:
    found = looked_at(stream, regime, *plans)
    assert isinstance(found, Watched), found
    return found


def theirs(found: Watched) -> float:
    return found.cupti_us if math.isnan(found.covered_us) else found.covered_us


@pytest.fixture
def stream() -> SimulatedStream:
    return SimulatedStream(SimulatedHost())


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("gated", [True, False])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), device=st.floats(20.0, 800.0), kernels=st.integers(1, 3), host=st.floats(1.0, 6.0))
def test_a_timer_that_is_right_is_within_a_hundredth_of_the_record_of_its_launches(
    regime: str, gated: bool, seed: int, device: float, kernels: int, host: float
) -> None:
    slow = phases(seed) if regime != "sustained" else lambda: 1.0
    stream = SimulatedStream(SimulatedHost(slow), gated=gated)
    found = compared(stream, regime, call(stream, host, device, kernels=kernels))
    assert found.samples == SAMPLES[regime]
    assert found.kernels_per_call == kernels
    assert found.watched_us == pytest.approx(theirs(found), rel=0.01)
    assert found.worst_ratio < 1.01
    if gated or regime != "burst":
        assert found.worst_ratio > 0.99, "behind a spin alone the device may have stood still before the first event"
    assert found.cupti_us == pytest.approx(device, rel=0.005)
    assert found.kernel_us == pytest.approx(device, rel=0.001)


def test_the_gate_is_in_neither_time_of_burst_and_the_first_event_in_one(stream: SimulatedStream) -> None:
    found = compared(stream, "burst", call(stream, 5000.0, 20.0))
    assert found.cupti_us == pytest.approx(20.0, abs=0.01), "the device stood at the gate for more than 5 ms"
    assert 20.0 + EVENT_US <= found.covered_us < 21.0
    assert found.covered_us == pytest.approx(found.watched_us, abs=0.01)
    assert found.kernels == ("work",)


def uneven(stream: SimulatedStream, seed: int) -> Plan:
    """An implementation that never takes as long as the time before."""
    chance = random.Random(seed)

    def plan() -> torch.Tensor:
        return call(stream, 2.0, chance.uniform(20.0, 400.0))()

    return plan


@pytest.mark.parametrize("seed", range(4))
def test_each_sample_is_compared_with_its_own_launches_and_not_with_others(stream: SimulatedStream, seed: int) -> None:
    found = compared(stream, "burst", uneven(stream, seed))
    assert found.worst_ratio == pytest.approx(1, abs=0.001)

    def later(own: list[Activity]) -> list[Activity]:
        """Each launch's kernel as long as the next one's: a record of other launches of the same kind."""
        lengths = [one.length for one in own if one.name == "work"]
        turned = iter(lengths[1:] + lengths[:1])
        return [Activity(one.name, one.start, next(turned)) if one.name == "work" else one for one in own]

    other = looked_at(stream, "burst", uneven(stream, seed), change=later)
    assert isinstance(other, Watched)
    assert abs(other.worst_ratio - 1) > 0.1


@dataclass
class LyingStream(SimulatedStream):
    """A device whose events are wrong by a factor."""

    factor: float = 1.0

    def elapsed_us(self, start: Mark, end: Mark) -> float:
        return self.factor * super().elapsed_us(start, end)


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_a_timer_that_is_wrong_by_a_twentieth_is_seen(regime: str, factor: float) -> None:
    stream = LyingStream(SimulatedHost(), factor=factor)
    found = compared(stream, regime, call(stream, 3.0, 40.0))
    assert found.watched_us / theirs(found) == pytest.approx(factor, abs=0.005)
    assert found.worst_ratio == pytest.approx(factor, abs=0.005)


def test_a_sample_that_was_taken_again_is_compared_with_its_last_try(stream: SimulatedStream) -> None:
    plan, numbers = call(stream, 10.0, 20.0), iter(range(1000))

    def stops_at_times() -> torch.Tensor:
        if next(numbers) % 4 == 3:
            stream.host.spend(500_000.0)
        return plan()

    found = compared(stream, "burst", stops_at_times)
    assert len(stream.given_up) >= 3, "the device left some gates by itself"
    assert found.samples == SAMPLES["burst"]
    assert found.worst_ratio == pytest.approx(1, abs=0.001)


def without(name: str, number: int) -> Change:
    """The record that lacks the n-th kernel of this name."""

    def change(own: list[Activity]) -> list[Activity]:
        place = [at for at, one in enumerate(own) if one.name == name][number]
        return own[:place] + own[place + 1 :]

    return change


def doubled(own: list[Activity]) -> list[Activity]:
    return [*own, own[-1]]


LOST: Sequence[tuple[str, Change, str]] = [
    ("burst", without("gate", 0), "CUPTI has 10 covers of the 11 that were enqueued"),
    ("graph", without("gate", -1), "CUPTI has 10 covers of the 11 that were enqueued"),
    ("sustained", without("spin_kernel", 2), "CUPTI has 4 covers of the 5 that were enqueued"),
    ("burst", without("work", 4), "CUPTI has 1 or 2 kernels of a sample of 1 calls"),
    ("burst", doubled, "CUPTI has 2 or 3 kernels of a sample of 1 calls"),
    ("graph", without("work", 7), "CUPTI has 49 or 50 kernels of a sample of 25 calls"),
    ("sustained", doubled, "CUPTI has 2500 or 2501 kernels of a sample of 1250 calls"),
    ("burst", lambda own: [one for one in own if one.name != "work"], "CUPTI has 0 kernels of a sample of 1 calls"),
    ("graph", lambda own: [], "CUPTI has 0 covers of the 11 that were enqueued"),
]


@pytest.mark.parametrize(("regime", "change", "why"), LOST)
def test_where_the_counts_differ_nothing_is_compared_and_it_is_said_why(
    stream: SimulatedStream, regime: str, change: Change, why: str
) -> None:
    plan = call(stream, 1.0, 40.0 - EVENT_US, kernels=2)
    assert looked_at(stream, regime, plan, change=change) == Missed(why)


def test_a_kernel_that_every_sample_lacks_is_noticed_where_calls_share_a_sample(stream: SimulatedStream) -> None:

    def lacks_one_in_each(own: list[Activity]) -> list[Activity]:
        return [one for one, before in zip(own, [None, *own], strict=False) if before is None or before.name != "gate"]

    found = looked_at(stream, "graph", call(stream, 1.0, 40.0 - EVENT_US, kernels=2), change=lacks_one_in_each)
    assert found == Missed("CUPTI has 49 kernels of a sample of 25 calls")


def test_what_begins_before_its_cover_has_ended_did_not_stand_behind_it(stream: SimulatedStream) -> None:

    def early(own: list[Activity]) -> list[Activity]:
        return [Activity(one.name, one.start - 2000, one.length) if one.name == "work" else one for one in own]

    found = looked_at(stream, "burst", call(stream, 1.0, 40.0), change=early)
    assert found == Missed("a kernel began before its cover had ended")


def test_a_record_whose_times_are_not_in_order_is_not_divided_by(stream: SimulatedStream) -> None:

    def still(own: list[Activity]) -> list[Activity]:
        return [Activity(one.name, one.start, -(10**9)) if one.name == "work" else one for one in own]

    assert looked_at(stream, "graph", call(stream, 1.0, 2000.0), change=still) == Missed(
        "CUPTI's times are not in order"
    )


def test_what_waits_for_the_device_within_its_call_has_no_cover_to_be_found_by(stream: SimulatedStream) -> None:
    found = looked_at(stream, "burst", call(stream, 10.0, 20.0, waits=True), exposed=True)
    assert found == Missed("its launch had no cover")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"), "RuntimeError: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"),
        (AttributeError("kineto_results"), "AttributeError: kineto_results"),
        (Unavailable("it cannot be hidden"), "it cannot be hidden"),
    ],
)
def test_a_profiler_that_fails_is_a_reason_and_no_error(stream: SimulatedStream, error: Exception, why: str) -> None:
    contender = Contender("one", (call(stream, 1.0, 9.0),), nullcontext)

    def fails(_work: Callable[[], None]) -> list[Activity]:
        raise error

    assert watch_samples(CudaTimer("burst", contender, 0.0, stream), contender, fails, nothing) == Missed(why)


def test_a_row_has_both_medians_of_ours_and_cuptis_or_the_reason(stream: SimulatedStream) -> None:
    burst = watched_cells(compared(stream, "burst", call(stream, 3.0, 40.0, kernels=2)), "burst", 41.5)
    assert set(burst) == set(COLUMNS)
    assert burst == {
        "regime": "burst", "samples": "11", "calls": "1", "watched_us": "40.600", "unwatched_us": "41.500",
        "cupti_us": "40.000", "cupti_covered_us": "40.600", "cupti_kernel_us": "40.000", "worst_ratio": burst["worst_ratio"],
        "kernels_per_call": "2", "kernels": "work", "skipped": "",
    }  # fmt: skip
    assert float(burst["worst_ratio"]) == pytest.approx(1, abs=0.001)
    graph = watched_cells(compared(stream, "graph", call(stream, 3.0, 40.0)), "graph", math.nan)
    assert (graph["cupti_covered_us"], graph["unwatched_us"]) == ("", "")
    missed = watched_cells(Missed("no"), "graph", 7.0)
    assert missed == {"regime": "graph", "unwatched_us": "7.000", "skipped": "no"}


def test_only_half_of_what_is_called_back_to_back_is_compared(stream: SimulatedStream) -> None:
    found = compared(stream, "sustained", call(stream, 1.0, 50.0))
    assert found.calls == 494
    assert found.kernels_per_call == 1


def test_the_gate_and_the_spin_are_told_from_kernels_whose_names_are_like_theirs() -> None:
    assert is_cover("gate")
    assert is_cover("gate(unsigned long long*, unsigned long long, unsigned long long)")
    assert is_cover("void at::cuda::(anonymous namespace)::spin_kernel(long)")
    assert not is_cover("gated_mlp")
    assert not is_cover("void gate_up<4>(float*)")


def event(name: str, start: int, kind: str = "CUDA") -> SimpleNamespace:
    return SimpleNamespace(
        name=lambda: name, start_ns=lambda: start, duration_ns=lambda: 5, device_type=lambda: SimpleNamespace(name=kind)
    )


def test_of_a_trace_the_devices_work_is_kept_in_order_and_its_waits_are_not() -> None:
    events = [
        event("Event Sync", 1), event("big", 30), event("cudaLaunchKernel", 2, "CPU"), event("Memset (Device)", 20),
        event("Context Sync", 40), event("gate", 10),
    ]  # fmt: skip
    found = cupti.list_activities(events)
    assert [one.name for one in found] == ["gate", "Memset (Device)", "big"]
    assert [one.end for one in found] == [15, 25, 35]
    assert cupti.span_of(found) == 25
    assert cupti.span_of([]) == 0


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_the_profiler_of_a_machine_without_a_gpu_refuses_or_sees_nothing() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    asked = []
    try:
        found = cupti.trace_activities(lambda: asked.append(1))
    except (RuntimeError, AttributeError, AssertionError):
        return  # a build of PyTorch without a profiler of devices
    assert asked == [1]
    assert found == []


@given(st.integers(0, 200), st.integers(2, 12))
def test_the_sample_is_spread_over_the_grid_from_its_first_case_to_its_last(count: int, most: int) -> None:
    cases = list(range(count))
    chosen = sample_cases(cases, most)
    assert len(chosen) == min(count, most)
    assert chosen == sorted(set(chosen))
    if count:
        assert {chosen[0], chosen[-1]} == {cases[0], cases[-1]}


def test_medians_are_over_samples(stream: SimulatedStream) -> None:
    lengths = [float(20 + number) for number in random.Random(7).sample(range(60), 40)]
    made: list[float] = []

    def plan() -> torch.Tensor:
        made.append(lengths[len(made) % len(lengths)])
        return call(stream, 1.0, made[-1])()

    found = compared(stream, "burst", plan)
    assert found.cupti_us == pytest.approx(statistics.median(made[-SAMPLES["burst"] :]), abs=0.01)
