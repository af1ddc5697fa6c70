"""The scheduler of fleets whose children are ordinary runs, which this process drives.

Several children run at a time on rented machines; each host runs one at a time. Every child holds its own worst case,
and running children outlive the client. A host that cannot be reached for a minute is not used any more: its child goes
to another host as soon as one is free, or to the client that resumes the fleet. What the host stores nevertheless is
copied when it is reachable again, and changes nothing, because a case is created only once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from typing import Final, Protocol

from orchestrator.core.config.model import Config
from orchestrator.core.errors import (
    BenchError,
    BudgetExceeded,
    ConfigError,
    DocumentUnreadable,
    PermissionDenied,
    Unavailable,
)
from orchestrator.core.fleet.jobs import ChildSeen, ChildState, JobSpec, JobStatus, SchedulerTraits
from orchestrator.core.fleet.state import MACHINES, MEASURED, ChildLine, FleetState, State
from orchestrator.core.fleet.sweep import Child, SweepCell
from orchestrator.core.names import MOST_CHILDREN, FleetId, JobName
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.core.plan.resumption import resumed_on_hosts
from orchestrator.core.run.decide import RecordGone
from orchestrator.core.run.fold import Phase, Run, replay
from orchestrator.ports import FleetDriver, FleetProgress
from orchestrator.runs.engine import Engine, World
from orchestrator.runs.fleet.follow import cap_of
from orchestrator.runs.fleet.planning import chunk_plan
from orchestrator.runs.fleet.results import store_rows
from orchestrator.runs.launch import LaunchContext, PayloadSource, RunOrder, begin_launch
from orchestrator.runs.resume import resume_run, stored_plan
from orchestrator.store.fleets import FleetRecord, FleetStore

# How a client that drives the runs of a fleet leaves them at Ctrl-C, in steps.


def wait_with_interrupts(
    workers: Sequence[Future[None]], first: Callable[[], None], second: Callable[[], None]
) -> None:
    """Waits for the workers. Ctrl-C calls `first`; one that comes while that answers calls `second`."""
    while True:
        try:
            wait(workers)
        except KeyboardInterrupt:
            try:
                first()
            except KeyboardInterrupt:
                second()
        else:
            return


def follow_until(
    engine: Engine,
    left: threading.Event,
    watch: Callable[[Run], None] = lambda _: None,
    trouble: Callable[[Unavailable, float], None] = lambda _error, _pause: None,
    until: Callable[[Run], bool] = lambda _: False,
) -> Run:
    """The run as it is when it is over, when `until` says so, or once it is `left`, even if the cloud is silent."""

    def troubled(error: Unavailable, pause: float) -> None:
        trouble(error, pause)
        if left.is_set():
            raise error

    try:
        return engine.follow(watch=watch, trouble=troubled, until=lambda run: left.is_set() or until(run))
    except Unavailable:
        if not left.is_set():
            raise
        return engine.look()


OURS: Final = (BudgetExceeded, ConfigError, PermissionDenied, DocumentUnreadable)
"""Errors that stop the whole fleet, because the next child would meet them too."""
AGAIN_S: Final = 20.0
"""The pause before the next request for one child's machine: where there was none a moment ago, there is none now."""
LOOK_S: Final = 1.0
"""How often an idle host checks whether another host has left a child."""
ENDED: Final[dict[Phase, State]] = {
    Phase.SUCCEEDED: "stored",
    Phase.INCORRECT: "wrong",
    Phase.FAILED: "failed",
    Phase.STOPPED: "stopped",
}


class AgentSite(Protocol):
    """The connections of one worker."""

    def plan(self, config: Config, name: str) -> LaunchPlan: ...
    def world(self, config: Config) -> World: ...
    def where(self, plan: LaunchPlan) -> LaunchContext: ...
    def payload(self, config: Config) -> PayloadSource: ...


@dataclass(slots=True)
class Leaving:
    """How far the user has gone in leaving the runs of a fleet, one Ctrl-C after another."""

    stopping: threading.Event = field(default_factory=threading.Event)
    """No more children are started; those that run without this client are left running."""
    abandoned: threading.Event = field(default_factory=threading.Event)
    """Children that wait for a machine are stopped too."""
    given_up: threading.Event = field(default_factory=threading.Event)
    """The end of these is not waited for either: the next client ends them."""
    offer: Callable[[], None] = lambda: None
    """Called before another Ctrl-C is offered: it counts from then on."""


