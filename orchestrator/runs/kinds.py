"""The kinds of paid work: what each may hold money for, whether that is still there, and how an abandoned hold ends.

A run is driven on as far as it goes, which settles it when its machine is gone. A hold whose run has left no events is
given back only if its ledger entry shows that no machine was ever asked for; else its whole amount counts as spent,
once its last deadline is over and the cloud has no such machine. The scheduler of a fleet is asked once its end is past
or money is needed. What is set aside for an image is given back, or becomes the image's cost (`image_builds`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Final

from orchestrator.core.errors import BenchError, DocumentUnreadable, HostUnfit, NotFound, ProviderError
from orchestrator.core.hosts import is_host
from orchestrator.core.ledger.budget import ZERO, Ledger, LedgerEntry
from orchestrator.core.ledger.unlisted import MARGIN, abandoned_from, most_of, name_of_most, outstanding_images
from orchestrator.core.names import FLEET_LABEL, is_fleet_id
from orchestrator.core.naming import BUCKET_LABEL, RUN_LABEL, Mode, generation_of, hold_key, is_label_of, run_of
from orchestrator.core.run import events as ev
from orchestrator.core.run.decide import Close, highest_cost
from orchestrator.core.run.fold import Phase, Run, replay
from orchestrator.runs.engine import Engine, World, is_done, request_id
from orchestrator.runs.holds import settle
from orchestrator.runs.image_builds import look_after_build
from orchestrator.store.fleets import FleetControl, FleetStore


@dataclass(frozen=True, slots=True)
class ReconciledHold:
    """One hold that was not settled, and the result of looking at it."""

    key: str
    settled: bool
    what: str


@dataclass(frozen=True, slots=True)
class How:
    """How far abandoned work is looked after."""

    eager: bool = False
    """Whether money is needed now: then a fleet that may go on is asked about too."""
    drive: bool = True
    """Whether runs are driven on."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of paid work."""

    name: str
    open_keys: Callable[[Ledger], Iterable[str]]
    """The keys under which the ledger holds money for it."""
    exists: Callable[[World, str], bool]
    """Whether the work that money is held for has left a record, readable or not. Raises `Unavailable`."""
    reconcile: Callable[[World, str, How], ReconciledHold | None]
    """Look after one hold whose client may be gone; None where that is not to be done now. Raises what ports raise."""


# --- runs -------------------------------------------------------------------------------------------------------------


def _unsettled(ledger: Ledger, *, fleets: bool) -> list[str]:
    """The keys of the holds that are not settled, of fleets or of runs."""
    entries = sorted(ledger.runs.items())
    return [key for key, entry in entries if entry.settled_usd is None and is_fleet_id(run_of(key)) is fleets]


def _has_events(world: World, run_id: str) -> bool:
    """Whether the clients of a run have left events that can be read. Raises `Unavailable`."""
    run = replay(world.log(run_id).read())
    return run is not None and not run.is_unlaunched


def _reconcile_run(world: World, key: str, how: How) -> ReconciledHold | None:
    """Drive a run on, as far as it goes; None where that is not wanted."""
    run_id = run_of(key)
    engine = Engine(world, run_id)
    run = replay(engine.log.read())
    if run is None or run.is_unlaunched:
        return _without_events(world, key, run_id)
    if not how.drive:
        return None
    try:
        run = engine.catch_up()
    except (ProviderError, HostUnfit) as exc:
        if run.vm is None or not is_host(run.vm.zone):
            if (ended := _overdue(world, key, engine, run)) is not None:
                return ended
            raise
        return ReconciledHold(
            key, False, str(exc)
        )  # a host that is switched off, or talks nonsense: the others need not wait
    entry = world.ledger.read().runs[key]
    if entry.settled_usd is not None:
        return ReconciledHold(key, True, f"{run.phase.value}: ${entry.settled_usd} of ${entry.hold_usd}")
    if key != hold_key(run_id, run.generation) or is_done(run):
        return _left_behind(world, key, run_id, entry)
    return _overdue(world, key, engine, run) or ReconciledHold(key, False, run.phase.value)


