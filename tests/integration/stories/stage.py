"""The stage for stories: the embedded cloud on simulated time, the real Google clients, scripted machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import requests
import yaml

from orchestrator.adapters.google.compute import GoogleCloud
from orchestrator.adapters.google.credentials import Bearer
from orchestrator.adapters.google.images import GoogleImages
from orchestrator.adapters.google.storage import GoogleBucket
from orchestrator.core.config import load as configs
from orchestrator.core.config.model import Config, with_gpu
from orchestrator.core.ledger.budget import Caps, Ledger
from orchestrator.core.market.catalog import find_gpu
from orchestrator.core.market.pricing import PriceSheet
from orchestrator.core.naming import Mode
from orchestrator.core.plan.offered import PlanRefused
from orchestrator.core.plan.plan import Circumstances, LaunchPlan, plan_launch, with_fallbacks
from orchestrator.core.run.decide import Policy
from orchestrator.core.run.fold import Run, Vm
from orchestrator.embedded.server import EmbeddedCloud
from orchestrator.ports import Notice
from orchestrator.runs.engine import Engine, World
from orchestrator.runs.holds import Accounts
from orchestrator.runs.launch import LaunchContext, PayloadSource, RunOrder, begin_launch
from orchestrator.store.documents import ImageRecords, LedgerStore, Shelf, StockOuts
from orchestrator.store.events import EventLog
from orchestrator.store.index import RunIndex
from tests.support.direct import asked_directly
from tests.support.discovery import Recorder
from tests.support.patience import PATIENCE_S
from tests.support.scripted_machines import Script, ScriptedVm, ShutDown, Steps, scripted
from tests.support.simulated_clock import TimelineClock
from tests.support.simulated_timeline import EPOCH, SimulatedTimeline

CONFIGS = Path(__file__).parents[3] / "configs"
GRIDS: dict[str, Any] = yaml.safe_load((CONFIGS / "grids.yaml").read_text(encoding="utf-8"))
BUNDLED = PriceSheet.parse((CONFIGS / "prices.yaml").read_text(encoding="utf-8"))
SHEET = BUNDLED.model_copy(update={"as_of": EPOCH.date()})
"""As if it had been refreshed on the day that simulated time begins."""
PAYLOAD = PayloadSource("ab" * 32, b"not run here", "#!/bin/bash\n")
ZONES = ("us-central1-a", "us-central1-b", "us-east1-b")
RUN = "20261121-040000-l4-0001"


@dataclass
class Heard:
    """A notifier that remembers."""

    notices: list[Notice] = field(default_factory=list)

    def notify(self, notice: Notice) -> None:
        self.notices.append(notice)


class Killed(BaseException):
    """SIGKILL, as far as a client in this process can have it: nothing after it runs."""


class MortalLog(EventLog):
    """A client's log that kills the client right after its n-th append."""

    death: type[BaseException] = Killed

    def __init__(self, log: EventLog, dies_after: int) -> None:
        self.log = log
        self.left = dies_after

    def append(self, fact: Any) -> Any:
        event = self.log.append(fact)
        self.left -= 1
        if self.left == 0:
            raise self.death
        return event

    def read(self) -> Any:
        return self.log.read()


class Struck:
    """A part of the world to which something happens before or after one of its calls, the first time."""

    def __init__(
        self, real: Any, call: str, happens: Callable[[], None], *, when: str = "", after: bool = True
    ) -> None:
        self.real, self.call, self.happens, self.when, self.after = real, call, [happens], when, after

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.real, name)

        def called(*args: Any, **named: Any) -> Any:
            mine = name == self.call and self.when in repr(args) and bool(self.happens)
            if mine and not self.after:
                self.happens.pop()()
            answer = real(*args, **named)
            if mine and self.happens:
                self.happens.pop()()
            return answer

        return called if callable(real) else real


def raises(error: BaseException | type[BaseException]) -> Callable[[], None]:
    def happens() -> None:
        raise error

    return happens


Moment = Callable[["Stage", Callable[[], None]], World]
"""Makes the client to which something happens at a moment."""


