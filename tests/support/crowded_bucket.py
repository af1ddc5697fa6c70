"""A bucket in which very many names lie in the log of a run, as a listing with pages of 1,000 shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from orchestrator.ports import Blob, Bucket, ObjectEntry

PAGE_S: Final = 0.5
"""What a page of a listing takes: an assumption, and more than a request to Cloud Storage usually takes."""


@dataclass
class CrowdedBucket:
    """`bucket`, with `junk` more names of `writer` before all others in the log of `run_id`. None of
    them is an event. Listings have taken `spent_s` so far, and `reads` objects were asked for."""

    bucket: Bucket
    run_id: str
    junk: int = 1_000_000
    writer: str = "vm-1-deadbeef"
    spent_s: float = 0.0
    reads: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.bucket, name)

    def list(
        self, prefix: str, *, after: str = "", matching: str = "", most: int | None = None
    ) -> tuple[ObjectEntry, ...]:
        there = self.bucket.list(prefix, after=after, matching=matching, most=most)
        log = f"runs/{self.run_id}/events/"
        wanted = matching.partition("*")[2].rstrip("*") if matching.startswith(log) else matching
        is_listed = log.startswith(prefix) and f"Z-{self.writer}-".startswith(wanted)
        count = (self.junk if most is None else min(self.junk, most)) if is_listed else 0
        self.spent_s += PAGE_S * ((count + len(there)) // 1000 + 1)
        name = f"{log}20200101T000000.000000Z-{self.writer}-{{:06d}}-healed.json"
        return (*(ObjectEntry(name.format(number), 9, 1, "", {}) for number in range(count)), *there)[:most]

    def read_many(self, names: Any, **limits: int) -> Any:
        self.reads += len(names)
        there = [name for name in names if "/20200101T000000.000000Z-" not in name]
        junk = {name: Blob(b"no event!", 1) for name in names if name not in there}
        return {**junk, **self.bucket.read_many(there, **limits)}
