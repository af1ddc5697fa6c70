"""How much device memory one call of an implementation takes beside its inputs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from kernels.harness.workload import BuildFailed, Plan, Unavailable

NOT_ON_A_CPU = "PyTorch's allocator for processors records no peak"


def peak_bytes(
    device: torch.device, prepare: Callable[[], tuple[Plan, Callable[[], AbstractContextManager[object]]]]
) -> int | None:
    """The most bytes that PyTorch's allocator held while a plan was made and called, minus what it held before: the
    output and the workspace. Memory that a library takes without that allocator is not included. None on a CPU, and
    where it is not known."""
    if device.type != "cuda":
        return None
    try:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        plan, scope = prepare()
        with scope():
            plan()
            torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device)) - int(before)
    except (RuntimeError, Unavailable, BuildFailed):
        return None
