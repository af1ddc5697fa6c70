"""What to do next about a run, as data. No I/O: the engine looks, `decide` answers, the engine acts.

The rules, in order: a closed run needs nothing; a machine that may exist is followed until it is known to be gone;
a run that lost its machine through no fault of its own, or never had one, gets the next offer as long as it may; any
other is settled and closed. A machine that appears under a run that is over is deleted, and its cost is settled too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from orchestrator.core.market.machines import Instance, Operation
from orchestrator.core.market.offers import Offer
from orchestrator.core.naming import is_client
from orchestrator.core.run.events import InstanceGone, MachineTaken
from orchestrator.core.run.fold import Phase, Run, Vm
from orchestrator.core.run.offering import open_offers
from orchestrator.core.wording import count


@dataclass(frozen=True, slots=True)
class Policy:
    """How long a client waits for what, in seconds."""

    poll_s: float = 2.0
    boot_limit_s: float = 600.0
    """A machine that has sent nothing for so long after RUNNING is given up."""
    exit_grace_s: float = 60.0
    """After its last event a machine deletes itself. If it has not after so long, the client deletes it."""
    deadline_slack_s: float = 60.0
    """The server's deadline may fire 30 s late; past this the client deletes the machine itself."""
    take_limit_s: float = 90.0
    """A kept machine that was claimed and has not begun the run after so long is given up."""
    host_patience_s: float = 60.0
    """A machine of the user's own that was not to be reached for so long is taken for dead by a fleet."""
    seal_limit_s: float = 90.0
    """A machine whose disk is ready for so long, and that no client came to, was left by the client that builds."""
    insert_limit_s: float = 180.0
    """If a request has had neither a machine nor an answer for so long, it made no machine."""


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

    @property
    def fact(self) -> InstanceGone:
        """What the log is told, of this one request."""
        vm = self.vm
        return InstanceGone(
            attempt=vm.attempt, vm=vm.name, ended_at=self.ended_at, how=self.how, started_at=self.started_at,
            request_id=vm.request_id,
        )  # fmt: skip


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
    run: Run,
    observation: Observation,
    now: datetime,
    policy: Policy,
    offers: Sequence[Offer] | None,
    ttl_s: int | None = None,
) -> tuple[Command, ...]:
    """What a client should do now. `offers` is None for one that only looks after a run and must not start machines;
    `ttl_s` is the deadline with which this client asks for one, where that is not the first plan's."""
    vm = run.vm
    if run.guest_of is not None and run.closed is None:
        return as_guest(run, run.guest_of, observation, now, policy)
    if vm is not None and vm.open:
        if observation.instance is None:
            again = any(offer.pool == (vm.zone, vm.machine_type, vm.provisioning) for offer in offers or ())
            return _vanished(run, vm, observation.operations, now, policy, again=again)
        return _alive(run, vm, observation.instance, now, policy, alone=offers is None)
    if run.closed is not None:
        return _after_the_end(run, now)
    if run.goes_on:
        return _next_machine(run, now, policy, offers, ttl_s)
    outcome, detail = ending(run, vm) if vm is not None else (Phase.STOPPED, "")
    if run.stop is not None and (vm is None or vm.generation < run.generation):
        outcome, detail = Phase.STOPPED, run.stop.reason
    return (Settle(run.due(now)), Close(outcome, detail))


def _after_the_end(run: Run, now: datetime) -> tuple[Command, ...]:
    """A run that is over has nothing left to do, unless its end was recorded and its cost, or all of it, was not."""
    if run.phase is Phase.REFUSED:
        return ()
    settled = run.settled.cost_usd if run.settled is not None else None
    due = run.due(now)
    return (Settle(due),) if settled is None or due > settled else ()


def _next_machine(
    run: Run, now: datetime, policy: Policy, offers: Sequence[Offer] | None, ttl_s: int | None
) -> tuple[Command, ...]:
    if run.rejected is not None:
        return _give_up(run, now, Phase.FAILED, f"{run.rejected.code}: {run.rejected.message}")
    if offers is None:
        unspoken = run.plan is None and run.held is None  # machines alone have spoken: no client is about to ask
        if not unspoken and now - run.updated_at < timedelta(seconds=policy.insert_limit_s):
            return (Wait(policy.poll_s),)
        if run.vm is None:
            return _give_up(
                run, now, Phase.STOPPED, "the client that launched it stopped before it requested a machine"
            )
        remedy = f"`bench launch --resume {run.run_id}` continues it"
        return _give_up(run, now, Phase.STOPPED, f"no client requested another machine: {remedy}")
    candidates = open_offers(run, offers, ttl_s)
    if not candidates:
        return _give_up(run, now, Phase.NO_CAPACITY, _tried(run))
    return (Create(candidates[0], attempt=run.next_attempt),)


