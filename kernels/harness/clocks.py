"""The state of the GPU while it was measured: clocks, power, temperature and throttling, from NVML through ctypes.

A sensor that fails, is hidden or is missing from an old library never fails a run: its value is unknown then.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from kernels.harness.device_clock import InKernelClock, in_kernel_clock

THROTTLE_REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""nvmlClocksEventReasons, by bit."""

NVML_CLOCK_SM = 1
NVML_CLOCK_MEM = 2
NVML_TEMPERATURE_GPU = 0
MISSING = 13
"""NVML_ERROR_FUNCTION_NOT_FOUND."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of the device. Values that could not be read are None, or empty for `throttle`; there `none` means no
    throttling."""

    sm_clock_mhz: float | None = None
    mem_clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: str = ""


class Clocks(Protocol):
    """Sensors that can be read between two measurements."""

    def read(self) -> Reading:
        """The device's state now; never raises."""
        ...

    def energy_j(self) -> float | None:
        """Joules used since some moment in the past; None where they are not known or not wanted."""
        ...


class NoClocks:
    """No sensors, for devices that NVML does not know. A CPU's frequency is no SM clock, so everything stays empty."""

    def read(self) -> Reading:
        """A reading without values."""
        return Reading()

    def energy_j(self) -> float | None:
        """None: the energy is not known."""
        return None


class Nvml:
    """One GPU's sensors. Raises `OSError` on construction when NVML or the GPU cannot be found."""

    def __init__(self, uuid: str, *, energy: bool = False, library: str = "libnvidia-ml.so.1") -> None:
        self.energy = energy
        self.library = ctypes.CDLL(library)
        self.device = ctypes.c_void_p()
        self.require(self.call("nvmlInit_v2"), "nvmlInit_v2")
        status = self.call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(self.device))
        self.require(status, f"nvmlDeviceGetHandleByUUID({uuid})")

    def call(self, function: str, *arguments: object) -> int:
        """Calls a function of NVML. Returns its code, 0 for success; `MISSING` where this NVML does not have the
        function."""
        library_function = getattr(self.library, function, None)
        return MISSING if library_function is None else int(library_function(*arguments))

    @staticmethod
    def require(code: int, what: str) -> None:
        """Raises `OSError` for any answer but success."""
        if code != 0:
            raise OSError(f"{what} answered {code}")

    def read(self) -> Reading:
        """Reads each sensor by itself, as a VM's GPU may hide some of them."""
        milliwatts = self.ask("nvmlDeviceGetPowerUsage")
        reasons = self.throttle_bits()
        return Reading(
            sm_clock_mhz=self.ask("nvmlDeviceGetClockInfo", NVML_CLOCK_SM),
            mem_clock_mhz=self.ask("nvmlDeviceGetClockInfo", NVML_CLOCK_MEM),
            power_w=None if milliwatts is None else milliwatts / 1000,
            temperature_c=self.ask("nvmlDeviceGetTemperature", NVML_TEMPERATURE_GPU),
            throttle="" if reasons is None else throttle_words(reasons),
        )

    def energy_j(self) -> float | None:
        """Joules since the driver was loaded, or None. The counter moves every few hundredths of a second."""
        if not self.energy:
            return None
        millijoules = ctypes.c_ulonglong()
        code = self.call("nvmlDeviceGetTotalEnergyConsumption", self.device, ctypes.byref(millijoules))
        return millijoules.value / 1000 if code == 0 else None

    def settings(self) -> dict[str, float | bool | str | None]:
        """Settings that differ from machine to machine: power limit, ECC, MIG, clocks, firmware."""
        limit, usual = self.ask("nvmlDeviceGetEnforcedPowerLimit"), self.ask("nvmlDeviceGetPowerManagementDefaultLimit")
        return {
            "power_limit_w": None if limit is None else limit / 1000,
            "power_limit_default_w": None if usual is None else usual / 1000,
            "ecc": self.mode("nvmlDeviceGetEccMode"),
            "mig": self.mode("nvmlDeviceGetMigMode"),
            "sm_clock_max_mhz": self.ask("nvmlDeviceGetMaxClockInfo", NVML_CLOCK_SM),
            "mem_clock_max_mhz": self.ask("nvmlDeviceGetMaxClockInfo", NVML_CLOCK_MEM),
            "sm_clock_mhz": self.ask("nvmlDeviceGetClockInfo", NVML_CLOCK_SM),
            "mem_clock_mhz": self.ask("nvmlDeviceGetClockInfo", NVML_CLOCK_MEM),
            "vbios": self.vbios(),
        }

    def mode(self, function: str) -> bool | None:
        """Whether a mode is on now, or None where the device does not have it."""
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        code = self.call(function, self.device, ctypes.byref(current), ctypes.byref(pending))
        return bool(current.value) if code == 0 else None

    def ask(self, function: str, *arguments: int) -> float | None:
        """An unsigned value; None when the device does not report it."""
        value = ctypes.c_uint()
        code = self.call(function, self.device, *arguments, ctypes.byref(value))
        return float(value.value) if code == 0 else None

    def throttle_bits(self) -> int | None:
        """The reasons for which clocks are reduced now, as bits; None where they are not known."""
        bits = ctypes.c_ulonglong()
        code = self.call("nvmlDeviceGetCurrentClocksThrottleReasons", self.device, ctypes.byref(bits))
        return bits.value if code == 0 else None

    def driver_version(self) -> str:
        """The driver's version, or an empty string."""
        buffer = ctypes.create_string_buffer(96)
        code = self.call("nvmlSystemGetDriverVersion", buffer, ctypes.c_uint(len(buffer)))
        return buffer.value.decode(errors="replace") if code == 0 else ""

    def vbios(self) -> str | None:
        """The version of the board's firmware."""
        buffer = ctypes.create_string_buffer(96)
        code = self.call("nvmlDeviceGetVbiosVersion", self.device, buffer, ctypes.c_uint(len(buffer)))
        return buffer.value.decode(errors="replace") or None if code == 0 else None


