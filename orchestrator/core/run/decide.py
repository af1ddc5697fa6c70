"""Decides what to do next about a run, as data. No I/O: the engine observes, `decide` answers, the engine acts.

The rules, in order: a closed run needs nothing. A machine that may exist is followed until it is known to be gone. A
run that never had a machine, or lost it through no fault of its own, gets the next offer as long as it may. Any other
run is settled and closed. A machine that appears under a run that is over is deleted, and its cost is settled too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from orchestrator.core.market.machines import Instance, Operation
from orchestrator.core.market.offers import FLEX_START, Offer, blocked_by, rank_offers
from orchestrator.core.market.pricing import DEADLINE_SLACK_S, ceiling_usd
from orchestrator.core.naming import is_client
from orchestrator.core.run.events import CapacityAwaited, InstanceGone, MachineTaken, ZoneExhausted
from orchestrator.core.run.fold import Phase, Run, Vm
from orchestrator.core.text import count

# Which of a plan's offers a run may take next, given what has happened so far.


SPOT = "SPOT"
QUEUED: Final = "PENDING"
"""The cloud's status of a flex-start machine that waits for capacity."""


def open_offers(run: Run, offers: Sequence[Offer], ttl_s: int | None = None) -> tuple[Offer, ...]:
    """The offers that a run may still try, best first.

    Offers that this attempt was refused are left out. So are offers that could cost more than is left of the hold;
    `ttl_s` is the deadline in seconds with which a machine is requested, if it is not that of the first plan.

    The GPU asked for comes before its substitutes. Once something was measured, only that GPU is left, because rows of
    two devices cannot be compared. Spot offers come before on-demand offers, until the run has had as many preemptions
    as its plan allows. Zones that the last refusal named come first. Zones in which a machine of this run is gone, or
    which had none for an earlier attempt, come last.
    """
    facts = [fact for fact in _refusals(run) if fact.round == run.round or fact.code in LASTING]
    never_made = {
        (vm.zone, vm.machine_type) for vm in run.vms if vm.how == "never_made" and vm.generation == run.generation
    }
    open_ones = [
        offer
        for offer in offers
        if (offer.zone, offer.machine_type) not in never_made and not any(_blocks(fact, offer) for fact in facts)
    ]
    last_zones = {fact.zone for fact in run.exhausted} | {vm.zone for vm in run.vms if vm.gone_at is not None}
    hints = facts[-1].zones_available if facts else ()
    order = {gpu: place for place, gpu in reversed(list(enumerate(offer.gpu for offer in offers)))}
    ranked = rank_offers([offer for offer in open_ones if _same_gpu(run, offer, offers)], hints=hints, last=last_zones)
    spot_first = not _on_demand_is_due(run)
    ordered = sorted(ranked, key=lambda offer: (order[offer.gpu], (offer.provisioning == SPOT) != spot_first))
    return _affordable(run, ordered, ttl_s)


SHORTEST_QUEUE_S: Final = 90
LONGEST_QUEUE_S: Final = 7200
"""How long a flex-start machine may wait in the cloud's queue."""


def queue_seconds(offer: Offer, round_number: int, remaining: timedelta | None) -> int:
    """How many seconds a request for this offer stays in the cloud's queue; 0 if it is not for a flex-start machine. In
    the first round of requests each zone has the shortest time, so that all are asked soon. In later ones, of a client
    that waits for capacity, it is what is `remaining` of that wait."""
    if offer.provisioning != FLEX_START:
        return 0
    wanted_s = int(remaining.total_seconds()) if round_number and remaining is not None else 0
    return min(max(wanted_s, SHORTEST_QUEUE_S), LONGEST_QUEUE_S)


LASTING: Final = frozenset({"notFound", "invalid", "conditionNotMet"})
"""Codes of refusals that no waiting changes: the zone lacks the machine type, or a policy forbids the region."""


def _refusals(run: Run) -> list[ZoneExhausted]:
    """What the present attempt was refused, in every round."""
    attempt = run.next_attempt
    return [fact for fact in run.exhausted if (fact.attempt, fact.generation) == (attempt, run.generation)]


def _blocks(fact: ZoneExhausted, offer: Offer) -> bool:
    kind = fact.machine_type in ("", offer.machine_type) and fact.provisioning in ("", offer.provisioning)
    return kind and blocked_by(fact.scope, fact.zone)(offer)


