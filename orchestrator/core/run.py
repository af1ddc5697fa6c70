"""A run is the fold of its events.

`replay` gives the same state for every order and every repetition of the same events: it sorts by `(time, writer,
seq)`, drops repeats, and what a phase is follows from which facts are known, not from which came last. So any number of
clients and machines can append without asking each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Final

from orchestrator.core import events as ev
from orchestrator.core.pricing import accrued

VM_PHASES: Final = ("preflight", "environment", "build", "correctness", "measure", "finish")
"""The machine's own phases, in order."""


class Phase(StrEnum):
    PLANNED = "planned"
    PROVISIONING = "provisioning"
    BOOTING = "booting"
    RUNNING = "running"
    FINISHING = "finishing"
    SUCCEEDED = "succeeded"
    INCORRECT = "incorrect"
    FAILED = "failed"
    PREEMPTED = "preempted"
    STOPPED = "stopped"
    EXPIRED = "expired"
    NO_CAPACITY = "no_capacity"
    REFUSED = "refused"

    @property
    def over(self) -> bool:
        return self in OUTCOMES


OUTCOMES: Final = frozenset(
    {
        Phase.SUCCEEDED,
        Phase.INCORRECT,
        Phase.FAILED,
        Phase.PREEMPTED,
        Phase.STOPPED,
        Phase.EXPIRED,
        Phase.NO_CAPACITY,
        Phase.REFUSED,
    }
)
"""How a run can end."""


@dataclass(frozen=True, slots=True)
class Vm:
    """One request for a machine, and what became of it. An attempt may ask in several zones; at most one answers."""

    attempt: int
    name: str
    zone: str
    machine_type: str
    provisioning: str
    usd_per_hour: Decimal
    max_run_s: int
    request_id: str
    requested_at: datetime
    refused: bool = False
    instance_id: str = ""
    started_at: datetime | None = None
    deadline_at: datetime | None = None
    gone_at: datetime | None = None
    how: str = ""

    @property
    def open(self) -> bool:
        """Whether a machine may exist under this request."""
        return not self.refused and self.gone_at is None

    def cost(self, now: datetime) -> Decimal:
        """What the machine has cost until `now` or its end, in dollars; 0 when it never ran."""
        if self.started_at is None:
            return Decimal(0)
        return accrued(self.usd_per_hour, self.started_at, max(self.gone_at or now, self.started_at))


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """One phase of one machine."""

    attempt: int
    phase: str
    started_at: datetime
    limit_s: float = 0
    exit_code: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    run_id: str
    created_at: datetime
    updated_at: datetime
    plan: ev.RunPlanned | None = None
    hold_usd: Decimal | None = None
    payload: ev.PayloadStored | None = None
    vms: tuple[Vm, ...] = ()
    exhausted: tuple[ev.ZoneExhausted, ...] = ()
    rejected: ev.InstanceRejected | None = None
    booted_at: datetime | None = None
    last_word_at: datetime | None = None
    """When a machine of this run last said anything."""
    spans: tuple[PhaseSpan, ...] = ()
    heals: tuple[ev.Healed, ...] = ()
    gates: tuple[ev.GatePassed, ...] = ()
    environment: ev.EnvironmentRecorded | None = None
    build: ev.KernelBuilt | None = None
    wrong: tuple[ev.CaseChecked, ...] = ()
    correctness: ev.CorrectnessFinished | None = None
    measurement: ev.MeasurementPlanned | None = None
    case: ev.CaseStarted | None = None
    measured: tuple[ev.CaseMeasured, ...] = ()
    preempted: bool = False
    diagnoses: tuple[ev.Diagnosed, ...] = ()
    finished: ev.Finished | None = None
    finished_at: datetime | None = None
    stop: ev.StopRequested | None = None
    settled: ev.Settled | None = None
    closed: ev.RunClosed | None = None

    @property
    def vm(self) -> Vm | None:
        """The machine of the run: the last one asked for that was not refused."""
        return next((vm for vm in reversed(self.vms) if not vm.refused), None)

    @property
    def phase(self) -> Phase:
        if self.closed is not None:
            return Phase(self.closed.outcome) if self.closed.outcome in OUTCOMES else Phase.FAILED
        vm = self.vm
        if vm is None:
            return Phase.PROVISIONING if self.vms else Phase.PLANNED
        if vm.gone_at is not None or self.finished is not None:
            return Phase.FINISHING
        if self.booted_at is not None:
            return Phase.RUNNING
        return Phase.BOOTING if vm.started_at is not None else Phase.PROVISIONING

    @property
    def vm_phase(self) -> str:
        """The machine's current phase, or the last it was in; empty before its first."""
        return self.spans[-1].phase if self.spans else ""

    @property
    def cases_total(self) -> int:
        if self.measurement is not None:
            return self.measurement.total
        return self.plan.cases if self.plan else 0

    @property
    def cases_done(self) -> int:
        return len(self.measured)

    @property
    def ceiling_usd(self) -> Decimal:
        return self.plan.ceiling_usd if self.plan else Decimal(0)

    def cost(self, now: datetime) -> Decimal:
        """Dollars spent on machines so far: settled if it is, else accrued to `now`."""
        if self.settled is not None:
            return self.settled.cost_usd
        return sum((vm.cost(now) for vm in self.vms), Decimal(0))


def started(event: ev.Event) -> Run:
    return Run(event.run_id, created_at=event.time, updated_at=event.time)