def throttle_words(bits: int) -> str:
    """The names of the set bits, joined by `|`; `none` when there is none. An idle GPU is not a throttled one."""
    named = [name for bit, name in THROTTLE_REASONS.items() if bits & bit and name != "gpu_idle"]
    unknown = bits & ~sum(THROTTLE_REASONS)
    return "|".join([*named, *([f"{unknown:#x}"] if unknown else [])]) or "none"


def open_nvml(device: torch.device, *, energy: bool = False) -> Nvml | None:
    """The sensors of a CUDA device, found by UUID because CUDA may number devices differently; None without NVML."""
    if device.type != "cuda":
        return None
    try:
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        return Nvml(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}", energy=energy)
    except (OSError, AttributeError):
        return None


class Sensors:
    """A GPU's sensors, with the clock read in a kernel where NVML, or a VM that hides it, has none."""

    def __init__(self, sensors: Nvml | None, in_kernel: InKernelClock) -> None:
        self.sensors, self.in_kernel = sensors, in_kernel

    def read(self) -> Reading:
        """A reading with all values that NVML or the kernel gives."""
        reading = self.sensors.read() if self.sensors is not None else Reading()
        return reading if reading.sm_clock_mhz is not None else replace(reading, sm_clock_mhz=self.in_kernel.mhz())

    def energy_j(self) -> float | None:
        """The energy that NVML reports."""
        return self.sensors.energy_j() if self.sensors is not None else None


def device_clocks(device: torch.device, *, sustained: bool = False) -> Clocks:
    """The sensors of `device`, or none. Energy is read where measurements are `sustained`: a single call is shorter
    than the steps of the counter."""
    if device.type != "cuda":
        return NoClocks()
    return Sensors(open_nvml(device, energy=sustained), in_kernel_clock(device))
