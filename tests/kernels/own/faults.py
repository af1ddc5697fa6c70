"""Kernels that break whatever they can, beside one that does not. Read by test_isolation.py; not a test."""

import ctypes
import os
import sys
import time

import torch

axes = {"n": [1 << 10, 1 << 12]}
started = time.monotonic()


def inputs(n, device, generator):
    return torch.randn(n, device=device, generator=generator)


def reference(x):
    return (x * x).sum()


def baseline_torch(x):
    return x.dot(x)


def kernel_honest(x):
    return x.square().sum()


def kernel_wrong(x):
    return x.dot(x) * 1.01


def kernel_aborts(x):
    os.abort()


def kernel_segfaults(x):
    ctypes.string_at(1)


def kernel_exits(x):
    sys.exit(0)


def kernel_hangs(x):
    time.sleep(3600)


def kernel_raises(x):
    raise ValueError("no kernel for such sizes")


def kernel_out_of_memory(x):
    raise torch.OutOfMemoryError("tried to allocate 40 GiB")


def kernel_not_for_this(x):
    raise NotImplementedError("needs a multiple of 4096" if x.numel() % 4096 else "for nobody")


def kernel_dies_while_timed(x):
    """Right when it is looked at; gone a little later."""
    kernel_dies_while_timed.calls += 1
    if kernel_dies_while_timed.calls > 4:
        os.abort()
    return x.dot(x)


kernel_dies_while_timed.calls = 0