def _give_up(run: Run, now: datetime, outcome: Phase, why: str) -> tuple[Command, ...]:
    """Ends a run that should have another machine and gets none: with how its last one ended, if it had one."""
    vm = run.vm
    if vm is not None and vm.started_at is not None and vm.generation == run.generation:
        outcome, detail = ending(run, vm)
        why = f"{detail}; {why}"
    return (Settle(run.due(now)), Close(outcome, why))


def given_up(run: Run, now: datetime, why: str) -> tuple[Command, ...]:
    """What ends a run whose client cannot go on before it has requested a machine."""
    return _give_up(run, now, Phase.STOPPED, why)


def settled_by_another(run: Run, now: datetime) -> tuple[Command, ...]:
    """What a client does that would ask for a machine under a hold that is settled: somebody began to end the run, and
    may have died before he closed it."""
    why = f"another client settled it before a machine was requested: `bench launch --resume {run.run_id}` continues it"
    return _give_up(run, now, Phase.STOPPED, why)


def _tried(run: Run) -> str:
    facts = [fact for fact in run.exhausted if (fact.attempt, fact.generation) == (run.next_attempt, run.generation)]
    zones = list(dict.fromkeys(fact.zone for fact in facts))
    if not zones:
        return "no zone is allowed"
    return f"no machine in {count(len(zones), 'zone')}: {', '.join(zones)} (last: {facts[-1].code})"


def _vanished(
    run: Run, vm: Vm, operations: tuple[Operation, ...], now: datetime, policy: Policy, *, again: bool
) -> tuple[Command, ...]:
    """The machine cannot be found: never made, or gone. `again`: whether this client may ask for such a one."""
    if not vm.instance_id and not _made(operations):
        unanswered = not operations or any(op.status != "DONE" for op in operations)
        if unanswered and now - vm.requested_at < timedelta(seconds=policy.insert_limit_s):
            # Also when somebody asked to stop: the request may still be on its way, and a machine that appears after
            # the run was closed would be nobody's.
            asks = again and run.stop is None and run.closed is None
            return (Reinsert(vm),) if asks else (Wait(policy.poll_s),)
        return (RecordGone(vm, vm.requested_at, "unanswered" if unanswered else "never_made", None),)
    started = vm.started_at or start_of(operations)
    ended, how = end_of(vm, operations, started, now)
    return (RecordGone(vm, ended, how, started),)


def _made(operations: tuple[Operation, ...]) -> bool:
    """Whether the log shows that the machine existed: an insert that succeeded, or anything done to it."""
    return any(op.kind != "insert" or (op.status == "DONE" and not op.message) for op in operations)


def start_of(operations: tuple[Operation, ...]) -> datetime | None:
    """When a machine was made, by the log of the cloud; None where it does not say."""
    ends = [op.ended_at for op in operations if op.kind == "insert" and op.ended_at is not None and not op.message]
    return min(ends, default=None)


def end_of(vm: Vm, operations: tuple[Operation, ...], started: datetime | None, now: datetime) -> tuple[datetime, str]:
    """When a machine ended, and how. Without an operation that says so, the time is the latest it can have been."""
    latest = min(now, vm.deadline_at + timedelta(seconds=30)) if vm.deadline_at else now
    for op in operations:
        if "preempted" in op.kind:
            return _not_before(op.ended_at or op.started_at or latest, started), "preempted"
    for op in operations:
        if "hostError" in op.kind:
            return _not_before(op.ended_at or op.started_at or latest, started), "host_error"
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


def is_left_unsealed(run: Run, now: datetime, policy: Policy) -> bool:
    """Whether a machine waits for a client that copies its disk, and none came: it is of no use to anybody."""
    ready = run.last_word_at if run.prepared is not None and run.sealing is None else None
    return ready is not None and now > ready + timedelta(seconds=policy.seal_limit_s)


def _alive(run: Run, vm: Vm, instance: Instance, now: datetime, policy: Policy, *, alone: bool) -> tuple[Command, ...]:
    """`alone`: of a client that only looks after the run."""
    if vm.started_at is None and instance.started_at is not None:
        return (RecordCreated(vm, instance),)
    if run.closed is not None:
        return (Delete(vm, "its run is over"),)
    if run.stop is not None:
        return (Delete(vm, run.stop.reason),)
    if instance.status in ("TERMINATED", "STOPPED", "SUSPENDED"):
        return (Delete(vm, "it stopped without deleting itself, and its disk is still billed"),)
    deadline = vm.deadline_at or vm.requested_at + timedelta(seconds=vm.max_run_s + policy.insert_limit_s)
    if now > deadline + timedelta(seconds=policy.deadline_slack_s):
        return (Delete(vm, "it is past its deadline"),)
    if run.hold_usd is not None and run.due(now) > run.hold_usd:
        return (Delete(vm, f"its run has cost more than the ${run.hold_usd} held for it"),)
    if run.finished_at is not None and now > run.finished_at + timedelta(seconds=policy.exit_grace_s):
        return (Delete(vm, "it finished but did not delete itself"),)
    idle_until = run.current.idle_until
    if idle_until is not None and now > idle_until + timedelta(seconds=policy.exit_grace_s):
        return (Delete(vm, "it was kept, no launch used it, and it did not delete itself"),)
    if alone and is_left_unsealed(run, now, policy):
        return (Delete(vm, "its disk is ready, and no client came to copy it"),)
    silent = run.last_word_at is None and vm.started_at is not None
    if silent and vm.started_at and now > vm.started_at + timedelta(seconds=policy.boot_limit_s):
        return (Delete(vm, f"it sent nothing for {policy.boot_limit_s:.0f} s after it started"),)
    return (Wait(policy.poll_s),)


