"""Follows a fleet: each look records what its children did and starts again what is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from orchestrator.core.config.model import Config
from orchestrator.core.errors import BenchError
from orchestrator.core.fleet.jobs import (
    OVERLAP,
    ChildSeen,
    JobCost,
    JobSpec,
    JobStatus,
    PayloadRef,
    split_into_jobs,
    worst_case_usd,
)
from orchestrator.core.fleet.state import ATTEMPTS, ChildLine, FleetState, State, judge_retry
from orchestrator.core.fleet.sweep import Child, Sweep
from orchestrator.core.market.pricing import billed_usd, round_up
from orchestrator.core.names import FLEET_LABEL, JobName, Zone, job_name, runs_prefix
from orchestrator.core.naming import (
    BUCKET_LABEL,
    TOOL,
    TOOL_LABEL,
    USER_LABEL,
    bucket_label,
    hold_key,
    label_value,
)
from orchestrator.core.run import events as ev
from orchestrator.core.run.fold import MachineReport, Run, replay
from orchestrator.core.text import count
from orchestrator.ports import Scheduler
from orchestrator.runs.engine import World
from orchestrator.runs.fleet.hold import Purse, worked_s
from orchestrator.runs.fleet.planning import BatchPlacement, Orders
from orchestrator.runs.fleet.results import store_rows
from orchestrator.store.events import refuse_taken
from orchestrator.store.fleets import FleetControl, FleetRecord, FleetStore, JobRecord

# What is decided about a fleet on a scheduler, as changes of its `Control`, and its line in the list of fleets. Each
# is applied by compare-and-swap to what stands there then, which others may have changed in the meantime.


def cap_of(sweep: Sweep) -> str:
    """The beginning of the reason of a pause that a higher cap of the fleet ends."""
    return f"the fleet's cap of ${sweep.cap_usd}"


def with_jobs(control: FleetControl, jobs: Sequence[JobRecord], generation: int) -> FleetControl:
    """Jobs are about to be asked for under the hold of `generation`. As it was where the fleet has been stopped, paused
    or held anew in the meantime; without those whose number is taken."""
    if control.stopped or control.paused or control.generation != generation:
        return control
    there = {job.number for job in control.jobs}
    return control.model_copy(update={"jobs": (*control.jobs, *(job for job in jobs if job.number not in there))})


def end_control(control: FleetControl, **why: str) -> FleetControl:
    """Stops all jobs; `resume` starts new ones."""
    return control.model_copy(update={**why, "cancelled": next_job_number(control)})


def resume_control(control: FleetControl) -> FleetControl:
    """The fleet continues under its present hold."""
    return control.model_copy(update={"paused": "", "stopped": "", "persisted": True})


def held_anew(control: FleetControl, generation: int, held_at: datetime, ends_at: datetime) -> FleetControl:
    """It goes on under the hold of `generation`, which is taken next. As it was where that hold has been given back or
    overtaken."""
    if control.generation >= generation:
        return control
    number = next_job_number(control)
    fresh = {"generation": generation, "held_at": held_at, "ends_at": ends_at, "first_job": number, "cancelled": number}
    return resume_control(control).model_copy(update=fresh)


def mark_unheld(control: FleetControl, generation: int, why: str) -> FleetControl:
    """The hold of `generation` could not be taken. As it was where others have decided something about it since."""
    return end_control(control, paused=control.paused or why) if control.generation == generation else control


def next_job_number(control: FleetControl) -> int:
    """The number of the next job."""
    return max((job.number + 1 for job in control.jobs), default=0)


def fleet_summary(record: FleetRecord, state: FleetState, control: FleetControl) -> dict[str, str]:
    """The line of a fleet in the list of fleets."""
    counts = state.counts
    now = "stopped" if control.stopped else "paused" if control.paused else "open"
    return {
        "state": "over" if state.over else now,
        "engine": record.engine,
        "user": record.user,
        "created_at": record.created_at.isoformat(timespec="seconds"),
        "children": str(len(state.children)),
        "stored": str(counts["stored"] + counts["wrong"]),
        "given_up": str(counts["given_up"]),
        "hold_usd": str(record.hold_usd),
        "usd": str(state.usd),
    }


ENDINGS: Final = 30
"""How many times, two seconds apart, to check that the last machines are gone; after that, the next look settles."""
WRONG: Final = 10
READERS: Final = 8
STATES: Final[Mapping[str, State]] = {
    "queued": "waiting", "absent": "waiting", "running": "running", "lost": "lost", "failed": "failed",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FleetSighting:
    """The result of one look at a fleet."""

    state: FleetState
    control: FleetControl
    jobs: tuple[JobStatus, ...] = ()

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do or to wait for."""
        return self.state.over or (self.is_halted and self.idle)

    @property
    def is_halted(self) -> bool:
        return bool(self.control.stopped or self.control.paused)

    @property
    def idle(self) -> bool:
        """Whether every job has ended, machines and all."""
        return not any(job.state in ("queued", "running") for job in self.jobs)


