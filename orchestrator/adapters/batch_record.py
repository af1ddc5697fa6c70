"""What a client keeps of a job on Batch: what it was submitted as, and in which region it is. A document in the bucket,
changed by compare-and-swap, so that every client sees the same job."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal, Protocol

from orchestrator.core.errors import DocumentUnreadable, Unavailable
from orchestrator.core.fleet.batch import record_object
from orchestrator.ports import Bucket

TRIES: Final = 12
Stage = Literal["waiting", "placed", "leaving", "over"]
"""`waiting`: for another job of its GPU to end; `placed`: asked for in its region; `leaving`: cancelled there, to be
asked for in the next one; `over`: nothing more is asked for."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job."""

    fleet: str
    name: str
    gpu: str
    children: tuple[int, ...]
    regions: tuple[str, ...]
    template: Mapping[str, Any]
    jobs: tuple[Mapping[str, Any], ...]
    """The body of the job in each region."""
    ends_at: datetime
    stage: Stage = "waiting"
    at: int = 0
    """Which region it is in."""
    since: datetime | None = None
    """When it was asked for there."""
    left: tuple[str, ...] = ()
    """Why it was given up where it was before."""

    @property
    def region(self) -> str:
        return self.regions[min(self.at, len(self.regions) - 1)]

    @property
    def body(self) -> Mapping[str, Any]:
        return self.jobs[min(self.at, len(self.jobs) - 1)]

    @property
    def asked(self) -> str:
        """What is asked for by it, which never changes, in a digest."""
        never = [self.children, self.regions, self.template, self.jobs, self.ends_at.isoformat()]
        return f"job {self.name} {hashlib.sha256(json.dumps(never, sort_keys=True).encode()).hexdigest()}"

    def dump(self) -> bytes:
        document = asdict(self) | {"schema": 1, "ends_at": self.ends_at.isoformat()}
        return json.dumps(document | {"since": self.since.isoformat() if self.since else None}).encode()

    @classmethod
    def parse(cls, name: str, data: bytes) -> JobRecord:
        """Raises `DocumentUnreadable`."""
        try:
            found = json.loads(data)
            del found["schema"]
            for key in ("children", "regions", "jobs", "left"):
                found[key] = tuple(found[key])
            since = found["since"] and datetime.fromisoformat(found["since"])
            record = cls(**(found | {"ends_at": datetime.fromisoformat(found["ends_at"]), "since": since}))
            if not record.regions or len(record.regions) != len(record.jobs):
                raise ValueError("it names no region")
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            raise DocumentUnreadable(
                f"{name} is not the record of a job on Batch: {exc}", hint="`bench fleet stop` ends the fleet's jobs"
            ) from exc
        return record


class Known(Protocol):
    """What was asked for from here: kept where nothing from a bucket is written."""

    def __contains__(self, what: str, /) -> bool: ...
    def add(self, what: str, /) -> None: ...


class Records:
    """Those of a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket

    def create(self, record: JobRecord) -> JobRecord:
        """The record as it stands: this one, or the one that was there before."""
        name = record_object(record.fleet, record.name)
        if self.bucket.create(name, record.dump()):
            return record
        return self.read(record.fleet, record.name) or record

    def read(self, fleet: str, job: str) -> JobRecord | None:
        """Raises `DocumentUnreadable`."""
        name = record_object(fleet, job)
        blob = self.bucket.read(name)
        return None if blob is None else JobRecord.parse(name, blob.data)

    def change(self, record: JobRecord, change: Callable[[JobRecord], JobRecord]) -> JobRecord:
        """The record after `change`, which is applied to what is there now. Raises `Unavailable` when others keep
        changing it."""
        name = record_object(record.fleet, record.name)
        for _ in range(TRIES):
            blob = self.bucket.read(name)
            present = JobRecord.parse(name, blob.data) if blob is not None else record
            wanted = change(present)
            if wanted == present and blob is not None:
                return wanted
            generation = 0 if blob is None else blob.generation
            if self.bucket.replace(name, wanted.dump(), generation=generation) is not None:
                return wanted
        raise Unavailable(f"{name} keeps changing under our hands", hint="try again in a minute")

    def moved(self, record: JobRecord, stage: Stage, now: datetime, *, why: str = "") -> JobRecord:
        """The record in another stage. One that leaves a region goes to the next; past the last it is over."""

        def change(present: JobRecord) -> JobRecord:
            if (present.stage, present.at) != (record.stage, record.at):
                return present  # another client was faster, and what it decided stands
            if record.stage == "leaving" and stage == "placed":
                last = present.at + 1 >= len(present.regions)
                following = replace(present, at=present.at + (0 if last else 1), stage="over" if last else "placed")
                return replace(following, since=now)
            left = (*present.left, why) if why else present.left
            return replace(present, stage=stage, left=left, since=now if stage == "placed" else present.since)

        return self.change(record, change)
