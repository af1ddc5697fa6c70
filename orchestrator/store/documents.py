"""Compare-and-swap for every document of the bucket that changes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from orchestrator.core.baselines import NAME, Baseline, Baselines, checked_name, dump_baselines, parse_baselines
from orchestrator.core.errors import BenchError, Unavailable
from orchestrator.core.hosts import HostRecord, HostTarget, record_object
from orchestrator.core.naming import BASELINES_PREFIX, baseline_object
from orchestrator.core.run.slots import Slot, is_claimed_by, with_claim, without_claim
from orchestrator.ports import Bucket, Clock

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


# The records of hosts in the bucket: one small object for each host, changed by compare-and-swap.


def host_document(target: HostTarget) -> StoredDocument[HostRecord]:
    def parse(data: bytes | None) -> HostRecord:
        return HostRecord(target=str(target)) if data is None else HostRecord.parse(target.zone, data)

    def dump(record: HostRecord) -> bytes:
        return record.model_dump_json(by_alias=True).encode()

    return StoredDocument(record_object(target.zone), HostRecord, parse, dump)


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


Refused = TypeVar("Refused")


def baseline_document(name: str) -> StoredDocument[dict[str, Baseline]]:
    def read(data: bytes | None) -> dict[str, Baseline]:
        return {} if data is None else parse_baselines(name, data)

    def write(baselines: dict[str, Baseline]) -> bytes:
        return dump_baselines(name, baselines)

    return StoredDocument(baseline_object(checked_name(name)), dict, read, write)


class BaselineStore:
    """The named baselines of a bucket. If two clients set baselines of one name at the same time, for example of a T4
    and of an H100, both are kept."""

    def __init__(self, bucket: Bucket, clock: Clock) -> None:
        self._bucket = bucket
        self._clock = clock

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

    def update(self, name: str, change: Callable[[Baselines], dict[str, Baseline] | Refused]) -> Baselines | Refused:
        """Stores `change(baselines)` and returns it. When another client was faster, `change` is applied to the newer
        baselines. If it returns anything but a dictionary, that is a refusal: it is returned and nothing is stored.
        Raises `BaselinesUnreadable`, and `Unavailable` when others were faster every time."""
        return swap(self._bucket, self._clock, baseline_document(name), change)

    def clear(self, name: str) -> None:
        """Replaces the object of the name with an empty one, whether it is readable or not."""
        self._bucket.replace(baseline_object(checked_name(name)), dump_baselines(name, {}), generation=None)