def _same_gpu(run: Run, offer: Offer, offers: Sequence[Offer]) -> bool:
    if run.measurement is None or run.vm is None:
        return True
    gpus = {one.gpu for one in offers if one.machine_type == run.vm.machine_type}
    return offer.gpu in gpus or not gpus


def _on_demand_is_due(run: Run) -> bool:
    after = run.plan.on_demand_after if run.plan else None
    return after is not None and sum(1 for vm in run.vms if vm.how in ("preempted", "lost")) >= after


def _affordable(run: Run, offers: Sequence[Offer], ttl_s: int | None) -> tuple[Offer, ...]:
    """The offers of which one more machine fits into what earlier ones have left of the hold. A deadline may have been
    enforced late, and a machine that may still exist counts with all that it can cost."""
    if run.hold_usd is None or run.plan is None:
        return tuple(offers)
    spent = sum((highest_cost(vm) for vm in run.vms if vm.generation == run.generation and not vm.refused), Decimal(0))
    limit_s, unspent_usd = run.plan.ttl_s if ttl_s is None else ttl_s, run.hold_usd - spent
    return tuple(offer for offer in offers if ceiling_usd(offer.usd_per_hour, limit_s, 1) <= unspent_usd)


def highest_cost(vm: Vm) -> Decimal:
    """The dollars that a machine has cost, or can cost at most if it may still exist. This needs no clock."""
    return ceiling_usd(vm.usd_per_hour, vm.max_run_s, 1) if vm.gone_at is None else vm.cost(vm.gone_at)


@dataclass(frozen=True, slots=True)
class Policy:
    """How long a client waits, in seconds."""

    poll_s: float = 2.0
    boot_limit_s: float = 600.0
    """A machine that has sent nothing for this long after it started to run is given up."""
    exit_grace_s: float = 60.0
    """After its last event a machine deletes itself. If it has not done so after this long, the client deletes it."""
    deadline_slack_s: float = 60.0
    """The server may enforce a deadline 30 s late. This long after the deadline the client deletes the machine
    itself."""
    take_limit_s: float = 90.0
    """A kept machine that was claimed and has not begun the run after this long is given up."""
    host_patience_s: float = 60.0
    """A fleet takes a host that could not be reached for this long for dead."""
    seal_limit_s: float = 90.0
    """If no client copies a machine's disk for this long after it is ready, the client that builds the image is
    gone."""
    insert_limit_s: float = 180.0
    """A request that has had neither a machine nor an answer for this long made no machine."""
    request_gap_s: float = 15.0
    """How far requests are apart while a client waits for capacity, once it has requested every machine."""
    round_pause_s: float = 60.0
    """The pause after the first round of requests. Each further one is twice as long."""
    longest_pause_s: float = 900.0
    look_s: float = 30.0
    """How long a waiting client may not see that a stop was requested."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What a client sees of the machine of a run; `instance` is None if it does not exist. `operations` are those of
    the machine in its zone; they are read once it is gone. `queued_at` is when this client last saw it wait in the
    cloud's queue."""

    instance: Instance | None
    operations: tuple[Operation, ...] = ()
    queued_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Create:
    offer: Offer
    attempt: int


@dataclass(frozen=True, slots=True)
class Reinsert:
    """Send the same request again under the same request id, because its answer was lost."""

    vm: Vm


@dataclass(frozen=True, slots=True)
class Delete:
    vm: Vm
    reason: str


@dataclass(frozen=True, slots=True)
class RecordCreated:
    """Record that the machine exists. The log does not say so if a client died after the request."""

    vm: Vm
    instance: Instance


@dataclass(frozen=True, slots=True)
class RecordQueued:
    """Record that the machine waits in the cloud's queue for capacity, until `until` at the latest."""

    vm: Vm
    until: datetime


@dataclass(frozen=True, slots=True)
class RecordStockOut:
    """Record that a machine left the cloud's queue without having run: its zone had no capacity."""

    vm: Vm
    message: str


@dataclass(frozen=True, slots=True)
class RecordGone:
    vm: Vm
    ended_at: datetime
    how: str
    started_at: datetime | None

    @property
    def fact(self) -> InstanceGone:
        """The fact for the log, about this one request."""
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