def as_guest(
    run: Run, taken: MachineTaken, observation: Observation, now: datetime, policy: Policy
) -> tuple[Command, ...]:
    """For a run on a machine that another run kept, and pays for. It ends with the machine's word on it, or with the
    machine; a machine that does not begin it, or that should be at it no longer, is of no use to anybody. Where only a
    machine says that it was taken, nothing is deleted on its word: it may name whom it likes, and its owner ends it."""
    taken_at = run.taken_at or run.created_at
    deadline = taken.deadline_at or now
    vm = Vm(
        attempt=taken.attempt,
        name=taken.vm,
        zone=taken.zone,
        machine_type="",
        provisioning="",
        usd_per_hour=Decimal(0),
        max_run_s=int((deadline - taken_at).total_seconds()),
        request_id="",
        requested_at=taken_at,
        deadline_at=taken.deadline_at,
        generation=taken.generation,
    )
    told = run.said(taken.attempt)
    theirs = not is_client(run.taken_by)
    if told.finished is None and observation.instance is not None and not (theirs and now > deadline):
        if theirs:
            return (Wait(policy.poll_s),)
        if run.stop is not None:
            return (Delete(vm, run.stop.reason),)
        if observation.instance.status in ("TERMINATED", "STOPPED", "SUSPENDED"):
            return (Delete(vm, "it stopped without deleting itself, and its disk is still billed"),)
        if taken.deadline_at is not None and now > taken.deadline_at + timedelta(seconds=policy.deadline_slack_s):
            return (Delete(vm, "it is past its deadline"),)
        if told.booted_at is None and now > taken_at + timedelta(seconds=policy.take_limit_s):
            return (Delete(vm, f"it was kept, and did not begin this run within {policy.take_limit_s:.0f} s"),)
        return (Wait(policy.poll_s),)
    if told.finished is None:
        _, how = end_of(vm, observation.operations, None, now)
        vm = replace(vm, how=how)
    outcome, detail = ending(run, vm)
    return (Settle(run.due(now)), Close(outcome, detail))


def ending(run: Run, vm: Vm) -> tuple[Phase, str]:
    """How a run whose machine is gone has ended, and one line on why."""
    last = run.said(vm.attempt).diagnosis
    said = f"{last.cause}: {last.detail}" if last else ""
    finished = run.current.verdict
    if finished is not None and finished.outcome in ("succeeded", "incorrect"):
        # A machine that goes on does not measure again what an earlier one found wrong.
        return Phase.INCORRECT if run.wrong else Phase(finished.outcome), _wrong(run) or finished.detail
    if run.preempted or vm.how == "preempted" or (finished is not None and finished.outcome == "preempted"):
        return (
            Phase.PREEMPTED,
            f"{vm.name} was preempted; {run.cases_done} of {count(run.cases_total, 'case')} measured",
        )
    if run.stop is not None:
        return Phase.STOPPED, run.stop.reason
    if finished is not None:
        outcome = Phase.STOPPED if finished.outcome == "terminated" else Phase.FAILED
        return outcome, said or finished.detail or finished.outcome
    if vm.how == "deadline":
        return Phase.EXPIRED, said or f"{vm.name} reached its deadline of {vm.max_run_s} s"
    if vm.how in ("never_made", "unanswered"):
        return Phase.FAILED, f"{vm.name} was requested but never created"
    if run.prepared is not None and run.sealing is None and vm.how == "deleted":
        return Phase.STOPPED, "no client came to copy its disk, so no image was made"
    return Phase.FAILED, said or f"{vm.name} disappeared without a message ({vm.how})"


def _wrong(run: Run) -> str:
    if not run.wrong:
        return ""
    first = run.wrong[0]
    names = dict.fromkeys(one.implementation for one in run.wrong)
    of_it = count(sum(one.implementation == first.implementation for one in run.wrong), "case")
    others = f" ({', '.join(name for name in names if name != first.implementation)} too)" if len(names) > 1 else ""
    return f"{first.implementation} was wrong on {of_it}{others}, first {first.case_id}: {first.reason}"
