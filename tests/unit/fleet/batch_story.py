"""A fleet on the embedded Batch in simulated time: the real clients, real admission and bill, children that are scripts.

`play` drives the scheduler's adapter as a follower does, under weather that a seed decides, and counts what must hold.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from orchestrator.adapters.batch.scheduler import GoogleBatch, Service
from orchestrator.adapters.google.credentials import Bearer
from orchestrator.core.errors import BenchError
from orchestrator.core.fleet import batch as rules
from orchestrator.core.fleet.jobs import ChildOrder, JobSpec, PayloadRef
from orchestrator.core.names import child_run
from orchestrator.embedded.server import EmbeddedCloud
from tests.support.direct import asked_directly
from tests.support.memory_bucket import MemoryBucket
from tests.support.scripted_machines import ScriptedVm, ShutDown, Steps, Struck, scripted
from tests.support.simulated_clock import TimelineClock
from tests.support.simulated_timeline import SimulatedTimeline
from tests.unit.fleet.batch_judge import Seen

FLEET = "fleet-20261121-040000-7f3a"
IMAGE = "projects/deeplearning-platform-release/global/images/common-cu129-ubuntu-2404-nvidia-580-v20260626"
REGIONS = ("us-central1", "us-east4", "europe-west4")
PRICE = Decimal("0.42")
"""More than a spot L4 with its disk and address costs in any of these regions by the cloud's own tariff."""
LOOKS_S = (20.0, 280.0)
"""How long a client waits between two looks, at least and at most."""
FOLLOW_UPS = 12


@dataclass
class Deeds:
    """What the children of one fleet did."""

    seed: int
    bucket: MemoryBucket
    stored: Counter[str] = field(default_factory=Counter)
    twice: int = 0
    """Cases that were measured though they stood there already when the measurement began."""
    raced: int = 0
    """Cases that two machines measured at the same time; one of them was stored."""
    mean_s: float = 240.0
    crashes: float = 0.01
    """How likely an attempt is to end badly after it has stored everything."""

    def child(self, vm: ScriptedVm) -> Steps:
        """What `startup/batch/task.py` and the agent do, as a script."""
        told = vm.environment
        fleet, place = told["BENCH_FLEET"], int(told["BATCH_TASK_INDEX"])
        index = json.loads(self._read(rules.job_object(fleet, told["BENCH_JOB"])))["children"][place]
        order = json.loads(self._read(rules.child_object(fleet, index)))
        attempt = next(
            n
            for n in range(order["attempt"], 99)
            if self.bucket.create(f"{rules.claims_prefix(fleet)}{index}-{n}.json", b"{}")
        )
        chance = random.Random(f"{self.seed}/{index}/{attempt}")
        began, code = vm.guest.timeline.now(), 0
        try:
            yield chance.uniform(5, 40)
            for case in order["spec"]["cases"]:
                name = f"runs/{order['run_id']}/cases/{case}.csv"
                if self.bucket.read(name) is not None:
                    continue
                yield chance.uniform(0.3, 1.7) * self.mean_s / len(order["spec"]["cases"])
                if self.bucket.create(name, b"row\n"):
                    self.stored[name] += 1
                else:
                    self.raced += 1
            if chance.random() < self.crashes:
                code = 1  # the agent crashed after all
        except (ShutDown, Struck):
            code = rules.TAKEN
        seconds = (vm.guest.timeline.now() - began).total_seconds()
        cost = {"machine": vm.name, "seconds": seconds, "exit_code": code}
        self.bucket.create(f"{rules.costs_prefix(fleet)}{index}-{attempt}.json", json.dumps(cost).encode())
        if code == rules.TAKEN:
            yield 90.0
        return code

    def _read(self, name: str) -> bytes:
        blob = self.bucket.read(name)
        assert blob is not None, name
        return blob.data