@dataclass(slots=True)
class Follower:
    """Drives one fleet."""

    world: World
    store: FleetStore
    scheduler: Scheduler
    record: FleetRecord
    children: tuple[Child, ...]
    orders: Orders
    payload: Callable[[str], PayloadRef]
    """What machines run, by workload."""
    say: Callable[[str], None] = lambda _: None
    place: Callable[[Config, Decimal], BatchPlacement] | None = None
    """Where machines may be rented, for a scheduler that rents them."""
    _missing_since: dict[int, datetime] = field(default_factory=dict)
    _state: FleetState | None = None

    @property
    def purse(self) -> Purse:
        return Purse(self.world, self.record, self.say)

    def look(self) -> FleetSighting:
        """What the bucket says about the fleet, without asking its scheduler."""
        if self._state is None:
            self._state = self.store.state(self.children)
        return FleetSighting(self._state, self.store.control())

    def step(self, *, start: bool = True) -> FleetSighting:
        """Copies new results to the bucket, judges the children, starts what is missing (if `start`), and settles what
        is over."""
        seen = self.look()
        control = seen.control
        names = self._names(control)
        jobs_seen = self.scheduler.reconcile(self.record.fleet, names, [child.index for child in seen.state.open])
        with ThreadPoolExecutor(READERS) as pool:  # each that ended is read from the bucket
            lines = [line for line in pool.map(lambda one: self._line(one, seen.state), jobs_seen) if line is not None]
        state = self._tell(seen.state, lines)
        verdict = judge_retry(state, persisted=control.persisted, machines=self.scheduler.traits.machines)
        hopeless = verdict.given_up.items()
        state = self._tell(
            state, [replace(state.line(self.children[index]), state="given_up", reason=why) for index, why in hopeless]
        )
        awaited = self.purse.awaited(control)
        late = not awaited and self.world.clock.now() >= self._ends_at(control)
        why = verdict.pause or (self._over(control) if late else "")
        if why and not control.paused and not control.stopped and not state.over:
            control = self.pause(why)
        if start and not awaited and not control.paused and not control.stopped:
            control = self._start(state, control, jobs_seen, set(verdict.again))
        names = self._names(control)
        ended = state.over or bool(control.stopped or control.paused)
        after = FleetSighting(state, control, self._counts(names, over=ended))
        if after.over and (after.idle or self.scheduler.traits.machine_seconds is None):
            self.purse.settle(max(state.usd, self._machines_usd(names)), control.generation)
        self.store.list_as(fleet_summary(self.record, after.state, after.control))
        return after

    def follow(
        self, poll_s: float = 2.0, show: Callable[[FleetSighting], bool] = lambda _: True, *, start: bool = True
    ) -> FleetSighting:
        """Steps until the fleet is over, this process has nothing more to do for it, or `show` returns false. Raises
        what stops the whole fleet."""
        seen = self.step(start=start)
        while not seen.over and show(seen):
            if not start:
                self.world.clock.sleep(poll_s)
                self._state = None
            elif not self.scheduler.wait(poll_s, self):
                return self.look()
            seen = self.step(start=start)
        return seen

    def stop(self, by: str) -> FleetSighting:
        """Ends every job. What is stored stays, and `resume` continues with the rest."""
        control = self.store.decide(lambda one: end_control(one, stopped=one.stopped or by))
        self.scheduler.cancel(self._names(control))
        return self.step(start=False)

    def resume(self, *, wall: timedelta | None = None) -> FleetControl:
        """Goes on with a fleet that was paused or stopped, or that lost its client: what is stored is not measured
        again. Where its hold is settled, or its time is over, the rest is held anew. Raises `BudgetExceeded`."""
        state, control, now = self.look().state, self.store.control(), self.world.clock.now()
        entry = self.world.ledger.read().runs.get(hold_key(self.record.fleet, control.generation))
        lasts = wall or self.record.ends_at - self.record.created_at
        if self.scheduler.traits.is_here:  # each child holds its own
            return self.store.decide(lambda one: resume_control(one).model_copy(update={"ends_at": now + lasts}))
        settled = entry is None or entry.settled_usd is not None
        if not settled and now < self._ends_at(control):
            return self.store.decide(resume_control)
        counted, seconds = Counter(child.cell.gpu for child in state.open), int(lasts.total_seconds())
        most, margin = self.record.machines, self.record.price_margin
        usd = worst_case_usd(
            [
                JobCost(gpu, min(count, most.get(gpu, 1)), self._price(gpu), seconds, margin=margin)
                for gpu, count in counted.items()
            ]
        )
        return self._held_anew(usd, control.generation + 1, now, lasts)

    def _held_anew(self, usd: Decimal, generation: int, now: datetime, lasts: timedelta) -> FleetControl:
        """Says that the fleet goes on before money is held for it, so that whoever looks when this client is gone sees
        a fleet that `stop` ends and `resume` continues, whether or not its hold was taken. What is refused is refused
        before anything is said."""
        self.purse.check(usd, generation)
        control = self.store.decide(lambda one: held_anew(one, generation, now, now + lasts))
        try:
            self.purse.take(usd, generation, lasts)
        except BenchError as exc:
            why = f"no money could be held for it: {exc}"
            self.store.decide(lambda one: mark_unheld(one, generation, why[:300]))
            raise
        return control

    # --- what children did ---

    def _line(self, one: ChildSeen, state: FleetState) -> ChildLine | None:
        if self.scheduler.traits.is_here:
            return one.line
        child = self.children[one.index]
        known_line = state.line(child)
        attempt = max(one.attempt, known_line.attempt)
        if one.state == "succeeded" or (one.state in ("failed", "lost") and one.attempt > 0):
            return self._ended(child, replace(one, attempt=attempt), known_line)
        wanted = STATES[one.state]
        if wanted == "waiting" and known_line.state in ("failed", "lost", "stopped"):
            return None  # it will be started again; until then its last word stands
        return replace(known_line, state=wanted, attempt=attempt, machine=one.machine or known_line.machine)

    def _ended(self, child: Child, one: ChildSeen, known: ChildLine) -> ChildLine | None:
        """The line of an attempt that ended, from what its machine stored; with what only a client can say of it in
        the run's own log, so that a child is fetched and reported as any run is."""
        outcome: State = "stored" if one.state == "succeeded" else STATES[one.state]
        outcome = "wrong" if one.exit_code == WRONG else outcome
        if known.attempt == one.attempt and known.state == outcome:
            return None
        run_id = child.run_id(self.record.fleet)
        run = replay(self.world.log(run_id).read())
        price = self._price(child.cell.gpu)
        seconds = known.seconds + worked_s(run, one.attempt)
        failed = (one.machine,) if outcome == "failed" and one.machine else ()
        line = ChildLine(
            child=child.index,
            state=outcome,
            attempt=one.attempt,
            machine=one.machine,
            cases_done=run.cases_done if run is not None else 0,
            cases_total=len(self.orders.plan_for(child).cases) or (run.cases_total if run is not None else 0),
            usd=known.usd + (billed_usd(price, worked_s(run, one.attempt)) if price else Decimal(0)),
            seconds=seconds,
            reason="" if outcome == "stored" else one.reason,
            failed_on=tuple(sorted({*known.failed_on, *failed})),
            device=run.environment.device if run is not None and run.environment is not None else "",
        )
        if outcome in ("stored", "wrong"):
            self._record_run(child, run_id, run, one, price)
            store_rows(self.world.bucket, self.record.fleet, child)
        return line

    def _record_run(self, child: Child, run_id: str, run: Run | None, one: ChildSeen, price: Decimal) -> None:
        plan, log = self.orders.plan_for(child), self.world.log(run_id)
        if run is not None and run.closed is not None:
            return
        planned = ev.RunPlanned(
            gpu=child.cell.gpu,
            config=child.cell.title,
            user=self.record.user,
            mode=self.record.mode,
            ceiling_usd=Decimal(0),
            ttl_s=plan.ttl_s,
            attempts=ATTEMPTS,
            cases=len(plan.cases),
            measurements_per_implementation=plan.measurements_per_implementation,
            implementations=tuple(plan.harness["implementations"]),
        )
        attempts = []
        for attempt in range(1, one.attempt + 1):
            report = run.report_of(attempt) if run is not None else MachineReport(attempt)
            began = report.booted_at or self.record.created_at
            machine, ended = one.machine if attempt == one.attempt else "", report.last_word_at or began
            attempts.append(ev.ChildAttempt(attempt=attempt, machine=machine, started_at=began, ended_at=ended))
        log.read()
        log.append(
            ev.ChildFinished(
                fleet=self.record.fleet,
                engine=Zone(self.record.engine),
                child=child.index,
                outcome="incorrect" if one.exit_code == WRONG else "succeeded",
                usd_per_hour=price,
                attempts=tuple(attempts),
                plan=planned,
            )
        )

    def _tell(self, state: FleetState, lines: Sequence[ChildLine]) -> FleetState:
        self.store.write(lines)
        self._state = FleetState(state.children, {**state.lines, **self.store.known(lines)})
        return self._state

    # --- what is missing ---

    def pause(self, why: str) -> FleetControl:
        """Starts no more children until a person resumes the fleet."""
        self.say(f"paused: {why}")
        self.scheduler.cancel(self._names(self.store.control()))
        return self.store.decide(lambda one: end_control(one, paused=one.paused or why[:300]))

    def _names(self, control: FleetControl) -> list[JobName]:
        return [job_name(self.record.fleet, job.number) for job in control.jobs]

    def _over(self, control: FleetControl) -> str:
        """Why nothing more is asked for under the present hold."""
        if self.purse.holds(control.generation):
            return f"its {self.record.sweep.wall_minutes} minutes (wall_minutes) are over"
        return f"no money is held for it: `bench fleet resume {self.record.fleet}` holds it and continues"

    def _start(
        self, state: FleetState, control: FleetControl, found: Sequence[ChildSeen], again: set[int]
    ) -> FleetControl:
        """Submits jobs for the children that no job has: at first all of them; later those that failed, were lost, or
        were forgotten by the scheduler for longer than it may take to remember."""
        now = self.world.clock.now()
        ever = {index for job in control.jobs if job.number >= control.cancelled for index in job.children}
        word = {one.index: one.state for one in found}
        silent = {one.index for one in found if one.silent} & again
        due = []
        for child in state.open:
            busy = word.get(child.index) in ("queued", "running")
            waits = busy or not (child.index in silent or self._overdue(child.index, now, child.index in again))
            if child.index in ever and waits:
                if busy:
                    self._missing_since.pop(child.index, None)
                continue
            due.append(child)
        if not due or now >= self._ends_at(control):
            return control
        parallel = {**self.record.machines, **{job.gpu: job.parallel for job in control.jobs}}
        if not self.purse.holds(control.generation):
            return self.pause(self._over(control))
        number = next_job_number(control)
        fresh = [
            JobRecord(
                number=number + place,
                gpu=part[0].cell.gpu,
                children=tuple(child.index for child in part),
                parallel=parallel.get(part[0].cell.gpu, 1),
            )
            for place, part in enumerate(split_into_jobs(due, self.scheduler.most_children))
        ]
        # Noted before it is submitted: a client that dies in between leaves a name that the next one submits.
        control = self.store.decide(lambda one: with_jobs(one, fresh, control.generation))
        if noted := [job for job in fresh if job in control.jobs]:
            self.submit(state, control, noted)
        for child in due:
            self._missing_since.pop(child.index, None)
        return control

    def submit(self, state: FleetState, control: FleetControl, jobs: Sequence[JobRecord]) -> None:
        """Hands jobs to the scheduler. Those that it has already are left as they are. Where they cost money, what was
        decided in the bucket, where machines write too, gives them no more machines and no more time than is held."""
        ends_at = self._ends_at(control)
        if self.record.hold_usd:
            most = self.record.machines
            jobs = [job.model_copy(update={"parallel": min(job.parallel, most.get(job.gpu, 1))}) for job in jobs]
        for text in self.scheduler.submit([self._spec(state, job, ends_at) for job in jobs]):
            self.say(text)
        children = sum(len(job.children) for job in jobs)
        if not self.scheduler.traits.is_here:
            self.say(f"{count(children, 'child', 'children')} in {count(len(jobs), 'job')} on {self.scheduler.name}")

    def _spec(self, state: FleetState, job: JobRecord, ends_at: datetime) -> JobSpec:
        price = self._price(job.gpu)
        children = [self.children[index] for index in job.children if index < len(self.children)]
        orders = [self.orders.order(child, state.line(child).attempt + 1, price) for child in children]
        plans = [self.orders.plan_for(child) for child in children]
        return JobSpec(
            fleet=self.record.fleet,
            number=job.number,
            gpu=job.gpu,
            machine_type=plans[0].config.machine_type,
            children=tuple(orders),
            parallel=job.parallel,
            ends_at=ends_at,
            child_s=max(plan.ttl_s for plan in plans),
            payload=self.payload(children[0].cell.workload),
            usd_per_hour=price,
            labels={
                TOOL_LABEL: TOOL,
                FLEET_LABEL: self.record.fleet,
                USER_LABEL: label_value(self.record.user),
                BUCKET_LABEL: bucket_label(self.world.bucket.name),
            },
            **self._where(plans[0].config, price),
        )

    def _where(self, config: Config, price: Decimal) -> dict[str, Any]:
        """Where machines are rented: regions, and what a template says of them."""
        if self.place is None:
            return {}
        placement = self.place(config, price)
        return {"regions": placement.regions, "settings": placement.settings, "provisioning": placement.provisioning}

    def _counts(self, names: Sequence[JobName], *, over: bool) -> tuple[JobStatus, ...]:
        """What the scheduler says of the jobs. Where machines are rented and nothing is left for them to do, their jobs
        are ended, and that is waited for: money is given back when no machine can spend it."""
        counts = tuple(self.scheduler.counts(names))
        if not over or self.scheduler.traits.machine_seconds is None:
            return counts
        for _ in range(ENDINGS):
            if not (busy := [job.name for job in counts if job.state in ("queued", "running")]):
                break
            self.scheduler.cancel(busy)
            self.world.clock.sleep(2)
            counts = tuple(self.scheduler.counts(names))
        return counts

    def _machines_usd(self, names: Sequence[JobName]) -> Decimal:
        """The most that rented machines can have cost, whether they ran children or not."""
        lived_of = self.scheduler.traits.machine_seconds
        lived = lived_of(names) if lived_of is not None else {}
        exact = sum((Fraction(self._price(gpu)) * Fraction(seconds) for gpu, seconds in lived.items()), Fraction(0))
        return round_up(exact / 3600 * OVERLAP)

    def _overdue(self, index: int, now: datetime, again: bool) -> bool:
        since = self._missing_since.setdefault(index, now)
        patience = self.scheduler.traits.patience
        return now - since >= (patience if again else 2 * patience)

    def _price(self, gpu: str) -> Decimal:
        return self.record.usd_per_hour.get(gpu, Decimal(0))

    def _ends_at(self, control: FleetControl) -> datetime:
        """As the bucket says, where machines write too, and no later than what is held for it lasts."""
        ends_at = control.ends_at or self.record.ends_at
        return min(ends_at, self.purse.until(control.generation)) if self.record.hold_usd else ends_at


# Begins a fleet: stores its record, then holds its worst case, then lists it.


def record_fleet(store: FleetStore, record: FleetRecord, children: Sequence[Child], purse: Purse | None) -> None:
    """Stores a fleet and, with a `purse`, holds its worst case; nothing is started. The record comes before the hold,
    so that a client that dies between any two of these steps leaves no hold that says nothing of what it is for:
    `runs.reconcile` gives back the one of a fleet that never asked for a machine. Raises `BudgetExceeded`, and
    `ProviderError` if somebody has guessed the id and stored objects of its runs."""
    if purse is not None:
        purse.check(record.hold_usd)  # a fleet that is refused leaves nothing behind
    store.create(record, children)
    for gpu in sorted({child.cell.gpu for child in children}):
        refuse_taken(store.bucket, runs_prefix(record.fleet, gpu))
    if purse is not None:
        purse.take(record.hold_usd)
    store.list_as(fleet_summary(record, FleetState(tuple(children)), FleetControl()))
