"""Device memory that is zero between launches. Kernels use it to distribute work among their blocks, and to count the
blocks that have ended.

A kernel leaves its slot zero, so two launches may share a slot if the second cannot start before the first has ended:

- the launches of one stream that are not captured share a slot, because they follow each other;
- a captured launch has its own slot as long as the process lives, because nobody knows when its graph is replayed, and
  what runs at the same time. (Two launches of one executable graph never overlap: CUDA runs them one after the other.)

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
        """`zeroed_memory(size)` gives the address of that many zero bytes, for one use only; also during a capture."""
        self.zeroed_memory = zeroed_memory
        self.free: dict[int, list[int]] = {}
        self.of_streams: dict[tuple[int, ...], int] = {}

    def size_of(self, size: int) -> int:
        """What a slot for `size` bytes takes: the next power of two, at least 32 bytes."""
        return max(self.SLOT_BYTES, 1 << (size - 1).bit_length())

    def take(self, size: int = SLOT_BYTES) -> int:
        """The address of a slot of at least `size` bytes, which is never given out again. Raises `CudaError`."""
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
        counters = self.of_streams.get(key)
        return self.of_streams.setdefault(key, self.take(size)) if counters is None else counters
