"""The SM clock as a kernel sees it, for machines without NVML: cycles of `clock64` over nanoseconds of
`globaltimer`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

import torch

NAME = "sm_clock"
SPIN_NS = 200_000
"""`globaltimer` moves in steps of up to a microsecond, which is half a per cent of this time."""

SOURCE = """
static __device__ unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now) :: "memory");
  return now;
}
static __device__ unsigned long long cycles() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(now) :: "memory");
  return now;
}
extern "C" __global__ void sm_clock(unsigned long long *out, unsigned long long least_ns) {
  unsigned long long began = nanoseconds(), now = began;
  while (now == began) now = nanoseconds();  // from one step of the timer ...
  const unsigned long long first = cycles();
  began = now;
  while (now - began < least_ns) now = nanoseconds();  // ... to another
  out[0] = cycles() - first;
  out[1] = now - began;
}
"""

Counters = Callable[[], tuple[int, int]]
"""The cycles and nanoseconds of one reading, of the same span of time on the same SM."""


class InKernelClock:
    """The SM clock in MHz while a small kernel spins. After the first failure it is not read again; `why` then has the
    reason."""

    def __init__(self, counters: Counters) -> None:
        self.counters: Counters | None = counters
        self.why = ""

    def mhz(self) -> float | None:
        """The SM clock now in MHz; None where it cannot be read. Never raises."""
        if self.counters is None:
            return None
        try:
            cycles, nanoseconds = self.counters()
        except Exception as exc:  # no measurement may fail because a clock cannot be read
            self.why, self.counters = f"{type(exc).__name__}: {exc}"[:200], None
            return None
        return 1000 * cycles / nanoseconds if nanoseconds > 0 and cycles > 0 else None


@cache
def in_kernel_clock(device: torch.device) -> InKernelClock:
    """The clock of a device, one for each process. It is compiled when it is first read."""
    made: list[Counters] = []

    def counters() -> tuple[int, int]:
        if not made:
            made.append(load_counters(device))
        return made[0]()

    return InKernelClock(counters)


def load_counters(device: torch.device) -> Counters:
    """Compiles the kernel for the device and loads it. Raises the errors of compiler and driver."""
    # Imported here, so that an error in the kernels' loader disables only this clock.
    from kernels.device_code import LaunchConfig, Target, cuda_driver, find_compiler

    index = device.index or 0
    major, minor = torch.cuda.get_device_capability(device)
    (compiled,) = find_compiler().compile([SOURCE], {}, Target(f"sm_{major}{minor}"))
    out = torch.zeros(2, dtype=torch.int64, device=device)
    cuda_driver().enter(index)
    function = cuda_driver().load(compiled.image, NAME, 0)
    address, least_ns = ctypes.c_void_p(out.data_ptr()), ctypes.c_uint64(SPIN_NS)
    arguments = (ctypes.c_void_p * 2)(ctypes.addressof(address), ctypes.addressof(least_ns))
    config = LaunchConfig(1, 1, 1, 1, 1, 1, 0, None, None, 0)

    def counters(_keep_alive: object = (out, address, least_ns)) -> tuple[int, int]:
        cuda_driver().enter(index)
        config.stream = torch.cuda.current_stream(device).cuda_stream
        launch = cuda_driver().library.cuLaunchKernelEx
        code = launch(ctypes.addressof(config), function.handle, ctypes.addressof(arguments), None)
        cuda_driver().check(code, "launching the clock's kernel")
        cycles, nanoseconds = out.tolist()
        return int(cycles), int(nanoseconds)

    return counters
