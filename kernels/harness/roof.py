"""The most bytes and floating-point operations per second that a device was measured to reach."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from kernels.harness.answers import synchronize

TRIES = 7
COPIES_BYTES = (64 << 10, 1 << 20, 16 << 20, 256 << 20)
"""Sizes from what fits a near cache to what fits no cache."""
PRODUCT = {"cuda": 8192, "cpu": 768}


def measure_roof(device: torch.device) -> dict[str, float]:
    """The most `bytes` and `flops` per second: of copies of several sizes, and of matrix products in every type that
    the device has. Seconds are measured with the host's clock, around many calls and a wait for the device."""
    moved = max(2 * size / shortest_time(copy_function(size, device), device) for size in COPIES_BYTES)
    n = PRODUCT[device.type]
    types = (torch.float32, torch.float16, torch.bfloat16) if device.type == "cuda" else (torch.float32,)
    done = max(2.0 * n**3 / shortest_time(multiply_function(n, dtype, device), device) for dtype in types)
    return {"bytes": moved, "flops": done}


def copy_function(size: int, device: torch.device) -> Callable[[], object]:
    """A function that copies `size` bytes."""
    source, target = (torch.ones(size // 4, device=device) for _ in range(2))
    return lambda: target.copy_(source)


def multiply_function(n: int, dtype: torch.dtype, device: torch.device) -> Callable[[], object]:
    """A function that multiplies two n x n matrices. In float32 on a GPU it uses TF32, as tensor cores do."""
    a = torch.ones((n, n), dtype=dtype, device=device)

    def product() -> object:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if device.type == "cuda" else before)
        try:
            return a @ a
        finally:
            torch.set_float32_matmul_precision(before)

    return product


def shortest_time(call: Callable[[], object], device: torch.device) -> float:
    """The shortest time of a call in seconds, of several tries. Each try makes as many calls as take about ten
    milliseconds."""
    call()
    synchronize(device)
    began = time.perf_counter()
    call()
    synchronize(device)
    calls = max(1, min(1000, round(0.01 / max(time.perf_counter() - began, 1e-7))))
    best = float("inf")
    for _ in range(TRIES):
        began = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize(device)
        best = min(best, (time.perf_counter() - began) / calls)
    return best
