"""A launch that takes over a machine that another run kept: it needs no cold start and no new money.

The run that the machine was made for pays for it to its end, under its own hold; the run that takes it over holds
nothing. Compare-and-swap on the machine's slot decides who gets it (`core.run.slots`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from orchestrator.core import naming
from orchestrator.core.errors import BenchError
from orchestrator.core.market.pricing import DEADLINE_SLACK_S
from orchestrator.core.plan.plan import LaunchPlan, run_spec
from orchestrator.core.run import events as ev
from orchestrator.core.run.fold import Run, Vm, replay
from orchestrator.core.run.slots import OLDEST, MachineWanted, Slot, owned_vm, seconds_left, unfit_reason
from orchestrator.core.run.status import iso_time
from orchestrator.ports import Blob
from orchestrator.runs.engine import Engine, World
from orchestrator.runs.holds import HoldRequest, acquire
from orchestrator.store.documents import SlotUnreadable, claim_slot, release_slot
from orchestrator.store.events import EventLog

SLOT_BYTES: Final = 1 << 20
MOST_SLOTS: Final = 500
LISTED_SLOTS: Final = 5_000
"""What is read below machines/: every machine may write there. Of more slots the newest are looked at."""


@dataclass(frozen=True, slots=True)
class Claimant:
    """A run that needs a machine: its owner, the place of its payload, and whether it needs CUDA."""

    run_id: str
    by: str
    payload: Mapping[str, str]
    require_cuda: bool


def take_over(
    world: World,
    plan: LaunchPlan,
    claimant: Claimant,
    log: EventLog,
    say: Callable[[str], None] = lambda _: None,
) -> bool:
    """Claims a waiting machine for a run that is planned and whose payload is stored. False if no machine fits; then
    nothing has changed."""
    for name, blob in _slots(world).items():
        slot = Slot.parse(blob.data)
        if slot is None or slot.state != "idle":
            continue
        owner = replay(world.log(slot.owner).read())
        vm = owned_vm(slot, owner)
        why_not = unfit_reason(slot, owner, _wanted(plan, owner), world.clock.now()) or _absent(world, slot)
        if why_not or vm is None:
            say(f"kept machine {slot.vm} is not used: {why_not}")
            continue
        taken = ev.MachineTaken(vm=vm.name, zone=vm.zone, owner=slot.owner, deadline_at=vm.deadline_at)
        try:
            claimed = _claimed(world, name, claimant, _spec(world, plan, vm, slot, claimant))
            if claimed is None:
                say(f"kept machine {slot.vm} is not used: another launch took it first")
                continue
            log.append(taken)
        except (Exception, KeyboardInterrupt):
            with suppress(BenchError):
                _let_go(world, name, claimant.run_id, taken, log)
            raise
        say(f"using kept machine {vm.name} of {slot.owner}, which pays for it: no cold start")
        _hold_nothing(world, plan, claimant.run_id, log)
        return True
    return False


def _claimed(world: World, name: str, who: Claimant, spec: Mapping[str, Any]) -> Slot | None:
    try:
        answer = claim_slot(world.bucket, world.clock, name, who.run_id, who.by, spec, who.payload)
    except SlotUnreadable:
        return None
    return answer if isinstance(answer, Slot) else None


def _let_go(world: World, name: str, run_id: str, taken: ev.MachineTaken, log: EventLog) -> None:
    """For a client that is interrupted between its claim and its word on it: the machine waits for the next launch. If
    it has taken the claim up, the run is measured there, and its log says so."""
    run = replay(log.read())
    is_detached = run is not None and run.guest_of is not None and naming.is_client(run.taken_by)
    if not is_detached and not release_slot(world.bucket, world.clock, name, run_id):
        log.append(taken)


def may_have_waiting(world: World) -> bool:
    """Whether any slot is young enough that its machine may still wait: one listing."""
    return bool(_fresh(world))


def _slots(world: World) -> Mapping[str, Blob]:
    """The slots that are not too old to matter, newest first."""
    slot_objects = world.bucket.read_many(_fresh(world))
    return {name: slot_objects[name] for name in sorted(slot_objects, reverse=True)}


def _fresh(world: World) -> list[str]:
    oldest = naming.instance_name(naming.run_id(world.clock.now() - OLDEST, "a", "0"), 1)
    listed = world.bucket.list(naming.MACHINES_PREFIX, after=naming.slot_object(oldest), most=LISTED_SLOTS)
    return [entry.name for entry in listed if entry.size <= SLOT_BYTES][-MOST_SLOTS:]


def _wanted(plan: LaunchPlan, owner: Run | None) -> MachineWanted:
    """A machine whose own run had as many cases must have time for as many again."""
    shortest = plan.mode.shortest_s
    current_run = owner.current if owner is not None else None
    took = 0.0
    if (
        owner is not None
        and current_run is not None
        and current_run.kept is not None
        and current_run.booted_at
        and current_run.work_done_at
    ):
        took = (
            (current_run.work_done_at - current_run.booted_at).total_seconds()
            * len(plan.cases)
            / max(owner.cases_total, 1)
        )
    return MachineWanted(plan.mode, plan.config.gpu, plan.image, plan.offers, max(shortest, round(took)))


def _absent(world: World, slot: Slot) -> str:
    """Nothing is claimed of a machine that only its slot remembers."""
    instance = world.cloud().instance(slot.zone, slot.vm)
    return "" if instance is not None and instance.status == "RUNNING" else "it is not running any more"


def _spec(world: World, plan: LaunchPlan, vm: Vm, slot: Slot, who: Claimant) -> dict[str, Any]:
    spec = run_spec(plan, run_id=who.run_id, attempt=1, bucket=world.bucket.name, require_cuda=who.require_cuda)
    seconds_remaining = seconds_left(vm, world.clock.now())
    limits = {phase: min(seconds, seconds_remaining) for phase, seconds in spec["phase_limits_s"].items()}
    taken = {"owner": slot.owner, "deadline_at": iso_time(vm.deadline_at) if vm.deadline_at else None}
    return {**spec, "vm": vm.name, "deadline_s": seconds_remaining, "phase_limits_s": limits, "taken": taken}


def _hold_nothing(world: World, plan: LaunchPlan, run_id: str, log: EventLog) -> None:
    """Make an entry in the ledger too, which says that the run itself cost nothing."""
    nothing, ttl_s, gpu = plan.ceiling_usd * 0, plan.ttl_s + DEADLINE_SLACK_S, plan.config.gpu
    note, pretend = "on a kept machine", plan.mode.simulated
    request = HoldRequest(run_id, nothing, "this run", ttl_s, gpu, note, pretend, prepaid=True)
    acquire(world.accounts, request)
    log.append(ev.BudgetHeld(hold_usd=nothing))


def settle_owner(world: World, run_id: str, *, wait: bool) -> None:
    """Drives the run that pays for a machine that was taken over; to its end if the machine is to be deleted now."""
    engine = Engine(world, run_id)
    if wait:
        engine.follow(until=lambda run: run.current.idle_until is not None)
    else:
        engine.step()
