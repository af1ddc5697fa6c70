"""What can go wrong between a call of the CUDA kernel and its result.

Unavailable (kernels.attention.interface)
└─ Unsupported     this input, on this chip, has no kernel: a reason fit for a result row
BuildFailed        no compiler, a compiler's complaint, or a kernel that fails a gate
CudaError          the driver refused; the code and what was being done
"""

from __future__ import annotations

from kernels.attention.interface import BuildFailed, Unavailable

__all__ = ["BuildFailed", "CudaError", "Unavailable", "Unsupported"]


class Unsupported(Unavailable):
    """No kernel of ours computes this, and nothing else is called instead."""


class CudaError(RuntimeError):
    """A call of the CUDA driver failed. `code` is the CUresult."""

    def __init__(self, doing: str, code: int, words: str) -> None:
        super().__init__(f"{doing}: {words} (CUDA error {code})")
        self.code = code