def _overdue(world: World, key: str, engine: Engine, run: Run) -> ReconciledHold | None:
    """End a run whose last deadline is over by the server's time, whatever its log says: what the cloud still lists
    under its label is deleted first, and the hold is settled at the most that its machines can have cost. None before
    that deadline, and for a run on a host, which may be out of reach. Raises what the ports raise."""
    entry = world.ledger.read().runs[key]
    on_host = any(is_host(vm.zone) for vm in run.vms)
    if _waiting(world, entry) or on_host or key != hold_key(run.run_id, run.generation):
        return None
    for instance in world.cloud().instances():
        if instance.labels.get(RUN_LABEL) == run.run_id and is_label_of(
            instance.labels.get(BUCKET_LABEL, ""), world.bucket.name
        ):
            world.cloud().delete(instance.zone, instance.name, request_id(run.run_id, instance.zone, 0, "overdue"))
    vms = [vm for vm in run.vms if vm.generation == run.generation and not vm.refused]
    is_known = entry.attempt <= max((vm.attempt for vm in vms), default=0)
    cost = sum(map(highest_cost, vms), ZERO) if is_known else entry.hold_usd
    settled_hold = _settled(
        world, key, entry, cost, "its last deadline is over: settled at the most that it can have cost"
    )
    if settled_hold.settled:
        released = max(entry.hold_usd - cost, ZERO)
        engine.log.append(ev.Settled(cost_usd=cost, released_usd=released, generation=run.generation))
        if run.closed is None:
            engine.perform(Close(Phase.EXPIRED, "its last deadline is over"), run)
        engine.write_index(engine.look())
    return settled_hold


def _without_events(world: World, key: str, run_id: str) -> ReconciledHold:
    entry = world.ledger.read().runs[key]
    if _waiting(world, entry) or _is_alive(world, RUN_LABEL, run_id):
        return ReconciledHold(key, False, "its run has no events, and a machine of it may still be running")
    cost = entry.hold_usd if entry.attempt else ZERO
    why = "its events are gone: the whole hold counts as spent" if entry.attempt else "no machine was ever requested"
    return _settled(world, key, entry, cost, why)


def _left_behind(world: World, key: str, run_id: str, entry: LedgerEntry) -> ReconciledHold:
    """A hold beside the one that its run goes by: of a resumption whose client died before it said so, or of a run
    that was settled in its events and, the client having died, not in the ledger."""
    if _waiting(world, entry) or _is_alive(world, RUN_LABEL, run_id):
        return ReconciledHold(key, False, "its client may still be working on it")
    run = replay(world.log(run_id).read())
    generation = generation_of(key)
    vms = run.vms if run is not None else ()
    cost = sum((vm.cost(vm.gone_at or world.clock.now()) for vm in vms if vm.generation == generation), ZERO)
    return _settled(world, key, entry, cost, "its run is over")


def _waiting(world: World, entry: LedgerEntry) -> bool:
    """Whether whoever took the hold may still ask for a machine under it, or a machine still be within its deadline."""
    asked = entry.attempt > 0
    return world.clock.now() < abandoned_from(entry, world.policy.insert_limit_s, asked=asked)


def _is_alive(world: World, label: str, name: str) -> bool:
    return any(instance.labels.get(label) == name for instance in world.cloud().instances())


def _settled(world: World, key: str, seen: LedgerEntry, cost: Decimal, why: str) -> ReconciledHold:
    done = settle(world.accounts, key, cost, seen.attempt, world.policy.insert_limit_s) is not None
    return ReconciledHold(key, done, why)


# --- fleets -----------------------------------------------------------------------------------------------------------

# Of holds of fleets whose client died: Jobs are noted in the fleet's `control.json` before a scheduler hears of them,
# under the hold of one generation. So what decides is that document: a generation that is void there may be settled
# at nothing, as nobody notes a job for it again. Where jobs were noted, their scheduler is asked what they came to.
# One that cannot be asked for a day after the fleet's end, when none of its machines can be there any more, keeps no
# hold open: all of it counts as spent. So does the hold of a fleet whose record cannot be read.

NOBODY: Final = "its client died before it requested a machine"


GIVEN_UP: Final = timedelta(days=1)
"""So long after a fleet's end its scheduler is asked, before its hold counts as spent; and so long a record that cannot
be read is waited for, as a newer client may read it."""


def looked_after(world: World, fleet: str, entry: LedgerEntry, margin: timedelta, *, eager: bool) -> str:
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


