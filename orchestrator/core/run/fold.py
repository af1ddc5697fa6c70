"""Computes the state of a run from its events.

`replay` gives the same state for every order and every repetition of the same events. It sorts them by `(time, writer,
seq)`, moves each answer behind its request, and drops repeats. The phase depends on which facts are known, not on which
came last. So any number of clients and machines can add events independently.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, TypeVar

from orchestrator.core.names import NO_ZONE, MachineName, ResourceId
from orchestrator.core.naming import attempt_of, instance_name, is_client, machine_of
from orchestrator.core.run import events as ev
from orchestrator.core.run.state import OUTCOMES, VM_PHASES, MachineReport, Phase, PhaseSpan, Run, Vm

__all__ = [
    "OUTCOMES",
    "VM_PHASES",
    "GrowingLog",
    "MachineReport",
    "Phase",
    "PhaseSpan",
    "Run",
    "Vm",
    "evolve",
    "initial_run",
    "replay",
]


def initial_run(ordered: Sequence[ev.Event]) -> Run:
    """The run before its first fact. Its beginning is the first event of a client, or of a machine if no client wrote
    one."""
    first = next((event for event in ordered if is_client(event.writer)), ordered[0])
    return Run(first.run_id, created_at=first.time, updated_at=first.time)


def replay(log: Iterable[ev.Event]) -> Run | None:
    """The state of a run whose events are `log`, in any order and with any repeats; None if there are none."""
    return GrowingLog().replay(log)


class GrowingLog:
    """A log that is replayed again and again as it grows: what comes after all that was known is applied alone."""

    def __init__(self) -> None:
        self._known: list[ev.Event] = []
        self._run: Run | None = None

    def replay(self, log: Iterable[ev.Event]) -> Run | None:
        """The same as `replay(log)`."""
        unique = {event.order: event for event in log}
        ordered = answers_last(sorted(unique.values(), key=lambda event: event.order))
        if not ordered:
            return None
        count, begin = len(self._known), initial_run(ordered)
        if self._run is None or ordered[:count] != self._known or initial_run(self._known) != begin:
            self._run, count = begin, 0
        for event in ordered[count:]:
            self._run = evolve(self._run, event)
        self._known = ordered
        return self._run


def answers_last(ordered: Sequence[ev.Event]) -> list[ev.Event]:
    """The same events, with each answer to a request after the request. The order of times is not enough: if a client
    died, another may record its machine, and this client's clock may be a second behind. Sorted by time, such an answer
    comes before its request and would be ignored, and the client would record it again and again for as long as both
    clocks show the same second."""
    clients = [one for one in ordered if is_client(one.writer)]
    unplaced_requests = {one.fact.request_id for one in clients if isinstance(one.fact, ev.InstanceRequested)}
    placed: list[ev.Event] = []
    early: dict[str, list[ev.Event]] = {}
    for event in ordered:
        fact = event.fact
        if isinstance(fact, ev.InstanceRequested) and is_client(event.writer):
            unplaced_requests.discard(fact.request_id)
            placed += [event, *early.pop(fact.request_id, ())]
        elif isinstance(fact, ANSWERS) and fact.request_id in unplaced_requests:
            early.setdefault(fact.request_id, []).append(event)
        else:
            placed.append(event)
    return placed


ANSWERS: Final = (ev.InstanceQueued, ev.InstanceCreated, ev.InstanceRejected, ev.ZoneExhausted, ev.InstanceGone)
"""The facts that answer one request and name it."""


def evolve(run: Run, event: ev.Event) -> Run:
    """The state of `run` after one more event."""
    if not _due(run, event):
        return run
    if is_client(event.writer):
        run = replace(run, updated_at=max(run.updated_at, event.time))
    if attempt := machine_of(event.writer):
        run = _report(run, attempt, last_word_at=max(run.report_of(attempt).last_word_at or event.time, event.time))
    match event.fact:
        case ev.RunPlanned() as fact:
            return replace(run, plan=run.plan or fact)
        case ev.BudgetHeld() as fact:
            older = run.held is not None and run.held.generation > fact.generation
            return run if older else replace(run, held=fact)
        case ev.PayloadStored() as fact:
            return replace(run, payload=fact)
        case ev.RunResumed() as fact:
            return _resumed(run, fact)
        case ev.InstanceRequested() as fact:
            return replace(run, vms=_requested(run.vms, fact, event.time))
        case ev.ZoneExhausted() | ev.CapacityAwaited() as fact:
            return _without_capacity(run, fact)
        case ev.InstanceRejected() as fact:
            return replace(run, rejected=_latest(run, run.rejected, fact), vms=_refused(run.vms, fact))
        case ev.InstanceQueued() | ev.InstanceCreated() as fact:
            return replace(run, vms=_created(run.vms, fact))
        case ev.InstanceGone() as fact:
            return replace(run, vms=_gone(run.vms, fact))
        case ev.ImageReplaced() as fact:
            return replace(run, replaced=fact)
        case ev.SealRequested() as fact:
            return replace(run, sealing=fact)
        case ev.StopRequested() as fact:
            return replace(run, stop=_latest(run, run.stop, fact))
        case ev.MachineTaken() as fact:
            return _taken(run, fact, event)
        case ev.Settled() as fact:
            latest = _latest(run, run.settled, fact)
            if latest is not None and latest.generation == fact.generation:
                latest = max(latest, fact, key=lambda settled: settled.cost_usd)
            return replace(run, settled=latest)
        case ev.RunClosed() as fact:
            return replace(run, closed=_latest(run, run.closed, fact))
        case ev.ChildFinished() as fact:
            return _child_finished(run, fact)
        case ev.Unrecognised():
            return run
        case _:
            return _evolve_machine(run, event)


def _without_capacity(run: Run, fact: ev.ZoneExhausted | ev.CapacityAwaited) -> Run:
    """The run with one more refusal, or one more wait, of which the newest counts."""
    if isinstance(fact, ev.ZoneExhausted):
        return replace(run, exhausted=(*run.exhausted, fact), vms=_refused(run.vms, fact))
    newest = max((run.awaited or fact, fact), key=lambda one: (one.generation, one.round, one.next_at))
    return replace(run, awaited=newest)


def _taken(run: Run, fact: ev.MachineTaken, event: ev.Event) -> Run:
    """The run with a `MachineTaken` fact. A client's counts: that of the newest generation, and within a generation the
    first. A machine's is only a claim about itself, which the log of the machine's owner has to confirm; it cannot
    begin a generation, and the first one counts."""
    if is_client(event.writer):
        if run.taken is not None and run.taken.generation >= fact.generation:
            return run
        return replace(run, taken=fact, taken_at=event.time, taken_by=event.writer)
    old = run.claim is not None and run.claim.generation >= fact.generation
    if old or fact.generation > run.generation or fact.attempt != machine_of(event.writer):
        return run
    return replace(run, claim=fact, claim_at=event.time, claim_by=event.writer)


def _child_finished(run: Run, fact: ev.ChildFinished) -> Run:
    """A child of a fleet that is over, with the machines that its scheduler gave it. The first such fact counts, and
    none in a run that has requested a machine itself."""
    if run.vms or run.closed is not None:
        return run
    vms = tuple(
        Vm(
            attempt=one.attempt,
            name=MachineName(instance_name(run.run_id, one.attempt)),
            zone=NO_ZONE,
            machine_type=one.machine,
            provisioning="STANDARD",
            usd_per_hour=fact.usd_per_hour,
            max_run_s=fact.plan.ttl_s,
            request_id="",
            requested_at=one.started_at,
            instance_id=ResourceId((ResourceId.fits(one.machine) and one.machine) or fact.engine),
            started_at=one.started_at,
            gone_at=max(one.ended_at, one.started_at),
            how="deleted",
        )
        for one in fact.attempts
    )
    nothing = ev.Settled(cost_usd=Decimal(0), released_usd=Decimal(0), generation=run.generation)
    end = ev.RunClosed(
        outcome=fact.outcome, detail=f"child {fact.child} of {fact.fleet}, which pays for it", generation=run.generation
    )
    return replace(run, plan=run.plan or fact.plan, vms=vms, settled=run.settled or nothing, closed=end)


def _due(run: Run, event: ev.Event) -> bool:
    """Whether the writer may write such a fact; others are ignored. The machine of an attempt may write any that is not
    a `ClientFact`: these change what is shown, and when a client looks, but no hold, request, name or deletion. The
    name of a requested machine must belong to this run, so that a client deletes only this run's machines. Writers that
    are neither a client nor a machine may write nothing."""
    fact = event.fact
    if isinstance(fact, ev.InstanceRequested):
        return is_client(event.writer) and attempt_of(run.run_id, fact.vm) is not None
    return is_client(event.writer) or (machine_of(event.writer) > 0 and not isinstance(fact, ev.ClientFact))


def _evolve_machine(run: Run, event: ev.Event) -> Run:
    """The state after a fact of a machine."""
    attempt = machine_of(event.writer)
    report = run.report_of(attempt)
    match event.fact:
        case ev.VmBooted():
            return _report(run, attempt, booted_at=report.booted_at or event.time)
        case ev.PhaseStarted(phase=phase, limit_s=limit):
            run = replace(run, spans=(*run.spans, PhaseSpan(attempt, phase, event.time, limit)))
            return _report(run, attempt, cases=(), observed=None)
        case ev.PhaseFinished() as fact:
            return replace(run, spans=_phase_finished(run.spans, attempt, fact))
        case ev.Healed() as fact:
            return replace(run, heals=(*run.heals, fact))
        case ev.GatePassed() as fact:
            return replace(run, gates=(*run.gates, fact))
        case ev.EnvironmentRecorded() as fact:
            return replace(run, environment=fact)
        case ev.KernelBuilt() as fact:
            return replace(run, build=fact)
        case ev.CaseChecked() as fact:
            is_known = any(
                (old.implementation, old.case_id) == (fact.implementation, fact.case_id) for old in run.wrong
            )
            return run if fact.passed or is_known else replace(run, wrong=(*run.wrong, fact))
        case ev.CorrectnessFinished() as fact:
            return replace(run, correctness=fact)
        case ev.MeasurementPlanned() as fact:
            return _report(run, attempt, measurement=fact)
        case ev.CaseStarted() as fact:
            first_case_at = report.first_case_at or event.time
            # A machine with several GPUs measures several cases at once; the largest has eight GPUs.
            cases = (*(case for case in report.cases if case.case_id != fact.case_id), fact)[-16:]
            return _report(run, attempt, cases=cases, observed=None, first_case_at=first_case_at)
        case ev.CaseObserved() as fact:
            return _report(run, attempt, observed=fact)
        case ev.CaseMeasured(case_id=case_id) as fact:
            cases = tuple(case for case in report.cases if case.case_id != case_id)
            run = _report(run, attempt, measured=report.measured | {case_id}, cases=cases, observed=None)
            is_known = any(done.case_id == case_id for done in run.measured)
            return run if is_known else replace(run, measured=(*run.measured, fact))
        case ev.ImagePrepared() as fact:
            return replace(run, prepared=fact)
        case ev.Preempted():
            return _report(run, attempt, preempted=True)
        case ev.Diagnosed() as fact:
            return _report(replace(run, diagnoses=(*run.diagnoses, fact)), attempt, diagnosis=fact)
        case ev.Finished() as fact:
            return _report(run, attempt, finished=fact, finished_at=event.time)
        case ev.Kept() as fact:
            since = report.work_done_at or event.time
            return _report(run, attempt, kept=report.kept or fact, kept_at=event.time, work_done_at=since, lent_to="")
        case ev.Lent(to=run_id):
            return _report(run, attempt, lent_to=run_id)
        case ev.VmExiting(outcome=outcome, exit_code=code):
            if report.finished is not None:
                return run
            finished = ev.Finished(outcome=outcome, exit_code=code)
            return _report(run, attempt, finished=finished, finished_at=event.time)
        case _:
            raise AssertionError(f"a kind of fact that the fold forgot: {event.fact.kind}")


def _report(run: Run, attempt: int, **changes: Any) -> Run:
    other_reports = [report for report in run.reports if report.attempt != attempt]
    reports = sorted([*other_reports, replace(run.report_of(attempt), **changes)], key=lambda report: report.attempt)
    return replace(run, reports=tuple(reports))


Ending = TypeVar("Ending", ev.RunClosed, ev.Settled, ev.StopRequested, ev.InstanceRejected)
EVERY: Final = 10**9
"""A number above any generation, for a fact that counts for every generation."""


def _of(fact: ev.RunClosed | ev.Settled | ev.StopRequested | ev.InstanceRejected) -> int:
    return EVERY if fact.generation is None else fact.generation


def _latest(run: Run, old: Ending | None, new: Ending) -> Ending | None:
    """Which of two facts that end something counts: the first of the newest generation. A new fact about a generation
    before the run's does not count."""
    if _of(new) < run.generation:
        return old
    return new if old is None or _of(new) > _of(old) else old