@dataclass(frozen=True, slots=True)
class Await:
    """Record that no machine is left, and when the client begins another round of requests."""

    fact: CapacityAwaited


Record = RecordCreated | RecordQueued | RecordStockOut | RecordGone
Command = Await | Create | Reinsert | Delete | Record | Settle | Close | Wait


def decide_commands(
    run: Run,
    observation: Observation,
    now: datetime,
    policy: Policy,
    offers: Sequence[Offer] | None,
    ttl_s: int | None = None,
    wait_until: datetime | None = None,
) -> tuple[Command, ...]:
    """What a client should do now. `offers` is None if the client only looks after the run and must not request
    machines. `ttl_s` is the deadline in seconds with which this client requests them, if it is not that of the first
    plan; `wait_until` is how long it waits for capacity, if it does."""
    vm = run.vm
    if run.guest_of is not None and run.closed is None:
        return as_guest(run, run.guest_of, observation, now, policy)
    if vm is not None and vm.open:
        if observation.instance is None:
            again = any(offer.pool == (vm.zone, vm.machine_type, vm.provisioning) for offer in offers or ())
            if vm.queued and run.report_of(vm.attempt).booted_at is None:
                return (_left_queue(vm, observation, now),)
            return _vanished(run, vm, observation.operations, now, policy, again=again)
        return _alive(run, vm, observation.instance, now, policy, alone=offers is None)
    if run.closed is not None:
        return _after_the_end(run, now)
    if run.goes_on:
        if offers is None or run.rejected is not None:
            return _no_request(run, now, policy)
        candidates = open_offers(run, offers, ttl_s)
        if wait_until is not None:
            later = replace(run, awaited=_next_round(run, now, now))
            pause = _pause(run, now, policy, wait_until, (bool(candidates), bool(open_offers(later, offers, ttl_s))))
            if pause is not None:
                return (pause,)
            candidates = candidates if now < wait_until or not run.round else ()
        if not candidates:
            return _give_up(run, now, Phase.NO_CAPACITY, _tried(run))
        return (Create(candidates[0], attempt=run.next_attempt),)
    outcome, detail = run_ending(run, vm) if vm is not None else (Phase.STOPPED, "")
    if run.stop is not None and (vm is None or vm.generation < run.generation):
        outcome, detail = Phase.STOPPED, run.stop.reason
    return (Settle(run.due(now)), Close(outcome, detail))


def _after_the_end(run: Run, now: datetime) -> tuple[Command, ...]:
    """What is left to do for a closed run: settle it, if its cost was not settled or was settled too low."""
    if run.phase is Phase.REFUSED:
        return ()
    settled = run.settled.cost_usd if run.settled is not None else None
    due = run.due(now)
    return (Settle(due),) if settled is None or due > settled else ()


def _no_request(run: Run, now: datetime, policy: Policy) -> tuple[Command, ...]:
    """The commands for a run that needs a machine which this client does not request: the cloud rejected the request,
    or another client launched the run."""
    if run.rejected is not None:
        return _give_up(run, now, Phase.FAILED, f"{run.rejected.code}: {run.rejected.message}")
    heard_at = run.updated_at
    if run.waiting is not None:
        heard_at = max(heard_at, min(run.waiting.next_at, heard_at + timedelta(seconds=policy.longest_pause_s)))
    if not run.is_unlaunched and now - heard_at < timedelta(seconds=policy.insert_limit_s):
        return (Wait(policy.poll_s),)
    remedy = f"`bench launch --resume {run.run_id}` continues it"
    if run.waiting is not None:
        return _give_up(run, now, Phase.STOPPED, f"the client that waited for a machine stopped: {remedy}")
    if run.vm is None:
        return _give_up(run, now, Phase.STOPPED, "the client that launched it stopped before it requested a machine")
    return _give_up(run, now, Phase.STOPPED, f"no client requested another machine: {remedy}")


def _next_round(run: Run, next_at: datetime, until: datetime) -> CapacityAwaited:
    return CapacityAwaited(round=run.round + 1, next_at=next_at, until=until, generation=run.generation)


