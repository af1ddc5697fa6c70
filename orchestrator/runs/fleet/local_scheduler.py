"""A fleet as ordinary runs, one for each child, driven by this process.

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
from orchestrator.core.fleet.children import Child, SweepCell
from orchestrator.core.fleet.names import child_run
from orchestrator.core.fleet.state import MACHINES, MEASURED, ChildLine, FleetState, State, judge_retry
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.core.plan.resumption import resumed_on_hosts
from orchestrator.core.run.decide import RecordGone
from orchestrator.core.run.fold import Phase, Run, replay
from orchestrator.runs.engine import Engine, World
from orchestrator.runs.fleet.follow import FleetSighting, cap_of, fleet_summary
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
class RunFleet:
    """Drives one fleet. `sites` makes a worker's view; `targets` are hosts, or as many empty names as machines may be
    rented at a time."""

    store: FleetStore
    record: FleetRecord
    children: tuple[Child, ...]
    configured: Callable[[SweepCell], Config]
    sites: Callable[[], AgentSite]
    targets: Sequence[str]
    world: Callable[[], World]
    say: Callable[[str], None] = lambda _: None
    stopping: threading.Event = field(default_factory=threading.Event)
    """No more children are started; those that run without this client are left running."""
    abandoned: threading.Event = field(default_factory=threading.Event)
    """Children that wait for a machine are stopped too."""
    given_up: threading.Event = field(default_factory=threading.Event)
    """That these are over is not waited for either: whoever looks next ends them."""
    offer: Callable[[], None] = lambda: None
    """Called before another Ctrl-C is offered: it counts from then on."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _state: FleetState | None = None
    _taken: set[int] = field(default_factory=set)
    _left: set[int] = field(default_factory=set)
    """Children whose run somebody stopped meanwhile: `resume` continues them."""
    _away: set[str] = field(default_factory=set)
    """Hosts that are not used any more."""
    _held: dict[int, Decimal] = field(default_factory=dict)
    """What running children may cost."""

    def look(self) -> FleetSighting:
        if self._state is None:
            self._state = self.store.state(self.children)
        return FleetSighting(self._state, self.store.control())

    def follow(self) -> FleetSighting:
        """Measures the open children until the fleet ends, pauses or is stopped. Raises what stops the whole fleet."""
        self.look()
        failures: list[BaseException] = []
        with ThreadPoolExecutor(len(self.targets)) as pool:
            try:
                futures = [pool.submit(self._work, target) for target in self.targets]
                wait_with_interrupts(futures, self._interrupted, self.abandoned.set)
            except KeyboardInterrupt:  # at a moment in which it was not waited: the workers end all the same
                self.stopping.set()
                self.abandoned.set()
                raise
            for future in futures:
                try:
                    future.result()
                except BenchError as exc:
                    failures.append(exc)
        seen = self.look()
        self.store.list_as(fleet_summary(self.record, seen.state, seen.control))
        if failures and not seen.state.over and not self.stopping.is_set():
            raise failures[0]
        return seen

    def _interrupted(self) -> None:
        if self.abandoned.is_set():
            self.given_up.set()
            self.say(f"what is not over yet is left: `bench fleet stop {self.record.fleet}` ends it")
            return
        if self.stopping.is_set():
            self.abandoned.set()
            return
        self.stopping.set()
        self.offer()
        waits = "; waiting for machines that were requested; Ctrl-C again ends their runs"
        self.say(f"detached; running children continue{'' if any(self.targets) else waits}")

    def step(self) -> FleetSighting:
        """What the bucket says now. Only `follow` starts children of such a fleet."""
        self._state = None
        return self.look()

    def resume(self, *, wall: timedelta | None = None) -> None:
        """End a pause or a stop; `follow` measures the rest, for `wall` or for as long as the fleet was to last."""
        ends_at = self.store.clock.now() + (wall or self.record.ends_at - self.record.created_at)
        fresh = {"paused": "", "stopped": "", "persisted": True, "ends_at": ends_at}
        self.store.decide(lambda one: one.model_copy(update=fresh))

    def stop(self, by: str) -> FleetSighting:
        """Stops the fleet for every client: no more children are started, and machines are deleted. What is stored
        stays."""
        world = self.world()
        self.store.decide(lambda one: one.model_copy(update={"stopped": one.stopped or by}))
        for child in self.look().state.open:
            run_id = child_run(self.record.fleet, child.cell.gpu, child.index)
            if self._line(child).state != "running":
                continue
            engine = Engine(world, run_id)
            engine.request_stop(by, f"{self.record.fleet} was stopped")
            host = self._line(child).machine if any(self.targets) else ""
            self._tell(self._told(child, engine.follow(), world, host))
        seen = self.look()
        self.store.list_as(fleet_summary(self.record, seen.state, seen.control))
        return seen

    def _work(self, target: str) -> None:
        site = self.sites()
        while not self.stopping.is_set():
            child = self._next(target)
            if child is None and not self._may_come(target):
                return
            if child is None:
                self.store.clock.sleep(LOOK_S)
                continue
            try:
                self._measure(site, child, target)
            except OURS as exc:
                self._pause(str(exc))
                raise
            except BenchError as exc:
                if target:  # the others, or `resume`, have its chunk
                    self.say(f"{target} is not used any more: {exc}")
                    self._tell(replace(self._line(child), state="lost", reason=str(exc)))
                    with self._lock:
                        self._away.add(target)
                    return
                line = self._line(child)
                self._tell(replace(line, state="lost", attempt=line.attempt + 1, reason=str(exc)))
                self.say(f"child {child.index}: {exc}")
            finally:
                with self._lock:
                    self._taken.discard(child.index)
                    self._held.pop(child.index, None)
            self._judge()

    def _next(self, target: str) -> Child | None:
        """The next child that is nobody's: first what is under way without a client, then what was never tried, then
        what is tried again. What is under way on another host that takes part is that host's; what failed on this one
        is for those that have not tried it."""
        control = self.store.control()
        if control.paused or control.stopped:
            return None
        if self.store.clock.now() >= (control.ends_at or self.record.ends_at):
            self._pause(f"its {self.record.sweep.wall_minutes} minutes (wall_minutes) are over")
            return None
        with self._lock:
            assert self._state is not None
            taken, others = self._taken | self._left, set(self.targets) - self._away - {target}
            free = [
                child
                for child in self._state.open
                if child.index not in taken and not (target and self._for_others(child, target, others))
            ]
            free.sort(key=self._place)
            if free:
                self._taken.add(free[0].index)
            return free[0] if free else None

    def _for_others(self, child: Child, target: str, others: set[str]) -> bool:
        line = self._line(child)
        if line.state == "failed":
            return target in line.failed_on and bool(others - {*line.failed_on})
        return line.machine in others

    def _place(self, child: Child) -> tuple[bool, bool, int]:
        line = self._line(child)
        return line.state != "running", line.attempt > 0, child.index

    def _may_come(self, target: str) -> bool:
        """Whether an idle host may still get a child: those of other hosts, if these die."""
        control = self.store.control()
        with self._lock:
            assert self._state is not None
            return bool(target and not (control.paused or control.stopped) and self._open())

    def _open(self) -> bool:
        """Whether a child is open that another host may leave behind."""
        assert self._state is not None
        here = set(self.targets) - self._away
        return any(
            child.index in self._taken or (child.index not in self._left and self._line(child).machine in here)
            for child in self._state.open
        )

    def _measure(self, site: AgentSite, child: Child, target: str) -> None:
        """Drives one child to the end of its run, also one that another client began."""
        config = self.configured(child.cell)
        if target:
            config = config.model_copy(update={"host": config.host.model_copy(update={"targets": (target,)})})
        world, run_id = site.world(config), child_run(self.record.fleet, child.cell.gpu, child.index)
        run = replay(world.log(run_id).read())
        if run is not None and run.closed is not None and run.phase in (Phase.SUCCEEDED, Phase.INCORRECT):
            self._tell(self._told(child, run, world))
            return
        if target and run is not None and run.closed is None and self._line(child).machine == target:
            # Not looked at anew: it is busy, with this very run.
            plan = resumed_on_hosts(config, stored_plan(world.bucket, run_id))
        else:
            plan = chunk_plan(site.plan(config, child.cell.title), child)
        where = site.where(plan)
        self._afford(child, plan)
        if run is not None and run.phase is Phase.REFUSED:
            why = "another launch took the money before it began; `bench fleet launch` measures it in a new fleet"
            self._tell(replace(self._line(child), state="given_up", reason=why))
            return
        before = self._line(child)
        if before.state in ("lost", "failed") and before.attempt > 0 and target in ("", before.machine):
            self.store.clock.sleep(AGAIN_S)
        if target and run is not None:
            run = self._parted(world, run, plan)
        if run is None:
            engine = begin_launch(world, RunOrder(run_id, plan, site.payload(config), where), cold=True)
        else:
            engine = resume_run(world, plan, run_id=run_id, where=where, fresh=lambda: site.payload(config))
        at = target or before.machine
        self._tell(
            replace(before, state="running", attempt=before.attempt + 1, machine=at, cases_total=len(plan.cases))
        )
        ended = self._followed(engine, target, where.user)
        if ended.closed is not None:
            line = self._told(child, ended, world, target)
            if line.state == "stopped":
                self._left.add(child.index)
            if line.state in MEASURED:
                store_rows(self.store.bucket, self.record.fleet, child)
            self._tell(line)
            self.say(f"child {child.index}  {child.cell.gpu}  {child.cell.title}  {line.state}  ${line.usd}")

    def _followed(self, engine: Engine, target: str, user: str) -> Run:
        """The run to its end, or to where it goes on by itself. Raises `Unavailable` where its host was not to be
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
            return self.stopping.is_set() and run.goes_on_alone

        run = follow_until(engine, self.abandoned, reached, trouble, left)
        if run.goes_on_alone:
            return run
        engine.request_stop(user, "interrupted before a machine existed")
        return follow_until(engine, self.given_up)

    def _parted(self, world: World, run: Run, plan: LaunchPlan) -> Run | None:
        """The run without its machine on another host, which takes no more part. Its cost is counted to its deadline:
        nobody can end it there."""
        vm = run.vm
        if run.closed is not None or vm is None or not vm.open or vm.zone == plan.offers[0].zone:
            return run
        log = world.log(run.run_id)
        log.read()
        log.append(RecordGone(vm, vm.deadline_at or vm.requested_at, "lost", None).fact)
        return replay(log.read())

    def _told(self, child: Child, run: Run, world: World, target: str = "") -> ChildLine:
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

    def _judge(self) -> None:
        assert self._state is not None
        control = self.store.control()
        verdict = judge_retry(self._state, persisted=control.persisted, machines=self._machines)
        for index, why in verdict.given_up.items():
            self._tell(replace(self._line(self.children[index]), state="given_up", reason=why))
        if verdict.pause and not self._state.over:
            self._pause(verdict.pause)
        self.store.list_as(fleet_summary(self.record, self._state, control))

    @property
    def _machines(self) -> int:
        """How many there are, where they are not rented."""
        return len(set(self.targets)) if any(self.targets) else MACHINES

    def _pause(self, why: str) -> None:
        control = self.store.decide(lambda one: one.model_copy(update={"paused": one.paused or why[:300]}))
        if control.paused == why[:300]:
            self.say(f"paused: {why}")

    def _line(self, child: Child) -> ChildLine:
        assert self._state is not None
        return self._state.line(child)

    def _tell(self, line: ChildLine) -> None:
        with self._lock:
            assert self._state is not None
            self.store.write([line])
            self._state = FleetState(self._state.children, {**self._state.lines, **self.store.known([line])})
