"""A gate in a CUDA stream: the device waits at it until the host has enqueued all its work and opens it.

So the work behind a gate was enqueued before the device began it, however slow the host was. NVIDIA's NVBench keeps
launch latency out of a measurement in the same way.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch

NAME = "gate"
MOST_BLOCK_S = 0.2
"""After this time the device goes on by itself. Otherwise an implementation that waits for the device within its call
would wait for ever."""
EXPIRED = 16
"""The offset of the device's word. It is 128 bytes behind the host's, so that the two are on different cache lines."""

SOURCE = """
static __device__ unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now) :: "memory");
  return now;
}
static __device__ unsigned long long opened(const unsigned long long *words) {
  unsigned long long ticket;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(ticket) : "l"(words) : "memory");
  return ticket;
}
extern "C" __global__ void gate(unsigned long long *words, unsigned long long ticket, unsigned long long most_ns) {
  const unsigned long long began = nanoseconds();
  while (opened(words) < ticket) {
    if (nanoseconds() - began > most_ns) {
      asm volatile("st.relaxed.sys.global.u64 [%0], %1;" :: "l"(words + 16), "l"(ticket) : "memory");
      __threadfence_system();
      return;
    }
  }
}
"""


class Gate:
    """The gate of one device. Its construction raises the errors of compiler and driver."""

    def __init__(self, device: torch.device) -> None:
        # Imported here, so that an error in the kernels' loader disables only the gate.
        from kernels.device_code import LaunchConfig, Target, cuda_driver, find_compiler

        self.index = device.index or 0
        self.device = torch.device("cuda", self.index)
        major, minor = torch.cuda.get_device_capability(self.device)
        (compiled,) = find_compiler().compile([SOURCE], {}, Target(f"sm_{major}{minor}"))
        torch.cuda.init()
        self.driver = cuda_driver()
        self.driver.enter(self.index)
        self.function = self.driver.load(compiled.image, NAME, 0)
        host, on_device = ctypes.c_void_p(), ctypes.c_void_p()
        library = self.driver.library
        code = library.cuMemHostAlloc(ctypes.byref(host), ctypes.c_size_t(256), ctypes.c_uint(PORTABLE | DEVICEMAP))
        self.driver.check(code, "allocating the gate's memory")
        code = library.cuMemHostGetDevicePointer_v2(ctypes.byref(on_device), host, ctypes.c_uint(0))
        self.driver.check(code, "mapping the gate's memory")
        assert host.value is not None, "the driver allocated it"
        ctypes.memset(host.value, 0, 256)
        self.opened = ctypes.c_uint64.from_address(host.value)
        self.gave_up = ctypes.c_uint64.from_address(host.value + 8 * EXPIRED)
        self.ticket = ctypes.c_uint64(0)
        self.words, self.most_ns = on_device, ctypes.c_uint64(round(MOST_BLOCK_S * 1e9))
        values = (self.words, self.ticket, self.most_ns)
        self.arguments = (ctypes.c_void_p * 3)(*(ctypes.addressof(value) for value in values))
        self.config = LaunchConfig(1, 1, 1, 1, 1, 1, 0, None, None, 0)

    def block(self) -> int:
        """Makes the current stream wait. Returns the ticket that opens this gate and all before it."""
        self.driver.enter(self.index)
        self.ticket.value += 1
        self.config.stream = torch.cuda.current_stream(self.device).cuda_stream
        code = self.driver.library.cuLaunchKernelEx(
            ctypes.addressof(self.config), self.function.handle, ctypes.addressof(self.arguments), None
        )
        self.driver.check(code, "launching the gate")
        return int(self.ticket.value)

    def unblock(self, ticket: int) -> None:
        """Lets the stream go on."""
        self.opened.value = ticket

    def expired(self, ticket: int) -> bool:
        """Whether the device gave up waiting. This is known once it has passed the gate."""
        return int(self.gave_up.value) == ticket


PORTABLE, DEVICEMAP = 1, 2  # CU_MEMHOSTALLOC_


@cache
def gate_of(device: torch.device) -> Gate | str:
    """The gate of a device, one for each process; or the reason why there is none."""
    try:
        return Gate(device)
    except Exception as exc:  # without a gate a spin is used, which is checked for each sample
        return f"{type(exc).__name__}: {exc}"[:200]