def _pause(run: Run, now: datetime, policy: Policy, until: datetime, offered: tuple[bool, bool]) -> Await | Wait | None:
    """What a client that waits for capacity until `until` does before its next request; None if it requests a machine
    at once or gives up. `offered`: whether an offer is left in this round, and whether the next one would have any.

    The first round is as quick as without waiting. Afterwards requests are `request_gap_s` apart, and the pauses
    between rounds grow. Near the end they shrink to half of what is left."""
    if now >= until:
        return None
    begins_at = run.waiting.next_at if run.waiting is not None else now
    if run.round and offered[0]:
        last_request = max((vm.requested_at for vm in run.vms), default=run.created_at)
        begins_at = max(begins_at, last_request + timedelta(seconds=policy.request_gap_s))
    if now < begins_at:
        return Wait(min((begins_at - now).total_seconds(), policy.look_s))
    seconds_left = (until - now).total_seconds()
    if offered[0] or not offered[1] or seconds_left <= policy.request_gap_s:
        return None
    pause_s = min(policy.round_pause_s * 2 ** min(run.round, 20), policy.longest_pause_s, seconds_left / 2)
    return Await(_next_round(run, now + timedelta(seconds=pause_s), until))


def _give_up(run: Run, now: datetime, outcome: Phase, why: str) -> tuple[Command, ...]:
    """Ends a run that should have another machine and gets none. The outcome is that of its last machine, if it had
    one."""
    vm = run.vm
    if vm is not None and vm.started_at is not None and vm.generation == run.generation:
        outcome, detail = run_ending(run, vm)
        why = f"{detail}; {why}"
    return (Settle(run.due(now)), Close(outcome, why))


def given_up(run: Run, now: datetime, why: str) -> tuple[Command, ...]:
    """The commands that end a run whose client cannot go on before it has requested a machine."""
    return _give_up(run, now, Phase.STOPPED, why)


def settled_by_another(run: Run, now: datetime) -> tuple[Command, ...]:
    """The commands for a client that finds the hold settled before it requests a machine: another client began to end
    the run, and may have died before it closed it."""
    why = f"another client settled it before a machine was requested: `bench launch --resume {run.run_id}` continues it"
    return _give_up(run, now, Phase.STOPPED, why)


def _tried(run: Run) -> str:
    facts = _refusals(run)
    zones = list(dict.fromkeys(fact.zone for fact in facts))
    if not zones:
        return "no zone is allowed"
    rounds = f", asked {run.round + 1} times" if run.round else ""
    return f"no machine in {count(len(zones), 'zone')}{rounds}: {', '.join(zones)} (last: {facts[-1].code})"


def _vanished(
    run: Run, vm: Vm, operations: tuple[Operation, ...], now: datetime, policy: Policy, *, again: bool
) -> tuple[Command, ...]:
    """The commands for a machine that does not exist: it was never made, or it is gone. `again`: whether this client
    has an offer with which it could request this machine again."""
    if not vm.instance_id and not _made(operations):
        unanswered = not operations or any(op.status != "DONE" for op in operations)
        if unanswered and now - vm.requested_at < timedelta(seconds=policy.insert_limit_s):
            # This also holds if a stop was requested: the request for the machine may still be on its way, and no
            # client would look after a machine that appears after the run is closed.
            may_request = again and run.stop is None and run.closed is None
            return (Reinsert(vm),) if may_request else (Wait(policy.poll_s),)
        return (RecordGone(vm, vm.requested_at, "unanswered" if unanswered else "never_made", None),)
    started = vm.started_at or start_of(operations)
    ended, how = end_of(vm, operations, started, now)
    if vm.queue_s and vm.started_at is None and started is not None:
        started = max(started, ended - _longest(vm))  # it may have waited before it ran
    return (RecordGone(vm, ended, how, started),)


