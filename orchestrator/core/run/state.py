"""The state of a run: its machines, what they reported, what it has cost, and what is shown to the user.

What a machine reports is stored by its attempt (`MachineReport`), so that a machine that replaces a preempted one does
not inherit its reports. What ends a run is stored by its generation, so that a resumed run goes on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Final

from orchestrator.core.market.pricing import accrued_usd
from orchestrator.core.names import NO_ID, MachineName, ResourceId, Zone
from orchestrator.core.naming import Mode
from orchestrator.core.run import events as ev

VM_PHASES: Final = ("preflight", "environment", "build", "correctness", "measure", "finish")
"""The phases of the work on a machine, in order."""


class Phase(StrEnum):
    PLANNED = "planned"
    PROVISIONING = "provisioning"
    BOOTING = "booting"
    RUNNING = "running"
    KEPT = "kept"
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
"""The phases in which a run has ended."""


NO_FAULT: Final = frozenset({"preempted", "host_error", "lost", "never_made", "unanswered"})
"""Values of `Vm.how` that say that the machine's end was not caused by what it ran."""


@dataclass(frozen=True, slots=True)
class Vm:
    """One request for a machine, and the machine's state. An attempt may send requests in several zones; at most one of
    them makes a machine."""

    attempt: int
    name: MachineName
    zone: Zone
    machine_type: str
    provisioning: str
    usd_per_hour: Decimal
    max_run_s: int
    request_id: str
    requested_at: datetime
    generation: int = 0
    refused: bool = False
    instance_id: ResourceId = NO_ID
    started_at: datetime | None = None
    deadline_at: datetime | None = None
    gone_at: datetime | None = None
    how: str = ""
    queue_s: int = 0
    """How many seconds it may wait for capacity, if it is a flex-start machine."""
    queued_until: datetime | None = None
    """When it leaves the cloud's queue, if it was seen to wait there."""

    @property
    def queued(self) -> bool:
        """Whether it waits in the cloud's queue, as far as is known. It costs nothing then."""
        return self.open and self.queued_until is not None and self.started_at is None

    @property
    def open(self) -> bool:
        """Whether a machine may exist under this request."""
        return not self.refused and self.gone_at is None

    @property
    def used(self) -> bool:
        """Whether it counts as one of the machines that a run may use. It does not if the cloud says that it made
        none."""
        return not self.refused and self.how != "never_made"

    def cost(self, now: datetime) -> Decimal:
        """The dollars that the machine has cost until `now` or its end; 0 if it never ran."""
        if self.started_at is None:
            return Decimal(0)
        return accrued_usd(self.usd_per_hour, self.started_at, max(self.gone_at or now, self.started_at))


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
class MachineReport:
    """What the machine of one attempt has reported."""

    attempt: int
    booted_at: datetime | None = None
    last_word_at: datetime | None = None
    measurement: ev.MeasurementPlanned | None = None
    cases: tuple[ev.CaseStarted, ...] = ()  # those that it is measuring
    observed: ev.CaseObserved | None = None
    """Where it was when it last said so, in the present phase or case."""
    first_case_at: datetime | None = None
    measured: frozenset[str] = frozenset()
    """The ids of the cases that it reported as measured."""
    preempted: bool = False
    diagnosis: ev.Diagnosed | None = None
    """Its last diagnosis."""
    finished: ev.Finished | None = None
    finished_at: datetime | None = None
    kept: ev.Kept | None = None
    kept_at: datetime | None = None
    """Since when it waits for another run. A machine that was kept has finished its own run."""
    work_done_at: datetime | None = None
    """When it was kept for the first time."""
    lent_to: str = ""
    """The other run on which it works now; empty if there is none."""

    @property
    def verdict(self) -> ev.Finished | None:
        """The result of its own run. The machine's end does not change it if the machine was kept before."""
        if self.kept is None:
            return self.finished
        return ev.Finished(outcome=self.kept.outcome, exit_code=self.kept.exit_code, detail=self.kept.detail)

    @property
    def idle_until(self) -> datetime | None:
        """When a waiting machine must delete itself; None while it works."""
        if self.kept is None or self.kept_at is None or self.lent_to or self.finished is not None:
            return None
        return self.kept_at + timedelta(seconds=self.kept.idle_limit_s)


