"""Compare-and-swap for every document of the bucket that changes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Generic, TypeVar

from pydantic import TypeAdapter

from orchestrator.core.baselines import NAME, Baseline, Baselines, checked_name, dump_baselines, parse_baselines
from orchestrator.core.bounds import Moment
from orchestrator.core.errors import BenchError, DocumentUnreadable, NotFound, Unavailable
from orchestrator.core.hosts import HostRecord, HostTarget, record_object
from orchestrator.core.images import PREFIX, ImageRecord, image_recorded_in
from orchestrator.core.images import record_object as image_object
from orchestrator.core.ledger.budget import Ledger, LedgerMissing
from orchestrator.core.naming import BASELINES_PREFIX, LEDGER, PLACEMENT_PREFIX, baseline_object, parse_event_object
from orchestrator.core.run.slots import Slot, is_claimed_by, with_claim, without_claim
from orchestrator.core.text import is_newer, parse_document
from orchestrator.ports import Bucket, Clock, Images

ATTEMPTS: Final = 12
"""How often a change is tried when other clients are faster: about 20 s in all."""
LONGEST_PAUSE_S: Final = 3.2

D = TypeVar("D")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class StoredDocument(Generic[D]):
    """One object of the bucket that many clients change: its name, the type of its value, and how to read and write it.
    `parse` gets None where there is no object yet. `dump` must return the same bytes for the same value."""

    name: str
    kind: type[D]
    parse: Callable[[bytes | None], D]
    dump: Callable[[D], bytes]


def swap(bucket: Bucket, clock: Clock, document: StoredDocument[D], change: Callable[[D], D | R]) -> D | R:
    """Stores `change(value)` and returns it. When another client was faster, `change` is applied to the newer value. If
    `change` returns anything that is not of the document's kind, that is a refusal: it is returned and nothing is
    stored. A value that did not change is not stored either, unless there is no object yet.

    If the answer to our own write was lost, the bytes in the bucket are compared with ours, so that it is not taken for
    a write of another client. If yet another write has followed ours, `change` is applied to the result of both, so it
    must do nothing where its work is already done. Raises `Unavailable` when others were faster every time, and what
    `parse` raises.
    """
    for attempt in range(ATTEMPTS):
        blob = bucket.read(document.name)
        present = document.parse(blob.data if blob is not None else None)
        wanted = change(present)
        if not isinstance(wanted, document.kind) or (blob is not None and wanted == present):
            return wanted
        data = document.dump(wanted)
        if bucket.replace(document.name, data, generation=blob.generation if blob is not None else 0) is not None:
            return wanted
        now = bucket.read(document.name)
        if now is not None and now.data == data:
            return wanted
        clock.sleep(min(LONGEST_PAUSE_S, random.uniform(0.02, 0.1) * 2**attempt))
    raise Unavailable(
        f"gs://{bucket.name}/{document.name} changed {ATTEMPTS} times while it was updated",
        hint="many clients write to it at the same time: run the same command again",
    )


class DocumentStore:
    """A client's access to some of the bucket's documents."""

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self._bucket = bucket
        self._clock = clock


# The records of hosts in the bucket: one small object for each host, changed by compare-and-swap.


def host_document(target: HostTarget) -> StoredDocument[HostRecord]:
    def parse(data: bytes | None) -> HostRecord:
        return HostRecord(target=str(target)) if data is None else HostRecord.parse(target.zone, data)

    return StoredDocument(record_object(target.zone), HostRecord, parse, HostRecord.dump)


def update_host(
    bucket: Bucket, clock: Clock, target: HostTarget, change: Callable[[HostRecord], HostRecord]
) -> HostRecord:
    """Applies `change` to the host's record and returns the result. Raises `Unavailable` when others were faster every
    time."""
    return swap(bucket, clock, host_document(target), change)


# The slots of kept machines. They are claimed by compare-and-swap, so that only one of two launches gets the machine.


class SlotUnreadable(BenchError):
    """The object of a slot is missing, or this version cannot read it."""


class Taken:
    """The machine is claimed by another run, or no longer waits."""


TAKEN: Final = Taken()


def slot_document(name: str) -> StoredDocument[Slot]:
    def parse(data: bytes | None) -> Slot:
        slot = None if data is None else Slot.parse(data)
        if slot is None:
            raise SlotUnreadable(
                f"{name} is not the slot of a machine", hint="`bench launch --cold` requests a new machine instead"
            )
        return slot

    return StoredDocument(name, Slot, parse, Slot.dump)


def claim_slot(
    bucket: Bucket, clock: Clock, name: str, run_id: str, by: str, spec: Mapping[str, Any], payload: Mapping[str, str]
) -> Slot | Taken:
    """Claims the slot for a run. Returns the slot with the run's claim, which this call or an earlier call whose answer
    was lost has put there, and which the machine may have changed since; `TAKEN` where the machine cannot be claimed.
    Raises `SlotUnreadable`, `Unavailable`."""

    def change(slot: Slot) -> Slot | Taken:
        if slot.claim is not None and (slot.claim.run_id, slot.claim.by) == (run_id, by):
            return slot
        return with_claim(slot, run_id, by, spec, payload) or TAKEN

    return swap(bucket, clock, slot_document(name), change)


def release_slot(bucket: Bucket, clock: Clock, name: str, run_id: str) -> bool:
    """Takes the run's claim back. Returns False where the machine already works for that run. Raises `SlotUnreadable`,
    `Unavailable`."""
    slot = swap(bucket, clock, slot_document(name), lambda slot: without_claim(slot, run_id))
    return not is_claimed_by(slot, run_id)


# Named baselines in the bucket: one small object for each name, changed by compare-and-swap.


def baseline_document(name: str) -> StoredDocument[dict[str, Baseline]]:
    def parse(data: bytes | None) -> dict[str, Baseline]:
        return {} if data is None else parse_baselines(name, data)

    return StoredDocument(baseline_object(checked_name(name)), dict, parse, partial(dump_baselines, name))


class BaselineStore(DocumentStore):
    """The named baselines of a bucket. If two clients set baselines of one name at the same time, for example of a T4
    and of an H100, both are kept."""

    def names(self) -> tuple[str, ...]:
        """Every name that was ever set, in order; a removed name is still listed, without baselines. Objects whose
        names are not names of baselines are left out."""
        objects = (entry.name.removeprefix(BASELINES_PREFIX) for entry in self._bucket.list(BASELINES_PREFIX))
        names = (object_name.removesuffix(".json") for object_name in objects if object_name.endswith(".json"))
        return tuple(name for name in names if NAME.fullmatch(name))

    def read(self, name: str) -> Mapping[str, Baseline]:
        """The baselines of a name by device; empty where there is no such name. Raises `BaselinesUnreadable`."""
        blob = self._bucket.read(baseline_object(checked_name(name)))
        return {} if blob is None else parse_baselines(name, blob.data)

    def update(self, name: str, change: Callable[[Baselines], dict[str, Baseline] | R]) -> Baselines | R:
        """Stores `change(baselines)` and returns it. When another client was faster, `change` is applied to the newer
        baselines. If it returns anything but a dictionary, that is a refusal: it is returned and nothing is stored.
        Raises `BaselinesUnreadable`, and `Unavailable` when others were faster every time."""
        return swap(self._bucket, self._clock, baseline_document(name), change)

    def clear(self, name: str) -> None:
        """Replaces the object of the name with an empty one, whether it is readable or not."""
        self._bucket.replace(baseline_object(checked_name(name)), dump_baselines(name, {}), generation=None)


# The records of prepared images in the bucket: one small object for each image, changed by compare-and-swap.


class ImageRecords(DocumentStore):
    """The records of all images."""

    def every(self) -> tuple[tuple[ImageRecord, ...], Mapping[str, str]]:
        """The records that can be read, in the order of their names; and for each other object why it cannot be
        read."""
        names = [entry.name for entry in self._bucket.list(PREFIX) if entry.name.endswith(".json")]
        records: list[ImageRecord] = []
        unreadable: dict[str, str] = {}
        for name, blob in sorted(self._bucket.read_many(names).items()):
            try:
                records.append(ImageRecord.parse(image_recorded_in(name), blob.data))
            except DocumentUnreadable as exc:
                unreadable[name] = str(exc)
        return tuple(records), unreadable

    def create(self, record: ImageRecord) -> None:
        """Stores the record; one that is already there stays as it is."""
        self._bucket.create(image_object(record.name), record.dump())

    def update(self, name: str, change: Callable[[ImageRecord], ImageRecord]) -> ImageRecord:
        """Applies `change` to the record and returns the result. Raises `NotFound`, `DocumentUnreadable`,
        `Unavailable`."""

        def parse(data: bytes | None) -> ImageRecord:
            if data is None:
                raise NotFound(f"there is no image {name} in this bucket", hint="`bench image list` lists them")
            return ImageRecord.parse(name, data)

        document = StoredDocument(image_object(name), ImageRecord, parse, ImageRecord.dump)
        return swap(self._bucket, self._clock, document, change)


@dataclass(frozen=True, slots=True)
class Shelf:
    """Prepared images: their records in the bucket, and the cloud that has them. The cloud is a function, as its client
    is slow to load."""

    records: ImageRecords
    cloud: Callable[[], Images]


# The ledger in the bucket. It is read, changed, and stored only if no other client has changed it meanwhile.


def _parse_ledger(data: bytes | None) -> Ledger:
    return Ledger() if data is None else Ledger.parse(data)


LEDGER_DOCUMENT = StoredDocument(LEDGER, Ledger, _parse_ledger, Ledger.dump)


OF_MONEY: Final = "runs/*/events/*Z-client-*-budget_held.json"
"""The names of events in which a client records that it held money. If a run has one of them, the ledger had an entry
before it, and can be rebuilt from such events."""


class LedgerStore(DocumentStore):
    """The ledger that all clients of a bucket share, so that two clients cannot both spend the last dollar. If it is
    missing or empty although runs have held money, it is refused: it must not look as if nothing was spent."""

    def read(self) -> Ledger:
        """The ledger; an empty one when nothing was ever held. Raises `LedgerUnreadable`, `LedgerMissing`."""
        return self.read_with_generation()[0]

    def read_with_generation(self) -> tuple[Ledger, int]:
        """The ledger and its generation; an empty ledger and 0 when nothing was ever held. Raises `LedgerUnreadable`,
        `LedgerMissing`."""
        blob = self._bucket.read(LEDGER)
        return (self._checked(None), 0) if blob is None else (self._checked(blob.data), blob.generation)

    def update(self, change: Callable[[Ledger], Ledger | R]) -> Ledger | R:
        """Replaces the ledger with `change(ledger)` and returns it; a refusal is returned and nothing is stored.
        Raises `LedgerUnreadable`, `LedgerMissing`, and `Unavailable` when others were faster every time."""
        return swap(self._bucket, self._clock, replace(LEDGER_DOCUMENT, parse=self._checked), change)

    def _checked(self, data: bytes | None) -> Ledger:
        ledger = _parse_ledger(data)
        if not ledger.empty:
            return ledger
        held = next(
            (one.name for one in self._bucket.list("runs/", matching=OF_MONEY) if parse_event_object(one.name)), ""
        )
        if held:
            blob = self._bucket.read(LEDGER)  # the first hold may have been taken since the ledger was read
            ledger = _parse_ledger(None if blob is None else blob.data)
            if ledger.empty:
                raise LedgerMissing(
                    f"gs://{self._bucket.name}/{LEDGER} is {'empty' if blob else 'gone'}, and runs of this bucket "
                    f"have held money ({held.split('/')[1]}): what was spent is not known",
                    hint="`bench budget rebuild` makes it from the events of the runs",
                )
        return ledger


# The stock-outs that clients have met, stored in the bucket: one small object for each machine type.


KEPT: Final = timedelta(days=1)
"""After this time a stock-out is ignored."""
_ZONES: Final[TypeAdapter[dict[str, dict[str, datetime]]]] = TypeAdapter(dict[str, dict[str, Moment]])

Pool = tuple[str, str, str]


class StockOuts(DocumentStore):
    """The stock-outs that clients of this bucket have met. A plan costs one read, a stock-out one compare-and-swap.
    They are only hints: if one is lost, a launch may try a zone that has no machine."""

    def stock_outs(self, machine_type: str) -> Mapping[Pool, datetime]:
        """The time of the last stock-out of each pool (zone, machine type, provisioning), as far as it is stored. Empty
        where the bucket cannot be read."""
        try:
            blob = self._bucket.read(stock_out_object(machine_type))
        except BenchError:
            return {}
        return _parse_stock_outs(machine_type, blob.data) if blob is not None else {}

    def remember(self, pool: Pool, at: datetime) -> None:
        """Stores a stock-out. Errors of the bucket are ignored."""

        def change(known: dict[Pool, datetime]) -> dict[Pool, datetime]:
            newest = {**known, pool: max(at, known.get(pool, at))}
            return {key: when for key, when in newest.items() if when > at - KEPT}

        try:
            swap(self._bucket, self._clock, stockouts_document(pool[1]), change)
        except BenchError:
            return


def stockouts_document(machine_type: str) -> StoredDocument[dict[Pool, datetime]]:
    def read(data: bytes | None) -> dict[Pool, datetime]:
        if data is not None and is_newer(data):  # an object of a newer version is not changed
            raise DocumentUnreadable(
                f"{stock_out_object(machine_type)} was written by a newer version of bench", hint="use that version"
            )
        return {} if data is None else _parse_stock_outs(machine_type, data)

    return StoredDocument(stock_out_object(machine_type), dict, read, _dump_stock_outs)


def stock_out_object(machine_type: str) -> str:
    return f"{PLACEMENT_PREFIX}{machine_type}.json"


def _dump_stock_outs(known: Mapping[Pool, datetime]) -> bytes:
    zones: dict[str, dict[str, str]] = {}
    for (zone, _, provisioning), at in sorted(known.items()):
        zones.setdefault(zone, {})[provisioning] = at.astimezone(UTC).isoformat()
    return json.dumps({"schema": 1, "stock_outs": zones}, indent=1).encode()


def _parse_stock_outs(machine_type: str, data: bytes) -> dict[Pool, datetime]:
    """The stock-outs in an object; empty where it cannot be read, as they are only hints."""
    try:
        zones = _ZONES.validate_python(parse_document(data)["stock_outs"])
    except (ValueError, KeyError):  # a ValidationError is a ValueError
        return {}
    return {(zone, machine_type, model): at for zone, models in zones.items() for model, at in models.items()}
