"""Flex-start: a machine waits in the cloud's queue at no cost, and then runs or was a stock-out of its zone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from orchestrator.cli.driving import Driving, follow_to_end
from orchestrator.core.ledger.budget import Caps
from orchestrator.core.run import events as ev
from orchestrator.core.run.fold import Phase, Run
from orchestrator.core.run.status import waiting_text
from orchestrator.runs.engine import QUEUE_ENDED, Engine
from tests.integration.stories.stage import RUN, ZONES, Stage, same_to_the_cent, weather
from tests.integration.stories.test_interrupted import Telling
from tests.integration.stories.test_waiting import follow

A100 = "gpu=a100"
FLEX = "machine.provisioning=flex-start"


def in_queue(stage: Stage, *overrides: str, **forecast: Any) -> Engine:
    """The engine of a client whose machine waits in the queue, by this weather."""
    weather(stage, forecast)
    engine = stage.begin(stage.world(), stage.plan(A100, FLEX, *overrides))
    for _ in range(30):
        if waiting_text(engine.step()[0]):
            return engine
        stage.timeline.advance(1)
    raise AssertionError("its machine is not in the queue")


def facts(engine: Engine, kind: type[ev.Fact]) -> list[Any]:
    return [event.fact for event in engine.log.read() if isinstance(event.fact, kind)]


def test_a_machine_waits_at_no_cost_then_runs_and_is_paid_from_then_on(stage: Stage) -> None:
    engine = in_queue(stage, fault="queue", seconds=70)
    run = engine.look()
    assert run.phase is Phase.PROVISIONING
    assert f"in the queue of {ZONES[0]} until 2026-11-21T04:" in waiting_text(run)
    assert "costs nothing" in stage.world().index.list_runs()[0].status["detail"]
    assert run.goes_on_alone
    (vm,) = stage.cloud.instances()
    assert vm["status"] == "PENDING"
    held = stage.ledger().runs[RUN]
    assert held.hold_usd == run.ceiling_usd
    stage.timeline.advance(60)
    assert run.due(stage.timeline.now()) == 0
    assert stage.billed() == 0

    run = follow(stage, engine)
    assert run.phase is Phase.SUCCEEDED
    assert run.vm is not None
    assert run.vm.started_at is not None
    assert run.vm.started_at - run.vm.requested_at >= timedelta(seconds=70)
    settled = stage.ledger().runs[RUN].settled_usd
    assert settled is not None
    assert same_to_the_cent(settled, stage.billed())
    assert stage.bill()[0]["provisioning"] == "flex_start"
    assert stage.fired() == [1]


def test_the_end_of_a_wait_is_a_stock_out_of_that_zone_alone(stage: Stage) -> None:
    engine = in_queue(stage, fault="stockout", zone=ZONES[0])
    run = follow(stage, engine)
    assert run.phase is Phase.SUCCEEDED
    assert [(vm.zone, vm.refused) for vm in run.vms] == [(ZONES[0], True), (ZONES[1], False)]
    (dry,) = facts(engine, ev.ZoneExhausted)
    assert (dry.zone, dry.code, dry.provisioning) == (ZONES[0], QUEUE_ENDED, "FLEX_START")
    assert "enough resources" in dry.message
    known = stage.world().history
    assert known is not None
    assert list(known.stock_outs("a2-highgpu-1g")) == [(ZONES[0], "a2-highgpu-1g", "FLEX_START")]
    settled = stage.ledger().runs[RUN].settled_usd
    assert settled is not None
    assert same_to_the_cent(settled, stage.billed())


def test_without_capacity_anywhere_the_hold_is_given_back_whole(stage: Stage) -> None:
    run = follow(stage, in_queue(stage, fault="stockout", times=10))
    assert run.phase is Phase.NO_CAPACITY
    assert len(run.vms) == len(ZONES)
    assert stage.ledger().runs[RUN].settled_usd == 0
    assert stage.billed() == 0


def test_a_launch_that_waits_queues_once_no_spot_machine_can_be_had(stage: Stage) -> None:
    weather(stage, {"fault": "stockout", "times": 9}, {"fault": "queue", "seconds": 3000})
    engine = stage.begin(stage.world(Caps()), stage.plan(A100, "placement.wait_minutes=180"))
    held = stage.ledger().runs[RUN].hold_usd
    run = follow(stage, engine)
    assert run.phase is Phase.SUCCEEDED
    asked = [(vm.provisioning, vm.queue_s) for vm in run.vms]
    assert asked[:6] == [("SPOT", 0)] * 3 + [("FLEX_START", 90)] * 3
    assert asked[6:9] == [("SPOT", 0)] * 3
    (model, queue_s), *later = asked[9:]
    assert (model, later) == ("FLEX_START", [])
    assert 3000 < queue_s <= 7200, "as long as Google allows and the wait lasts"
    entry = stage.ledger().runs[RUN]
    assert (entry.hold_usd, stage.fired()) == (held, [9, 1])
    assert entry.settled_usd is not None
    assert same_to_the_cent(entry.settled_usd, stage.billed())


def test_a_stop_takes_the_machine_out_of_the_queue_and_costs_nothing(stage: Stage) -> None:
    engine = in_queue(stage, fault="queue", seconds=80)
    engine.request_stop("eve", "not needed any more")
    run = follow(stage, engine)
    assert run.phase is Phase.STOPPED
    assert stage.cloud.instances() == []
    assert stage.ledger().runs[RUN].settled_usd == stage.billed() == 0


@pytest.mark.parametrize("seconds", [60, 10_000], ids=["there is capacity", "there is none"])
def test_a_run_whose_client_died_in_the_queue_is_looked_after_by_others(stage: Stage, seconds: int) -> None:
    in_queue(stage, fault="queue", seconds=seconds)
    other = Engine(stage.world(), RUN)
    assert "in the queue" in waiting_text(other.catch_up())
    run = follow(stage, other)
    assert run.phase is (Phase.SUCCEEDED if seconds == 60 else Phase.STOPPED)
    settled = stage.ledger().runs[RUN].settled_usd
    assert settled is not None
    assert same_to_the_cent(settled, stage.billed())


@pytest.mark.parametrize("keeps_waiting", [False, True])
def test_a_detached_client_leaves_the_queue_to_the_run_or_to_a_process_that_waits(
    stage: Stage, keeps_waiting: bool
) -> None:
    weather(stage, {"fault": "queue", "seconds": 80})
    world, made, handed = stage.world(), stage.plan(A100, FLEX), list[str]()

    def wait_on(run: Run) -> str:
        handed.append(waiting_text(run))
        return handed[-1]

    def begun() -> Engine:
        return stage.begin(world, made)

    run = follow_to_end(
        Driving(world, RUN, begun, Telling(), "ada", detach=True, wait_on=wait_on, keeps_waiting=keeps_waiting)
    )
    assert run.vm is not None
    assert run.vm.queued
    assert len(handed) == keeps_waiting
