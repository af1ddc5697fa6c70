"""FlashAttention-class forward attention in our own CUDA C++, for Turing and everything newer."""

from kernels.attention.cuda.errors import CudaError, Unsupported
from kernels.attention.cuda.explaining import Explanation, explain
from kernels.attention.cuda.kernel import CudaKernel, cuda_kernel
from kernels.attention.cuda.operator import attention, bind_attention
from kernels.attention.cuda.paged import attention_paged, bind_paged
from kernels.attention.cuda.varlen import attention_varlen, bind_varlen

__all__ = [
    "CudaError",
    "CudaKernel",
    "Explanation",
    "Unsupported",
    "attention",
    "attention_paged",
    "attention_varlen",
    "bind_attention",
    "bind_paged",
    "bind_varlen",
    "cuda_kernel",
    "explain",
]
