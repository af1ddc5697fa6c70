"""A bucket of an embedded cloud in the same process, without HTTP between: for searches that bring no weather there."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import google_crc32c

from orchestrator.adapters.files import write_atomically
from orchestrator.core.errors import DocumentUnreadable, NotFound, ProviderError, too_large
from orchestrator.embedded.errors import ApiError
from orchestrator.embedded.objects import Objects, Preconditions, StoredObject
from orchestrator.ports import DATA_BYTES, DOCUMENT_BYTES, Blob, Clock, ObjectEntry


@dataclass(frozen=True)
class StoreBucket:
    """Implements what clients of a search use of `orchestrator.ports.Bucket`."""

    name: str
    store: Objects
    clock: Clock
    """The client's own, which may be off."""

    def offset(self) -> timedelta:
        """What an answer's `Date` would say."""
        now = self.store.now().replace(microsecond=0)
        off = now - self.clock.now()
        return off if abs(off) > timedelta(seconds=1) else timedelta(0)

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
        incoming = self.store.incoming()
        incoming.write(data)
        described = {"contentType": content_type, **({"metadata": dict(metadata)} if metadata else {})}
        wanted = Preconditions.read({} if generation is None else {"ifGenerationMatch": str(generation)})
        try:
            return self.store.commit(self.name, name, described, incoming, wanted).generation
        except ApiError as error:
            if error.status != 412:
                raise ProviderError(f"cannot store {name}: {error}") from error
            return None

    def read(self, name: str, *, largest: int = DOCUMENT_BYTES) -> Blob | None:
        stored = self.store.find(self.name, name)
        if stored is None:
            return None
        if stored.size > largest:
            raise too_large(name, largest)
        with self.store.open(stored) as file:
            return Blob(file.read(), stored.generation)

    def read_many(self, names: Sequence[str], *, largest: int = DATA_BYTES) -> Mapping[str, Blob]:
        found = {}
        for name in names:
            with suppress(DocumentUnreadable):
                if (blob := self.read(name, largest=largest)) is not None:
                    found[name] = blob
        return found

    def list(
        self, prefix: str, *, after: str = "", matching: str = "", most: int | None = None
    ) -> tuple[ObjectEntry, ...]:
        pattern = re.compile("[^/]*".join(map(re.escape, matching.split("*")))) if matching else None
        found: list[ObjectEntry] = []
        for stored in self.store.names_from(self.name, max(prefix, after)):
            if not stored.name.startswith(prefix) or len(found) == most:
                break
            if stored.name > after and (pattern is None or pattern.fullmatch(stored.name)):
                found.append(_entry(stored))
        return tuple(found)

    def download(self, entry: ObjectEntry, to: Path) -> None:
        blob = self.read(entry.name, largest=1 << 40)
        if blob is None:
            raise NotFound(f"no object {entry.name}")
        assert base64.b64encode(google_crc32c.Checksum(blob.data).digest()).decode() == entry.crc32c
        write_atomically(to, blob.data)


def _entry(stored: StoredObject) -> ObjectEntry:
    updated = datetime.fromisoformat(stored.updated)
    metadata = dict(stored.fields.get("metadata") or {})
    return ObjectEntry(stored.name, stored.size, stored.generation, stored.crc32c, metadata, updated)
