"""The records of jobs on Batch: how a job was submitted, and in which region it is. Each is a document in the bucket
that changes by compare-and-swap, so that every client sees the same job."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal, Protocol

from pydantic import ConfigDict, Field

from orchestrator.core.bounds import Count, Moment, StrictModel
from orchestrator.core.errors import DocumentUnreadable
from orchestrator.core.fleet.batch import record_object
from orchestrator.core.names import FleetId, JobName, Region
from orchestrator.ports import Bucket, Clock
from orchestrator.store.documents import StoredDocument, swap

Stage = Literal["waiting", "placed", "leaving", "over"]
"""`waiting`: another job of its GPU must end first. `placed`: it is requested in its region. `leaving`: it is cancelled
there, to be requested in the next region. `over`: nothing more is requested for it."""
AtLeastOne = Field(min_length=1)


class BatchRecord(StrictModel):
    """The record of one job."""

    model_config = ConfigDict(populate_by_name=True)
    schema_: Literal[1] = Field(default=1, alias="schema")
    fleet: FleetId
    name: JobName
    gpu: str
    children: tuple[Count, ...]
    regions: Annotated[tuple[Region, ...], AtLeastOne]
    template: dict[str, Any]
    jobs: Annotated[tuple[dict[str, Any], ...], AtLeastOne]
    """The body of the job in each region."""
    ends_at: Moment
    stage: Stage = "waiting"
    at: Count = 0
    """The index of the region it is in."""
    since: Moment | None = None
    """When it was requested there."""
    left: tuple[str, ...] = ()
    """Why it left each of its earlier regions."""

    @property
    def region(self) -> Region:
        return self.regions[min(self.at, len(self.regions) - 1)]

    @property
    def body(self) -> dict[str, Any]:
        return self.jobs[min(self.at, len(self.jobs) - 1)]

    @property
    def asked(self) -> str:
        """The name of the job with a digest of all that it requests, which never changes."""
        fixed = [self.children, self.regions, self.template, self.jobs, self.ends_at.isoformat()]
        return f"job {self.name} {hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()}"

    @classmethod
    def parse(cls, name: str, data: bytes) -> BatchRecord:
        """The record in `data`, which was read from the object `name`. Raises `DocumentUnreadable`."""
        try:
            record = cls.model_validate_json(data)  # as written: nothing is converted or added
            if len(record.regions) != len(record.jobs):
                raise ValueError("it does not have a body for each region")
        except ValueError as exc:
            raise DocumentUnreadable(
                f"{name} is not the record of a job on Batch: {exc}".splitlines()[0],
                hint="`bench fleet stop` ends the fleet's jobs",
            ) from exc
        return record


class KnownJob(Protocol):
    """What this client has requested. It is kept outside the bucket, where other clients cannot write."""

    def __contains__(self, what: str, /) -> bool: ...
    def add(self, what: str, /) -> None: ...


class Records:
    """The records of all jobs in a bucket."""

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self.bucket = bucket
        self.clock = clock

    def create(self, record: BatchRecord) -> BatchRecord:
        """Stores the record if there is none yet. Returns the stored one: this record, or the one that was there
        before."""
        if self.bucket.create(record_object(record.fleet, record.name), record.dump()):
            return record
        return self.read(record.fleet, record.name) or record

    def read(self, fleet: str, job: str) -> BatchRecord | None:
        """The record of a job; None where there is none. Raises `DocumentUnreadable`."""
        name = record_object(fleet, job)
        blob = self.bucket.read(name)
        return None if blob is None else BatchRecord.parse(name, blob.data)

    def change(self, record: BatchRecord, change: Callable[[BatchRecord], BatchRecord]) -> BatchRecord:
        """Applies `change` to the stored record and returns the result. Raises `DocumentUnreadable`, and `Unavailable`
        when others keep changing the record."""
        name = record_object(record.fleet, record.name)

        def parse(data: bytes | None) -> BatchRecord:
            return record if data is None else BatchRecord.parse(name, data)

        return swap(self.bucket, self.clock, StoredDocument(name, BatchRecord, parse, BatchRecord.dump), change)

    def moved(self, record: BatchRecord, stage: Stage, now: datetime, *, why: str = "") -> BatchRecord:
        """Puts the record into another stage and returns it. A job that leaves a region goes to the next one; after the
        last region it is over."""

        def change(present: BatchRecord) -> BatchRecord:
            if (present.stage, present.at) != (record.stage, record.at):
                return present  # another client was faster: its decision stays
            if record.stage == "leaving" and stage == "placed":
                last = present.at + 1 >= len(present.regions)
                place = {"at": present.at + (0 if last else 1), "stage": "over" if last else "placed", "since": now}
                return present.model_copy(update=place)
            departed = (*present.left, why) if why else present.left
            since = now if stage == "placed" else present.since
            return present.model_copy(update={"stage": stage, "left": departed, "since": since})

        return self.change(record, change)
