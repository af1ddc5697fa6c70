"""The clock that a kernel reads: what its source does, what its counters mean, and that it never stands in the way."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.attention.cuda.compile.compiler import Compiler, Target, find_compiler
from kernels.attention.interface import BuildFailed
from kernels.harness.clocks import MISSING, Nvml, Reading, Sensors
from kernels.harness.device_clock import SOURCE, SPIN_NS, InKernelClock, in_kernel_clock


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    try:
        return find_compiler()
    except BuildFailed as exc:
        pytest.skip(str(exc))


def test_the_kernel_reads_its_cycles_between_steps_of_the_timer_in_that_order(compiler: Compiler) -> None:
    (compiled,) = compiler.compile([SOURCE], {}, Target("compute_75"))
    read = re.findall(r"%(globaltimer|clock64)", compiled.image.decode())
    assert read == ["globaltimer", "globaltimer", "clock64", "globaltimer", "clock64"]


@pytest.mark.parametrize("target", ["sm_75", "sm_90"])
def test_the_kernel_compiles_for_old_and_new_chips(target: str, compiler: Compiler) -> None:
    (compiled,) = compiler.compile([SOURCE], {}, Target(target))
    assert b"sm_clock" in compiled.image


@given(st.floats(100, 4000), st.integers(SPIN_NS, 10 * SPIN_NS))
def test_a_clocks_megahertz_are_its_cycles_a_microsecond(mhz: float, nanoseconds: int) -> None:
    cycles = round(mhz * nanoseconds / 1000)
    assert InKernelClock(lambda: (cycles, nanoseconds)).mhz() == pytest.approx(mhz, rel=1e-4)


@pytest.mark.parametrize("counters", [(0, 0), (5, 0), (0, 5), (-1, 5)])
def test_counters_that_make_no_sense_are_no_clock(counters: tuple[int, int]) -> None:
    assert InKernelClock(lambda: counters).mhz() is None


def test_a_clock_that_fails_once_is_not_asked_again_and_says_why() -> None:
    asked: list[int] = []

    def counters() -> tuple[int, int]:
        asked.append(1)
        raise OSError("libcuda.so.1: cannot open shared object file")

    clock = InKernelClock(counters)
    assert clock.mhz() is clock.mhz() is None
    assert len(asked) == 1
    assert clock.why == "OSError: libcuda.so.1: cannot open shared object file"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_where_there_is_no_device_the_clock_is_unknown_and_nothing_is_raised() -> None:
    clock = in_kernel_clock(torch.device("cuda", 0))
    assert clock.mhz() is None
    assert clock.why
    assert in_kernel_clock(torch.device("cuda", 0)) is clock


@dataclass
class PlayedLibrary:
    """An NVML that has been told what each function answers: a code, and the number it leaves at the last pointer."""

    answers: dict[str, tuple[int, int]]

    def __getattr__(self, name: str) -> object:
        if name not in self.answers:
            raise AttributeError(name)
        code, value = self.answers[name]

        def function(*arguments: object) -> int:
            if code == 0:
                arguments[-1]._obj.value = value  # type: ignore[attr-defined]
            return code

        return function


def sensors_with(**answers: tuple[int, int]) -> Nvml:
    nvml = Nvml.__new__(Nvml)
    nvml.energy, nvml.device = True, None  # type: ignore[assignment]
    nvml.library = PlayedLibrary(answers)  # type: ignore[assignment]
    return nvml


def test_the_kernels_clock_stands_in_only_where_nvml_has_none() -> None:
    in_kernel = InKernelClock(lambda: (1_500_000, 1_000_000))
    assert Sensors(None, in_kernel).read() == Reading(sm_clock_mhz=1500.0)
    hidden = sensors_with(nvmlDeviceGetClockInfo=(3, 0), nvmlDeviceGetPowerUsage=(0, 71_500))
    assert Sensors(hidden, in_kernel).read() == Reading(sm_clock_mhz=1500.0, power_w=71.5)
    told = sensors_with(nvmlDeviceGetClockInfo=(0, 1980))
    assert Sensors(told, in_kernel).read().sm_clock_mhz == 1980.0
    assert Sensors(None, in_kernel).energy_j() is None
    assert Sensors(sensors_with(nvmlDeviceGetTotalEnergyConsumption=(0, 2500)), in_kernel).energy_j() == 2.5


def test_functions_that_an_nvml_does_not_have_are_unknown_sensors_and_no_failure() -> None:
    bare = sensors_with()
    assert bare.call("nvmlDeviceGetVbiosVersion", None) == MISSING
    assert bare.read() == Reading()
    assert bare.energy_j() is None
    assert set(bare.settings().values()) == {None}
    assert bare.driver_version() == ""
