"""Holds of fleets whose client died.

Jobs are noted in the fleet's `control.json` before a scheduler hears of them, under the hold of one generation. So what
decides is that document: a generation that is void there may be settled at nothing, as nobody notes a job for it again.
Where jobs were noted, their scheduler is asked what they came to. One that cannot be asked for a day after the fleet's
end, when none of its machines can be there any more, keeps no hold open: all of it counts as spent. So does the hold of
a fleet whose record cannot be read.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from orchestrator.core.errors import BenchError, DocumentUnreadable, NotFound
from orchestrator.core.fleet.names import FLEET_LABEL
from orchestrator.core.ledger.arming import abandoned_from
from orchestrator.core.ledger.budget import ZERO, Entry
from orchestrator.core.mode import Mode
from orchestrator.runs.engine import World
from orchestrator.store.fleets import Control, FleetStore

NOBODY: Final = "its client died before it requested a machine"


GIVEN_UP: Final = timedelta(days=1)
"""So long after a fleet's end its scheduler is asked, before its hold counts as spent; and so long a record that cannot
be read is waited for, as a newer client may read it."""


def looked_after(world: World, fleet: str, entry: Entry, margin: timedelta, *, eager: bool) -> str:
    """Asks the scheduler of a fleet whose end is past, or whose client may be dead (`eager`), and settles what is over.
    Returns why nothing could be asked; empty where it was."""
    ends_at = _ends_at(world, fleet, entry)
    if ends_at is None or (world.clock.now() < ends_at + margin and not eager):
        return ""
    if world.fleets is None:
        return "its scheduler cannot be reached from this computer"
    try:
        world.fleets(fleet)
    except BenchError as exc:
        return str(exc)
    return ""


def forgotten(world: World, fleet: str, entry: Entry, margin: timedelta) -> bool:
    """Whether a fleet ended so long ago that nothing of it can be there, whatever its scheduler might say."""
    ends_at = _ends_at(world, fleet, entry)
    if ends_at is None or world.clock.now() < ends_at + margin + GIVEN_UP:
        return False
    return FleetStore(world.bucket, world.clock, fleet).record().mode is Mode.HOST or not _alive(world, fleet)


def _ends_at(world: World, fleet: str, entry: Entry) -> datetime | None:
    """After this no machine of a fleet lives that this hold is for; None where nothing readable says so."""
    store = FleetStore(world.bucket, world.clock, fleet)
    try:
        return min(store.control().ends_at or store.record().ends_at, entry.lasts_until)
    except (NotFound, DocumentUnreadable):
        return None


def unused(world: World, fleet: str, generation: int, entry: Entry, margin: timedelta) -> tuple[Decimal, str] | None:
    """What a hold of a fleet is settled at, and why; None where its scheduler has to be asked. Whoever took
    it has its time first: `margin` more than a client may need to ask for a machine."""
    patience = timedelta(seconds=world.policy.insert_limit_s) + margin
    now = world.clock.now()
    if now < entry.held_at + patience:
        return None
    store = FleetStore(world.bucket, world.clock, fleet)
    try:
        store.record()
    except (NotFound, DocumentUnreadable) as exc:
        gone = isinstance(exc, NotFound)
        longest = abandoned_from(entry, world.policy.insert_limit_s, asked=True) + (timedelta() if gone else GIVEN_UP)
        if now < longest or _alive(world, fleet):
            return None
        return entry.hold_usd, f"its record {'is gone' if gone else 'cannot be read'}: the whole hold counts as spent"
    control = store.control()
    if generation not in control.void and _voided(control, generation) != control:
        control = store.decide(lambda one: _voided(one, generation))
    return (ZERO, "no machine was ever requested") if generation in control.void else None


def has_record(world: World, fleet: str) -> bool:
    """Whether the record of a fleet is there, readable or not. Raises `Unavailable`."""
    try:
        FleetStore(world.bucket, world.clock, fleet).record()
    except NotFound:
        return False
    except DocumentUnreadable:
        return True
    return True


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
