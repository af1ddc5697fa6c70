"""A fleet as ordinary runs on the embedded cloud, on simulated time, through the real clients."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.config.model import Config
from orchestrator.core.errors import BudgetExceeded
from orchestrator.core.fleet.jobs import PayloadRef
from orchestrator.core.fleet.sweep import Sweep, SweepCell, expand_children
from orchestrator.core.names import child_run
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.core.run.events import InstanceRequested
from orchestrator.runs.engine import World
from orchestrator.runs.fleet.follow import Follower
from orchestrator.runs.fleet.local_scheduler import LocalScheduler
from orchestrator.runs.fleet.planning import Orders
from orchestrator.runs.launch import LaunchContext, PayloadSource
from orchestrator.store.events import EventLog
from orchestrator.store.fleets import FleetRecord, FleetStore
from tests.integration.stories.stage import (
    PAYLOAD,
    Script,
    ScriptedVm,
    Stage,
    Steps,
    good_vm,
    same_to_the_cent,
    staged,
    weather,
)
from tests.support.patience import await_truth
from tests.support.simulated_clock import TimelineClock

FLEET = "fleet-20261122-040506-7f3a"


@dataclass
class AskingLog(EventLog):
    """Has something happen just before a machine is asked for."""

    log: EventLog
    asked: Callable[[], None]

    def append(self, fact: Any) -> Any:
        if isinstance(fact, InstanceRequested):
            self.asked()
        return self.log.append(fact)

    def read(self) -> Any:
        return self.log.read()


@dataclass
class StageSite:
    stage: Stage
    asked: Callable[[], None] = lambda: None

    def plan(self, config: Config, name: str) -> LaunchPlan:
        return self.stage.plan(f"measure.seed={config.measure.seed}")

    def world(self, config: Config) -> World:
        world = self.stage.world()
        return replace(world, log=lambda run_id: AskingLog(world.log(run_id), self.asked))

    def payload(self, config: Config) -> PayloadSource:
        return PAYLOAD

    def where(self, plan: LaunchPlan) -> LaunchContext:
        return LaunchContext("gce", self.stage.cloud.bucket, "ada", None, require_cuda=False)


class Client(Follower):
    """Whose scheduler is the process itself."""

    @property
    def here(self) -> LocalScheduler:
        assert isinstance(self.scheduler, LocalScheduler)
        return self.scheduler


@dataclass
class Sweeping:
    """One fleet of one client after another on one stage."""

    stage: Stage
    seeds: Sequence[int]
    repeats: int = 1
    cap_usd: Decimal | None = None
    said: list[str] = field(default_factory=list)
    targets: Sequence[str] = ("",)
    asked: Callable[[], None] = lambda: None

    def client(self, **scheduler: Any) -> Client:
        axes = {"gpu": ["l4"], "measure.seed": list(self.seeds)}
        sweep = Sweep.model_validate({"axes": axes, "repeats": self.repeats, "cap_usd": self.cap_usd})
        world = self.stage.world()
        now = world.clock.now()
        record = FleetRecord(
            fleet=FLEET, engine="cloud", mode="gce", user="ada", sweep=sweep, created_at=now,
            ends_at=now + timedelta(hours=4), hold_usd=Decimal(0),
        )  # fmt: skip
        store = FleetStore(world.bucket, world.clock, FLEET)
        children = expand_children(sweep, lambda _: ())
        store.create(record, children)
        here = LocalScheduler(
            **{
                "store": store, "record": record, "children": children, "configured": self.configured,
                "sites": lambda: StageSite(self.stage, self.asked), "targets": self.targets,
                "world": self.stage.world, "say": self.said.append,
                "machines": len(self.targets) if self.targets[0] else 3, **scheduler,
            }
        )  # fmt: skip
        orders = Orders.of(FLEET, record.mode, world.bucket.name, self.configured, require_cuda=lambda _: False)
        return Client(
            world, store, here, record, children, orders, lambda _: PayloadRef("b", "p", "ab" * 32, ""), here.say
        )

    def configured(self, cell: SweepCell) -> Config:
        return self.stage.plan(*cell.overrides).config


def seed_of(vm: ScriptedVm) -> int:
    return int(vm.spec["harness"]["seed"])


def failing(vm: ScriptedVm) -> Steps:
    vm.event("vm_booted", {"vm": vm.name, "zone": vm.zone, "attempt": int(vm.labels["bench-attempt"])})
    yield 5
    vm.event("finished", {"outcome": "failed", "exit_code": 1, "detail": "no kernel image"})
    vm.delete_self()
    yield 1


def fails_on(seeds: Sequence[int]) -> Script:
    def script(vm: ScriptedVm) -> Any:
        return failing(vm) if seed_of(vm) in seeds else good_vm(cases=1)(vm)

    return script


def test_every_child_is_one_run_measured_once_and_settled(tmp_path: Path) -> None:
    with staged(tmp_path, good_vm(cases=1)) as stage:
        sweeping = Sweeping(stage, (1, 2, 3))
        seen = sweeping.client().follow()
        assert seen.state.counts == {"stored": 3}
        runs = {child_run(FLEET, "l4", index) for index in range(3)}
        assert {row["run_id"] for row in stage.bill()} == runs
        assert len(stage.bill()) == 3
        assert seen.state.usd == sum(entry.spent for entry in stage.ledger().runs.values())
        again = sweeping.client().follow()
        assert again.state.lines == seen.state.lines
        assert len(stage.bill()) == 3, "another client finds nothing to do"


def test_a_client_that_only_looks_starts_no_child_of_a_client_driven_fleet(tmp_path: Path) -> None:
    with staged(tmp_path, good_vm(cases=1)) as stage:
        sweeping = Sweeping(stage, (1, 2))
        seen = sweeping.client().step(start=False)
        assert (seen.state.counts, seen.jobs, stage.bill()) == ({"waiting": 2}, (), [])
        assert sweeping.client().follow().state.counts == {"stored": 2}
        record = sweeping.client().store.control()
        assert [len(job.children) for job in record.jobs] == [2], "one job, noted before its first child began"
        assert all(key.startswith("2026") for key in stage.ledger().runs), "each child holds its own money"


def test_a_configuration_that_fails_on_three_machines_is_given_up_alone(tmp_path: Path) -> None:
    with staged(tmp_path, fails_on([13])) as stage:
        seen = Sweeping(stage, (1, 13, 2)).client().follow()
        assert seen.state.counts == {"stored": 2, "given_up": 1}
        (reason,) = [line.reason for line in seen.state.lines.values() if line.state == "given_up"]
        assert reason.startswith("failed on 3 machines")
        assert stage.cloud.instances() == []


def turns(client: Client, stage: Stage, order: Sequence[str]) -> list[str]:
    """Hosts take their turns; those of them that had something to do."""
    here, had = client.here, []
    here.driver = client
    for target in order:
        child = here._next(target)
        if child is not None:
            here._measure(StageSite(stage), child, target)
            here._taken.discard(child.index)
            here._held.pop(child.index, None)
            here._look()
            had.append(target)
    return had


def test_what_failed_on_a_host_is_tried_on_others_and_given_up_after_three_hosts(tmp_path: Path) -> None:
    with staged(tmp_path, fails_on([13])) as stage:
        client = Sweeping(stage, (13,), targets=("one", "two", "three")).client()
        assert turns(client, stage, ("one", "one", "two", "one", "two")) == ["one", "two"], "it is for the third"
        assert not client.look().state.over
        assert turns(client, stage, ("three", "one")) == ["three"]
        (line,) = client.look().state.lines.values()
        assert (line.state, line.failed_on, line.attempt) == ("given_up", ("one", "three", "two"), 3)


def test_three_failures_on_one_of_several_hosts_are_that_hosts(tmp_path: Path) -> None:
    with staged(tmp_path, fails_on([13])) as stage:
        client = Sweeping(stage, (13,), targets=("one", "two")).client()
        client.here._away.add("two")
        assert turns(client, stage, ("one",) * 3) == ["one"] * 3
        (line,) = client.look().state.lines.values()
        assert (line.state, line.failed_on) == ("failed", ("one",))


def test_a_fleet_whose_first_children_fail_pauses_until_a_person_resumes_it(tmp_path: Path) -> None:
    with staged(tmp_path, fails_on(range(100, 106))) as stage:
        sweeping = Sweeping(stage, tuple(range(100, 106)))
        seen = sweeping.client().follow()
        assert seen.control.paused.startswith("4 of the first 4 children failed")
        assert len(stage.bill()) == 4
        other = sweeping.client()
        other.resume()
        assert (other.look().control.paused, other.look().control.persisted) == ("", True)


def test_a_fleet_stops_at_its_own_cap_before_it_asks_for_a_machine(tmp_path: Path) -> None:
    with staged(tmp_path, good_vm(cases=1)) as stage:
        each = stage.plan().ceiling_usd
        sweeping = Sweeping(stage, (1, 2, 3), cap_usd=each + Decimal("0.001"))
        with pytest.raises(BudgetExceeded, match="the fleet's cap"):
            sweeping.client().follow()
        assert len(stage.bill()) == 1
        control = sweeping.client().store.control()
        assert "the fleet's cap" in control.paused


def test_nothing_is_begun_after_the_end_of_the_fleet(tmp_path: Path) -> None:
    with staged(tmp_path, good_vm(cases=1)) as stage:
        assert stage.plan().offers
        client = Sweeping(stage, (1, 2)).client()
        stage.timeline.advance(timedelta(hours=5).total_seconds())
        seen = client.follow()
        assert seen.control.paused == "its 240 minutes (wall_minutes) are over"
        assert stage.bill() == []


def test_a_fleet_that_is_over_lasts_as_long_again_as_who_resumes_it_says(tmp_path: Path) -> None:
    with staged(tmp_path, good_vm(cases=1)) as stage:
        assert stage.plan().offers
        client = Sweeping(stage, (1,)).client()
        stage.timeline.advance(timedelta(hours=5).total_seconds())
        client.resume(wall=timedelta(minutes=30))
        seen, now = client.follow(), stage.world().clock.now()
        assert seen.state.counts == {"stored": 1}
        assert seen.control.ends_at is not None
        assert seen.control.ends_at - now < timedelta(minutes=30)


def test_a_client_that_is_to_stop_waits_for_the_machine_that_it_asks_for(tmp_path: Path) -> None:
    with staged(tmp_path, good_vm(cases=1)) as stage:
        weather(stage, {"fault": "stockout"}, {"fault": "stockout"})
        sweeping = Sweeping(stage, (1, 2))
        client = sweeping.client()
        sweeping.asked = client.here.leaving.stopping.set
        seen = client.follow()
        assert stage.fired() == [1, 1]
        assert seen.state.counts == {"running": 1, "waiting": 1}
        assert len(stage.cloud.instances()) == 1
        assert sweeping.client().follow().state.counts == {"stored": 2}


@pytest.mark.parametrize("fault", [{"fault": "stockout", "times": 2}, {"fault": "http", "status": 503, "times": 100}])
def test_an_abandoned_client_leaves_no_money_held_for_what_waits(tmp_path: Path, fault: dict[str, Any]) -> None:
    with staged(tmp_path, good_vm(cases=1)) as stage:
        requests = {"service": "compute", "method": "POST", "path": "/instances(\\?|$)"} if "status" in fault else {}
        weather(stage, {**fault, **requests})
        sweeping = Sweeping(stage, (1,))
        client = sweeping.client()

        def interrupted_twice() -> None:
            client.here.leaving.stopping.set()
            client.here.leaving.abandoned.set()

        sweeping.asked = interrupted_twice
        client.follow()
        assert stage.fired()[0] > 0
        assert stage.bill() == []
        (entry,) = stage.ledger().runs.values()
        assert entry.settled_usd == 0
        weather(stage)
        sweeping.asked = lambda: None
        sweeping.client().resume()
        assert sweeping.client().follow().state.counts == {"stored": 1}


class ImpatientSite(StageSite):
    """Of somebody who, once `given_up` is all that is left to say, says it as soon as he has waited."""

    client: Client | None = None

    def world(self, config: Config) -> World:
        site = self

        class Clock(TimelineClock):
            def sleep(self, seconds: float) -> None:
                super().sleep(seconds)
                if site.client is not None and site.client.here.leaving.abandoned.is_set():
                    site.client.here.leaving.given_up.set()

        return replace(super().world(config), clock=Clock(self.stage.timeline))


def test_a_run_that_cannot_be_ended_at_once_is_left_to_the_next_command(tmp_path: Path) -> None:
    """The request for its machine had no answer, and for minutes it may still arrive."""
    with staged(tmp_path, good_vm(cases=1)) as stage:
        weather(stage, {"fault": "reset", "service": "compute", "method": "POST", "path": "/instances(\\?|$)"})
        sweeping = Sweeping(stage, (1,))
        site = ImpatientSite(stage)
        client = sweeping.client(sites=lambda: site)
        site.client = client

        def interrupted_twice() -> None:
            client.here.leaving.stopping.set()
            client.here.leaving.abandoned.set()

        site.asked, began = interrupted_twice, stage.timeline.now()
        assert client.follow().state.counts == {"running": 1}
        assert (stage.timeline.now() - began).total_seconds() < 60
        assert sweeping.client().stop("ada").state.counts == {"stopped": 1}
        assert stage.cloud.instances() == []
        (entry,) = stage.ledger().runs.values()
        assert entry.settled_usd is not None
        assert same_to_the_cent(entry.settled_usd, sum((Decimal(row["usd"]) for row in stage.bill()), Decimal(0)))


@dataclass(frozen=True)
class CutShort(Sequence[str]):
    """Ctrl-C as the workers are started: once the first is about to ask for a machine."""

    begun: threading.Event = field(default_factory=threading.Event)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, _: Any) -> Any:
        raise NotImplementedError

    def __iter__(self) -> Iterator[str]:
        yield ""
        if threading.current_thread() is threading.main_thread():
            await_truth(self.begun.is_set)
            raise KeyboardInterrupt


def test_ctrl_c_as_the_workers_of_a_fleet_are_started_ends_what_waits_for_a_machine(tmp_path: Path) -> None:
    with staged(tmp_path, good_vm(cases=1)) as stage:
        weather(stage, {"fault": "stockout", "times": 2})
        sweeping = Sweeping(stage, (1, 2))
        targets = CutShort()
        client = sweeping.client(targets=targets)

        def asked() -> None:
            targets.begun.set()
            await_truth(client.here.leaving.abandoned.is_set)

        sweeping.asked = asked
        with pytest.raises(KeyboardInterrupt):
            client.follow()
        assert stage.bill() == []
        assert [entry.settled_usd for entry in stage.ledger().runs.values()] == [0]


def test_a_second_ctrl_c_counts_from_the_moment_in_which_it_is_offered(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
    try:
        with staged(tmp_path, good_vm(cases=1)) as stage:
            weather(stage, {"fault": "stockout", "times": 2})
            sweeping = Sweeping(stage, (1,))
            offered: list[str] = []

            def say(text: str) -> None:
                offered.append(text)
                if "Ctrl-C again" in text:
                    signal.raise_signal(signal.SIGINT)

            def first() -> None:
                if not offered:
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                    await_truth(lambda: offered)

            sweeping.asked = first
            client = sweeping.client(say=say)
            client.follow()
            assert client.here.leaving.abandoned.is_set()
            assert stage.bill() == []
            (entry,) = stage.ledger().runs.values()
            assert entry.settled_usd == 0
    finally:
        signal.signal(signal.SIGINT, before)
