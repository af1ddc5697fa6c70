"""What one client has copied to the bucket from the files that a host or a cluster's child keeps for a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from orchestrator.core.host_answers import Spooled
from orchestrator.ports import Bucket

CONTENT_TYPES: Final = {"csv": "text/csv", "json": "application/json", "txt": "text/plain"}


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies of one client. Another client may copy the same files at the same time."""

    _marks: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of each object that was copied: size and time of change of its file."""
    _generations: dict[str, int] = field(default_factory=dict)
    """Of each object that grows: its generation in the bucket, as far as it is known."""

    def has(self, one: Spooled) -> bool:
        """Whether this version of the file was copied."""
        return self._marks.get(one.name) == (one.size, one.changed)

    def note(self, one: Spooled) -> None:
        """Notes that this version of the file needs no copy any more."""
        self._marks[one.name] = (one.size, one.changed)

    def store(self, bucket: Bucket, one: Spooled, data: bytes) -> bool:
        """Stores an object and notes it. False if it grows and was stored since it was last looked at, by another
        client or by an earlier upload that arrived late. What is stored may be newer, so its file must be fetched
        again: an object that grows replaces only the generation that was known before its file was fetched."""
        kind = CONTENT_TYPES.get(one.name.rpartition(".")[2], "application/octet-stream")
        if not one.grows:
            bucket.create(one.name, data, content_type=kind)
        else:
            generation = self._generations.get(one.name, 0)
            new = bucket.replace(one.name, data, generation=generation, content_type=kind)
            there = bucket.read(one.name) if new is None else None
            self._generations[one.name] = new or (there.generation if there is not None else 0)
            if new is None and (there is None or there.data != data):
                return False
        self.note(one)
        return True