@dataclass(frozen=True, slots=True)
class Run:
    run_id: str
    created_at: datetime
    """The time of the first event of a client."""
    updated_at: datetime
    """The time of the last event of a client. Times that machines report do not count: they may be wrong."""
    plan: ev.RunPlanned | None = None
    held: ev.BudgetHeld | None = None
    payload: ev.PayloadStored | None = None
    resumed: ev.RunResumed | None = None
    vms: tuple[Vm, ...] = ()
    taken: ev.MachineTaken | None = None
    taken_at: datetime | None = None
    taken_by: str = ""
    """The writer of `taken`: the client that claimed the machine, or only the machine if the client died first."""
    claim: ev.MachineTaken | None = None
    """What only a machine says about being taken. It counts as `taken` once the log of its owner confirms it
    (`runs.engine.with_confirmed_claim`)."""
    claim_at: datetime | None = None
    claim_by: str = ""
    reports: tuple[MachineReport, ...] = ()
    """The reports of each attempt that has written any event, by ascending attempt."""
    exhausted: tuple[ev.ZoneExhausted, ...] = ()
    rejected: ev.InstanceRejected | None = None
    awaited: ev.CapacityAwaited | None = None
    """The last wait for capacity, of any generation."""
    spans: tuple[PhaseSpan, ...] = ()
    heals: tuple[ev.Healed, ...] = ()
    gates: tuple[ev.GatePassed, ...] = ()
    environment: ev.EnvironmentRecorded | None = None
    build: ev.KernelBuilt | None = None
    wrong: tuple[ev.CaseChecked, ...] = ()
    """The checks that found an implementation wrong, each implementation and case once."""
    correctness: ev.CorrectnessFinished | None = None
    measured: tuple[ev.CaseMeasured, ...] = ()
    diagnoses: tuple[ev.Diagnosed, ...] = ()
    replaced: ev.ImageReplaced | None = None
    prepared: ev.ImagePrepared | None = None
    """Of a run that makes an image: the disk is ready to be sealed."""
    sealing: ev.SealRequested | None = None
    """Of a run that makes an image: a client is about to seal the disk."""
    stop: ev.StopRequested | None = None
    settled: ev.Settled | None = None
    closed: ev.RunClosed | None = None

    # --- machines ---

    @property
    def simulated(self) -> bool:
        """Whether its dollars are simulated ones of the embedded cloud."""
        return self.plan is not None and self.plan.mode == Mode.EMBEDDED

    @property
    def generation(self) -> int:
        return self.resumed.generation if self.resumed is not None else 0

    @property
    def image(self) -> str:
        """The image from which its machines boot, as a partial URL; empty if it is not known."""
        if self.replaced is not None and self.replaced.generation == self.generation:
            return self.replaced.instead
        return self.plan.image if self.plan is not None else ""

    @property
    def vm(self) -> Vm | None:
        """The machine of the run: one that may exist, else the last one that was requested and not refused."""
        requested = [vm for vm in self.vms if not vm.refused]
        return next((vm for vm in reversed(requested) if vm.open), requested[-1] if requested else None)

    @property
    def is_unlaunched(self) -> bool:
        """Whether no client has planned the run, held money for it or requested a machine, as far as its log says: only
        machines wrote."""
        return self.plan is None and self.held is None and not self.vms

    @property
    def guest_of(self) -> ev.MachineTaken | None:
        """The machine of another run on which this generation is measured; None if it has its own."""
        taken = self.taken
        if any(vm.open for vm in self.vms):
            return None
        return taken if taken is not None and taken.generation == self.generation else None

    @property
    def kept(self) -> ev.Kept | None:
        """The fact that the run is done and its machine still exists, waiting or at work for another run; else None."""
        alive = self.vm is not None and self.vm.open and self.current.finished is None
        return self.current.kept if alive and self.closed is None else None

    @property
    def over(self) -> bool:
        """Whether it is closed and none of its machines can be running."""
        return self.closed is not None and not any(vm.open for vm in self.vms)

    def report_of(self, attempt: int) -> MachineReport:
        """What the machine of `attempt` reported; an empty report if it has written nothing."""
        return next((report for report in self.reports if report.attempt == attempt), MachineReport(attempt))

    @property
    def current(self) -> MachineReport:
        """What the run's machine reported: that of the present attempt, or of the last one."""
        if self.vm is not None:
            return self.report_of(self.vm.attempt)
        return self.reports[-1] if self.reports else MachineReport(0)

    @property
    def measurement(self) -> ev.MeasurementPlanned | None:
        """What the last machine that reached the phase `measure` was about to measure."""
        return next((report.measurement for report in reversed(self.reports) if report.measurement is not None), None)

    # --- attempts ---

    @property
    def round(self) -> int:
        """The round of requests in this generation; 0 until a client waits for capacity."""
        return self.awaited.round if self.awaited is not None and self.awaited.generation == self.generation else 0

    @property
    def waiting(self) -> ev.CapacityAwaited | None:
        """The wait for capacity if the run has no machine because of it; else None."""
        return self.awaited if self.round and self.closed is None and self.goes_on else None

    @property
    def next_attempt(self) -> int:
        taken = self.taken.attempt if self.taken is not None else 0
        return 1 + max((vm.attempt for vm in self.vms if not vm.refused), default=taken)

    @property
    def attempts_left(self) -> int:
        """The number of further machines that this generation may use."""
        allowed = self.resumed.attempts if self.resumed is not None else self.plan.attempts if self.plan else 1
        return max(allowed - sum(1 for vm in self.vms if vm.used and vm.generation == self.generation), 0)

    @property
    def taken_back(self) -> bool:
        """Whether the machine's end was not caused by the run, so that another machine may continue it."""
        vm, report = self.vm, self.current
        if vm is None or vm.gone_at is None or report.kept is not None:
            return False
        if report.finished is not None and report.finished.outcome != "preempted":
            return report.preempted and report.finished.outcome == "terminated"
        return report.preempted or report.finished is not None or vm.how in NO_FAULT

    @property
    def goes_on(self) -> bool:
        """Whether the run needs another machine next."""
        if self.stop is not None or self.guest_of is not None:
            return False
        vm = self.vm
        if vm is None or vm.generation < self.generation:
            return True
        return self.taken_back and self.attempts_left > 0

    @property
    def goes_on_alone(self) -> bool:
        """Whether the run will end without the client that launched it. Only that client requests its machines. Once
        the run has a machine, or needs no other, any client can do the rest."""
        vm = self.vm
        if self.closed is not None:
            return True
        if vm is not None and vm.open:
            return vm.started_at is not None or self.current.booted_at is not None or vm.queued
        return not self.goes_on

    # --- what is shown to the user ---

    @property
    def phase(self) -> Phase:
        if self.closed is not None:
            return Phase(self.closed.outcome) if self.closed.outcome in OUTCOMES else Phase.FAILED
        vm = self.vm
        if self.guest_of is not None:
            report = self.report_of(self.guest_of.attempt)
            at_work = Phase.RUNNING if report.booted_at is not None else Phase.BOOTING
            return Phase.FINISHING if report.finished is not None else at_work
        if self.kept is not None:
            return Phase.KEPT
        if vm is None:
            return Phase.PROVISIONING if self.vms else Phase.PLANNED
        if not vm.open and self.goes_on:
            return Phase.PROVISIONING
        if vm.gone_at is not None or self.current.finished is not None:
            return Phase.FINISHING
        if self.current.booted_at is not None:
            return Phase.RUNNING
        return Phase.BOOTING if vm.started_at is not None else Phase.PROVISIONING

    @property
    def vm_phase(self) -> str:
        """The machine's present phase, or its last one; empty before the first."""
        attempt = self.vm.attempt if self.vm is not None else None
        spans = [span for span in self.spans if attempt in (None, span.attempt)]
        return spans[-1].phase if spans else ""

    @property
    def cases_total(self) -> int:
        if self.measurement is not None:
            return self.measurement.total
        return self.plan.cases if self.plan else 0

    @property
    def cases_done(self) -> int:
        """How many cases are in the bucket, as far as the events show.

        A machine may die between storing a case and reporting it. The next machine finds the file and leaves the case
        out, so the number of cases before it is its total minus what it was about to measure. A client that closes the
        run counts the files.
        """
        done = len(self.measured)
        for report in self.reports:
            if report.measurement is not None:
                before = report.measurement.total - report.measurement.cases
                done = max(done, before + len(report.measured))
        if self.closed is not None and self.closed.cases_stored is not None:
            done = max(done, self.closed.cases_stored)
        return done

    # --- money ---

    @property
    def hold_usd(self) -> Decimal | None:
        """The dollars that are held for this generation; None if nothing is held."""
        return self.held.hold_usd if self.held is not None and self.held.generation == self.generation else None

    @property
    def ceiling_usd(self) -> Decimal:
        return self.plan.ceiling_usd if self.plan else Decimal(0)

    def due(self, now: datetime) -> Decimal:
        """The dollars that the machines of this generation have cost until `now`. Its hold is settled with this
        amount."""
        return sum((vm.cost(now) for vm in self.vms if vm.generation == self.generation), Decimal(0))

    def cost(self, now: datetime) -> Decimal:
        """The dollars spent on machines so far in all generations. This generation counts with its settlement, or with
        its cost until `now` if it is not settled."""
        of_generation = self.settled.cost_usd if self.settled is not None else self.due(now)
        return of_generation + sum((vm.cost(now) for vm in self.vms if vm.generation < self.generation), Decimal(0))
