"""Machines that appear or are heard of later than their client looked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.run.fold import Phase
from orchestrator.runs.engine import Engine
from orchestrator.runs.launch import RunOrder, begin_launch
from orchestrator.runs.reap import reap_orphans, survey_machines
from tests.integration.stories.recovering import CASES, PAYLOAD, THREE, assert_sound, begun, careful_vm, where
from tests.integration.stories.stage import RUN, Killed, same_to_the_cent, staged, weather


def test_a_machine_that_appears_under_a_run_that_is_over_is_deleted_and_paid_for(home: Path) -> None:
    with staged(home, careful_vm()) as stage:
        sleeper = begun(stage)
        stage.timeline.advance(300)  # a laptop sleeps right after the hold was taken
        assert stage.look_after().phase is Phase.STOPPED
        run = sleeper.follow()
        assert run.phase is Phase.STOPPED
        assert stage.bill() == []
        assert_sound(stage, run)


class Held:
    """A cloud that is asked for a machine by a client that dies of it; the request is still on its way."""

    def __init__(self, cloud: Any) -> None:
        self.cloud, self.asked = cloud, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cloud, name)

    def insert(self, request: Any) -> Any:
        self.asked.append(request)
        raise Killed


class Between(Held):
    """The request outlives its client, and is done between two looks of another one."""

    def operations_by_name(self, zone: str, name: str) -> Any:
        while self.asked:
            self.cloud.insert(self.asked.pop())
        return self.cloud.operations_by_name(zone, name)


def test_a_machine_that_is_made_between_the_two_looks_of_a_client_is_not_called_lost(home: Path) -> None:
    with staged(home, careful_vm()) as stage:
        world = stage.world()
        between = Between(world.cloud())
        object.__setattr__(world, "cloud", lambda: between)
        with pytest.raises(Killed):
            stage.begin(world).follow()
        run = Engine(world, RUN).follow()
        assert run.phase is Phase.SUCCEEDED
        assert [vm.how for vm in run.vms] == ["deleted"]
        assert [row["vm"] for row in stage.bill()] == [vm.name for vm in run.vms]
        assert run.settled is not None
        assert same_to_the_cent(run.settled.cost_usd, stage.billed())


@pytest.mark.parametrize("late_s", [200, 900])
def test_a_machine_that_comes_after_settlement_is_deleted_and_its_cost_added(home: Path, late_s: float) -> None:
    with staged(home, careful_vm()) as stage:
        world = stage.world()
        cloud: Any = Held(world.cloud())
        with pytest.raises(Killed):
            begin_launch(
                replace(world, cloud=lambda: cloud), RunOrder(RUN, stage.plan(THREE), PAYLOAD, where(stage))
            ).follow()
        stage.timeline.advance(late_s)
        run = stage.look_after()
        assert (run.phase.over, stage.ledger().runs[RUN].spent) == (True, 0)
        cloud.cloud.insert(cloud.asked[0])
        stage.timeline.advance(90)
        reaper = stage.world()
        reaped = reap_orphans(reaper, survey_machines(reaper))
        assert (len(reaped.gone), reaped.failed) == (1, ())
        assert stage.billed() > 0
        assert_sound(stage, Engine(reaper, RUN).look())


class Told:
    """A cloud, and what is done right after it first answered a request for a machine."""

    def __init__(self, cloud: Any, then: Callable[[], None]) -> None:
        self.cloud, self.then = cloud, [then]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cloud, name)

    def insert(self, request: Any) -> Any:
        answer = self.cloud.insert(request)
        while self.then:
            self.then.pop()()
        return answer


class Late:
    """A log as it was some time ago, to whoever first reads it."""

    def __init__(self, log: Any) -> None:
        self.log, self.then = log, [log.read()]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.log, name)

    def read(self) -> Any:
        return self.then.pop() if self.then else self.log.read()


def test_a_late_word_on_a_refused_zone_ends_no_machine_of_the_next_zone(home: Path) -> None:
    with staged(home, careful_vm()) as stage:
        plan, world, looker, logs = stage.plan(THREE), stage.world(), stage.world(), []
        weather(stage, {"fault": "stockout", "zone": plan.offers[0].zone})
        cloud: Any = Told(world.cloud(), lambda: logs.append(Late(looker.log(RUN))))
        engine = begin_launch(replace(world, cloud=lambda: cloud), RunOrder(RUN, plan, PAYLOAD, where(stage)))
        while not stage.cloud.instances():
            stage.timeline.advance(engine.step()[1])
        Engine(looker, RUN, log=logs[0]).step()
        run = engine.look()
        assert [(vm.zone == plan.offers[0].zone, vm.open) for vm in run.vms] == [(True, False), (False, True)]
        run = engine.follow()
        assert (run.phase, run.cases_done) == (Phase.SUCCEEDED, CASES)
        assert len(stage.bill()) == 1
        assert_sound(stage, run)
