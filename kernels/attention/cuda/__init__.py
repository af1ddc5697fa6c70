"""FlashAttention-class forward attention in our own CUDA C++, for Turing and everything newer."""

from kernels.attention.cuda.errors import CudaError, Unsupported
from kernels.attention.cuda.kernel import CudaKernel, kernel
from kernels.attention.cuda.operator import attention, bind

__all__ = ["CudaError", "CudaKernel", "Unsupported", "attention", "bind", "kernel"]
