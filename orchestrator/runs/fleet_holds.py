"""Holds of fleets whose client died before it asked for any machine.

Jobs are noted in the fleet's `control.json` before a scheduler hears of them, under the hold of one generation. So what
decides is that document: a generation that is void there may be settled at nothing, as nobody notes a job for it again.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Final

from orchestrator.core.errors import DocumentUnreadable, NotFound
from orchestrator.core.fleet.names import FLEET_LABEL
from orchestrator.core.ledger.budget import ZERO, Entry
from orchestrator.core.market.pricing import DEADLINE_SLACK_S
from orchestrator.runs.engine import World
from orchestrator.store.fleets import Control, FleetStore

NOBODY: Final = "its client died before it asked for a machine"


def unused(world: World, fleet: str, generation: int, entry: Entry, margin: timedelta) -> tuple[Decimal, str] | None:
    """What a hold of a fleet is settled at, and why; None where `bench fleet status` has to look after it. Whoever took
    it has its time first: `margin` more than a client may need to ask for a machine."""
    patience = timedelta(seconds=world.policy.insert_limit_s) + margin
    now = world.clock.now()
    if now < entry.held_at + patience:
        return None
    store = FleetStore(world.bucket, world.clock, fleet)
    try:
        store.record()
    except DocumentUnreadable:
        return None
    except NotFound:
        last = timedelta(seconds=entry.ttl_s + DEADLINE_SLACK_S)
        if now < entry.held_at + patience + last or _alive(world, fleet):
            return None
        return entry.hold_usd, "its record is gone: all of it counts as spent"
    control = store.control()
    if generation not in control.void and _voided(control, generation) != control:
        control = store.decide(lambda one: _voided(one, generation))
    return (ZERO, "nothing was ever asked for") if generation in control.void else None


def _voided(control: Control, generation: int) -> Control:
    """Nothing is asked for under the hold of `generation` any more. As it was where something may have been."""
    begun = control.generation == generation and any(job.number >= control.first_job for job in control.jobs)
    if begun or not control.generation <= generation <= control.generation + 1:
        return control
    number = max((job.number + 1 for job in control.jobs), default=0)
    fresh = {"void": (*control.void, generation), "generation": generation + 1, "first_job": number}
    return control.model_copy(update={**fresh, "stopped": control.stopped or NOBODY})


def _alive(world: World, fleet: str) -> bool:
    return any(instance.labels.get(FLEET_LABEL) == fleet for instance in world.cloud().instances())