def _still(old: Ending | None, generation: int) -> Ending | None:
    """The fact `old` if it also ends this generation, else None."""
    return old if old is not None and _of(old) >= generation else None


def _resumed(run: Run, fact: ev.RunResumed) -> Run:
    """The run in a newer generation, without the facts that ended older ones. If two clients resume a run at the same
    time, they begin the same generation."""
    if fact.generation <= run.generation:
        return run
    return replace(
        run,
        resumed=fact,
        closed=_still(run.closed, fact.generation),
        settled=_still(run.settled, fact.generation),
        stop=_still(run.stop, fact.generation),
        rejected=_still(run.rejected, fact.generation),
    )


def _requested(vms: tuple[Vm, ...], fact: ev.InstanceRequested, at: datetime) -> tuple[Vm, ...]:
    """The machines with one more request. A repeated request is the same machine; of its prices and times the highest
    count."""
    if any(vm.request_id == fact.request_id for vm in vms):
        return tuple(_at_its_dearest(vm, fact) if vm.request_id == fact.request_id else vm for vm in vms)
    return (*vms, Vm(name=fact.vm, requested_at=at, **fact.model_dump(exclude={"vm"})))


def _at_its_dearest(vm: Vm, fact: ev.InstanceRequested) -> Vm:
    dearer, longer = max(vm.usd_per_hour, fact.usd_per_hour), max(vm.max_run_s, fact.max_run_s)
    return (
        vm
        if (dearer, longer) == (vm.usd_per_hour, vm.max_run_s)
        else replace(vm, usd_per_hour=dearer, max_run_s=longer)
    )


