"""A fleet in the bucket: its record, the list of children, one line for each child, and later decisions about it.

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

from pydantic import Field, ValidationError

from orchestrator.core import names
from orchestrator.core.bounds import Count, LenientModel, Usd
from orchestrator.core.errors import DocumentUnreadable, NotFound
from orchestrator.core.fleet import sweep as sweeps
from orchestrator.core.fleet.state import ChildLine, FleetState, decode_line, encode_line, fold_fleet, merge_lines
from orchestrator.core.fleet.sweep import Child, EngineName, Sweep
from orchestrator.core.names import FleetId
from orchestrator.core.naming import Mode
from orchestrator.core.text import parse_document
from orchestrator.ports import Bucket, Clock
from orchestrator.store.documents import StoredDocument, swap

READERS: Final = 16
LISTED_PREFIX: Final = "fleet-index/"
NEVER_BEGUN: Final = "its client died before it began; `bench fleet launch` with the same sweep starts a new fleet"


class FleetRecord(LenientModel):
    """The record of a fleet as it was launched; it never changes."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    fleet: FleetId
    engine: EngineName
    mode: Mode
    """Where its machines come from: `gce`, `embedded` or `host`."""
    user: str
    sweep: Sweep
    created_at: datetime
    ends_at: datetime
    """All machines of the fleet are gone by then."""
    hold_usd: Usd
    """The most that the fleet may cost; 0 where every child has a hold of its own."""
    usd_per_hour: dict[str, Usd] = Field(default_factory=dict)
    """The price of a machine, by GPU."""
    price_margin: Usd = Decimal(0)
    """The share of the prices that is held in addition to them."""
    machines: dict[str, Count] = Field(default_factory=dict)
    """How many machines run at the same time, by GPU."""
    payloads: dict[str, str] = Field(default_factory=dict)
    """The sha256 of the payload that machines run, by workload."""


class JobRecord(LenientModel):
    """A job that was submitted, or was about to be."""

    number: Count
    gpu: str
    children: tuple[Count, ...]
    parallel: Count


