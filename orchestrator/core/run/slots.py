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

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from orchestrator.core.market.offers import Offer
from orchestrator.core.market.pricing import MAX_TTL_S
from orchestrator.core.run.fold import Run, Vm

OLDEST: Final = timedelta(seconds=MAX_TTL_S) + timedelta(hours=1)
"""No machine lives longer: the slot of one that was made before is nobody's."""
LATEST: Final = timedelta(seconds=5)
"""A claim that would arrive later than this before the idle limit is not worth its request."""
WATCHDOG_S: Final = 60
"""The machine stops its work so long before its deadline."""


class Claim(BaseModel):
    """The next run of the machine: what its metadata would say, had it been made for that run."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="ignore")
    run_id: str
    by: str
    spec: dict[str, Any]
    payload: dict[str, str]


class Slot(BaseModel):
    """The document `machines/<vm>.json`."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="ignore")
    schema_: Literal[1] = Field(default=1, alias="schema")
    state: Literal["idle", "claimed", "running", "closed"]
    vm: str
    zone: str
    owner: str
    """The run that the machine was made for, and that pays for it."""
    idle_until: AwareDatetime
    claim: Claim | None = None

    @classmethod
    def parse(cls, data: bytes) -> Slot | None:
        """The slot, or None for what is none that this version can read."""
        try:
            return cls.model_validate_json(data)
        except ValidationError:
            return None

    def dump(self) -> bytes:
        return json.dumps(self.model_dump(mode="json", by_alias=True), indent=1).encode()


def claim(slot: Slot, run_id: str, by: str, spec: Mapping[str, Any], payload: Mapping[str, str]) -> Slot | None:
    """The slot with the claim in it, or None when it is not to be had."""
    if slot.state != "idle":
        return None
    wish = Claim(run_id=run_id, by=by, spec=dict(spec), payload=dict(payload))
    return slot.model_copy(update={"state": "claimed", "claim": wish})


def is_claimed_by(slot: Slot, run_id: str) -> bool:
    return slot.claim is not None and slot.claim.run_id == run_id


def release(slot: Slot, run_id: str) -> Slot:
    """The slot without the run's claim, so that another launch may have the machine; as it is where the claim is
    somebody else's, or the machine has taken it up."""
    if slot.state != "claimed" or not is_claimed_by(slot, run_id):
        return slot
    return slot.model_copy(update={"state": "idle", "claim": None})


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a launch needs of a machine."""

    mode: str
    gpu: str
    image: str
    offers: Sequence[Offer]
    seconds: int
    """The least time that is of any use."""


def unfit(slot: Slot, owner: Run | None, wanted: Wanted, now: datetime) -> str:
    """Why a waiting machine will not do for a launch, in a few words; empty when it will."""
    vm = owned(slot, owner)
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


def owned(slot: Slot, owner: Run | None) -> Vm | None:
    vms = owner.vms if owner is not None else ()
    return next((vm for vm in vms if (vm.name, vm.zone) == (slot.vm, slot.zone)), None)


def seconds_left(vm: Vm, now: datetime) -> int:
    """For how long a machine can still work before its watchdog ends it."""
    if vm.deadline_at is None:
        return 0
    return max(0, int((vm.deadline_at - now).total_seconds()) - WATCHDOG_S)
