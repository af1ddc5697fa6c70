"""What to do next about a run, as data. No I/O: the engine looks, `decide` answers, the engine acts.

The rules, in order: a closed run needs nothing; a machine that may exist is followed until it is known to be gone;
a machine that is gone is settled and its run closed; a run without a machine gets the next offer, or ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from orchestrator.core.machines import Instance, Operation
from orchestrator.core.placement import Offer, rank
from orchestrator.core.run import Phase, Run, Vm


@dataclass(frozen=True, slots=True)
class Policy:
    """How patient a client is. Seconds."""

    poll_s: float = 2.0
    boot_limit_s: float = 600.0
    """A machine that says nothing for so long after RUNNING never will."""
    exit_grace_s: float = 60.0
    """After its last word a machine deletes itself; after so long without that, the client does."""
    deadline_slack_s: float = 60.0
    """The server's deadline may fire 30 s late; past this the client deletes the machine itself."""
    insert_limit_s: float = 180.0
    """A request without a machine and without an answer for so long never made one."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One look at the machine of a run. `operations` is what the zone's log says of it, asked for once it is gone."""

    instance: Instance | None
    operations: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True)
class Create:
    offer: Offer
    attempt: int


@dataclass(frozen=True, slots=True)
class Reinsert:
    """Send the same request again, under the same request id: its answer was lost."""

    vm: Vm


@dataclass(frozen=True, slots=True)
class Delete:
    vm: Vm
    reason: str


@dataclass(frozen=True, slots=True)
class RecordCreated:
    """The machine exists but the log does not say so: a client died between the two."""

    vm: Vm
    instance: Instance


@dataclass(frozen=True, slots=True)
class RecordGone:
    vm: Vm
    ended_at: datetime
    how: str
    started_at: datetime | None


@dataclass(frozen=True, slots=True)
class Settle:
    cost_usd: Decimal


@dataclass(frozen=True, slots=True)
class Close:
    outcome: Phase
    detail: str


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float


Command = Create | Reinsert | Delete | RecordCreated | RecordGone | Settle | Close | Wait


def decide(
    run: Run, observation: Observation, now: datetime, policy: Policy, offers: Sequence[Offer] | None
) -> tuple[Command, ...]:
    """What a client should do now. `offers` is None for one that only looks after a run and must not start machines."""
    if run.closed is not None:
        return ()
    vm = run.vm
    if vm is None:
        return _without_machine(run, now, policy, offers)
    if vm.gone_at is not None:
        outcome, detail = ending(run, vm)
        return (Settle(run.cost(vm.gone_at)), Close(outcome, detail))
    if observation.instance is None:
        return _vanished(run, vm, observation.operations, now, policy, launching=offers is not None)
    return _alive(run, vm, observation.instance, now, policy)


def _without_machine(run: Run, now: datetime, policy: Policy, offers: Sequence[Offer] | None) -> tuple[Command, ...]:
    if run.stop is not None:
        return (Settle(Decimal(0)), Close(Phase.STOPPED, run.stop.reason))
    if run.rejected is not None:
        return (Settle(Decimal(0)), Close(Phase.FAILED, f"{run.rejected.code}: {run.rejected.message}"))
    if offers is None:
        if now - run.updated_at < timedelta(seconds=policy.insert_limit_s):
            return (Wait(policy.poll_s),)
        return (
            Settle(Decimal(0)),
            Close(Phase.STOPPED, "the client that launched it went away before it asked for a machine"),
        )
    candidates = open_offers(run, offers)
    if not candidates:
        return (Settle(Decimal(0)), Close(Phase.NO_CAPACITY, _tried(run)))
    return (Create(candidates[0], attempt=1 + max((vm.attempt for vm in run.vms if not vm.refused), default=0)),)


def open_offers(run: Run, offers: Sequence[Offer]) -> tuple[Offer, ...]:
    """The offers that are still worth a try, best first."""
    blocked = {offer.zone for offer in offers for fact in run.exhausted if _blocks(fact.scope, fact.zone, offer)}
    hints = run.exhausted[-1].zones_available if run.exhausted else ()
    return rank(offers, exhausted=blocked, hints=hints)


def _blocks(scope: str, zone: str, offer: Offer) -> bool:
    match scope:
        case "all":
            return True
        case "region":
            return offer.region == zone.rpartition("-")[0]
        case _:
            return offer.zone == zone


def _tried(run: Run) -> str:
    zones = [fact.zone for fact in run.exhausted]
    if not zones:
        return "no zone is allowed"
    return f"no machine in {len(zones)} zones: {', '.join(zones)} (last: {run.exhausted[-1].code})"