class FleetControl(LenientModel):
    """The decisions about a fleet since it was launched."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    jobs: tuple[JobRecord, ...] = ()
    paused: str = ""
    """Why no more children are started; empty if the fleet is not paused."""
    persisted: bool = False
    """Whether a person has resumed it after a pause: then its first failures do not stop it again."""
    stopped: str = ""
    """Who stopped it; empty if nobody did."""
    cancelled: Count = 0
    """Jobs below this number were ended: other jobs start their children."""
    generation: Count = 0
    """How often it was resumed after its hold was settled."""
    ends_at: datetime | None = None
    """The end of the latest generation, where it differs from that of the record."""
    held_at: datetime | None = None
    """When it was decided that the latest generation goes on, where that is not the first; its hold is taken next."""
    first_job: Count = 0
    """Jobs below this number were requested under the holds of earlier generations."""
    void: tuple[Count, ...] = ()
    """Generations whose hold was released because nothing was requested under it. Nothing may be requested under it
    now."""


class FleetStore:
    """One fleet as one client sees it."""

    def __init__(self, bucket: Bucket, clock: Clock, fleet: str) -> None:
        """Raises `ValueError` if `fleet` is not the id of a fleet."""
        self.bucket = bucket
        self.clock = clock
        self.fleet = FleetId(fleet)
        self._written: dict[int, ChildLine] = {}
        self._listed: dict[str, str] = {}
        self._documents: dict[str, str] = {}
        self._control = control_document(fleet, bucket.name)

    @property
    def digest(self) -> str:
        """A digest of the fleet as it was launched: of its record and its list of children, as they were read or
        stored."""
        objects = (names.spec_object(self.fleet), names.plan_object(self.fleet))
        return hashlib.sha256(" ".join(self._documents.get(name, "") for name in objects).encode()).hexdigest()

    def create(self, record: FleetRecord, children: Sequence[Child]) -> None:
        """Stores the record and the list of children, before anything is started."""
        plan = json.dumps(sweeps.children_document(children), separators=(",", ":")).encode()
        for name, data in (
            (names.plan_object(self.fleet), plan),
            (names.spec_object(self.fleet), record.dump()),
        ):
            self.bucket.create(name, data)
            self._documents[name] = hashlib.sha256(data).hexdigest()

    def record(self) -> FleetRecord:
        """The record of the fleet. Raises `NotFound`, `DocumentUnreadable`."""
        name = names.spec_object(self.fleet)
        blob = self.bucket.read(name)
        if blob is None:
            raise NotFound(f"there is no fleet {self.fleet}", hint="`bench fleet ls` lists the fleets in this bucket")
        try:
            record = FleetRecord.model_validate(parse_document(blob.data))
        except ValueError as exc:
            raise self._unreadable(name) from exc
        if record.fleet != self.fleet:  # the name is used for a folder
            raise self._unreadable(name)
        self._documents[name] = hashlib.sha256(blob.data).hexdigest()
        return record

    def children(self) -> tuple[Child, ...]:
        """The children of the fleet, in order. Raises `NotFound`, `DocumentUnreadable`."""
        name = names.plan_object(self.fleet)
        blob = self.bucket.read(name)
        if blob is None:
            raise NotFound(f"{self.fleet} has no plan", hint=NEVER_BEGUN)
        try:
            children = sweeps.read_children(json.loads(blob.data))
        except (ValueError, RecursionError) as exc:
            raise self._unreadable(name) from exc
        self._documents[name] = hashlib.sha256(blob.data).hexdigest()
        return children

    def control(self) -> FleetControl:
        """The decisions so far; the defaults where nothing was decided. Raises `DocumentUnreadable`."""
        blob = self.bucket.read(names.control_object(self.fleet))
        return self._control.parse(None if blob is None else blob.data)

    def decide(self, change: Callable[[FleetControl], FleetControl]) -> FleetControl:
        """Changes the decisions by compare-and-swap and returns them. Raises `DocumentUnreadable`, and `Unavailable`
        when others were faster every time."""
        return swap(self.bucket, self.clock, self._control, change)

    def state(self, children: Sequence[Child]) -> FleetState:
        """The state of the fleet, from the lines of all children. Sixteen listings run in parallel."""

        def lines(digit: str) -> list[ChildLine]:
            lines_read = self.bucket.list(names.lines_prefix(self.fleet, digit))
            return [line for entry in lines_read if (line := self._line(entry.name, entry.metadata)) is not None]

        with ThreadPoolExecutor(READERS) as pool:
            lines_read = [line for part in pool.map(lines, names.SHARDS) for line in part]
        self._written = {line.child: line for line in lines_read}
        return fold_fleet(children, lines_read)

    def write(self, lines: Iterable[ChildLine]) -> None:
        """Merges each line with the line that is stored, and stores those that changed."""
        changed = []
        for line in lines:
            stored = self._written.get(line.child)
            merged = line if stored is None else merge_lines(stored, line)
            if merged != stored:
                self._written[line.child] = merged
                changed.append(merged)
        with ThreadPoolExecutor(READERS) as pool:
            list(pool.map(self._write, changed))

    def write_over(self, lines: Iterable[ChildLine]) -> None:
        """Stores the lines as they are: they replace what is stored for these children."""
        for line in lines:
            self._written[line.child] = line
            self._write(line)

    def known(self, lines: Iterable[ChildLine]) -> Mapping[int, ChildLine]:
        """The stored lines of these children, by the number of the child."""
        return {line.child: self._written[line.child] for line in lines}

    def list_as(self, metadata: Mapping[str, str]) -> None:
        """Stores the line that `bench fleet ls` shows, if it changed."""
        if dict(metadata) != self._listed:
            self._listed = dict(metadata)
            self.bucket.replace(names.listing_object(self.fleet), b"{}", generation=None, metadata=metadata)

    def _write(self, line: ChildLine) -> None:
        name = names.line_object(self.fleet, line.child)
        self.bucket.replace(name, b"{}", generation=None, metadata=encode_line(line))

    def _line(self, name: str, metadata: Mapping[str, str]) -> ChildLine | None:
        """The line of a child; None where it cannot be read, or is stored under the name of another child."""
        line = decode_line(metadata)
        return line if line is not None and name == names.line_object(self.fleet, line.child) else None

    def _unreadable(self, name: str) -> DocumentUnreadable:
        return _unreadable(self.bucket.name, name)


def control_document(fleet: str, bucket: str) -> StoredDocument[FleetControl]:
    """The decisions about a fleet, as a document that changes by compare-and-swap. Reading it raises
    `DocumentUnreadable`."""
    name = names.control_object(fleet)

    def parse(data: bytes | None) -> FleetControl:
        if data is None:
            return FleetControl()
        try:
            return FleetControl.model_validate_json(data)
        except ValidationError as exc:
            raise _unreadable(bucket, name) from exc

    return StoredDocument(name, FleetControl, parse, FleetControl.dump)


def _unreadable(bucket: str, name: str) -> DocumentUnreadable:
    return DocumentUnreadable(
        f"gs://{bucket}/{name} is not a document that this version writes",
        hint="use the version that launched the fleet",
    )


def list_fleets(bucket: Bucket) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Every fleet in the bucket and its line, oldest first."""
    fleets = []
    for entry in bucket.list(LISTED_PREFIX):
        fleet = entry.name.removeprefix(LISTED_PREFIX).removesuffix(".json")
        if names.is_fleet_id(fleet):
            fleets.append((fleet, entry.metadata))
    return tuple(fleets)
