"""What a process sets before it imports torch, and what it and its workers agree on."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

SPIN_COUNT = "10000"
"""How long a worker's OpenMP threads wait for more work before they sleep: some ten microseconds. By default it is
milliseconds, which they would take from the worker whose turn it is."""
COMPILE_THREADS = "1"
"""With more, torch.compile would start a compiler process for each core, with torch in each, for the few kernels of a
case."""
FRAMES_SIGNAL, NATIVE_FRAMES_SIGNAL = signal.SIGUSR1, signal.SIGUSR2
"""Upon the first a worker writes where it is as soon as Python goes on; upon the second at once, in native code too."""


def apply_worker_settings() -> None:
    """Sets what the workers of this process inherit, where the user has not set it."""
    os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    os.environ.setdefault("KMP_BLOCKTIME", "0")  # the same for the OpenMP of Intel and LLVM
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", COMPILE_THREADS)


@contextmanager
def without_collector() -> Iterator[None]:
    """Disables the garbage collector. Its work would fall into a single measurement, and takes a seventh of the time of
    an import of torch, of which nothing is garbage."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