def _vanished(
    run: Run, vm: Vm, operations: tuple[Operation, ...], now: datetime, policy: Policy, *, launching: bool
) -> tuple[Command, ...]:
    """The machine cannot be found: never made, or gone."""
    if not vm.instance_id and not _made(operations):
        unanswered = not operations or any(op.status != "DONE" for op in operations)
        if unanswered and now - vm.requested_at < timedelta(seconds=policy.insert_limit_s):
            # Also when somebody asked to stop: the request may still be on its way, and a machine that appears after
            # the run was closed would be nobody's.
            return (Reinsert(vm),) if launching and run.stop is None else (Wait(policy.poll_s),)
        return (RecordGone(vm, vm.requested_at, "never_made", None),)
    started = vm.started_at or _started(operations)
    ended, how = _end(vm, operations, started, now)
    return (RecordGone(vm, ended, how, started),)


def _made(operations: tuple[Operation, ...]) -> bool:
    """Whether the log shows that the machine existed: an insert that succeeded, or anything done to it."""
    return any(op.kind != "insert" or (op.status == "DONE" and not op.message) for op in operations)


def _started(operations: tuple[Operation, ...]) -> datetime | None:
    ends = [op.ended_at for op in operations if op.kind == "insert" and op.ended_at is not None and not op.message]
    return min(ends, default=None)


def _end(vm: Vm, operations: tuple[Operation, ...], started: datetime | None, now: datetime) -> tuple[datetime, str]:
    """When a machine ended, and how. Without an operation that says so, the time is the latest it can have been."""
    latest = min(now, vm.deadline_at + timedelta(seconds=30)) if vm.deadline_at else now
    for op in operations:
        if "preempted" in op.kind:
            return _not_before(op.ended_at or op.started_at or latest, started), "preempted"
    for op in operations:
        if op.kind == "delete":
            ended = _not_before(op.ended_at or op.started_at or latest, started)
            late = vm.deadline_at is not None and ended >= vm.deadline_at
            return ended, "deadline" if late else "deleted"
    for op in operations:
        if op.kind not in ("insert", "setLabels") and op.ended_at is not None:
            late = vm.deadline_at is not None and op.ended_at >= vm.deadline_at
            return _not_before(op.ended_at, started), "deadline" if late else "deleted"
    return _not_before(latest, started), "lost"


def _not_before(at: datetime, started: datetime | None) -> datetime:
    return at if started is None else max(at, started)


def _alive(run: Run, vm: Vm, instance: Instance, now: datetime, policy: Policy) -> tuple[Command, ...]:
    if vm.started_at is None and instance.started_at is not None:
        return (RecordCreated(vm, instance),)
    if run.stop is not None:
        return (Delete(vm, run.stop.reason),)
    if instance.status in ("TERMINATED", "STOPPED", "SUSPENDED"):
        return (Delete(vm, "it stopped without deleting itself, and its disk is billed on"),)
    deadline = vm.deadline_at or vm.requested_at + timedelta(seconds=vm.max_run_s + policy.insert_limit_s)
    if now > deadline + timedelta(seconds=policy.deadline_slack_s):
        return (Delete(vm, "it outlived its deadline"),)
    if run.finished_at is not None and now > run.finished_at + timedelta(seconds=policy.exit_grace_s):
        return (Delete(vm, "it finished but did not delete itself"),)
    silent = run.last_word_at is None and vm.started_at is not None
    if silent and vm.started_at and now > vm.started_at + timedelta(seconds=policy.boot_limit_s):
        return (Delete(vm, f"it said nothing for {policy.boot_limit_s:.0f} s after it started"),)
    return (Wait(policy.poll_s),)


def ending(run: Run, vm: Vm) -> tuple[Phase, str]:
    """How a run whose machine is gone has ended, and one line on why."""
    last = run.diagnoses[-1] if run.diagnoses else None
    said = f"{last.cause}: {last.detail}" if last else ""
    finished = run.finished
    if finished is not None and finished.outcome in ("succeeded", "incorrect"):
        return Phase(finished.outcome), _wrong(run) or finished.detail
    if run.preempted or vm.how == "preempted" or (finished is not None and finished.outcome == "preempted"):
        return (
            Phase.PREEMPTED,
            f"the cloud took {vm.name} back; {run.cases_done} of {run.cases_total} cases were measured",
        )
    if run.stop is not None:
        return Phase.STOPPED, run.stop.reason
    if finished is not None:
        outcome = Phase.STOPPED if finished.outcome == "terminated" else Phase.FAILED
        return outcome, said or finished.detail or finished.outcome
    if vm.how == "deadline":
        return Phase.EXPIRED, said or f"{vm.name} reached its deadline of {vm.max_run_s} s"
    if vm.how == "never_made":
        return Phase.FAILED, f"{vm.name} was asked for but never made"
    return Phase.FAILED, said or f"{vm.name} is gone without a last word ({vm.how})"


def _wrong(run: Run) -> str:
    if not run.wrong:
        return ""
    first = run.wrong[0]
    return f"{first.implementation} was wrong on {len(run.wrong)} cases, first {first.case_id}: {first.reason}"