def replay(log: Iterable[ev.Event]) -> Run | None:
    """The state of a run whose events are `log`, in any order and with any repeats; None when there are none."""
    unique = {(event.writer, event.seq): event for event in log}
    ordered = sorted(unique.values(), key=lambda event: event.order)
    if not ordered:
        return None
    run = started(ordered[0])
    for event in ordered:
        run = evolve(run, event)
    return run


def evolve(run: Run, event: ev.Event) -> Run:
    """`run` after one more fact."""
    run = replace(run, updated_at=max(run.updated_at, event.time))
    if event.writer.startswith(("vm-", "boot-")):
        run = replace(run, last_word_at=max(run.last_word_at or event.time, event.time))
    match event.fact:
        case ev.RunPlanned() as fact:
            return replace(run, plan=run.plan or fact)
        case ev.BudgetHeld(hold_usd=hold):
            return replace(run, hold_usd=hold)
        case ev.PayloadStored() as fact:
            return replace(run, payload=fact)
        case ev.InstanceRequested() as fact:
            return replace(run, vms=_requested(run.vms, fact, event.time))
        case ev.ZoneExhausted() as fact:
            return replace(run, exhausted=(*run.exhausted, fact), vms=_refused(run.vms, fact.attempt, fact.zone))
        case ev.InstanceRejected() as fact:
            return replace(run, rejected=fact, vms=_refused(run.vms, fact.attempt, fact.zone))
        case ev.InstanceCreated() as fact:
            return replace(run, vms=_created(run.vms, fact))
        case ev.InstanceGone() as fact:
            return replace(run, vms=_gone(run.vms, fact))
        case ev.StopRequested() as fact:
            return replace(run, stop=run.stop or fact)
        case ev.Settled() as fact:
            return replace(run, settled=run.settled or fact)
        case ev.RunClosed() as fact:
            return replace(run, closed=run.closed or fact)
        case ev.Unrecognised():
            return run
        case _:
            return _evolve_machine(run, event)


def _evolve_machine(run: Run, event: ev.Event) -> Run:
    """The facts that machines append."""
    match event.fact:
        case ev.VmBooted():
            return replace(run, booted_at=run.booted_at or event.time)
        case ev.PhaseStarted(phase=phase, limit_s=limit):
            return replace(run, spans=(*run.spans, PhaseSpan(_attempt(event), phase, event.time, limit)), case=None)
        case ev.PhaseFinished() as fact:
            return replace(run, spans=_phase_finished(run.spans, _attempt(event), fact))
        case ev.Healed() as fact:
            return replace(run, heals=(*run.heals, fact))
        case ev.GatePassed() as fact:
            return replace(run, gates=(*run.gates, fact))
        case ev.EnvironmentRecorded() as fact:
            return replace(run, environment=fact)
        case ev.KernelBuilt() as fact:
            return replace(run, build=fact)
        case ev.CaseChecked(passed=passed) as fact:
            return run if passed else replace(run, wrong=(*run.wrong, fact))
        case ev.CorrectnessFinished() as fact:
            return replace(run, correctness=fact)
        case ev.MeasurementPlanned() as fact:
            return replace(run, measurement=fact)
        case ev.CaseStarted() as fact:
            return replace(run, case=fact)
        case ev.CaseMeasured(case_id=case_id) as fact:
            if any(done.case_id == case_id for done in run.measured):
                return run
            return replace(run, measured=(*run.measured, fact), case=None)
        case ev.Preempted():
            return replace(run, preempted=True)
        case ev.Diagnosed() as fact:
            return replace(run, diagnoses=(*run.diagnoses, fact))
        case ev.Finished() as fact:
            return replace(run, finished=fact, finished_at=event.time)
        case ev.VmExiting(outcome=outcome, exit_code=code):
            if run.finished is not None:
                return run
            return replace(run, finished=ev.Finished(outcome=outcome, exit_code=code), finished_at=event.time)
        case _:
            raise AssertionError(f"a kind of fact that the fold forgot: {event.fact.kind}")


def _attempt(event: ev.Event) -> int:
    tail = event.writer.rpartition("-")[2]
    return int(tail) if tail.isdigit() else 0


def _requested(vms: tuple[Vm, ...], fact: ev.InstanceRequested, at: datetime) -> tuple[Vm, ...]:
    if any(vm.request_id == fact.request_id for vm in vms):
        return vms
    vm = Vm(
        attempt=fact.attempt,
        name=fact.vm,
        zone=fact.zone,
        machine_type=fact.machine_type,
        provisioning=fact.provisioning,
        usd_per_hour=fact.usd_per_hour,
        max_run_s=fact.max_run_s,
        request_id=fact.request_id,
        requested_at=at,
    )
    return (*vms, vm)


def _refused(vms: tuple[Vm, ...], attempt: int, zone: str) -> tuple[Vm, ...]:
    return tuple(
        replace(vm, refused=True) if (vm.attempt, vm.zone) == (attempt, zone) and not vm.instance_id else vm
        for vm in vms
    )


def _created(vms: tuple[Vm, ...], fact: ev.InstanceCreated) -> tuple[Vm, ...]:
    return tuple(
        replace(
            vm,
            refused=False,
            instance_id=fact.instance_id,
            started_at=vm.started_at or fact.started_at,
            deadline_at=fact.deadline_at,
        )
        if (vm.name, vm.zone) == (fact.vm, fact.zone)
        else vm
        for vm in vms
    )


def _gone(vms: tuple[Vm, ...], fact: ev.InstanceGone) -> tuple[Vm, ...]:
    return tuple(
        replace(vm, gone_at=fact.ended_at, how=fact.how, started_at=vm.started_at or fact.started_at)
        if vm.name == fact.vm and vm.open
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
