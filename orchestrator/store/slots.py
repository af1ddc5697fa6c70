"""The slots of kept machines. They are claimed by compare-and-swap, so that only one of two launches gets the
machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orchestrator.core.errors import BenchError
from orchestrator.core.run.slots import Slot, claim, is_claimed_by, release
from orchestrator.ports import Bucket, Clock
from orchestrator.store.swap import Document, swap


class SlotUnreadable(BenchError):
    """The object of a slot is missing, or this version cannot read it."""


class Taken:
    """The machine is claimed by another run, or no longer waits."""


TAKEN: Final = Taken()


def slot_document(name: str) -> Document[Slot]:
    def parse(data: bytes | None) -> Slot:
        slot = None if data is None else Slot.parse(data)
        if slot is None:
            raise SlotUnreadable(
                f"{name} is not the slot of a machine", hint="`bench launch --cold` requests a new machine instead"
            )
        return slot

    return Document(name, Slot, parse, Slot.dump)


def claim_slot(
    bucket: Bucket, clock: Clock, name: str, run_id: str, by: str, spec: Mapping[str, Any], payload: Mapping[str, str]
) -> Slot | Taken:
    """Claims the slot for a run. Returns the slot with the run's claim, which this call or an earlier call whose answer
    was lost has put there, and which the machine may have changed since; `TAKEN` where the machine cannot be claimed.
    Raises `SlotUnreadable`, `Unavailable`."""

    def change(slot: Slot) -> Slot | Taken:
        if slot.claim is not None and (slot.claim.run_id, slot.claim.by) == (run_id, by):
            return slot
        return claim(slot, run_id, by, spec, payload) or TAKEN

    return swap(bucket, clock, slot_document(name), change)


def release_slot(bucket: Bucket, clock: Clock, name: str, run_id: str) -> bool:
    """Takes the run's claim back. Returns False where the machine already works for that run. Raises `SlotUnreadable`,
    `Unavailable`."""
    slot = swap(bucket, clock, slot_document(name), lambda slot: release(slot, run_id))
    return not is_claimed_by(slot, run_id)
