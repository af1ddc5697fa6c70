"""Waiting for capacity: rounds of requests under one hold, until there is a machine or the wait is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

import pytest

from orchestrator.core.ledger.budget import Caps
from orchestrator.core.market.catalog import find_gpu
from orchestrator.core.market.offers import region_of
from orchestrator.core.naming import Mode
from orchestrator.core.run import events as ev
from orchestrator.core.run.fold import Phase, Run
from orchestrator.core.run.status import run_document, waiting_text
from orchestrator.runs.engine import Engine
from orchestrator.runs.launch import LaunchContext
from orchestrator.runs.resume import resume_run
from tests.integration.stories.stage import PAYLOAD, RUN, SHEET, ZONES, Stage, same_to_the_cent, weather

L4 = find_gpu("l4")
assert L4 is not None
PRICED = [zone for zone in L4.zones if region_of(zone) in SHEET.accelerators["nvidia-l4"]]
ALL = PRICED[:26]
EVERYWHERE = f"zones=[{','.join(ALL)}]"
DRY = {"fault": "stockout", "times": 10**6}


def follow(stage: Stage, engine: Engine, at: Callable[[Run, datetime], None] = lambda _run, _now: None) -> Run:
    """Follow a run on simulated time; `at` sees it after every turn."""
    while True:
        run, pause = engine.step()
        at(run, stage.timeline.now())
        if run.closed is not None and run.settled is not None:
            return run
        stage.timeline.advance(pause)


def requests_of(run: Run) -> list[datetime]:
    return [vm.requested_at for vm in run.vms]


def test_after_three_dry_hours_in_26_zones_the_one_machine_is_found(stage: Stage) -> None:
    assert len(ALL) == 26
    weather(stage, DRY)
    began, last = stage.timeline.now(), ALL[-1]
    world = stage.world(Caps(run=Decimal(1)))
    world = replace(world, policy=replace(world.policy, look_s=900))  # fewer looks at a log of 700 events
    engine = stage.begin(world, stage.plan(EVERYWHERE, "placement.wait_minutes=240"))
    held = stage.ledger().runs[RUN].hold_usd
    thawed: list[datetime] = []

    def thaw(run: Run, now: datetime) -> None:
        if len(run.vms) % 26 == 0:
            entry = stage.ledger().runs[RUN]
            assert entry.hold_usd == held, "the hold is neither released nor raised"
        if not thawed and now - began >= timedelta(hours=3):
            thawed.append(now)
            assert run.phase is Phase.PROVISIONING
            weather(stage, *({**DRY, "zone": zone} for zone in ALL if zone != last))

    run = follow(stage, engine, thaw)
    assert run.phase is Phase.SUCCEEDED
    assert run.vm is not None
    assert run.vm.zone == last
    assert run.vm.started_at is not None
    assert run.vm.started_at - thawed[0] < timedelta(minutes=30)
    requests = requests_of(run)
    later = requests[26:]
    assert len(later) > 100
    assert all(sum(at <= one < at + timedelta(minutes=1) for one in later) <= 5 for at in later), (
        "at most 5 requests a minute after the first walk"
    )
    log = engine.log.read()
    pauses = [one.fact.next_at - one.time for one in log if isinstance(one.fact, ev.CapacityAwaited)]
    growing = [round(pause.total_seconds()) for pause in pauses if pause <= timedelta(minutes=15)]
    assert growing[:5] == [60, 120, 240, 480, 900]
    entry = stage.ledger().runs[RUN]
    assert entry.settled_usd is not None
    assert same_to_the_cent(entry.settled_usd, stage.billed())
    assert len({vm.request_id for vm in run.vms}) == len(run.vms)


def test_without_wait_a_launch_into_a_stock_out_ends_at_once(stage: Stage) -> None:
    weather(stage, DRY)
    run = stage.launch(EVERYWHERE)
    assert run.phase is Phase.NO_CAPACITY
    assert len(run.vms) == 26
    assert stage.ledger().runs[RUN].settled_usd == 0


def test_a_wait_that_finds_nothing_ends_on_time_and_gives_the_hold_back(stage: Stage) -> None:
    weather(stage, DRY)
    began = stage.timeline.now()
    run = follow(stage, stage.begin(stage.world(), stage.plan("placement.wait_minutes=60")))
    assert run.phase is Phase.NO_CAPACITY
    assert run.closed is not None
    assert "asked" in run.closed.detail
    assert timedelta(minutes=59) < stage.timeline.now() - began <= timedelta(minutes=61)
    assert stage.ledger().runs[RUN].settled_usd == 0
    assert stage.billed() == 0


def test_a_zone_that_never_sells_the_machine_is_asked_once(stage: Stage) -> None:
    message = "Invalid value for field 'resource.machineType': '/machineTypes/g2-standard-4' does not exist"
    refusal = {"fault": "http", "status": 400, "reason": "invalid", "message": message, "method": "POST"}
    weather(stage, {**refusal, "path": f"/zones/{ZONES[0]}/instances", "times": 10**6}, DRY)
    run = follow(stage, stage.begin(stage.world(), stage.plan("placement.wait_minutes=30")))
    zones = [vm.zone for vm in run.vms]
    assert zones.count(ZONES[0]) == 1
    assert zones.count(ZONES[1]) > 3


def waiting(stage: Stage, minutes: int = 120) -> Engine:
    """The engine of a client whose run waits for capacity."""
    weather(stage, DRY)
    engine = stage.begin(stage.world(), stage.plan(f"placement.wait_minutes={minutes}"))
    while engine.step()[0].waiting is None:
        pass
    return engine


def test_a_stop_ends_a_wait_within_half_a_minute(stage: Stage) -> None:
    engine = waiting(stage)
    stage.timeline.advance(200)
    while engine.step()[1] < 15:
        stage.timeline.advance(15)
    Engine(stage.world(), RUN).request_stop("eve", "not needed any more")
    asked = stage.timeline.now()
    run = follow(stage, engine)
    assert run.phase is Phase.STOPPED
    assert stage.timeline.now() - asked <= timedelta(seconds=30)
    assert stage.ledger().runs[RUN].settled_usd == 0


def test_status_on_another_machine_tells_of_the_wait_and_does_not_end_it(stage: Stage) -> None:
    engine = waiting(stage)
    other = Engine(stage.world(), RUN)
    run = other.catch_up()
    assert run.closed is None
    assert "waiting for capacity until 2026-11-21T06:" in waiting_text(run)
    assert run_document(run, stage.timeline.now())["waiting"]
    line = stage.world().index.list_runs()[0].status
    assert line["vm_phase"] == "waiting"
    assert "waiting for capacity" in line["detail"]
    weather(stage)
    assert follow(stage, engine).phase is Phase.SUCCEEDED


def test_the_wait_of_a_client_that_died_is_ended_and_its_hold_released(stage: Stage) -> None:
    run = waiting(stage).look()
    assert run.waiting is not None
    stage.timeline.advance((run.waiting.next_at - stage.timeline.now()).total_seconds() + 100)
    assert Engine(stage.world(), RUN).catch_up().closed is None, "it may still be at work"
    stage.timeline.advance(100)
    ended = Engine(stage.world(), RUN).catch_up()
    assert ended.phase is Phase.STOPPED
    assert ended.closed is not None
    assert f"`bench launch --resume {RUN}`" in ended.closed.detail
    assert stage.ledger().runs[RUN].settled_usd == 0


def test_a_wait_cannot_be_kept_open_by_a_forged_time(stage: Stage) -> None:
    run = waiting(stage).look()
    forged = ev.CapacityAwaited(round=9, next_at=run.updated_at + timedelta(days=400), until=run.updated_at)
    stage.world().log(RUN).append(forged)
    stage.timeline.advance(900 + 200)
    assert Engine(stage.world(), RUN).catch_up().phase is Phase.STOPPED


@pytest.mark.parametrize("silent_s", [30, 700])
def test_a_resumed_wait_goes_on_under_the_same_hold_or_a_new_one(stage: Stage, silent_s: float) -> None:
    waiting(stage)
    stage.timeline.advance(silent_s)
    Engine(stage.world(), RUN).catch_up()
    where = LaunchContext(Mode.GCE, stage.cloud.bucket, "ada", None, require_cuda=False)
    plan = stage.plan("placement.wait_minutes=60")
    engine = resume_run(stage.world(), plan, run_id=RUN, where=where, fresh=lambda: PAYLOAD)
    began = stage.timeline.now()

    def thaw(_: Run, now: datetime) -> None:
        if now - began > timedelta(minutes=20):
            weather(stage)

    run = follow(stage, engine, thaw)
    assert run.phase is Phase.SUCCEEDED
    assert run.generation == (1 if silent_s > 600 else 0)
    ledger = stage.ledger()
    assert all(entry.settled_usd is not None for entry in ledger.runs.values())
    assert same_to_the_cent(sum(entry.settled_usd or Decimal(0) for entry in ledger.runs.values()), stage.billed())


def test_a_preempted_run_waits_for_its_next_machine_too(stage: Stage) -> None:
    weather(stage, {"fault": "preempt", "at": {"seconds": 40}})
    engine = stage.begin(stage.world(), stage.plan("placement.wait_minutes=120", "run.attempts=2"))
    dried: list[datetime] = []

    def dry_up(run: Run, now: datetime) -> None:
        if run.vm is not None and run.vm.gone_at is not None and not dried:
            dried.append(now)
            assert stage.fired() == [1]
            weather(stage, DRY)
        elif dried and now - dried[0] > timedelta(minutes=15):
            weather(stage)

    run = follow(stage, engine, dry_up)
    assert run.phase is Phase.SUCCEEDED
    assert {vm.attempt for vm in run.vms if vm.instance_id} == {1, 2}
    assert run.round > 0
