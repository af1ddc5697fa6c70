"""What a client has copied to the bucket from the spools of a cluster's children, and what is left to copy."""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from orchestrator.core.foreign import words
from orchestrator.core.spool import Spooled, sort
from orchestrator.ports import Bucket

WRITERS: Final = 16
CONTENT_TYPES: Final = {"csv": "text/csv", "json": "application/json", "txt": "text/plain"}


@dataclass(frozen=True, slots=True)
class Homecoming:
    """What this client has copied. `marks` has size and time of change of each file; `generations` has, of each object
    that grows, its generation in the bucket, as far as it is known."""

    marks: dict[str, tuple[int, int]] = field(default_factory=dict)
    generations: dict[str, int] = field(default_factory=dict)

    def wanted(self, stored: Mapping[str, Sequence[Any]]) -> tuple[dict[str, Spooled], list[str]]:
        """What is left to copy, by its path below all spools; and what children offer that is not theirs to store, each
        with the reason. `stored` has the files of each child."""
        wanted: dict[str, Spooled] = {}
        odd: list[str] = []
        for child, files in stored.items():
            runs = Counter(str(one[0]).split("/")[1] for one in files if str(one[0]).startswith("runs/"))
            for run_id in runs:
                if run_id.rpartition("-")[2] != f"{int(child):04x}":
                    odd.append(f"child {words(str(child), 20)} has stored objects of {words(run_id, 60)}")
                    continue
                judged = sort(run_id, [one for one in files if str(one[0]).startswith(f"runs/{run_id}/")])
                odd += judged.refused
                for one in judged.taken:
                    if self.marks.get(one.name) != (one.size, one.changed):
                        wanted[f"{child}/{one.name}"] = one
        return wanted, odd

    def store(self, bucket: Bucket, archive: bytes, wanted: Mapping[str, Spooled]) -> list[str]:
        """Stores what was packed, events last. Returns the paths of the files that must be packed again."""
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar, ThreadPoolExecutor(WRITERS) as pool:
            found = [(entry.name, file.read()) for entry in tar if entry.isfile() and (file := tar.extractfile(entry))]
            again: list[str] = []
            for events in (False, True):
                part = [(name, body) for name, body in found if ("/events/" in name) is events and name in wanted]
                done = pool.map(lambda one: self._store(bucket, wanted[one[0]], one[1]), part)
                again += [name for (name, _), whether in zip(part, done, strict=True) if not whether]
        return again

    def _store(self, bucket: Bucket, one: Spooled, body: bytes) -> bool:
        """Stores one object. False when it grows and was stored since its file was packed, by another client or by an
        earlier upload that arrived late: what is stored may be newer, so the file must be packed again."""
        kind = CONTENT_TYPES.get(one.name.rpartition(".")[2], "application/octet-stream")
        if not one.grows:
            bucket.create(one.name, body, content_type=kind)
        else:
            new = bucket.replace(one.name, body, generation=self.generations.get(one.name, 0), content_type=kind)
            there = bucket.read(one.name) if new is None else None
            self.generations[one.name] = new or (there.generation if there is not None else 0)
            if new is None and (there is None or there.data != body):
                return False
        self.marks[one.name] = (one.size, one.changed)
        return True
