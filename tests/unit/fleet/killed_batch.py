"""A fleet on the embedded Batch, in simulated time, whose client is killed: the real follower, adapter and cloud.

A `Fate` counts what a client asks of the world: every write to the bucket and every request to Batch or for a template.
At a number that the story chooses the client dies, before or right after that call. Whoever looks next is another.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from orchestrator.adapters.batch.scheduler import GoogleBatch
from orchestrator.adapters.google.compute import GoogleCloud
from orchestrator.adapters.google.credentials import Bearer
from orchestrator.core.errors import BenchError
from orchestrator.core.fleet.jobs import ChildOrder, JobCost, PayloadRef, worst_case_usd
from orchestrator.core.fleet.sweep import Child, Sweep, expand_children
from orchestrator.core.ledger.budget import Caps, LedgerEntry
from orchestrator.core.naming import Mode
from orchestrator.core.run.decide import Policy
from orchestrator.runs.engine import World
from orchestrator.runs.fleet.follow import Follower, record_fleet
from orchestrator.runs.fleet.hold import Purse
from orchestrator.runs.fleet.planning import BatchPlacement, Orders
from orchestrator.runs.holds import Accounts
from orchestrator.runs.reap import reap_orphans, survey_machines
from orchestrator.runs.reconcile import reconcile_holds
from orchestrator.store.documents import LedgerStore
from orchestrator.store.events import EventLog
from orchestrator.store.fleets import FleetRecord, FleetStore
from orchestrator.store.index import RunIndex
from tests.integration.stories.stage import Heard
from tests.unit.fleet.batch_story import FLEET, PRICE, REGIONS, Story
from tests.unit.fleet.stage import configured

SETTINGS: Final = {
    "accelerator": None, "disk_gb": 60, "disk_type": "pd-balanced", "external_ip": True,
    "network": "global/networks/default", "service_account": "vm@b.example", "image_project": "p", "image_family": "f",
}  # fmt: skip
WRITES: Final = ("create", "replace", "upload", "compose")
REQUESTS: Final = ("create_job", "cancel_job", "get_job", "insert_unary", "delete_unary")
MARGIN_S: Final = 660
CENT: Final = Decimal("0.01")


class Killed(BaseException):
    """The client is no more."""


@dataclass
class Fate:
    """When a client dies: at its call number `at`, which is done or not (`after`); at 0 never."""

    at: int = 0
    after: bool = False
    calls: int = 0
    last: str = ""
    dead: bool = False

    def meet(self, name: str, call: Callable[[], Any]) -> Any:
        if self.dead:
            raise Killed  # its other threads have ended with it
        self.calls += 1
        mine = self.calls == self.at
        self.dead, self.last = mine, name if mine else self.last
        if mine and not self.after:
            raise Killed
        answer = call()
        if mine:
            raise Killed
        return answer


@dataclass
class Mortal:
    """A part of the world as a client with a `fate` has it."""

    real: Any
    fate: Fate
    calls: tuple[str, ...]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.real, name)
        if name not in self.calls:
            return found
        return lambda *args, **named: self.fate.meet(name, lambda: found(*args, **named))


class TwoCases(Orders):
    """Orders that the scripted children understand."""

    def order(self, child: Child, attempt: int, price: Decimal) -> ChildOrder:
        made = super().order(child, attempt, price)
        return replace(made, spec={**made.spec, "cases": ["a", "b"]})


@dataclass
class Killing:
    """One fleet, its cloud, and the clients that come one after another. With `elsewhere`, each later client is on
    another computer, that does not know what the first one asked for."""

    story: Story
    elsewhere: bool
    said: list[str] = field(default_factory=list)
    clients: int = 0

    @classmethod
    def at(cls, home: Path, seed: int, *, children: int = 12, calm: bool = False, elsewhere: bool = False) -> Killing:
        story, chance = Story(home, seed, children=children, parallel=3, wall_s=3000, calm=calm), random.Random(seed)
        if not calm:
            slow = [{"fault": "slow_boot", "seconds": chance.randint(30, 900)} for _ in range(chance.randint(0, 6))]
            story.cloud.weather.add(*slow)
        return cls(story, elsewhere)

    @property
    def sweep(self) -> Sweep:
        seeds = list(range(self.story.children))
        axes = {"gpu": ["l4"], "measure.seed": seeds}
        minutes = self.story.wall_s // 60
        return Sweep.model_validate({"engine": "batch", "axes": axes, "parallel": 3, "wall_minutes": minutes})

    def world(self, fate: Fate) -> World:
        self.clients += 1
        clock, writer, cloud = self.story.clock, f"client-{self.clients:06d}", self.story.cloud
        bucket: Any = Mortal(self.story.bucket, fate, WRITES)
        google = GoogleCloud(
            project=cloud.project, endpoint=cloud.compute_url, credentials=Bearer(cloud.token), clock=clock
        )
        return World(
            cloud=lambda: google,
            bucket=bucket,
            accounts=Accounts(LedgerStore(bucket, clock), Caps(), Heard(), clock),
            index=RunIndex(bucket),
            clock=clock,
            log=lambda run_id: EventLog(bucket, run_id, writer, clock),
            policy=Policy(),
            fleets=self.look_after,
        )

    def scheduler(self, fate: Fate, bucket: Any) -> GoogleBatch:
        if self.elsewhere and self.clients > 1:
            self.story.known = set()
        made = self.story.fresh()
        made.bucket = made.records.bucket = bucket
        made.__dict__["client"] = Mortal(made.client, fate, REQUESTS)
        made._templates.client = Mortal(made._templates.client, fate, REQUESTS)
        return made

    def client(self, fate: Fate | None = None) -> Follower:
        fate = fate or Fate()
        world = self.world(fate)
        store = FleetStore(world.bucket, world.clock, FLEET)
        scheduler = self.scheduler(fate, world.bucket)
        return Follower(
            world=world,
            store=store,
            scheduler=scheduler,
            record=store.record(),
            children=store.children(),
            orders=TwoCases.of(FLEET, Mode.EMBEDDED, world.bucket.name, configured, require_cuda=lambda _gpu: False),
            payload=lambda _: PayloadRef(world.bucket.name, "payloads/0.tar.gz", "0" * 64, ""),
            say=self.said.append,
            place=lambda _config, _price: BatchPlacement(REGIONS, SETTINGS, "SPOT"),
        )

    def begin(self, fate: Fate) -> None:
        world, wall = self.world(fate), timedelta(seconds=self.story.wall_s)
        now = world.clock.now()
        worst = worst_case_usd([JobCost("l4", self.story.parallel, PRICE, self.story.wall_s)])
        record = FleetRecord(
            fleet=FLEET, engine="batch", mode=Mode.EMBEDDED, user="ada", sweep=self.sweep, created_at=now,
            ends_at=now + wall, hold_usd=worst, usd_per_hour={"l4": PRICE}, machines={"l4": self.story.parallel},
        )  # fmt: skip
        children = expand_children(self.sweep, lambda _: ())
        record_fleet(FleetStore(world.bucket, world.clock, FLEET), record, children, Purse(world, record))

    def look_after(self, fleet: str) -> None:
        """What `bench status`, `bench costs` and `bench reap` do about a fleet whose client may be gone."""
        assert fleet == FLEET
        self.client().step(start=False)

    def follows(self, client: Follower, looks: int, chance: random.Random) -> bool:
        """Looks at the fleet again and again; whether it is over."""
        for _ in range(looks):
            try:
                if client.step().over:
                    return True
            except BenchError as exc:
                self.said.append(f"gave up: {exc}")
            self.story.timeline.sleep(chance.uniform(20, 200))
        return False

    def reaped(self) -> None:
        """`bench reap --yes`."""
        world = self.world(Fate())
        reap_orphans(world, survey_machines(world))
        reconcile_holds(world)

    def holds(self) -> Mapping[str, LedgerEntry]:
        return LedgerStore(self.story.bucket, self.story.clock).read().runs

    def settled_after(self, seconds: float) -> None:
        """Time passes, and somebody runs `bench status` now and then."""
        self.story.timeline.sleep(seconds)
        for _ in range(4):
            reconcile_holds(self.world(Fate()))
            self.story.timeline.sleep(120)

    def broken(self) -> Sequence[str]:
        """The promises that do not hold now."""
        bill, entries = self.story.cloud.bill(), self.holds().values()
        settled = sum((entry.settled_usd or Decimal(0) for entry in entries), Decimal(0))
        ends = max((entry.lasts_until for entry in entries), default=self.story.clock.now()) + timedelta(seconds=60)
        laws = {
            "no machine is left": not self.story.cloud.instances(),
            "every machine has an end of its own": all(row.has_deadline for row in bill.rows),
            "no machine outlives the money": all((row.ended_at or ends) <= ends for row in bill.rows),
            "every hold is settled": all(entry.settled_usd is not None for entry in entries),
            "what was metered is settled": bill.usd <= settled + CENT,
            "nothing costs more than was held": all((e.settled_usd or Decimal(0)) <= e.hold_usd for e in entries),
            "nothing is measured twice": all(count == 1 for count in self.story.deeds.stored.values()),
        }
        return [law for law, holds in laws.items() if not holds]
