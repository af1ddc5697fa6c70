"""What a client keeps of a job on Batch: what it was submitted as, and in which region it is. A document in the bucket,
changed by compare-and-swap, so that every client sees the same job."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.core.bounds import Count, Moment
from orchestrator.core.errors import DocumentUnreadable
from orchestrator.core.fleet.batch import record_object
from orchestrator.ports import Bucket, Clock
from orchestrator.store.swap import Document, swap

Stage = Literal["waiting", "placed", "leaving", "over"]
"""`waiting`: for another job of its GPU to end; `placed`: asked for in its region; `leaving`: cancelled there, to be
asked for in the next one; `over`: nothing more is asked for."""
AtLeastOne = Field(min_length=1)


class BatchRecord(BaseModel):
    """One job."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="forbid", populate_by_name=True)
    schema_: Literal[1] = Field(default=1, alias="schema")
    fleet: str
    name: str
    gpu: str
    children: tuple[Count, ...]
    regions: Annotated[tuple[str, ...], AtLeastOne]
    template: dict[str, Any]
    jobs: Annotated[tuple[dict[str, Any], ...], AtLeastOne]
    """The body of the job in each region."""
    ends_at: Moment
    stage: Stage = "waiting"
    at: Count = 0
    """Which region it is in."""
    since: Moment | None = None
    """When it was asked for there."""
    left: tuple[str, ...] = ()
    """Why it was given up where it was before."""

    @property
    def region(self) -> str:
        return self.regions[min(self.at, len(self.regions) - 1)]

    @property
    def body(self) -> dict[str, Any]:
        return self.jobs[min(self.at, len(self.jobs) - 1)]

    @property
    def asked(self) -> str:
        """What is asked for by it, which never changes, in a digest."""
        never = [self.children, self.regions, self.template, self.jobs, self.ends_at.isoformat()]
        return f"job {self.name} {hashlib.sha256(json.dumps(never, sort_keys=True).encode()).hexdigest()}"

    def dump(self) -> bytes:
        return self.model_dump_json(by_alias=True).encode()

    @classmethod
    def parse(cls, name: str, data: bytes) -> BatchRecord:
        """Raises `DocumentUnreadable`."""
        try:
            record = cls.model_validate_json(data)  # to the letter: it is asked for as it was written
            if len(record.regions) != len(record.jobs):
                raise ValueError("it does not have a body for each region")
        except ValueError as exc:
            raise DocumentUnreadable(
                f"{name} is not the record of a job on Batch: {exc}".splitlines()[0],
                hint="`bench fleet stop` ends the fleet's jobs",
            ) from exc
        return record


class Known(Protocol):
    """What was asked for from here: kept where nothing from a bucket is written."""

    def __contains__(self, what: str, /) -> bool: ...
    def add(self, what: str, /) -> None: ...


class Records:
    """Those of a bucket."""

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self.bucket = bucket
        self.clock = clock

    def create(self, record: BatchRecord) -> BatchRecord:
        """The record as it stands: this one, or the one that was there before."""
        if self.bucket.create(record_object(record.fleet, record.name), record.dump()):
            return record
        return self.read(record.fleet, record.name) or record

    def read(self, fleet: str, job: str) -> BatchRecord | None:
        """Raises `DocumentUnreadable`."""
        name = record_object(fleet, job)
        blob = self.bucket.read(name)
        return None if blob is None else BatchRecord.parse(name, blob.data)

    def change(self, record: BatchRecord, change: Callable[[BatchRecord], BatchRecord]) -> BatchRecord:
        """The record after `change`, which is applied to what is there now. Raises `DocumentUnreadable`, and
        `Unavailable` when others keep changing it."""
        name = record_object(record.fleet, record.name)

        def parse(data: bytes | None) -> BatchRecord:
            return record if data is None else BatchRecord.parse(name, data)

        return swap(self.bucket, self.clock, Document(name, BatchRecord, parse, BatchRecord.dump), change)

    def moved(self, record: BatchRecord, stage: Stage, now: datetime, *, why: str = "") -> BatchRecord:
        """The record in another stage. One that leaves a region goes to the next; past the last it is over."""

        def change(present: BatchRecord) -> BatchRecord:
            if (present.stage, present.at) != (record.stage, record.at):
                return present  # another client was faster, and what it decided stands
            if record.stage == "leaving" and stage == "placed":
                last = present.at + 1 >= len(present.regions)
                place = {"at": present.at + (0 if last else 1), "stage": "over" if last else "placed", "since": now}
                return present.model_copy(update=place)
            left = (*present.left, why) if why else present.left
            since = now if stage == "placed" else present.since
            return present.model_copy(update={"stage": stage, "left": left, "since": since})

        return self.change(record, change)
