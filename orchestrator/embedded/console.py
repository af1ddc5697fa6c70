"""A VM's serial port: a ring of the last megabyte, addressed by how much was ever written."""

from __future__ import annotations

import codecs
import threading
from dataclasses import dataclass

CAPACITY = 1 << 20


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of it. `start` above the one asked for means that what lay between is lost; ask for `next` next."""

    contents: str
    start: int
    next: int


class Console:
    """Thread-safe."""

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
        """What was written from byte `start` on; a negative start counts from the end."""
        with self.lock:
            oldest = self.written - len(self.kept)
            begin = self.written + start if start < 0 else start
            begin = min(max(begin, oldest), self.written)
            data = bytes(self.kept[begin - oldest :])
        # A character cut in two by the end of the data is left for the next reading.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        contents = decoder.decode(data)
        return Output(contents, begin, begin + len(data) - len(decoder.getstate()[0]))
