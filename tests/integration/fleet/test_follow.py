"""How a fleet on a scheduler is looked after, on simulated time, with a scheduler that does what it is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from orchestrator.core.fleet.jobs import ELSEWHERE, ChildSeen, JobSpec, JobStatus, SchedulerTraits
from orchestrator.core.naming import LEDGER
from orchestrator.ports import FleetDriver
from orchestrator.runs.fleet.follow import Follower, with_jobs
from orchestrator.store.fleets import FleetStore, JobRecord
from tests.support.memory_bucket import MemoryBucket
from tests.support.simulated_clock import SimulatedClock
from tests.unit.fleet.stage import FleetStage, sweep_of


@dataclass
class Forgetful:
    """Knows the jobs that it is given until it is told to forget them; none of its machines ever ends."""

    name: str = "slurm"
    most_children: int = 100
    jobs: dict[str, JobSpec] = field(default_factory=dict)
    submitted: list[JobSpec] = field(default_factory=list)
    traits: SchedulerTraits = ELSEWHERE

    def wait(self, seconds: float, driver: FleetDriver) -> bool:
        raise AssertionError("nothing here follows a fleet to its end")

    def submit(self, jobs: Sequence[JobSpec]) -> Sequence[str]:
        self.submitted += jobs
        self.jobs |= {job.name: job for job in jobs}
        return ()

    def counts(self, names: Sequence[str]) -> Sequence[JobStatus]:
        return [
            JobStatus(name, "running", running=len(self.jobs[name].children)) if name in self.jobs
            else JobStatus(name, "absent")
            for name in names
        ]  # fmt: skip

    def reconcile(self, fleet: str, names: Sequence[str], indexes: Sequence[int]) -> Sequence[ChildSeen]:
        busy = {child.index for name in names if name in self.jobs for child in self.jobs[name].children}
        return [ChildSeen(index, "queued" if index in busy else "absent") for index in indexes]

    def cancel(self, names: Sequence[str]) -> None:
        for name in names:
            self.jobs.pop(name, None)


def followed(tmp_path: Path) -> tuple[Follower, Forgetful, SimulatedClock]:
    stage = FleetStage(tmp_path, sweep_of(tmp_path, ("l4", "t4"), 8))
    real = stage.launch()
    clock, scheduler = SimulatedClock(real.record.created_at), Forgetful()
    world = replace(real.world, clock=clock)
    store = FleetStore(stage.bucket, clock, stage.fleet)
    return replace(real, world=world, store=store, scheduler=scheduler), scheduler, clock


def test_what_the_scheduler_has_is_not_submitted_again(tmp_path: Path) -> None:
    follower, scheduler, clock = followed(tmp_path)
    for _ in range(5):
        follower.step()
        clock.sleep(120)
    assert sorted(job.gpu for job in scheduler.submitted) == ["l4", "t4"]


def test_what_the_scheduler_forgot_for_a_minute_is_submitted_under_another_name(tmp_path: Path) -> None:
    follower, scheduler, clock = followed(tmp_path)
    follower.step()
    scheduler.jobs.clear()
    follower.step()
    clock.sleep(30)
    follower.step()
    assert len(scheduler.submitted) == 2, "a controller that restarts may remember"
    clock.sleep(31)
    follower.step()
    assert len(scheduler.submitted) == 4
    assert len({job.name for job in scheduler.submitted}) == 4
    children = sorted(child.index for job in scheduler.submitted[2:] for child in job.children)
    assert children == list(range(8))


def test_no_word_in_the_bucket_gives_a_fleet_more_than_its_hold_pays_for(tmp_path: Path) -> None:
    follower, scheduler, _ = followed(tmp_path)
    forged = JobRecord(number=7, gpu="l4", children=(0, 1), parallel=500)
    late = follower.record.ends_at + timedelta(days=300)
    control = follower.store.control().model_copy(update={"jobs": (forged,), "ends_at": late})
    follower.submit(follower.look().state, control, [forged])
    (sent,) = scheduler.submitted
    assert sent.parallel == follower.record.machines["l4"] < 500
    assert sent.ends_at <= follower.record.ends_at + timedelta(minutes=1)


def test_a_fleet_whose_time_is_over_ends_its_jobs_says_so_and_settles(tmp_path: Path) -> None:
    follower, scheduler, clock = followed(tmp_path)
    follower.step()
    clock.sleep(4 * 3600)
    seen = follower.step()
    assert seen.control.paused == "its 240 minutes (wall_minutes) are over"
    assert scheduler.jobs == {}
    assert seen.over
    (entry,) = follower.world.ledger.read().runs.values()
    assert entry.settled_usd == 0


@dataclass
class Finishing(Forgetful):
    """Some of its children end well between two looks."""

    pace: int = 50
    ended: set[int] = field(default_factory=set)

    def reconcile(self, fleet: str, names: Sequence[str], indexes: Sequence[int]) -> Sequence[ChildSeen]:
        busy = {child.index for name in names if name in self.jobs for child in self.jobs[name].children}
        self.ended |= set(sorted(busy - self.ended)[: self.pace])
        done = [ChildSeen(index, "succeeded", 1, "node1", exit_code=0) for index in indexes if index in self.ended]
        return [*done, *super().reconcile(fleet, names, [index for index in indexes if index not in self.ended])]

    def counts(self, names: Sequence[str]) -> Sequence[JobStatus]:
        busy = {child.index for job in self.jobs.values() for child in job.children} - self.ended
        return [JobStatus(name, "running" if busy else "succeeded", running=len(busy)) for name in names]


class Counting(MemoryBucket):
    """Counts the writes of each object."""

    def replace(self, name: str, *arguments: Any, **more: Any) -> int | None:
        self.writes = getattr(self, "writes", Counter[str]())
        self.writes[name] += 1
        return super().replace(name, *arguments, **more)


def test_a_fleet_writes_the_ledger_twice_whatever_its_size_and_however_often_seen(
    tmp_path: Path,
) -> None:
    bucket = Counting()
    sweep = sweep_of(tmp_path, ("l4", "t4"), 2).model_copy(update={"repeats": 100})
    real = FleetStage(tmp_path, sweep, bucket=bucket).launch()
    clock, scheduler = SimulatedClock(real.record.created_at), Finishing()
    store = FleetStore(bucket, clock, real.record.fleet)
    follower = replace(real, world=replace(real.world, clock=clock), store=store, scheduler=scheduler)
    looks = 0
    while not follower.step().over:
        clock.sleep(60)
        looks += 1
    assert looks >= 3
    assert follower.look().state.counts == {"stored": 200}
    assert bucket.writes[LEDGER] == 2, "one hold, one settlement: children never touch it"


class Busy(Forgetful):
    """Has every job, and every child of it runs."""

    def counts(self, names: Sequence[str]) -> Sequence[JobStatus]:
        return [JobStatus(name, "running", running=1) for name in names]

    def reconcile(self, fleet: str, names: Sequence[str], indexes: Sequence[int]) -> Sequence[ChildSeen]:
        return [ChildSeen(index, "running", 1, "n1") for index in indexes]


def test_one_whole_look_at_ten_thousand_children_that_run_takes_at_most_forty_calls(tmp_path: Path) -> None:
    stage = FleetStage(tmp_path, sweep_of(tmp_path, ("l4", "t4"), 10_000))
    stage.launch()
    first = replace(stage.again(), scheduler=Busy())
    part = tuple(child.index for child in first.children)
    job = JobRecord(number=0, gpu="l4", children=part, parallel=8)
    first.store.decide(lambda one: with_jobs(one, [job], 0))
    first.step()
    other = replace(stage.again(), scheduler=Busy())
    before = stage.bucket.calls
    seen = other.step()
    assert seen.state.counts == {"running": 10_000}
    assert stage.bucket.calls - before <= 40
