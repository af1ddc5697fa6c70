"""The state of a run: its machines, what they said, what it has cost, and what a person asks of it.

What a machine says is kept by its attempt (`Told`): a machine that takes over from one that was taken back does not
inherit its last word. What ends a run is kept by its generation: a run that was over and is resumed goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Final

from orchestrator.core.market.pricing import accrued
from orchestrator.core.mode import Mode
from orchestrator.core.run import events as ev

VM_PHASES: Final = ("preflight", "environment", "build", "correctness", "measure", "finish")
"""The machine's own phases, in order."""


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
"""How a run can end."""


NO_FAULT: Final = frozenset({"preempted", "host_error", "lost", "never_made", "unanswered"})
"""Ways in which a machine can be gone that say nothing about what it ran."""


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
    generation: int = 0
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

    @property
    def used(self) -> bool:
        """Whether it counts as one of the machines that a run may use: unless the cloud itself says it made none."""
        return not self.refused and self.how != "never_made"

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
class Told:
    """What the machine of one attempt has said of itself."""

    attempt: int
    booted_at: datetime | None = None
    last_word_at: datetime | None = None
    measurement: ev.MeasurementPlanned | None = None
    case: ev.CaseStarted | None = None
    first_case_at: datetime | None = None
    measured: frozenset[str] = frozenset()
    """The ids of the cases that it said it had measured."""
    preempted: bool = False
    diagnosis: ev.Diagnosed | None = None
    """The last."""
    finished: ev.Finished | None = None
    finished_at: datetime | None = None
    kept: ev.Kept | None = None
    kept_at: datetime | None = None
    """Since when it waits for another run; a machine that was kept has done its own run."""
    work_done_at: datetime | None = None
    """When it first was kept."""
    lent_to: str = ""
    """The run that it is at now, while that is not its own."""

    @property
    def verdict(self) -> ev.Finished | None:
        """What its run came to: whatever became of a machine after it was kept says nothing about that."""
        if self.kept is None:
            return self.finished
        return ev.Finished(outcome=self.kept.outcome, exit_code=self.kept.exit_code, detail=self.kept.detail)

    @property
    def idle_until(self) -> datetime | None:
        """When a machine that waits is due to delete itself; None while it works."""
        if self.kept is None or self.kept_at is None or self.lent_to or self.finished is not None:
            return None
        return self.kept_at + timedelta(seconds=self.kept.idle_limit_s)


