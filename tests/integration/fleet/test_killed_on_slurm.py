"""`kill -9` of the client of a fleet on a cluster at any call, in simulated time: the next `stop`, `status` or look at
holds ends what is left, no child runs in two jobs at once, and no hold stays open."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.fleet.jobs import ELSEWHERE, ChildSeen, JobSpec, JobStatus, SchedulerTraits
from orchestrator.ports import FleetDriver
from orchestrator.runs.fleet.follow import Follower
from orchestrator.runs.reconcile import reconcile_holds
from orchestrator.store.fleets import FleetStore
from tests.integration.fleet.test_lost_clients import SimulatedStage
from tests.support.memory_bucket import MemoryBucket
from tests.support.simulated_clock import SimulatedClock
from tests.unit.fleet.killed_batch import WRITES, Fate, Killed, Mortal
from tests.unit.fleet.stage import sweep_of

CALLS = ("submit", "cancel", "counts", "reconcile")
CHILD_S = 600
WALL_S = 4 * 3600


@dataclass
class Cluster:
    """Runs every child for as long, from the moment on at which its job is submitted; ends what is past its end."""

    clock: SimulatedClock
    name: str = "slurm"
    most_children: int = 100
    jobs: dict[str, tuple[JobSpec, datetime]] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    twice: int = 0
    traits: SchedulerTraits = ELSEWHERE

    def submit(self, jobs: Sequence[JobSpec]) -> Sequence[str]:
        for job in jobs:
            if job.name in self.jobs:
                continue
            busy = {child.index for name in self.running() for child in self.jobs[name][0].children}
            self.twice += len(busy & {child.index for child in job.children})
            self.jobs[job.name] = (job, self.clock.now())
        return ()

    def running(self) -> list[str]:
        now = self.clock.now()
        return [
            name
            for name, (job, since) in self.jobs.items()
            if name not in self.cancelled and now < min(job.ends_at, since + timedelta(seconds=CHILD_S))
        ]

    def counts(self, names: Sequence[str]) -> Sequence[JobStatus]:
        there, running = set(self.jobs) - self.cancelled, set(self.running())
        return [
            JobStatus(name, "running", running=1) if name in running
            else JobStatus(name, "succeeded" if name in there else "absent")
            for name in names
        ]  # fmt: skip

    def reconcile(self, fleet: str, names: Sequence[str], indexes: Sequence[int]) -> Sequence[ChildSeen]:
        running, done = set(self.running()), set[int]()
        busy = {child.index for name in names if name in running for child in self.jobs[name][0].children}
        for name in self.jobs.keys() - running - self.cancelled:
            done |= {child.index for child in self.jobs[name][0].children}
        return [
            ChildSeen(index, "running", 1, "node1") if index in busy
            else ChildSeen(index, "succeeded", 1, "node1", exit_code=0) if index in done
            else ChildSeen(index, "absent")
            for index in indexes
        ]  # fmt: skip

    def wait(self, seconds: float, driver: FleetDriver) -> bool:
        raise AssertionError("nothing here follows a fleet to its end")

    def cancel(self, names: Sequence[str]) -> None:
        self.cancelled |= set(names) & set(self.running())


@dataclass
class Fleet:
    stage: SimulatedStage
    cluster: Cluster
    bucket: MemoryBucket

    @classmethod
    def of(cls, folder: Path) -> Fleet:
        bucket = MemoryBucket()
        stage = SimulatedStage(folder, sweep_of(folder, ("l4", "t4"), 8), bucket=bucket)
        return cls(stage, Cluster(stage.clock), bucket)

    def client(self, fate: Fate) -> Follower:
        mortal: Any = Mortal(self.bucket, fate, WRITES)
        self.stage.bucket = mortal
        store = FleetStore(mortal, self.stage.clock, self.stage.fleet)
        scheduler: Any = Mortal(self.cluster, fate, CALLS)
        return replace(self.stage.again(), scheduler=scheduler, store=store)

    def launch(self, fate: Fate) -> None:
        self.stage.bucket = Mortal(self.bucket, fate, WRITES)  # type: ignore[assignment]
        self.stage.launch()

    def looks(self, fate: Fate, chance: random.Random) -> None:
        client = self.client(fate)
        for _ in range(40):
            if client.step().over:
                return
            self.stage.clock.sleep(chance.uniform(5, 120))

    def broken(self) -> list[str]:
        self.stage.bucket = self.bucket
        entries = self.stage.world().ledger.read().runs.values()
        lines = FleetStore(self.bucket, self.stage.clock, self.stage.fleet).state(self.stage.children).lines.values()
        laws = {
            "no job is left": self.cluster.running() == [],
            "every hold is settled": all(entry.settled_usd is not None for entry in entries),
            "no child ran in two jobs at once": self.cluster.twice == 0,
            "what is stored is known once": max(Counter(line.child for line in lines).values(), default=1) == 1,
        }
        return [law for law, holds in laws.items() if not holds]


@pytest.mark.parametrize("next_is", ["stop", "status", "resume", "nobody"])
@pytest.mark.parametrize("seed", range(1, 26))
def test_wherever_the_client_dies_the_next_command_ends_the_rest_and_closes_holds(
    tmp_path: Path, seed: int, next_is: str
) -> None:
    chance, fleet = random.Random(f"{seed}/{next_is}"), Fleet.of(tmp_path)
    fate = Fate(at=chance.randint(1, 45), after=chance.random() < 0.5)
    with suppress(Killed):
        fleet.launch(fate)
        fleet.looks(fate, chance)
    assert fate.dead or fleet.broken() == []
    fleet.stage.clock.sleep(chance.choice((1, 60, 400, 900)))
    fleet.stage.bucket = fleet.bucket
    if not fleet.stage.world().ledger.read().runs:
        return  # it died before it held anything
    if next_is == "stop":
        fleet.client(Fate()).stop("eve")
        assert fleet.broken() == [], fate
    elif next_is == "resume":
        doomed = Fate(at=chance.randint(1, 8), after=chance.random() < 0.5)
        fleet.client(Fate()).stop("ada")
        with suppress(Killed):
            client = fleet.client(doomed)
            client.resume()
            client.step()
        fleet.client(Fate()).stop("eve")
        assert fleet.broken() == [], (fate, doomed)
    elif next_is == "status":
        fleet.looks(Fate(), chance)
        assert fleet.broken() == [], fate
    fleet.stage.clock.sleep(2 * WALL_S)
    fleet.stage.bucket = fleet.bucket
    world = replace(fleet.stage.world(), fleets=lambda _: fleet.client(Fate()).step(start=False))
    reconcile_holds(world)
    assert fleet.broken() == [], fate
