"""A fleet in the bucket: its record, the list of children, one line for each child, and what was decided since.

The lines are the metadata of small objects under sixteen prefixes, so that sixteen listings show ten thousand children.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.core.bounds import Count, Usd
from orchestrator.core.errors import DocumentUnreadable, NotFound
from orchestrator.core.fleet import children as lists
from orchestrator.core.fleet import names
from orchestrator.core.fleet.children import Child
from orchestrator.core.fleet.state import ChildLine, FleetState, decode, encode, fold, merge
from orchestrator.core.fleet.sweep import EngineName, Sweep
from orchestrator.core.foreign import document
from orchestrator.core.mode import Mode
from orchestrator.ports import Bucket, Clock
from orchestrator.store.swap import Document, swap

READERS: Final = 16
LISTED_PREFIX: Final = "fleet-index/"
NEVER_BEGUN: Final = "its client died before it began; `bench fleet launch` with the same sweep starts a new fleet"


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, defer_build=True, extra="ignore")


class FleetRecord(_Stored):
    """The record of a fleet as it was launched; it never changes."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    fleet: str
    engine: EngineName
    mode: Mode
    """`gce`, `embedded` or `host`: what its machines are."""
    user: str
    sweep: Sweep
    created_at: datetime
    ends_at: datetime
    """No machine of the fleet lives past it."""
    hold_usd: Usd
    """Its worst case; 0 where every child holds its own."""
    usd_per_hour: dict[str, Usd] = Field(default_factory=dict)
    """By GPU."""
    price_margin: Usd = Decimal(0)
    """The share of the prices that is held on top of them."""
    machines: dict[str, Count] = Field(default_factory=dict)
    """By GPU: how many at the same time."""
    payloads: dict[str, str] = Field(default_factory=dict)
    """The sha256 of what machines run, by workload."""


class JobRecord(_Stored):
    """A job that was submitted, or was about to be."""

    number: Count
    gpu: str
    children: tuple[Count, ...]
    parallel: Count


