"""A VM's serial port: a ring buffer of the last MiB. Positions count all bytes that were ever written."""

from __future__ import annotations

import codecs
import threading
from typing import NamedTuple

CAPACITY = 1 << 20


class Output(NamedTuple):
    """A part of the output. If `start` is above the position asked for, the bytes between them are lost. `next` is the
    position to ask for next."""

    contents: str
    start: int
    next: int


class Console:
    """The output of one serial port. Thread-safe."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self.kept = bytearray()
        self.written = 0
        self.lock = threading.Lock()

    def write(self, data: bytes) -> None:
        with self.lock:
            self.kept += data
            self.written += len(data)
            del self.kept[: max(0, len(self.kept) - self.capacity)]

    def read(self, start: int = 0) -> Output:
        """The output from byte `start` on. A negative `start` counts from the end."""
        with self.lock:
            oldest = self.written - len(self.kept)
            begin = self.written + start if start < 0 else start
            begin = min(max(begin, oldest), self.written)
            data = bytes(self.kept[begin - oldest :])
        # An incomplete character at the end of the data is left for the next call.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        contents = decoder.decode(data)
        return Output(contents, begin, begin + len(data) - len(decoder.getstate()[0]))