def is_forgotten(world: World, fleet: str, entry: LedgerEntry, margin: timedelta) -> bool:
    """Whether a fleet ended so long ago that nothing of it can be there, whatever its scheduler might say."""
    ends_at = _ends_at(world, fleet, entry)
    if ends_at is None or world.clock.now() < ends_at + margin + GIVEN_UP:
        return False
    return FleetStore(world.bucket, world.clock, fleet).record().mode is Mode.HOST or not _is_alive(
        world, FLEET_LABEL, fleet
    )


def _ends_at(world: World, fleet: str, entry: LedgerEntry) -> datetime | None:
    """After this no machine of a fleet lives that this hold is for; None where nothing readable says so."""
    store = FleetStore(world.bucket, world.clock, fleet)
    try:
        return min(store.control().ends_at or store.record().ends_at, entry.lasts_until)
    except (NotFound, DocumentUnreadable):
        return None


def unused_hold(
    world: World, fleet: str, generation: int, entry: LedgerEntry, margin: timedelta
) -> tuple[Decimal, str] | None:
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
        if now < longest or _is_alive(world, FLEET_LABEL, fleet):
            return None
        return entry.hold_usd, f"its record {'is gone' if gone else 'cannot be read'}: the whole hold counts as spent"
    control = store.control()
    if generation not in control.void and _voided(control, generation) != control:
        control = store.decide(lambda one: _voided(one, generation))
    return (ZERO, "no machine was ever requested") if generation in control.void else None


def _has_record(world: World, fleet: str) -> bool:
    """Whether the record of a fleet is there, readable or not. Raises `Unavailable`."""
    try:
        FleetStore(world.bucket, world.clock, fleet).record()
    except NotFound:
        return False
    except DocumentUnreadable:
        return True
    return True


def _voided(control: FleetControl, generation: int) -> FleetControl:
    """Nothing is asked for under the hold of `generation` any more. As it was where something may have been."""
    begun = control.generation == generation and any(job.number >= control.first_job for job in control.jobs)
    if begun or not control.generation <= generation <= control.generation + 1:
        return control
    number = max((job.number + 1 for job in control.jobs), default=0)
    fresh = {"void": (*control.void, generation), "generation": generation + 1, "first_job": number}
    return control.model_copy(update={**fresh, "stopped": control.stopped or NOBODY})


def _reconcile_fleet(world: World, key: str, how: How) -> ReconciledHold:
    """A fleet has children in the place of events, and its scheduler knows of its machines."""
    fleet, entry = run_of(key), world.ledger.read().runs[key]
    if entry.settled_usd is not None:  # with the hold of an earlier generation
        return ReconciledHold(key, True, f"${entry.settled_usd} of ${entry.hold_usd}")
    settled = unused_hold(world, fleet, generation_of(key), entry, MARGIN)
    if settled is not None:
        return _settled(world, key, entry, *settled)
    why = looked_after(world, fleet, entry, MARGIN, eager=how.eager)
    entry = world.ledger.read().runs[key]
    if entry.settled_usd is not None:
        return ReconciledHold(key, True, f"its fleet is over: ${entry.settled_usd} of ${entry.hold_usd}")
    if why and is_forgotten(world, fleet, entry, MARGIN):
        return _settled(
            world, key, entry, entry.hold_usd, ("its scheduler gives no answer: the whole hold counts as spent")
        )
    return ReconciledHold(key, False, why or f"a fleet: `bench fleet status {fleet}` settles it")


# --- images -----------------------------------------------------------------------------------------------------------


def _is_recorded(world: World, name: str) -> bool:
    return world.shelf is not None and any(one.name == name for one in world.shelf.records.every()[0])


def _reconcile_image(world: World, key: str, how: How) -> ReconciledHold | None:  # noqa: ARG001 - one signature
    build = look_after_build(world, name_of_most(key))
    return ReconciledHold(key, build.over, build.what) if build is not None else None


FLEET: Final = Kind("fleet", partial(_unsettled, fleets=True), _has_record, _reconcile_fleet)
RUN: Final = Kind("run", partial(_unsettled, fleets=False), _has_events, _reconcile_run)
IMAGE: Final = Kind("image", lambda held: map(most_of, outstanding_images(held)), _is_recorded, _reconcile_image)
KINDS: Final = (FLEET, RUN, IMAGE)


def kind_of(name: str) -> Kind:
    """The kind of the work whose id is `name`: a fleet or a run."""
    return FLEET if is_fleet_id(name) else RUN