def _answers(vm: Vm, request_id: str, attempt: int, zone: str) -> bool:
    """Whether an answer belongs to this request: by the request's id, or by attempt and zone if the answer has no
    id."""
    return vm.request_id == request_id if request_id else (vm.attempt, vm.zone) == (attempt, zone)


def _refused(vms: tuple[Vm, ...], fact: ev.ZoneExhausted | ev.InstanceRejected) -> tuple[Vm, ...]:
    return tuple(
        replace(vm, refused=True)
        if _answers(vm, fact.request_id, fact.attempt, fact.zone) and not vm.instance_id
        else vm
        for vm in vms
    )


def _created(vms: tuple[Vm, ...], fact: ev.InstanceQueued | ev.InstanceCreated) -> tuple[Vm, ...]:
    if isinstance(fact, ev.InstanceQueued):  # the latest end of a wait that was seen: a repeated request waits as long
        return tuple(
            replace(vm, queued_until=max(vm.queued_until or fact.until, fact.until))
            if _answers(vm, fact.request_id, fact.attempt, fact.zone)
            else vm
            for vm in vms
        )
    return tuple(
        replace(
            vm,
            refused=False,
            instance_id=fact.instance_id,
            started_at=min(vm.started_at or fact.started_at, fact.started_at),
            deadline_at=fact.deadline_at,
        )
        if _answers(vm, fact.request_id, fact.attempt, fact.zone)
        else vm
        for vm in vms
    )


def _gone(vms: tuple[Vm, ...], fact: ev.InstanceGone) -> tuple[Vm, ...]:
    return tuple(
        replace(vm, gone_at=fact.ended_at, how=fact.how, started_at=vm.started_at or fact.started_at)
        if vm.open and (vm.request_id == fact.request_id if fact.request_id else vm.name == fact.vm)
        else vm
        for vm in vms
    )


def _phase_finished(spans: tuple[PhaseSpan, ...], attempt: int, fact: ev.PhaseFinished) -> tuple[PhaseSpan, ...]:
    return tuple(
        replace(span, exit_code=fact.exit_code, seconds=fact.seconds)
        if (span.attempt, span.phase) == (attempt, fact.phase) and span.exit_code is None
        else span
        for span in spans
    )
