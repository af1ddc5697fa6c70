"""Settings of the environment that a process needs before it imports torch."""

from __future__ import annotations

import os

SPIN_COUNT = "10000"
"""How long a worker's OpenMP threads wait for more work before they sleep: some ten microseconds. By default it is
milliseconds, which they would take from the worker whose turn it is."""
COMPILE_THREADS = "1"
"""With more, torch.compile would start a compiler process for each core, with torch in each, for the few kernels of a
case."""


def apply_worker_settings() -> None:
    """Sets what the workers of this process inherit, where the user has not set it."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    os.environ.setdefault("KMP_BLOCKTIME", "0")  # the same for the OpenMP of Intel and LLVM
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", COMPILE_THREADS)
