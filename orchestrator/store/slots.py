"""The slots of kept machines: claimed by compare-and-swap, so that of two launches one gets the machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orchestrator.core.errors import BenchError
from orchestrator.core.run.slots import Slot, claim, is_claimed_by, release
from orchestrator.ports import Bucket, Clock
from orchestrator.store.swap import Document, swap


class SlotUnreadable(BenchError):
    """What is in the slot's place is none that this version can read."""


class Taken:
    """The machine is somebody else's, or waits no longer."""


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
    """The slot with the run's claim in it, whether this call put it there or an earlier one whose answer was lost, and
    whatever the machine has made of it since; or that it is taken. Raises `SlotUnreadable`, `Unavailable`."""

    def change(slot: Slot) -> Slot | Taken:
        if slot.claim is not None and (slot.claim.run_id, slot.claim.by) == (run_id, by):
            return slot
        return claim(slot, run_id, by, spec, payload) or TAKEN

    return swap(bucket, clock, slot_document(name), change)


def release_slot(bucket: Bucket, clock: Clock, name: str, run_id: str) -> bool:
    """Takes the run's claim back. False where the machine is at work for that run already. Raises `SlotUnreadable`,
    `Unavailable`."""
    slot = swap(bucket, clock, slot_document(name), lambda slot: release(slot, run_id))
    return not is_claimed_by(slot, run_id)
