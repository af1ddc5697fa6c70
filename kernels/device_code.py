"""Compiles and launches device code, for the harness and every form of a workload: NVRTC or nvcc, and the driver API
through ctypes. The code is in the folder of the attention workload, which needed it first."""

from __future__ import annotations

from kernels.attention.cuda.compile.build import resources_in
from kernels.attention.cuda.compile.compiler import Nvrtc, Target, find_compiler, nvrtc_candidates
from kernels.attention.cuda.errors import BuildFailed, CudaError
from kernels.attention.cuda.run.driver import LaunchConfig, cuda_driver

__all__ = [
    "BuildFailed", "CudaError", "LaunchConfig", "Nvrtc", "Target", "cuda_driver", "find_compiler", "nvrtc_candidates",
    "resources_in",
]  # fmt: skip