def at_event(kind: str, *, after: bool = True) -> Moment:
    """A client to which it happens right after its first event of that kind, or right before."""

    def world(stage: Stage, happens: Callable[[], None]) -> World:
        made, once = stage.world(), [happens]

        def log(run_id: str) -> Any:
            struck = Struck(made.log(run_id), "append", happens, when=kind, after=after)
            struck.happens = once
            return struck

        return replace(made, log=log)

    return world


@dataclass
class Stage:
    cloud: EmbeddedCloud
    timeline: SimulatedTimeline
    heard: Heard
    checker: Recorder
    clients: int = 0

    def delete_objects(self, prefix: str) -> None:
        """What somebody with access to the bucket may do to it."""
        for entry in self.world().bucket.list(prefix):
            url = f"{self.cloud.storage_url}/storage/v1/b/{self.cloud.bucket}/o/{quote(entry.name, safe='')}"
            answer = requests.delete(url, headers={"Authorization": f"Bearer {self.cloud.token}"}, timeout=600)
            assert answer.status_code == 204

    def world(self, caps: Caps | None = None, *, dies_after: int = 0) -> World:
        """A client's view, with connections of its own."""
        self.clients += 1
        writer = f"client-{self.clients:06d}"
        clock = TimelineClock(self.timeline)
        key = Bearer(self.cloud.token)
        bucket = GoogleBucket(
            self.cloud.bucket, endpoint=self.cloud.storage_url, credentials=key, patience_s=PATIENCE_S
        )
        google = GoogleCloud(project=self.cloud.project, endpoint=self.cloud.compute_url, credentials=key, clock=clock)

        def log(run_id: str) -> EventLog:
            real = EventLog(bucket, run_id, writer, clock)
            return MortalLog(real, dies_after) if dies_after else real

        return World(
            cloud=lambda: google,
            bucket=bucket,
            accounts=Accounts(LedgerStore(bucket, clock), caps if caps is not None else Caps(), self.heard, clock),
            index=RunIndex(bucket),
            clock=clock,
            log=log,
            policy=Policy(poll_s=15),
            history=StockOuts(bucket, clock),
            shelf=Shelf(ImageRecords(bucket, clock), lambda: self.images(clock)),
        )

    def images(self, clock: TimelineClock) -> GoogleImages:
        """Google's own client of images."""
        key = Bearer(self.cloud.token)
        return GoogleImages(project=self.cloud.project, endpoint=self.cloud.compute_url, credentials=key, clock=clock)

    def plan(self, *overrides: str, world: World | None = None, caps: Caps | None = None, **known: Any) -> LaunchPlan:
        settings = (f"zones=[{','.join(ZONES)}]", "measure.repeats=2", "run.attempts=1", *overrides)
        config = configs.load("gpu: l4", source="story.yaml", overrides=settings, grids=GRIDS)
        ledger = world.ledger.read() if world else Ledger()
        made = self._plan(config, ledger, caps or Caps(), **known)
        assert isinstance(made, LaunchPlan), made
        return made

    def plan_with(self, *fallback_gpus: str) -> LaunchPlan:
        """A plan for an L4 that falls back on other GPUs."""
        settings = (f"zones=[{','.join(ZONES)}]", "measure.repeats=2", "run.attempts=1")
        config = configs.load("gpu: l4", source="story.yaml", overrides=settings, grids=GRIDS)
        others = [gpu for name in fallback_gpus if (gpu := find_gpu(name))]
        plans = [self._plan(each, Ledger(), Caps()) for each in (config, *(with_gpu(config, gpu) for gpu in others))]
        made = with_fallbacks(plans[0], plans[1:])
        assert isinstance(made, LaunchPlan), made
        return made

    def _plan(self, config: Config, ledger: Ledger, caps: Caps, **known: Any) -> LaunchPlan | PlanRefused:
        around = Circumstances(
            mode=Mode.GCE, prices=SHEET, quotas=None, ledger=ledger, caps=caps,
            image=self.world().cloud().image(*config.image_source), now=self.timeline.now(), **known,
        )  # fmt: skip
        return plan_launch(config, "story", around)

    def begin(self, world: World, made: LaunchPlan | None = None, run_id: str = RUN) -> Engine:
        where = LaunchContext(Mode.GCE, self.cloud.bucket, "ada", None, require_cuda=False)
        return begin_launch(world, RunOrder(run_id, made or self.plan(), PAYLOAD, where))

    def with_a_machine(self, world: World | None = None, made: LaunchPlan | None = None) -> tuple[Engine, Vm]:
        """A run that its client has followed until there is a machine, and the machine."""
        engine = self.begin(world or self.world(), made)
        while (vm := engine.step()[0].vm) is None or vm.started_at is None:
            pass
        return engine, vm

    def launch(self, *overrides: str, run_id: str = RUN, caps: Caps | None = None) -> Run:
        """A whole run, followed to its end by the client that launched it."""
        return self.begin(self.world(caps), self.plan(*overrides), run_id).follow()

    def look_after(self, run_id: str = RUN) -> Run:
        """Another client, on another machine, that only finds the run in the bucket."""
        return Engine(self.world(), run_id).follow()

    def billed(self, run_id: str = RUN) -> Decimal:
        return sum((Decimal(row["usd"]) for row in self.bill() if row["run_id"] == run_id), Decimal(0))

    def bill(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.cloud.bill().document()["rows"]
        return rows

    def ledger(self) -> Ledger:
        return self.world().ledger.read()

    def fired(self) -> list[int]:
        return [fault["fired"] for fault in self.cloud.weather.document()["faults"]]


CENT = Decimal("0.01")


def same_to_the_cent(one: Decimal, other: Decimal) -> bool:
    return abs(one - other) < CENT / 2


def good_vm(cases: int = 3, seconds_each: float = 20.0) -> Script:
    """A machine that does everything right."""

    def script(vm: ScriptedVm) -> Steps:
        vm.event("vm_booted", {"vm": vm.name, "zone": vm.zone, "attempt": int(vm.labels["bench-attempt"])})
        try:
            yield 2
            for phase in ("preflight", "environment", "build", "correctness"):
                vm.event("phase_started", {"phase": phase, "limit_s": 300})
                yield 10
                vm.event("phase_finished", {"phase": phase, "exit_code": 0, "seconds": 10})
            vm.event("phase_started", {"phase": "measure", "limit_s": 1500})
            vm.event(
                "measurement_planned", {"cases": cases, "total": cases, "measurements_per_implementation": 2 * cases}
            )
            for index in range(1, cases + 1):
                case = f"case-{index}"
                vm.event("case_started", {"case_id": case, "index": index, "of": cases})
                yield seconds_each
                vm.put(f"runs/{vm.spec['run_id']}/cases/{case}.csv", b"measured\n", "text/csv", create=True)
                facts = {"case_id": case, "index": index, "of": cases, "rows": 2, "seconds": seconds_each}
                vm.event("case_measured", facts | {"median_us": {"bench": 10.0}})
            vm.event("finished", {"outcome": "succeeded", "exit_code": 0})
        except ShutDown:
            outcome = "preempted" if vm.preempted else "terminated"
            vm.event("finished", {"outcome": outcome, "exit_code": 143})
        vm.delete_self()
        yield 1

    return script


def silent_vm(_: ScriptedVm) -> Steps:
    """A machine that runs and never says a word."""
    while True:
        yield 60


def lingering_vm(vm: ScriptedVm) -> Steps:
    """A machine that finishes and then does not delete itself."""
    vm.event("vm_booted", {"vm": vm.name, "attempt": 1})
    yield 5
    vm.event("finished", {"outcome": "failed", "exit_code": 1, "detail": "could not delete myself"})
    while True:
        yield 60


@contextmanager
def staged(home: Path, script: Script | None = None, **options: Any) -> Iterator[Stage]:
    """A cloud for one story. At its end every request and answer was valid, and no image is left."""
    timeline = SimulatedTimeline()
    checker = Recorder()
    machines = scripted(script or good_vm())
    made = EmbeddedCloud(home=home, timeline=timeline, machines=machines, observer=checker, **options)
    with made as cloud, asked_directly(cloud):
        yield Stage(cloud, timeline, Heard(), checker)
        checker.assert_all_valid()
        assert cloud.images.documents() == [], "an image is left, and nothing deletes one by itself"


def weather(stage: Stage, *faults: dict[str, Any]) -> None:
    stage.cloud.weather.replace({"faults": list(faults)})


def body(stage: Stage, name: str) -> Any:
    blob = stage.world().bucket.read(name)
    assert blob is not None
    return json.loads(blob.data)