def weather(seed: int, children: int) -> list[dict[str, Any]]:
    """Faults of every kind that a fleet on Batch can meet."""
    chance = random.Random(f"weather/{seed}")
    scale = max(1, children // 100)
    faults: list[dict[str, Any]] = []
    for kind, most in (("preempt", 6), ("lost", 2)):
        times = [round(chance.uniform(20, 5000), 1) for _ in range(chance.randint(0, most * scale))]
        faults += [{"fault": kind, "at": {"seconds": at}} for at in times]
    for kind in ("batch_recreate", "batch_mute"):
        times = [round(chance.uniform(1, 200), 1) for _ in range(chance.randint(0, 2 * scale))]
        faults += [{"fault": kind, "seconds": at} for at in times]
    for fault in ({"fault": "stockout"}, {"fault": "quota", "metric": "NVIDIA_L4_GPUS"}):
        faults += [dict(fault) for _ in range(chance.randint(0, 4 * scale))]
    if chance.random() < 0.5:
        faults.append({"fault": "batch_silent", "cause": chance.choice(("quota", "stockout"))})
    elif chance.random() < 0.3:
        faults.append({"fault": "batch_silent", "seconds": chance.randint(30, 900)})
    if chance.random() < 0.3:
        faults.append({"fault": "batch_no_tasks"})
    if chance.random() < 0.2:
        faults.append({"fault": "one_time_limit"})
    for service in ("batch", "compute"):
        for _ in range(chance.randint(0, 3)):
            after = chance.choice(("request", "response"))
            kind = chance.choice(("http", "reset", "stall"))
            fault = {"fault": kind, "service": service}
            if kind == "http":
                fault |= {"status": chance.choice((429, 500, 503)), "after": after}
            elif kind == "reset":
                fault |= {"after": after}
            else:
                fault |= {"seconds": 5}
            faults.append(fault)
    chance.shuffle(faults)
    return faults


class Story:
    """One cloud and one fleet."""

    def __init__(self, home: Path, seed: int, *, children: int, parallel: int, wall_s: int, calm: bool = False) -> None:
        self.chance = random.Random(f"looks/{seed}")
        self.timeline = SimulatedTimeline()
        self.clock = TimelineClock(self.timeline)
        self.bucket = MemoryBucket()
        self.deeds = Deeds(seed, self.bucket, crashes=0.0 if calm else 0.01)
        faults = [] if calm else weather(seed, children)
        self.cloud = EmbeddedCloud(
            home, timeline=self.timeline, machines=scripted(self.deeds.child), weather={"faults": faults}
        )
        self.direct = ExitStack()
        self.direct.enter_context(asked_directly(self.cloud))
        self.children, self.parallel, self.wall_s = children, parallel, wall_s
        self.looks = 0
        self.open = set(range(children))
        """Those that are not known to be measured."""
        self.known: set[str] = set()
        self.scheduler = self.fresh()
        self.jobs: list[JobSpec] = []
        self.ends: list[datetime] = []

    def fresh(self) -> GoogleBatch:
        """A scheduler as another client has it, which remembers nothing."""
        return GoogleBatch(
            Service(self.cloud.project, Bearer(self.cloud.token), self.cloud.compute_url),
            self.bucket,
            self.clock,
            script="#!/bin/bash\n",
            image=lambda _project, _family: IMAGE,
            gate=lambda: None,
            known=self.known,
        )

    def close(self) -> None:
        self.direct.close()
        self.cloud.close()

    def job(self, indexes: list[int], attempts: dict[int, int]) -> JobSpec:
        orders = tuple(
            ChildOrder(index, attempts.get(index, 0) + 1, child_run(FLEET, "l4", index), {"cases": ["a", "b"]})
            for index in indexes
        )
        job = JobSpec(
            fleet=FLEET,
            number=len(self.jobs),
            gpu="l4",
            machine_type="g2-standard-4",
            children=orders,
            parallel=self.parallel,
            ends_at=self.ends[-1],
            child_s=1800,
            payload=PayloadRef(self.bucket.name, "payloads/0.tar.gz", "0" * 64, ""),
            usd_per_hour=PRICE,
            regions=REGIONS,
            labels={"bench-tool": "spotbench", "bench-fleet": FLEET},
            settings={
                "accelerator": None, "disk_gb": 60, "disk_type": "pd-balanced", "external_ip": True,
                "network": "global/networks/default", "service_account": "vm@b.example",
                "image_project": "p", "image_family": "f",
            },
        )  # fmt: skip
        self.jobs.append(job)
        return job

    def hold(self) -> None:
        """A generation: money and an end for whatever is still to be measured."""
        self.ends.append(self.clock.now() + timedelta(seconds=self.wall_s))

    def play(self) -> Seen:
        attempts: dict[int, int] = {}
        submitted: set[int] = set()
        for generation in range(1, FOLLOW_UPS):
            self.hold()
            submitted.clear()
            while self.clock.now() < self.ends[-1] + timedelta(minutes=5):
                try:
                    if self.turn(attempts, submitted):
                        return self.seen(generation)
                except BenchError:
                    self.scheduler = self.fresh()  # the client gave up; another one looks
                self.timeline.sleep(self.chance.uniform(*LOOKS_S))
        return self.seen(FOLLOW_UPS)

    def turn(self, attempts: dict[int, int], submitted: set[int]) -> bool:
        """One look; whether all is stored and nothing runs any more."""
        self.looks += 1
        names = [job.name for job in self.jobs]
        found = self.scheduler.reconcile(FLEET, names, sorted(self.open))
        self.open -= {one.index for one in found if one.state == "succeeded"}
        due = []
        for one in found:
            attempts[one.index] = max(one.attempt, attempts.get(one.index, 0))
            again = one.state in ("lost", "failed", "absent")
            if again or (one.index not in submitted and one.state != "succeeded"):
                due.append(one.index)
        states = [status.state for status in self.scheduler.counts(names)]
        idle = all(state in ("absent", "succeeded", "failed", "cancelled") for state in states)
        left = self.ends[-1] - self.clock.now()
        if due and idle and left.total_seconds() > rules.SHORTEST_S:
            submitted |= set(due)
            self.scheduler.submit([self.job(due, attempts)])
        return idle and not self.open

    def seen(self, generations: int) -> Seen:
        self.timeline.sleep(120)
        fired: Counter[str] = Counter()
        for fault in self.cloud.weather.document()["faults"]:
            fired[fault["fault"]] += fault["fired"]
        bill = self.cloud.bill()
        lived = self.scheduler.machine_seconds([job.name for job in self.jobs])
        return Seen(
            children=self.children,
            stored=len(self.deeds.stored) * self.children // (2 * self.children),
            stored_twice=sum(1 for count in self.deeds.stored.values() if count > 1),
            raced=self.deeds.raced,
            bill=bill.rows,
            now=self.clock.now(),
            metered=bill.usd,
            price=PRICE,
            ends=tuple(self.ends),
            wall_s=self.wall_s,
            parallel=self.parallel,
            settled_s=sum(lived.values()),
            jobs=len(self.jobs),
            generations=generations,
            fired=+fired,
            left_over=len(self.cloud.instances()),
            hours=(self.clock.now() - self.timeline.start).total_seconds() / 3600,
        )


def shape(seed: int, children: int) -> dict[str, int]:
    """How many machines for how long, by chance: sometimes too short for all, so that the fleet is held for anew."""
    chance = random.Random(f"shape/{seed}")
    parallel = max(2, min(30, round(children / chance.uniform(4, 40))))
    needed_s = children * 300 / parallel
    return {"parallel": parallel, "wall_s": int(max(1800, needed_s * chance.uniform(0.7, 2.0)))}


@contextmanager
def story(home: Path, seed: int, **options: Any) -> Iterator[Story]:
    made = Story(home, seed, **options)
    try:
        yield made
    finally:
        made.close()
