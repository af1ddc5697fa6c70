"""Settles the holds that no client settles, but only when no machine can still be running under them.

A client may die between any two of its steps. Whoever looks next (`bench status`, `bench costs`, a launch that finds no
money left) takes each hold that is not settled: its run is driven on as far as it goes, which settles it when its
machine is gone. A hold whose run has left no events is given back only if its ledger entry shows that no machine was
ever asked for; else its whole amount counts as spent, once its last deadline is over and the cloud has no such machine.
What is set aside for an image that is not made yet is looked after like a hold (`builds`).
Of a fleet it is `fleet_holds` that knows; its scheduler is asked once the fleet's end is past, or when money is needed.
`bench reap --yes` drives no run: it takes the holds of fleets, of images, and of runs that have left no events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from orchestrator.core.errors import (
    BenchError,
    CredentialsMissing,
    DocumentUnreadable,
    HostUnfit,
    NotFound,
    ProviderError,
    StillThere,
    Unavailable,
)
from orchestrator.core.fleet.names import FLEET_LABEL, is_fleet_id
from orchestrator.core.hosts import is_host
from orchestrator.core.images import image_recorded_in
from orchestrator.core.ledger.arming import MARGIN, abandoned_from, may_settle
from orchestrator.core.ledger.budget import ZERO, Entry, Ledger, settle
from orchestrator.core.ledger.unlisted import Known, most_of, outstanding, stored, unlisted_runs
from orchestrator.core.mode import Mode
from orchestrator.core.naming import RUN_LABEL, generation_of, hold_key, run_of
from orchestrator.core.run.fold import replay
from orchestrator.runs.engine import Engine, World, is_done
from orchestrator.runs.image_builds import look_after_builds
from orchestrator.store.fleets import Control, FleetStore

# Holds of fleets whose client died. Jobs are noted in the fleet's `control.json` before a scheduler hears of them,
# under the hold of one generation. So what decides is that document: a generation that is void there may be settled
# at nothing, as nobody notes a job for it again. Where jobs were noted, their scheduler is asked what they came to.
# One that cannot be asked for a day after the fleet's end, when none of its machines can be there any more, keeps no
# hold open: all of it counts as spent. So does the hold of a fleet whose record cannot be read.


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
    return FleetStore(world.bucket, world.clock, fleet).record().mode is Mode.HOST or not _fleet_alive(world, fleet)


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
        if now < longest or _fleet_alive(world, fleet):
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


def _fleet_alive(world: World, fleet: str) -> bool:
    return any(instance.labels.get(FLEET_LABEL) == fleet for instance in world.cloud().instances())


@dataclass(frozen=True, slots=True)
class Found:
    """One hold that was not settled, and the result of looking at it."""

    key: str
    settled: bool
    what: str


def reconcile(
    world: World, *, eager: bool = False, drive: bool = True, say: Callable[[Found], None] = lambda _: None
) -> tuple[Found, ...]:
    """Looks after every hold that is not settled. Costs one request when there is none. With `eager`, as money is
    needed now, also after fleets that may go on. Without `drive`, no run is driven on: only fleets are looked after,
    and runs that have left no events. Raises what the ports raise: at once where it concerns every hold, else once all
    others have been looked after."""
    found: list[Found] = []
    first: BenchError | None = None
    for key in [key for key, entry in sorted(world.ledger.read().runs.items()) if entry.settled_usd is None]:
        try:
            if is_fleet_id(run_of(key)):
                found.append(_of_fleet(world, key, eager=eager))
            elif drive or not has_events(world, run_of(key)):
                found.append(_one(world, key))
            else:
                continue
        except BenchError as exc:
            if concerns_every_hold(exc):
                raise
            first = first or exc
            found.append(Found(key, False, str(exc)))
        say(found[-1])
    if drive:
        found += [Found(most_of(one.name), one.over, one.what) for one in look_after_builds(world)]
    if first is not None:
        raise first
    return tuple(found)


def concerns_every_hold(error: BenchError) -> bool:
    """Whether looking at the next hold would most likely fail too, after as long a wait."""
    return isinstance(error, CredentialsMissing | Unavailable) and not isinstance(error, StillThere)


def is_due(ledger: Ledger) -> bool:
    """Whether there is anything to look after."""
    return any(entry.settled_usd is None for entry in ledger.runs.values()) or bool(outstanding(ledger))


def has_events(world: World, run_id: str) -> bool:
    """Whether a run has left events that can be read. Raises `Unavailable`."""
    return replay(world.log(run_id).read()) is not None


def known_of(world: World, ledger: Ledger, open_runs: frozenset[str]) -> Known:
    """What is there of that for which the ledger holds money, beside `open_runs`; whose fleets they are is not told.
    Asks nothing of the bucket where there is no such hold. Raises `Unavailable`."""
    names = unlisted_runs(ledger, open_runs)
    lost = {name for name in names if not (has_record if is_fleet_id(name) else has_events)(world, name)}
    shelf = world.shelf if stored(ledger) else None
    records, odd = shelf.records.every() if shelf is not None else ((), {})
    there = frozenset(one.name for one in records if one.gone_at is None)
    return Known(open_runs, frozenset(lost), images=there, odd_images=frozenset(map(image_recorded_in, odd)))


def _of_fleet(world: World, key: str, *, eager: bool) -> Found:
    """It has children in the place of events, and its scheduler knows of its machines."""
    fleet, entry = run_of(key), world.ledger.read().runs[key]
    if entry.settled_usd is not None:  # with the hold of an earlier generation
        return Found(key, True, f"${entry.settled_usd} of ${entry.hold_usd}")
    settled = unused(world, fleet, generation_of(key), entry, MARGIN)
    if settled is not None:
        return _settled(world, key, entry, *settled)
    why = looked_after(world, fleet, entry, MARGIN, eager=eager)
    entry = world.ledger.read().runs[key]
    if entry.settled_usd is not None:
        return Found(key, True, f"its fleet is over: ${entry.settled_usd} of ${entry.hold_usd}")
    if why and forgotten(world, fleet, entry, MARGIN):
        return _settled(
            world, key, entry, entry.hold_usd, ("its scheduler gives no answer: the whole hold counts as spent")
        )
    return Found(key, False, why or f"a fleet: `bench fleet status {fleet}` settles it")


def _one(world: World, key: str) -> Found:
    run_id = run_of(key)
    engine = Engine(world, run_id)
    run = replay(engine.log.read())
    if run is None:
        return _without_events(world, key, run_id)
    try:
        run = engine.catch_up()
    except (ProviderError, HostUnfit) as exc:
        if run.vm is None or not is_host(run.vm.zone):
            raise
        return Found(key, False, str(exc))  # a host that is switched off, or talks nonsense: the others need not wait
    entry = world.ledger.read().runs[key]
    if entry.settled_usd is not None:
        return Found(key, True, f"{run.phase.value}: ${entry.settled_usd} of ${entry.hold_usd}")
    if key != hold_key(run_id, run.generation) or is_done(run):
        return _left_behind(world, key, run_id, entry)
    return Found(key, False, run.phase.value)


def _without_events(world: World, key: str, run_id: str) -> Found:
    entry = world.ledger.read().runs[key]
    if _waiting(world, entry) or _alive(world, run_id):
        return Found(key, False, "its run has no events, and a machine of it may still be running")
    cost = entry.hold_usd if entry.attempt else ZERO
    why = "its events are gone: the whole hold counts as spent" if entry.attempt else "no machine was ever requested"
    return _settled(world, key, entry, cost, why)


def _left_behind(world: World, key: str, run_id: str, entry: Entry) -> Found:
    """A hold beside the one that its run goes by: of a resumption whose client died before it said so, or of a run
    that was settled in its events and, the client having died, not in the ledger."""
    if _waiting(world, entry) or _alive(world, run_id):
        return Found(key, False, "its client may still be working on it")
    run = replay(world.log(run_id).read())
    generation = generation_of(key)
    vms = run.vms if run is not None else ()
    cost = sum((vm.cost(vm.gone_at or world.clock.now()) for vm in vms if vm.generation == generation), ZERO)
    return _settled(world, key, entry, cost, "its run is over")


def _waiting(world: World, entry: Entry) -> bool:
    """Whether whoever took the hold may still ask for a machine under it, or a machine still be within its deadline."""
    asked = entry.attempt > 0
    return world.clock.now() < abandoned_from(entry, world.policy.insert_limit_s, asked=asked)


def _alive(world: World, run_id: str) -> bool:
    return any(instance.labels.get(RUN_LABEL) == run_id for instance in world.cloud().instances())


def _settled(world: World, key: str, seen: Entry, cost: Decimal, why: str) -> Found:
    now = world.clock.now()

    def change(ledger: Ledger) -> Ledger | None:
        if not may_settle(ledger, key, seen.attempt, now, world.policy.insert_limit_s):
            return None
        return settle(ledger, key, cost, now)

    done = world.accounts.change(change) is not None
    return Found(key, done, why)