@dataclass(slots=True)
class LocalScheduler:
    """The `Scheduler` of one fleet whose children are runs of this process. `sites` makes a worker's view; `targets`
    are hosts, or as many empty names as machines may be rented at a time."""

    store: FleetStore
    record: FleetRecord
    children: tuple[Child, ...]
    configured: Callable[[SweepCell], Config]
    sites: Callable[[], AgentSite]
    targets: Sequence[str]
    world: Callable[[], World]
    say: Callable[[str], None] = lambda _: None
    leaving: Leaving = field(default_factory=Leaving)
    machines: int = MACHINES
    """How many there are, where they are not rented."""
    most_children: int = MOST_CHILDREN
    driver: FleetDriver | None = None
    """Who judges what has ended, while this process waits for it."""
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _state: FleetState | None = None
    _queue: set[int] = field(default_factory=set)
    _taken: set[int] = field(default_factory=set)
    _detached: set[int] = field(default_factory=set)
    """Children that this process has left: their run goes on alone, or somebody stopped it. `resume` continues them."""
    _away: set[str] = field(default_factory=set)
    """Hosts that are not used any more."""
    _held: dict[int, Decimal] = field(default_factory=dict)
    """What running children may cost."""
    _lines: dict[int, ChildLine] = field(default_factory=dict)
    """What the driver has not recorded yet."""
    _jobs: dict[JobName, frozenset[int]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.record.engine

    @property
    def traits(self) -> SchedulerTraits:
        return SchedulerTraits(is_here=True, machines=self.machines, patience=timedelta(0))

    def submit(self, jobs: Sequence[JobSpec]) -> Sequence[str]:
        with self._lock:
            for job in jobs:
                self._jobs[job.name] = frozenset(order.index for order in job.children)
                self._queue |= self._jobs[job.name] - self._taken
        return ()

    def counts(self, names: Sequence[JobName]) -> Sequence[JobStatus]:
        with self._lock:
            return [self._status(name) for name in names]

    def _status(self, name: JobName) -> JobStatus:
        children = self._jobs.get(name, frozenset())
        pending, running = len(children & self._queue), len(children & self._taken)
        return JobStatus(name, "running" if running else "queued" if pending else "absent", pending, running)

    def reconcile(self, fleet: FleetId, names: Sequence[JobName], indexes: Sequence[int]) -> Sequence[ChildSeen]:  # noqa: ARG002
        """What the runs of this process have come to since the last call, and which children it has in hand."""
        with self._lock:
            lines, self._lines = self._lines, {}
            states: dict[int, ChildState] = dict.fromkeys(self._taken | self._detached, "running")
            states |= dict.fromkeys(self._queue, "queued")
            seen = {*indexes} & {*states, *lines}
            return [ChildSeen(index, states.get(index, "absent"), line=lines.get(index)) for index in sorted(seen)]

    def cancel(self, names: Sequence[JobName]) -> None:  # noqa: ARG002
        """Starts no more children. Those that run go on to their end, unless the fleet was stopped: then their machines
        are deleted, whichever client started them."""
        with self._lock:
            self._queue.clear()
        control = self.store.control()
        if not control.stopped:
            return
        self._state, world = self.store.state(self.children), self.world()
        for child in self._state.open:
            if self._line(child).state != "running":
                continue
            engine = Engine(world, child.run_id(self.record.fleet))
            engine.request_stop(control.stopped, f"{self.record.fleet} was stopped")
            host = self._line(child).machine if any(self.targets) else ""
            self._lines[child.index] = self._line_of(child, engine.follow(), world, host)

    def wait(self, seconds: float, driver: FleetDriver) -> bool:  # noqa: ARG002 - it ends when its children do
        """Measures what was submitted, until the fleet ends, pauses or is stopped. Raises what stops the whole
        fleet."""
        failures: list[BaseException] = []
        self.driver, leaving = driver, self.leaving
        self._look()
        with ThreadPoolExecutor(len(self.targets)) as pool:
            try:
                futures = [pool.submit(self._work, target) for target in self.targets]
                wait_with_interrupts(futures, self._interrupted, leaving.abandoned.set)
            except KeyboardInterrupt:  # at a moment in which it was not waited: the workers end all the same
                leaving.stopping.set()
                leaving.abandoned.set()
                raise
            for future in futures:
                try:
                    future.result()
                except BenchError as exc:
                    failures.append(exc)
        self._queue.clear()
        if failures and not self._look().state.over and not leaving.stopping.is_set():
            raise failures[0]
        return False

    def _interrupted(self) -> None:
        leaving = self.leaving
        if leaving.abandoned.is_set():
            leaving.given_up.set()
            self.say(f"what is not over yet is left: `bench fleet stop {self.record.fleet}` ends it")
            return
        if leaving.stopping.is_set():
            leaving.abandoned.set()
            return
        leaving.stopping.set()
        leaving.offer()
        waits = "; waiting for machines that were requested; Ctrl-C again ends their runs"
        self.say(f"detached; running children continue{'' if any(self.targets) else waits}")

    def _look(self) -> FleetProgress:
        """Has the driver record and judge what is known now."""
        assert self.driver is not None
        with self._lock:
            progress = self.driver.step(start=not self.leaving.stopping.is_set())
            self._state = progress.state
            if progress.is_halted:
                self._queue.clear()
            return progress

    def _work(self, target: str) -> None:
        site = self.sites()
        while not self.leaving.stopping.is_set():
            child = self._next(target)
            if child is None and not self._may_come(target):
                return
            if child is None:
                self.store.clock.sleep(LOOK_S)
                continue
            try:
                self._measure(site, child, target)
            except OURS as exc:
                assert self.driver is not None
                with self._lock:
                    self.driver.pause(str(exc))
                    self._queue.clear()
                raise
            except BenchError as exc:
                line = self._line(child)
                if target:  # the others, or `resume`, have its chunk
                    self.say(f"{target} is not used any more: {exc}")
                    with self._lock:
                        self._away.add(target)
                        self._lines[child.index] = replace(line, state="lost", reason=str(exc))
                    return
                self.say(f"child {child.index}: {exc}")
                self._lines[child.index] = replace(line, state="lost", attempt=line.attempt + 1, reason=str(exc))
            finally:
                with self._lock:
                    self._taken.discard(child.index)
                    self._held.pop(child.index, None)
                    self._look()

    def _next(self, target: str) -> Child | None:
        """Takes the next child of the queue: first what is under way without a client, then what was never tried, then
        what is tried again. What is under way on another host that takes part is that host's; what failed on this one
        is for those that have not tried it."""
        with self._lock:
            self._look()
            others = set(self.targets) - self._away - {target}
            free = [
                child
                for child in map(self.children.__getitem__, self._queue)
                if not (target and self._is_for_others(child, target, others))
            ]
            if not free:
                return None
            child = min(free, key=self._rank)
            self._queue.discard(child.index)
            self._taken.add(child.index)
            return child

    def _is_for_others(self, child: Child, target: str, others: set[str]) -> bool:
        line = self._line(child)
        if line.state == "failed":
            return target in line.failed_on and bool(others - {*line.failed_on})
        return line.machine in others

    def _rank(self, child: Child) -> tuple[bool, bool, int]:
        line = self._line(child)
        return line.state != "running", line.attempt > 0, child.index

    def _may_come(self, target: str) -> bool:
        """Whether an idle host may still get a child: one of another host, if that host dies."""
        with self._lock:
            here = set(self.targets) - self._away
            waiting = [
                child for child in map(self.children.__getitem__, self._queue) if self._line(child).machine in here
            ]
            return bool(target and (self._taken or waiting))

    def _measure(self, site: AgentSite, child: Child, target: str) -> None:
        """Drives one child to the end of its run, also one that another client began."""
        config = self.configured(child.cell)
        if target:
            config = config.model_copy(update={"host": config.host.model_copy(update={"targets": (target,)})})
        world, run_id = site.world(config), child.run_id(self.record.fleet)
        run = replay(world.log(run_id).read())
        run = None if run is not None and run.is_unlaunched else run
        if run is not None and run.closed is not None and run.phase in (Phase.SUCCEEDED, Phase.INCORRECT):
            self._report(self._line_of(child, run, world))
            return
        if target and run is not None and run.closed is None and self._line(child).machine == target:
            # Not looked at anew: it is busy, with this very run.
            plan = resumed_on_hosts(config, stored_plan(world.bucket, run_id))
        else:
            plan = chunk_plan(site.plan(config, child.cell.title), child)
        where = site.where(plan)
        self._afford(child, plan)
        if run is not None and run.phase is Phase.REFUSED:
            detail = run.closed.detail if run.closed is not None else ""
            why = f"it was refused: {detail}; `bench fleet launch` measures it in a new fleet"
            self._report(replace(self._line(child), state="given_up", reason=why))
            return
        before = self._line(child)
        if before.state in ("lost", "failed") and before.attempt > 0 and target in ("", before.machine):
            self.store.clock.sleep(AGAIN_S)
        if target and run is not None:
            run = self._without_machine(world, run, plan)
        if run is None:
            engine = begin_launch(world, RunOrder(run_id, plan, site.payload(config), where), cold=True)
        else:
            engine = resume_run(world, plan, run_id=run_id, where=where, fresh=lambda: site.payload(config))
        at = target or before.machine
        self._report(
            replace(before, state="running", attempt=before.attempt + 1, machine=at, cases_total=len(plan.cases))
        )
        ended = self._follow_run(engine, target, where.user)
        if ended.closed is None:
            self._detached.add(child.index)
        else:
            line = self._line_of(child, ended, world, target)
            if line.state == "stopped":
                self._detached.add(child.index)
            if line.state in MEASURED:
                store_rows(self.store.bucket, self.record.fleet, child)
            self._report(line)
            self.say(f"child {child.index}  {child.cell.gpu}  {child.cell.title}  {line.state}  ${line.usd}")

    def _follow_run(self, engine: Engine, target: str, user: str) -> Run:
        """The run to its end, or to where it goes on by itself. Raises `Unavailable` if its host could not be
        reached for too long."""
        away = 0.0

        def trouble(exc: Unavailable, pause: float) -> None:
            nonlocal away
            away += pause
            if target and away >= engine.world.policy.host_patience_s:
                raise exc

        def reached(_: Run) -> None:
            nonlocal away
            away = 0.0

        def left(run: Run) -> bool:
            return self.leaving.stopping.is_set() and run.goes_on_alone

        run = follow_until(engine, self.leaving.abandoned, reached, trouble, left)
        if run.goes_on_alone:
            return run
        engine.request_stop(user, "interrupted before a machine existed")
        return follow_until(engine, self.leaving.given_up)

    def _without_machine(self, world: World, run: Run, plan: LaunchPlan) -> Run | None:
        """The run without its machine on another host, which takes no more part. Its cost is counted to its deadline:
        it cannot be ended there."""
        vm = run.vm
        if run.closed is not None or vm is None or not vm.open or vm.zone == plan.offers[0].zone:
            return run
        log = world.log(run.run_id)
        log.read()
        log.append(RecordGone(vm, vm.deadline_at or vm.requested_at, "lost", None).fact)
        return replay(log.read())

    def _line_of(self, child: Child, run: Run, world: World, target: str = "") -> ChildLine:
        before, vm = self._line(child), run.vm
        state: State = ENDED.get(run.phase, "lost")
        machine = target or (vm.name if vm is not None else "")
        detail = run.closed.detail if run.closed is not None else ""
        why = f"{run.diagnoses[-1].cause}: {run.diagnoses[-1].detail}" if run.diagnoses else detail
        return ChildLine(
            child=child.index,
            state=state,
            attempt=max(before.attempt, 1),
            machine=machine,
            cases_done=run.cases_done,
            cases_total=run.cases_total,
            usd=run.cost(world.clock.now()),
            seconds=max(0, int((run.updated_at - run.created_at).total_seconds())),
            reason="" if state == "stored" else why,
            failed_on=tuple(sorted({*before.failed_on, *([machine] if machine and state == "failed" else [])})),
            device=run.environment.device if run.environment is not None else "",
        )

    def _afford(self, child: Child, plan: LaunchPlan) -> None:
        """Raises `BudgetExceeded` if the child's worst case does not fit under the fleet's own cap."""
        cap = self.record.sweep.cap_usd
        with self._lock:
            assert self._state is not None
            open_now = sum(self._held.values(), Decimal(0))
            running = sum((self._line(self.children[index]).usd for index in self._held), Decimal(0))
            spent = self._state.usd - running
            if cap is not None and spent + open_now + plan.ceiling_usd > cap:
                raise BudgetExceeded(
                    f"{cap_of(self.record.sweep)} has ${spent} spent and ${open_now} held; child {child.index} needs "
                    f"${plan.ceiling_usd}",
                    hint=f"`bench fleet resume {self.record.fleet} --cap USD` continues under another",
                )
            self._held[child.index] = plan.ceiling_usd

    def _line(self, child: Child) -> ChildLine:
        assert self._state is not None
        return self._lines.get(child.index) or self._state.line(child)

    def _report(self, line: ChildLine) -> None:
        with self._lock:
            self._lines[line.child] = line
            self._look()
