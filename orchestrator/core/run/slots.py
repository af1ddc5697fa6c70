"""The slot of a kept machine: the object in the bucket through which one run hands the machine to the next.

The machine writes it when it begins to wait, and a client claims it by compare-and-swap. The machine accepts the claim,
or closes the slot at its idle limit, also by compare-and-swap. So only one of two clients gets the machine, and a claim
that arrives while the machine gives up is either accepted or refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from pydantic import AwareDatetime, Field, ValidationError

from orchestrator.core.bounds import LenientModel
from orchestrator.core.market.offers import Offer
from orchestrator.core.market.pricing import MAX_TTL_S
from orchestrator.core.names import MachineName, RunId, Zone
from orchestrator.core.run.fold import Run, Vm

OLDEST: Final = timedelta(seconds=MAX_TTL_S) + timedelta(hours=1)
"""No machine lives longer than this, so the slot of an older one belongs to no machine."""
LATEST: Final = timedelta(seconds=5)
"""A slot is not claimed any more this long before its idle limit."""
WATCHDOG_S: Final = 60
"""How many seconds before its deadline a machine stops its work."""


class ChildClaim(LenientModel):
    """The next run of the machine, with the values that the machine's metadata would have if it were made for that
    run."""

    run_id: RunId
    by: str
    spec: dict[str, Any]
    payload: dict[str, str]


class Slot(LenientModel):
    """The document `machines/<vm>.json`."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    state: Literal["idle", "claimed", "running", "closed"]
    vm: MachineName
    zone: Zone
    owner: RunId
    """The run for which the machine was made, and which pays for it."""
    idle_until: AwareDatetime
    claim: ChildClaim | None = None

    @classmethod
    def parse(cls, data: bytes) -> Slot | None:
        """The slot in `data`, or None if this version cannot read it."""
        try:
            return cls.model_validate_json(data)
        except ValidationError:
            return None

    def dump(self) -> bytes:
        return json.dumps(self.model_dump(mode="json", by_alias=True), indent=1).encode()


def with_claim(slot: Slot, run_id: str, by: str, spec: Mapping[str, Any], payload: Mapping[str, str]) -> Slot | None:
    """The slot with the claim in it, or None if the slot is not idle."""
    if slot.state != "idle":
        return None
    new_claim = ChildClaim(run_id=RunId(run_id), by=by, spec=dict(spec), payload=dict(payload))
    return slot.model_copy(update={"state": "claimed", "claim": new_claim})


def is_claimed_by(slot: Slot, run_id: str) -> bool:
    return slot.claim is not None and slot.claim.run_id == run_id


def without_claim(slot: Slot, run_id: str) -> Slot:
    """The slot without the run's claim, so that another launch may have the machine. It is returned unchanged if the
    claim is another run's, or if the machine has accepted it."""
    if slot.state != "claimed" or not is_claimed_by(slot, run_id):
        return slot
    return slot.model_copy(update={"state": "idle", "claim": None})


@dataclass(frozen=True, slots=True)
class MachineWanted:
    """What a launch needs of a machine."""

    mode: str
    gpu: str
    image: str
    offers: Sequence[Offer]
    seconds: int
    """The least time in which the launch can measure anything."""


def unfit_reason(slot: Slot, owner: Run | None, wanted: MachineWanted, now: datetime) -> str:
    """Why a launch cannot use a waiting machine, as text; empty if it can."""
    vm = owned_vm(slot, owner)
    if owner is None or owner.plan is None or vm is None or not vm.open or vm.deadline_at is None:
        return "the run that pays for it has no record of it"
    if owner.stop is not None or owner.closed is not None:
        return "the run that pays for it is over"
    if slot.state != "idle" or now > slot.idle_until - LATEST:
        return "it no longer waits for a launch"
    if (owner.plan.mode, owner.plan.image) != (wanted.mode, wanted.image):
        return "it has another image"
    if owner.plan.gpu != wanted.gpu:
        return "it has another GPU"
    pool = (vm.zone, vm.machine_type, vm.provisioning)
    if not any((offer.gpu, offer.pool) == (wanted.gpu, pool) for offer in wanted.offers):
        return "it is not among the offers"
    if seconds_left(vm, now) < wanted.seconds:
        return "its deadline is too near"
    return ""


def owned_vm(slot: Slot, owner: Run | None) -> Vm | None:
    vms = owner.vms if owner is not None else ()
    return next((vm for vm in vms if (vm.name, vm.zone) == (slot.vm, slot.zone)), None)


def seconds_left(vm: Vm, now: datetime) -> int:
    """How many seconds a machine can still work before its watchdog ends it."""
    if vm.deadline_at is None:
        return 0
    return max(0, int((vm.deadline_at - now).total_seconds()) - WATCHDOG_S)