@dataclass(frozen=True, slots=True)
class Run:
    run_id: str
    created_at: datetime
    """When a client first said something."""
    updated_at: datetime
    """When a client last said something: a machine's clock, or what it pretends, moves no decision."""
    plan: ev.RunPlanned | None = None
    held: ev.BudgetHeld | None = None
    payload: ev.PayloadStored | None = None
    resumed: ev.RunResumed | None = None
    vms: tuple[Vm, ...] = ()
    taken: ev.MachineTaken | None = None
    taken_at: datetime | None = None
    taken_by: str = ""
    """Who said so: the client that claimed the machine, or, where it died first, the machine alone."""
    told: tuple[Told, ...] = ()
    """By attempt, ascending; the attempts that said anything."""
    exhausted: tuple[ev.ZoneExhausted, ...] = ()
    rejected: ev.InstanceRejected | None = None
    spans: tuple[PhaseSpan, ...] = ()
    heals: tuple[ev.Healed, ...] = ()
    gates: tuple[ev.GatePassed, ...] = ()
    environment: ev.EnvironmentRecorded | None = None
    build: ev.KernelBuilt | None = None
    wrong: tuple[ev.CaseChecked, ...] = ()
    """What was found wrong, each implementation and case once."""
    correctness: ev.CorrectnessFinished | None = None
    measured: tuple[ev.CaseMeasured, ...] = ()
    diagnoses: tuple[ev.Diagnosed, ...] = ()
    replaced: ev.ImageReplaced | None = None
    prepared: ev.ImagePrepared | None = None
    """Of a run that makes an image: its disk waits to be sealed."""
    sealing: ev.SealRequested | None = None
    """A client came to seal it."""
    stop: ev.StopRequested | None = None
    settled: ev.Settled | None = None
    closed: ev.RunClosed | None = None

    # --- machines ---

    @property
    def simulated(self) -> bool:
        """Whether its dollars are those of the embedded cloud."""
        return self.plan is not None and self.plan.mode == Mode.EMBEDDED

    @property
    def generation(self) -> int:
        return self.resumed.generation if self.resumed is not None else 0

    @property
    def image(self) -> str:
        """What its machines boot from, as a partial URL; empty where that is not known."""
        if self.replaced is not None and self.replaced.generation == self.generation:
            return self.replaced.instead
        return self.plan.image if self.plan is not None else ""

    @property
    def vm(self) -> Vm | None:
        """The machine of the run: one that may exist, else the last one asked for that was not refused."""
        asked = [vm for vm in self.vms if not vm.refused]
        return next((vm for vm in reversed(asked) if vm.open), asked[-1] if asked else None)

    @property
    def guest_of(self) -> ev.MachineTaken | None:
        """The machine of another run that this generation is measured on; None where it has its own."""
        taken = self.taken
        if any(vm.open for vm in self.vms):
            return None
        return taken if taken is not None and taken.generation == self.generation else None

    @property
    def kept(self) -> ev.Kept | None:
        """That the run is done and its machine is still there, waiting or at work for another run."""
        alive = self.vm is not None and self.vm.open and self.current.finished is None
        return self.current.kept if alive and self.closed is None else None

    @property
    def over(self) -> bool:
        """Closed, and no machine can be running under it."""
        return self.closed is not None and not any(vm.open for vm in self.vms)

    def said(self, attempt: int) -> Told:
        """What the machine of `attempt` said; nothing if it has not spoken."""
        return next((told for told in self.told if told.attempt == attempt), Told(attempt))

    @property
    def current(self) -> Told:
        """What the run's machine said: that of the attempt that is under way or was the last."""
        if self.vm is not None:
            return self.said(self.vm.attempt)
        return self.told[-1] if self.told else Told(0)

    @property
    def booted_at(self) -> datetime | None:
        return self.current.booted_at

    @property
    def last_word_at(self) -> datetime | None:
        """When the run's machine last said anything."""
        return self.current.last_word_at

    @property
    def finished(self) -> ev.Finished | None:
        return self.current.finished

    @property
    def finished_at(self) -> datetime | None:
        return self.current.finished_at

    @property
    def preempted(self) -> bool:
        return self.current.preempted

    @property
    def case(self) -> ev.CaseStarted | None:
        return self.current.case

    @property
    def measurement(self) -> ev.MeasurementPlanned | None:
        """What the last machine that came so far set out to measure."""
        return next((told.measurement for told in reversed(self.told) if told.measurement is not None), None)

    # --- attempts ---

    @property
    def next_attempt(self) -> int:
        taken = self.taken.attempt if self.taken is not None else 0
        return 1 + max((vm.attempt for vm in self.vms if not vm.refused), default=taken)

    @property
    def attempts_left(self) -> int:
        """How many more machines this generation may use."""
        allowed = self.resumed.attempts if self.resumed is not None else self.plan.attempts if self.plan else 1
        return max(allowed - sum(1 for vm in self.vms if vm.used and vm.generation == self.generation), 0)

    @property
    def taken_back(self) -> bool:
        """Whether the machine is gone through no fault of the run's, so that another one may go on."""
        vm, said = self.vm, self.current
        if vm is None or vm.gone_at is None or said.kept is not None:
            return False
        if said.finished is not None and said.finished.outcome != "preempted":
            return said.preempted and said.finished.outcome == "terminated"
        return said.preempted or said.finished is not None or vm.how in NO_FAULT

    @property
    def goes_on(self) -> bool:
        """Whether the next thing for this run is another machine."""
        if self.stop is not None or self.guest_of is not None:
            return False
        vm = self.vm
        if vm is None or vm.generation < self.generation:
            return True
        return self.taken_back and self.attempts_left > 0

    @property
    def goes_on_alone(self) -> bool:
        """Whether it comes to its end without the client that launched it: nobody else asks for its machines. What is
        left to do once it has one, or needs none, any client does."""
        vm = self.vm
        if self.closed is not None:
            return True
        if vm is not None and vm.open:
            return vm.started_at is not None or self.booted_at is not None
        return not self.goes_on

    # --- what a person asks ---

    @property
    def phase(self) -> Phase:
        if self.closed is not None:
            return Phase(self.closed.outcome) if self.closed.outcome in OUTCOMES else Phase.FAILED
        vm = self.vm
        if self.guest_of is not None:
            told = self.said(self.guest_of.attempt)
            at_work = Phase.RUNNING if told.booted_at is not None else Phase.BOOTING
            return Phase.FINISHING if told.finished is not None else at_work
        if self.kept is not None:
            return Phase.KEPT
        if vm is None:
            return Phase.PROVISIONING if self.vms else Phase.PLANNED
        if not vm.open and self.goes_on:
            return Phase.PROVISIONING
        if vm.gone_at is not None or self.finished is not None:
            return Phase.FINISHING
        if self.booted_at is not None:
            return Phase.RUNNING
        return Phase.BOOTING if vm.started_at is not None else Phase.PROVISIONING

    @property
    def vm_phase(self) -> str:
        """The machine's current phase, or the last it was in; empty before its first."""
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
        """How many cases are in the bucket.

        A machine may die between storing a case and saying so. The next one finds the file and leaves the case out, so
        what was done before it is its total less what it set out to measure. A client that closes the run counts files.
        """
        best = len(self.measured)
        for told in self.told:
            if told.measurement is not None:
                before = told.measurement.total - told.measurement.cases
                best = max(best, before + len(told.measured))
        if self.closed is not None and self.closed.cases_stored is not None:
            best = max(best, self.closed.cases_stored)
        return best

    # --- money ---

    @property
    def hold_usd(self) -> Decimal | None:
        """What is held for this generation; None while nothing is."""
        return self.held.hold_usd if self.held is not None and self.held.generation == self.generation else None

    @property
    def ceiling_usd(self) -> Decimal:
        return self.plan.ceiling_usd if self.plan else Decimal(0)

    def due(self, now: datetime) -> Decimal:
        """Dollars that the machines of this generation have cost until `now`: what its hold is settled with."""
        return sum((vm.cost(now) for vm in self.vms if vm.generation == self.generation), Decimal(0))

    def cost(self, now: datetime) -> Decimal:
        """Dollars spent on machines so far, all generations together: settled where it is, else accrued to `now`."""
        here = self.settled.cost_usd if self.settled is not None else self.due(now)
        return here + sum((vm.cost(now) for vm in self.vms if vm.generation < self.generation), Decimal(0))