def _left_queue(vm: Vm, seen: Observation, now: datetime) -> RecordStockOut | RecordGone:
    """What became of a machine that waited in the cloud's queue and does not exist any more.

    Its wait ended without capacity if its request failed, or if this client saw it wait until moments before it
    vanished, and the wait was to end then. If it was deleted moments after this client saw it wait, it never ran.
    Otherwise it may have run without anybody seeing it, also if it was gone when the wait was to end, or without a
    trace: then it counts with all the time that it can have run.
    """
    assert vm.queued_until is not None, "only a machine that was seen in the queue"
    failed = next((op.message for op in seen.operations if op.kind == "insert" and op.message), "")
    others = tuple(op for op in seen.operations if op.kind != "insert")
    ended, how = end_of(vm, others, None, now)
    left_at = min((moment for op in others if (moment := op.started_at or op.ended_at)), default=ended)
    ended_in_time = abs(ended - vm.queued_until) <= QUEUE_END
    just_waited = seen.queued_at is not None and left_at - seen.queued_at <= START and how in ("deleted", "lost")
    if failed or (just_waited and ended_in_time):
        return RecordStockOut(vm, failed or "no capacity while its request was valid")
    if just_waited and how == "deleted":
        return RecordGone(vm, ended, how, None)
    ended = min(ended, vm.queued_until + _longest(vm))
    return RecordGone(vm, ended, how, max(vm.requested_at, ended - _longest(vm)))


def _longest(vm: Vm) -> timedelta:
    """The longest time that a machine can have run."""
    return timedelta(seconds=vm.max_run_s + DEADLINE_SLACK_S)


QUEUE_END: Final = timedelta(seconds=60)
"""How far the end of a wait may be from when it was expected."""
START: Final = timedelta(seconds=20)
"""No machine that just waited runs, is billed, and is gone again so soon."""


def _made(operations: tuple[Operation, ...]) -> bool:
    """Whether the operations show that the machine existed: an insert that succeeded, or any operation on the
    machine."""
    return any(op.kind != "insert" or (op.status == "DONE" and not op.message) for op in operations)


def start_of(operations: tuple[Operation, ...]) -> datetime | None:
    """When a machine was made, from the cloud's operations; None if they do not say."""
    ends = [op.ended_at for op in operations if op.kind == "insert" and op.ended_at is not None and not op.message]
    return min(ends, default=None)


def end_of(vm: Vm, operations: tuple[Operation, ...], started: datetime | None, now: datetime) -> tuple[datetime, str]:
    """(when a machine ended, how it ended). If no operation says when, it is the latest possible time."""
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
    """Whether a machine has waited too long for a client that copies its disk, so it is no longer useful. False for
    the machine of an older client, which did not record that it came to copy."""
    records = run.plan is not None and run.plan.seals
    ready = run.current.last_word_at if records and run.prepared is not None and run.sealing is None else None
    return ready is not None and now > ready + timedelta(seconds=policy.seal_limit_s)


def _alive(run: Run, vm: Vm, instance: Instance, now: datetime, policy: Policy, *, alone: bool) -> tuple[Command, ...]:
    """The commands for a machine that exists. `alone`: whether this client only looks after the run."""
    if vm.started_at is None and instance.started_at is not None:
        return (RecordCreated(vm, instance),)
    if instance.status == QUEUED and vm.queued_until is None and run.closed is None:
        return (RecordQueued(vm, instance.created_at + timedelta(seconds=vm.queue_s)),)
    if run.closed is not None:
        return (Delete(vm, "its run is over"),)
    if run.stop is not None:
        return (Delete(vm, run.stop.reason),)
    if instance.status in ("TERMINATED", "STOPPED", "SUSPENDED"):
        return (Delete(vm, "it stopped without deleting itself, and its disk is still billed"),)
    longest = timedelta(seconds=vm.queue_s + vm.max_run_s + policy.insert_limit_s)
    deadline = vm.deadline_at or vm.requested_at + longest
    if now > deadline + timedelta(seconds=policy.deadline_slack_s):
        return (Delete(vm, "it is past its deadline"),)
    if run.hold_usd is not None and run.due(now) > run.hold_usd:
        return (Delete(vm, f"its run has cost more than the ${run.hold_usd} held for it"),)
    if run.current.finished_at is not None and now > run.current.finished_at + timedelta(seconds=policy.exit_grace_s):
        return (Delete(vm, "it finished but did not delete itself"),)
    idle_until = run.current.idle_until
    if idle_until is not None and now > idle_until + timedelta(seconds=policy.exit_grace_s):
        return (Delete(vm, "it was kept, no launch used it, and it did not delete itself"),)
    if alone and is_left_unsealed(run, now, policy):
        return (Delete(vm, "its disk is ready, and no client came to copy it"),)
    silent = run.current.last_word_at is None and vm.started_at is not None
    if silent and vm.started_at and now > vm.started_at + timedelta(seconds=policy.boot_limit_s):
        return (Delete(vm, f"it sent nothing for {policy.boot_limit_s:.0f} s after it started"),)
    if instance.status == QUEUED:
        return (Wait(min(policy.request_gap_s, 8 * policy.poll_s)),)
    return (Wait(policy.poll_s),)


