"""The bundled CPU kernel: C++ that is built on the machine by its compiler and called through ctypes."""

from __future__ import annotations

import torch

from kernels.attention.cpu.kernel import CpuAttention


def cpu_kernel(device: torch.device, *, threads: int = 0) -> CpuAttention:
    """The CPU kernel, not yet built, on `threads` threads; 0 means as many as PyTorch uses."""
    if device.type != "cpu":
        raise ValueError(f"the CPU kernel does not run on {device}")
    return CpuAttention(threads=threads)
