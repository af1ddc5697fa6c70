"""Energy is what NVML's counter says while a device makes one kind of call, from step to step of the counter."""

from __future__ import annotations

import ctypes
import itertools
import math
import subprocess
import threading
from collections.abc import Callable

import pytest

from kernels.harness.clocks import Nvml, Sensors
from kernels.harness.device_clock import InKernelClock
from kernels.harness.energy import LEAD_S, LEAST_STEPS, LONGEST_S, Drawn, Step, between_steps, measure_energy
from tests.support.patience import await_truth

# An NVML whose device draws 400 W, and whose counter moves every 20 ms of `now_ms`, as a library that is loaded by name.
PLAYED = r"""
extern "C" {
long long now_ms = 0;
int nvmlInit_v2() { return 0; }
int nvmlDeviceGetHandleByUUID(const char *, void **device) { *device = (void *)1; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
  *millijoules = 400ULL * 20 * (now_ms / 20);
  return device == (void *)1 ? 0 : 2;
}
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.cpp").write_text(PLAYED)
    made = folder / "libnvidia-ml.so.1"
    subprocess.run(["g++", "-shared", "-fPIC", "-o", str(made), str(folder / "nvml.cpp")], check=True)
    return str(made)


def test_joules_of_a_call_are_the_power_of_its_device_times_its_seconds(library: str) -> None:
    sensors = Sensors(Nvml("GPU-1", energy=True, library=library), InKernelClock(lambda: None))
    now_ms = ctypes.c_longlong.in_dll(ctypes.CDLL(library), "now_ms")
    caller, looks = threading.get_ident(), 0

    def counter() -> float | None:
        nonlocal looks
        found = sensors.energy_j()
        looks += threading.get_ident() != caller
        return found

    def work() -> int:
        """Ten calls in 5 ms. Time stands still until whoever follows the counter has looked at it since then."""
        is_followed = now_ms.value >= LEAD_S * 1000
        now_ms.value += 5
        before = looks
        if is_followed:
            await_truth(lambda: looks >= before + 3, "a whole look at the counter", 0.001)
        return 10

    found = measure_energy(work, counter, lambda: now_ms.value / 1000)
    assert found is not None
    assert found.joules_per_call == pytest.approx(400 * 0.005 / 10)
    assert found.seconds > 0.5


def test_a_counter_unasked_or_silent_gives_nothing_and_costs_no_call(library: str) -> None:
    for counter in (Nvml("GPU-1", library=library).energy_j, lambda: None):
        assert measure_energy(calls_that_fail, counter) is None


def calls_that_fail() -> int:
    raise AssertionError("nothing is called for a counter that does not answer")


class Played:
    """Simulated time: a call takes 0.01 s; the counter is `joules` of the time."""

    def __init__(self, joules: Callable[[float], float]) -> None:
        self.now, self.joules, self.calls = 0.0, joules, 0

    def work(self) -> int:
        self.now += 0.01
        self.calls += 1
        return 1

    def counter(self) -> float:
        return self.joules(self.now)


def test_a_counter_that_stands_still_is_followed_for_so_long_and_gives_nothing() -> None:
    played = Played(lambda _: 7.0)
    assert measure_energy(played.work, played.counter, lambda: played.now) is None
    assert played.now <= LONGEST_S + 0.2


def test_nothing_is_begun_that_the_time_left_is_too_short_for() -> None:
    played = Played(lambda at: at)
    assert measure_energy(played.work, played.counter, lambda: played.now, patience_s=0.5) is None
    assert played.calls == 0


@pytest.mark.parametrize("step_s", [0.02, 0.1])
@pytest.mark.parametrize("watts", [30.0, 700.0])
def test_from_step_to_step_the_size_of_a_step_does_not_matter(step_s: float, watts: float) -> None:
    steps = [Step(0.003 + n * step_s, watts * step_s * n) for n in range(LEAST_STEPS + 3)]
    assert between_steps(steps, 1e-4) == Drawn(pytest.approx(watts * 1e-4), pytest.approx(step_s * (LEAST_STEPS + 2)))


def test_too_few_steps_and_a_counter_set_back_tell_nothing() -> None:
    steps = [Step(n * 0.02, 8.0 * n) for n in range(10)]
    assert between_steps(steps[:LEAST_STEPS], 1e-4) is None
    assert between_steps([*steps, Step(0.3, 0.0)], 1e-4) is None
    assert all(a.at < b.at for a, b in itertools.pairwise(steps))
    found = between_steps(steps, 1e-4)
    assert found is not None
    assert math.isclose(found.joules_per_call, 0.04)