def as_guest(
    run: Run, taken: MachineTaken, observation: Observation, now: datetime, policy: Policy
) -> tuple[Command, ...]:
    """The commands for a run on a machine that another run kept and pays for. The run ends when the machine says so, or
    with the machine. A machine that does not begin the run in time, or is past its deadline, is deleted. If only a
    machine, and no client, says that it was taken, nothing is deleted: its word is not trusted, and the run that owns
    the machine ends it."""
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
    report = run.report_of(taken.attempt)
    machine_alone = not is_client(run.taken_by)
    if report.finished is None and observation.instance is not None and not (machine_alone and now > deadline):
        if machine_alone:  # nothing is deleted on its word alone, so a stop does not wait for it either
            ended = (Settle(run.due(now)), Close(Phase.STOPPED, run.stop.reason)) if run.stop is not None else ()
            return ended or (Wait(policy.poll_s),)
        if run.stop is not None:
            return (Delete(vm, run.stop.reason),)
        if observation.instance.status in ("TERMINATED", "STOPPED", "SUSPENDED"):
            return (Delete(vm, "it stopped without deleting itself, and its disk is still billed"),)
        if taken.deadline_at is not None and now > taken.deadline_at + timedelta(seconds=policy.deadline_slack_s):
            return (Delete(vm, "it is past its deadline"),)
        if report.booted_at is None and now > taken_at + timedelta(seconds=policy.take_limit_s):
            return (Delete(vm, f"it was kept, and did not begin this run within {policy.take_limit_s:.0f} s"),)
        return (Wait(policy.poll_s),)
    if report.finished is None:
        _, how = end_of(vm, observation.operations, None, now)
        vm = replace(vm, how=how)
    outcome, detail = run_ending(run, vm)
    return (Settle(run.due(now)), Close(outcome, detail))


def run_ending(run: Run, vm: Vm) -> tuple[Phase, str]:
    """(outcome, reason in one line) of a run whose machine is gone."""
    diagnosis = run.report_of(vm.attempt).diagnosis
    reason = f"{diagnosis.cause}: {diagnosis.detail}" if diagnosis else ""
    finished = run.current.verdict
    if finished is not None and finished.outcome in ("succeeded", "incorrect"):
        # A later machine does not measure again what an earlier one found wrong.
        return Phase.INCORRECT if run.wrong else Phase(finished.outcome), describe_wrong(run) or finished.detail
    if run.current.preempted or vm.how == "preempted" or (finished is not None and finished.outcome == "preempted"):
        return (
            Phase.PREEMPTED,
            f"{vm.name} was preempted; {run.cases_done} of {count(run.cases_total, 'case')} measured",
        )
    if run.stop is not None:
        return Phase.STOPPED, run.stop.reason
    if finished is not None:
        outcome = Phase.STOPPED if finished.outcome == "terminated" else Phase.FAILED
        return outcome, reason or finished.detail or finished.outcome
    if vm.how == "deadline":
        return Phase.EXPIRED, reason or f"{vm.name} reached its deadline of {vm.max_run_s} s"
    if vm.how in ("never_made", "unanswered"):
        return Phase.FAILED, f"{vm.name} was requested but never created"
    if run.prepared is not None and run.sealing is None and vm.how == "deleted":
        return Phase.STOPPED, "no client came to copy its disk, so no image was made"
    return Phase.FAILED, reason or f"{vm.name} disappeared without a message ({vm.how})"


def describe_wrong(run: Run) -> str:
    """A sentence about the implementations that were wrong so far; empty if none was."""
    if not run.wrong:
        return ""
    first = run.wrong[0]
    names = dict.fromkeys(one.implementation for one in run.wrong)
    cases = count(sum(one.implementation == first.implementation for one in run.wrong), "case")
    other_names = (
        f" ({', '.join(name for name in names if name != first.implementation)} too)" if len(names) > 1 else ""
    )
    return f"{first.implementation} was wrong on {cases}{other_names}, first {first.case_id}: {first.reason}"
