"""What the timers and the readings of a host and a device say."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.harness.clocks import Reading, device_clocks, throttle_words
from kernels.harness.host import Host, HostReading
from kernels.harness.timers import CpuTimer, calls_for, clock_overhead_ns, timer_for, whole_turns
from kernels.harness.turns import Contender
from tests.kernels.measured import CPU, Journal


def test_the_host_is_read_as_it_is_and_what_it_lacks_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  100 0 50 800 20 0 10 20 5 0\ncpu0 1 2 3\n")
    (tmp_path / "loadavg").write_text("1.25 0.80 0.50 2/100 999\n")
    (tmp_path / "cpuinfo").write_text("processor : 0\ncpu MHz\t\t: 2000.0\nprocessor : 1\ncpu MHz\t\t: 3000.0\n")
    host = Host(tmp_path)
    assert host.read() == HostReading(2500.0, 1.25, None)
    (tmp_path / "stat").write_text("cpu  150 0 70 810 20 0 10 40 5 0\n")
    assert host.read() == HostReading(2500.0, 1.25, 20.0)
    (tmp_path / "empty").mkdir()
    assert Host(tmp_path / "empty").read() == HostReading()


@pytest.mark.parametrize("regime", ["burst", "sustained"])
def test_the_cpu_timer_measures_the_time_of_one_call(regime: str) -> None:
    lasted: list[int] = []

    def plan() -> torch.Tensor:
        begun = time.perf_counter_ns()
        while time.perf_counter_ns() < begun + 1_000_000:
            pass
        lasted.append(time.perf_counter_ns() - begun)
        return torch.empty(0)

    contender = Journal().contender("a")
    timer = CpuTimer(regime, Contender("a", (plan,), contender.scope), overhead_us=0.5)

    def excess_us() -> float:
        """What the timer says beyond what the calls themselves say; another process may get in between."""
        lasted.clear()
        told = timer([plan] * timer.calls_made).latency_us
        timed = lasted[timer.warm :]
        return told - sum(timed) / len(timed) / 1000

    assert min(abs(excess_us()) for _ in range(10)) < 100
    assert timer([plan] * timer.calls_made).hidden is None, "there is no device beside this host"
    assert timer.overhead_us == 0.5 / (timer.calls_made - timer.warm)
    assert (timer.calls_made == 1) == (regime == "burst")
    assert timer.rest_s(1000.0) == 0


def test_a_graph_cannot_be_timed_without_cuda() -> None:
    with pytest.raises(ValueError, match="needs a CUDA device"):
        timer_for(CPU, "graph")


@given(st.floats(1e-6, 10), st.floats(0, 1e9))
def test_the_number_of_calls_fills_the_time_within_bounds(seconds: float, once_us: float) -> None:
    assert 2 <= calls_for(seconds, once_us) <= 2000


@given(st.integers(1, 5000), st.integers(1, 300))
def test_a_graph_reads_every_input_set_equally_often(calls: int, sets: int) -> None:
    made = whole_turns(calls, sets)
    assert made % sets == 0
    assert calls <= made < calls + sets


def test_the_clock_costs_less_than_a_microsecond_to_read() -> None:
    assert 0 < clock_overhead_ns() < 1000


@given(st.integers(0, 2**40 - 1))
def test_every_throttle_bit_is_told_but_idleness(bits: int) -> None:
    words = throttle_words(bits)
    assert "gpu_idle" not in words
    assert (words == "none") == (bits & ~1 == 0)
    assert ("sw_power_cap" in words) == bool(bits & 4)
    assert ("0x" in words) == (bits >> 9 != 0)


def test_a_cpu_has_no_sm_clock() -> None:
    assert device_clocks(CPU).read() == Reading(None, None, None, None, "")
