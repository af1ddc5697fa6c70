"""The workload that `bench new` writes. It runs unchanged, on a CPU and on a GPU."""

from __future__ import annotations

from typing import Final

TEMPLATE: Final = '''"""NAME: what it computes, in one line.

bench launch NAME.py              on this machine's processor, at no cost
bench launch NAME.py --gpu l4     on a rented L4, for at most the dollars that `bench plan NAME.py --gpu l4` says
"""

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # on a machine without a GPU
    triton = None

axes = {"rows": [64, 512], "cols": [1024], "dtype": ["float32", "bfloat16"]}


def inputs(rows, cols, dtype, device, generator):
    x = torch.randn(rows, cols, device=device, dtype=dtype, generator=generator)
    return x, torch.randn(cols, device=device, dtype=dtype, generator=generator)


def reference(x, w):
    """The correct result; x and w are float64 here."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def bytes(rows, cols, dtype):
    """The fewest bytes that one call moves: for GB/s, and to find times that the memory's speed does not allow."""
    return 2 * rows * cols * dtype.itemsize


def baseline_torch(x, w):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], w, 1e-6)


if triton is not None:

    @triton.jit
    def rms_norm_row(x, w, out, cols, BLOCK: tl.constexpr):
        row, at = tl.program_id(0), tl.arange(0, BLOCK)
        inside = at < cols
        value = tl.load(x + row * cols + at, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(value * value) / cols + 1e-6)
        weight = tl.load(w + at, mask=inside).to(tl.float32)
        tl.store(out + row * cols + at, value * scale * weight, mask=inside)


def kernel_triton(x, w):
    if triton is None or not x.is_cuda:
        raise NotImplementedError("Triton needs a GPU")
    out = torch.empty_like(x)
    rms_norm_row[(x.shape[0],)](x, w, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out


def kernel_by_hand(x, w):
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w
'''


def template_text(name: str) -> str:
    """The text of the file for a workload named `name`."""
    return TEMPLATE.replace("NAME", name)
