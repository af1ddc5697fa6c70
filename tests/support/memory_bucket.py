"""A bucket in memory, which keeps the same laws as the real one: `tests/unit/contract/test_bucket.py` holds both to them."""

from __future__ import annotations

import base64
import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from threading import Lock

import google_crc32c

from orchestrator.adapters.files import write_atomically
from orchestrator.core.errors import LocalError, NotFound, Unavailable, too_large
from orchestrator.ports import DATA_BYTES, DOCUMENT_BYTES, Blob, ObjectEntry


@dataclass(frozen=True)
class _Object:
    name: str
    data: bytes
    generation: int
    metadata: Mapping[str, str]
    updated: datetime

    @cached_property
    def entry(self) -> ObjectEntry:
        return ObjectEntry(self.name, len(self.data), self.generation, crc32c(self.data), self.metadata, self.updated)


@dataclass
class MemoryBucket:
    """`calls` counts operations. `exists` False is a bucket that was never made."""

    name: str = "memory"
    exists: bool = True
    calls: int = 0
    _objects: dict[str, _Object] = field(default_factory=dict)
    _names: list[str] = field(default_factory=list)
    """Those of `_objects`, sorted."""
    _generation: int = 0
    _lock: Lock = field(default_factory=Lock)

    def create(self, name: str, data: bytes, *, content_type: str = "application/json") -> bool:
        return self.replace(name, data, generation=0, content_type=content_type) is not None

    def replace(
        self,
        name: str,
        data: bytes,
        *,
        generation: int | None,
        metadata: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> int | None:
        self._called()
        with self._lock:
            there = self._objects.get(name)
            if generation is not None and generation != (there.generation if there else 0):
                return None
            self._generation += 1
            if there is None:
                insort(self._names, name)
            self._objects[name] = _Object(name, bytes(data), self._generation, dict(metadata or {}), datetime.now(UTC))
            return self._generation

    def read(self, name: str, *, largest: int = DOCUMENT_BYTES) -> Blob | None:
        self._called()
        there = self._objects.get(name)
        if there is not None and len(there.data) > largest:
            raise too_large(name, largest)
        return None if there is None else Blob(there.data, there.generation)

    def read_many(self, names: Sequence[str], *, largest: int = DATA_BYTES) -> Mapping[str, Blob]:
        small = [name for name in names if name not in self._objects or len(self._objects[name].data) <= largest]
        return {name: blob for name in small if (blob := self.read(name, largest=largest)) is not None}

    def list(
        self, prefix: str, *, after: str = "", matching: str = "", most: int | None = None
    ) -> tuple[ObjectEntry, ...]:
        self._called()
        pattern = re.compile("[^/]*".join(map(re.escape, matching.split("*")))) if matching else None
        with self._lock:
            at = max(bisect_left(self._names, prefix), bisect_right(self._names, after))
            found = []
            while at < len(self._names) and self._names[at].startswith(prefix) and len(found) != most:
                if pattern is None or pattern.fullmatch(self._names[at]):
                    found.append(self._objects[self._names[at]].entry)
                at += 1
            return tuple(found)

    def forget(self, *names: str) -> None:
        """These objects are gone."""
        with self._lock:
            for name in names:
                del self._objects[name]
                self._names.remove(name)

    def download(self, entry: ObjectEntry, to: Path) -> None:
        blob = self.read(entry.name)
        if blob is None:
            raise NotFound(f"no object {entry.name}")
        if crc32c(blob.data) != entry.crc32c:
            raise Unavailable(f"{entry.name} is not what was listed")
        write_atomically(to, blob.data)

    def upload(self, name: str, source: Path, *, content_type: str) -> bool:
        try:
            data = source.read_bytes()
        except OSError as exc:
            raise LocalError(f"cannot read {source}") from exc
        return self.create(name, data, content_type=content_type)

    def compose(self, name: str, sources: Sequence[str]) -> None:
        found = [self._objects.get(source) for source in sources[:32]]
        if any(one is None for one in found):
            raise NotFound("a source is gone")
        self.replace(name, b"".join(one.data for one in found if one is not None), generation=None)

    def _called(self) -> None:
        self.calls += 1
        if not self.exists:
            raise NotFound(f"no bucket {self.name}")


def crc32c(data: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(data).digest()).decode()