class Control(_Stored):
    """The decisions about a fleet since it was launched."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    jobs: tuple[JobRecord, ...] = ()
    paused: str = ""
    """Why no more children are started; empty if the fleet is not paused."""
    persisted: bool = False
    """A person has resumed it after a pause: its first failures do not stop it again."""
    stopped: str = ""
    """Who stopped it; empty: nobody."""
    cancelled: Count = 0
    """Jobs below this number were ended: their children are started by others."""
    generation: Count = 0
    """How often it was resumed after its hold was settled."""
    ends_at: datetime | None = None
    """Of the latest generation, where that is another."""
    held_at: datetime | None = None
    """When the latest generation was decided on, where that is another; its hold is taken next."""
    first_job: Count = 0
    """Jobs below this number were asked for under the holds of earlier generations."""
    void: tuple[Count, ...] = ()
    """Generations whose hold was released because nothing was requested under it. Nothing may be requested under it."""


class FleetStore:
    """One fleet as one client sees it."""

    def __init__(self, bucket: Bucket, clock: Clock, fleet: str) -> None:
        self.bucket = bucket
        self.clock = clock
        self.fleet = fleet
        self._written: dict[int, ChildLine] = {}
        self._listed: dict[str, str] = {}
        self._documents: dict[str, str] = {}
        self._control = control_document(fleet, bucket.name)

    @property
    def digest(self) -> str:
        """Of what the fleet was launched as: of its record and its list of children, as they were read or stored."""
        both = (names.spec_object(self.fleet), names.plan_object(self.fleet))
        return hashlib.sha256(" ".join(self._documents.get(name, "") for name in both).encode()).hexdigest()

    def create(self, record: FleetRecord, children: Sequence[Child]) -> None:
        """Stores what was asked for, before anything is started."""
        plan = json.dumps(lists.document(children), separators=(",", ":")).encode()
        for name, data in (
            (names.plan_object(self.fleet), plan),
            (names.spec_object(self.fleet), record.model_dump_json(by_alias=True).encode()),
        ):
            self.bucket.create(name, data)
            self._documents[name] = hashlib.sha256(data).hexdigest()

    def record(self) -> FleetRecord:
        """Raises `NotFound`, `DocumentUnreadable`."""
        name = names.spec_object(self.fleet)
        blob = self.bucket.read(name)
        if blob is None:
            raise NotFound(f"there is no fleet {self.fleet}", hint="`bench fleet ls` lists the fleets in this bucket")
        try:
            found = FleetRecord.model_validate(document(blob.data))
        except ValueError as exc:
            raise self._unreadable(name) from exc
        if found.fleet != self.fleet:  # its name becomes a folder's
            raise self._unreadable(name)
        self._documents[name] = hashlib.sha256(blob.data).hexdigest()
        return found

    def children(self) -> tuple[Child, ...]:
        """Raises `NotFound`, `DocumentUnreadable`."""
        name = names.plan_object(self.fleet)
        blob = self.bucket.read(name)
        if blob is None:
            raise NotFound(f"{self.fleet} has no plan", hint=NEVER_BEGUN)
        try:
            found = lists.read(json.loads(blob.data))
        except (ValueError, RecursionError) as exc:
            raise self._unreadable(name) from exc
        self._documents[name] = hashlib.sha256(blob.data).hexdigest()
        return found

    def control(self) -> Control:
        """Raises `DocumentUnreadable`."""
        blob = self.bucket.read(names.control_object(self.fleet))
        return self._control.parse(None if blob is None else blob.data)

    def decide(self, change: Callable[[Control], Control]) -> Control:
        """Changes what is decided, by compare-and-swap. Raises `Unavailable` when others were faster every time."""
        return swap(self.bucket, self.clock, self._control, change)

    def state(self, children: Sequence[Child]) -> FleetState:
        """Every child's line, by sixteen listings side by side."""

        def lines(digit: str) -> list[ChildLine]:
            found = self.bucket.list(names.lines_prefix(self.fleet, digit))
            return [line for entry in found if (line := self._line(entry.name, entry.metadata)) is not None]

        with ThreadPoolExecutor(READERS) as pool:
            found = [line for part in pool.map(lines, names.SHARDS) for line in part]
        self._written = {line.child: line for line in found}
        return fold(children, found)

    def write(self, lines: Iterable[ChildLine]) -> None:
        """Stores lines that say something new, merged with what was there."""
        fresh = []
        for line in lines:
            there = self._written.get(line.child)
            merged = line if there is None else merge(there, line)
            if merged != there:
                self._written[line.child] = merged
                fresh.append(merged)
        with ThreadPoolExecutor(READERS) as pool:
            list(pool.map(self._write, fresh))

    def write_over(self, lines: Iterable[ChildLine]) -> None:
        """Stores lines as they are: what was known before of these children is taken back."""
        for line in lines:
            self._written[line.child] = line
            self._write(line)

    def known(self, lines: Iterable[ChildLine]) -> Mapping[int, ChildLine]:
        """These children's lines as they are stored."""
        return {line.child: self._written[line.child] for line in lines}

    def list_as(self, metadata: Mapping[str, str]) -> None:
        """The line that `bench fleet ls` shows; stored when it is another."""
        if dict(metadata) != self._listed:
            self._listed = dict(metadata)
            self.bucket.replace(names.listing_object(self.fleet), b"{}", generation=None, metadata=metadata)

    def _write(self, line: ChildLine) -> None:
        name = names.line_object(self.fleet, line.child)
        self.bucket.replace(name, b"{}", generation=None, metadata=encode(line))

    def _line(self, name: str, metadata: Mapping[str, str]) -> ChildLine | None:
        """A line counts only under the name that is its own."""
        line = decode(metadata)
        return line if line is not None and name == names.line_object(self.fleet, line.child) else None

    def _unreadable(self, name: str) -> DocumentUnreadable:
        return _unreadable(self.bucket.name, name)


def control_document(fleet: str, bucket: str) -> Document[Control]:
    """What has been decided about a fleet, as a document that changes by compare-and-swap."""
    name = names.control_object(fleet)

    def parse(data: bytes | None) -> Control:
        if data is None:
            return Control()
        try:
            return Control.model_validate_json(data)
        except ValidationError as exc:
            raise _unreadable(bucket, name) from exc

    return Document(name, Control, parse, lambda control: control.model_dump_json(by_alias=True).encode())


def _unreadable(bucket: str, name: str) -> DocumentUnreadable:
    return DocumentUnreadable(
        f"gs://{bucket}/{name} is not a document that this version writes",
        hint="use the version that launched the fleet",
    )


def listed(bucket: Bucket) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Every fleet in the bucket and its line, oldest first."""
    found = []
    for entry in bucket.list(LISTED_PREFIX):
        fleet = entry.name.removeprefix(LISTED_PREFIX).removesuffix(".json")
        if names.is_fleet_id(fleet):
            found.append((fleet, entry.metadata))
    return tuple(found)
