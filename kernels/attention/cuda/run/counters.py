"""Device memory that is zero between launches: where kernels hand out their own work, and count who is done.

A kernel leaves its slot zero, so two launches may share one if the second cannot start before the first has ended. Who
has which slot follows from that, and from nothing else:

- the eager launches of one stream share a slot, for they follow each other;
- a captured launch has a slot of its own for as long as the process lives. It is replayed who knows when, in which
  order and beside what. (Two launches of one executable graph never overlap: CUDA puts them one behind the other.)

The memory comes from the driver and not from PyTorch's allocator: what is allocated there during a capture belongs to
the graph's pool, and its zeroing would be a node of that graph.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

PER_THREAD_STREAM = 2
"""The handle that stands for another stream in each thread (CU_STREAM_PER_THREAD)."""


class Counters:
    """One device's slots. No lock: every step on shared state is a single operation of a list or a dictionary, so a
    signal handler that computes attention in the middle of another call is no danger either."""

    SLOT_BYTES, POOL_BYTES = 32, 1 << 20

    def __init__(self, zeroed_memory: Callable[[int], int]) -> None:
        """`zeroed_memory(size)` gives the address of so many zero bytes that nobody else has; also during a capture."""
        self.zeroed_memory = zeroed_memory
        self.free: dict[int, list[int]] = {}
        self.of_streams: dict[tuple[int, ...], int] = {}

    def size_of(self, size: int) -> int:
        """What a slot for `size` bytes takes: the next power of two, at least 32 bytes."""
        return max(self.SLOT_BYTES, 1 << (size - 1).bit_length())

    def take(self, size: int = SLOT_BYTES) -> int:
        """The address of a slot of at least `size` bytes, given to nobody else ever again. Raises `CudaError`."""
        size = self.size_of(size)
        free = self.free.setdefault(size, [])
        while True:
            try:
                return free.pop()
            except IndexError:
                count = max(1, self.POOL_BYTES // size)
                start = self.zeroed_memory(count * size)
                free.extend(range(start + (count - 1) * size, start - 1, -size))

    def of_stream(self, stream: int, number: int = 0, size: int = SLOT_BYTES) -> int:
        """The address of the stream's slot of that number and size, for launches that are not captured."""
        thread = threading.get_ident() if stream == PER_THREAD_STREAM else 0
        key = (stream, thread, number, self.size_of(size))
        found = self.of_streams.get(key)
        return self.of_streams.setdefault(key, self.take(size)) if found is None else found
