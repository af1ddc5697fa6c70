"""Money under crashes and races: a hold is given back when no machine can be running under it, and never before."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.core.errors import BudgetExceeded, StillThere, Unavailable
from orchestrator.core.ledger.budget import Caps, add_cost, hold, window_exposure
from orchestrator.core.naming import events_prefix
from orchestrator.core.run.events import BudgetHeld
from orchestrator.core.run.fold import Phase
from orchestrator.runs.engine import Engine
from orchestrator.runs.kinds import ReconciledHold
from orchestrator.runs.reconcile import reconcile_holds
from tests.integration.stories.stage import RUN, Killed, Stage, same_to_the_cent, silent_vm, staged, weather
from tests.integration.stories.test_runs import appends_of_a_whole_run


def test_of_eight_clients_at_once_with_money_for_three_exactly_three_are_approved(stage: Stage) -> None:
    made = stage.plan()
    caps = Caps(day=made.ceiling_usd * Decimal("3.5"))
    worlds = [stage.world(caps) for _ in range(8)]

    def launch(number: int) -> int:
        try:
            stage.begin(worlds[number], made, f"20261121-040000-l4-{number:04x}")
        except BudgetExceeded as refusal:
            return refusal.exit_code
        return 0

    with ThreadPoolExecutor(8) as pool:
        codes = sorted(pool.map(launch, range(8)))
    assert codes == [0, 0, 0, 3, 3, 3, 3, 3]
    assert window_exposure(stage.ledger(), "day", stage.timeline.now()).held == 3 * made.ceiling_usd
    assert stage.bill() == []


def settled_by(stage: Stage, *, within_s: float) -> tuple[ReconciledHold, ...]:
    """What reconciliation says once nothing is held any more; it is asked every half minute, as people do."""
    for _ in range(int(within_s / 30)):
        found = reconcile_holds(stage.world())
        if not any(entry.held for entry in stage.ledger().runs.values()):
            return found
        for key in stage.ledger().runs:
            alive = [vm for vm in stage.cloud.instances() if vm["labels"]["bench-run"] == key]
            assert not alive or stage.ledger().runs[key].held, "a hold was given back under a machine"
        stage.timeline.advance(30)
    raise AssertionError(f"still held after {within_s} s: {found}")


def test_wherever_a_client_dies_its_hold_is_settled_with_the_bill(home: Path) -> None:
    for dies_after in range(1, appends_of_a_whole_run(home / "whole") + 1):
        with staged(home / str(dies_after)) as stage:
            with pytest.raises(Killed):
                stage.begin(stage.world(dies_after=dies_after)).follow()
            settled_by(stage, within_s=1200)
            entry = stage.ledger().runs.get(RUN)
            assert same_to_the_cent(entry.spent if entry else Decimal(0), stage.billed()), dies_after
            assert stage.cloud.instances() == []


def test_a_hold_without_events_under_which_nothing_was_asked_for_is_given_back(stage: Stage) -> None:
    world = stage.world()
    world.cloud().instances()
    world.ledger.update(lambda ledger: hold(ledger, RUN, Decimal("0.50"), 1800, stage.timeline.now()))
    (found,) = reconcile_holds(world)
    assert not found.settled
    stage.timeline.advance(1000)
    (found,) = reconcile_holds(world)
    assert (found.settled, found.what) == (True, "no machine was ever requested")
    assert stage.ledger().runs[RUN].spent == 0
    assert reconcile_holds(world) == ()


def test_a_hold_beside_a_run_that_was_refused_is_given_back_and_keeps_nobody_busy(stage: Stage) -> None:
    with pytest.raises(BudgetExceeded):
        stage.begin(stage.world(Caps(day=Decimal("0.01"))), stage.plan())
    world = stage.world()
    world.ledger.update(lambda ledger: hold(ledger, RUN, Decimal("0.50"), 1800, stage.timeline.now()))
    (found,) = reconcile_holds(world)
    assert not found.settled
    stage.timeline.advance(1000)
    (found,) = reconcile_holds(world)
    assert found.settled
    assert stage.ledger().runs[RUN].spent == 0


def test_a_hold_without_events_is_kept_while_its_machine_may_run_then_spent(home: Path) -> None:
    with staged(home, silent_vm) as stage:
        engine = stage.begin(stage.world(), stage.plan("run.max_minutes=10"))
        while engine.step()[0].vm is None:
            pass
        stage.delete_objects(events_prefix(RUN))
        (found,) = reconcile_holds(stage.world())
        assert not found.settled
        assert len(stage.cloud.instances()) == 1
        stage.timeline.advance(1800)
        (found,) = reconcile_holds(stage.world())
        assert found.settled
        assert "the whole hold counts as spent" in found.what
        entry_now = stage.ledger().runs[RUN]
        assert entry_now.spent == entry_now.hold_usd >= stage.billed()


def test_a_run_that_was_closed_by_a_client_that_died_before_it_settled_is_settled(stage: Stage) -> None:
    run = stage.launch()
    world = stage.world()
    entry = stage.ledger().runs[RUN]
    unsettled = entry.model_copy(update={"settled_usd": None, "settled_at": None})
    world.ledger.update(lambda ledger: ledger.model_copy(update={"runs": {RUN: unsettled}}))
    stage.timeline.advance(4000)
    (found,) = reconcile_holds(world)
    assert found.settled
    assert stage.ledger().runs[RUN].spent == run.cost(stage.timeline.now())


def test_a_machine_that_has_cost_more_than_was_held_is_deleted_and_said_to_have(home: Path) -> None:
    with staged(home, silent_vm) as stage:
        engine = stage.begin(stage.world())
        while engine.step()[0].vm is None:
            pass
        small = Decimal("0.01")
        engine.log.append(BudgetHeld(hold_usd=small))
        world = stage.world()
        entry = stage.ledger().runs[RUN].model_copy(update={"hold_usd": small})
        world.ledger.update(lambda ledger: ledger.model_copy(update={"runs": {RUN: entry}}))
        run = Engine(world, RUN).follow()
        assert run.phase is Phase.FAILED
        assert small < stage.billed() < small + Decimal("0.02")
        assert [notice.kind for notice in stage.heard.notices] == ["overspend"]


def test_without_a_hold_no_machine_is_asked_for(stage: Stage) -> None:
    engine = stage.begin(stage.world())
    stage.world().ledger.update(lambda ledger: add_cost(ledger, "ai", Decimal(1), "", stage.timeline.now(), "c"))
    stage.world().ledger.update(lambda ledger: ledger.model_copy(update={"runs": {}}))
    with pytest.raises(BudgetExceeded, match="the ledger holds no money"):
        engine.follow()
    assert stage.bill() == []


def test_a_machine_that_may_not_be_deleted_keeps_no_other_hold_from_being_settled(home: Path) -> None:
    """Its run's key sorts first: whoever stopped at it would never get to the other."""
    later = "20991231-235959-l4-ffff"
    with staged(home, silent_vm) as stage:
        engine, vm = stage.with_a_machine()
        engine.request_stop("ada", "no longer needed")
        world = stage.world()
        world.ledger.update(lambda ledger: hold(ledger, later, Decimal("0.50"), 1800, stage.timeline.now()))
        weather(stage, {"fault": "http", "service": "compute", "method": "DELETE", "path": vm.name, "status": 403})
        stage.timeline.advance(1000)
        told: list[ReconciledHold] = []
        with pytest.raises(StillThere, match=vm.name):
            reconcile_holds(world, say=told.append)
        assert [(one.key, one.settled) for one in told] == [(RUN, False), (later, True)]
        assert vm.name in told[0].what
        weather(stage)
        reconcile_holds(world)
        assert [entry.held for entry in stage.ledger().runs.values()] == [0, 0]
        assert stage.cloud.instances() == []


def test_a_cloud_that_is_down_is_not_asked_again_for_every_hold(home: Path) -> None:
    with staged(home, silent_vm) as stage:
        stage.with_a_machine()
        world = stage.world()
        world.ledger.update(
            lambda ledger: hold(ledger, "20991231-235959-l4-ffff", Decimal("0.50"), 1800, stage.timeline.now())
        )
        down = {"fault": "http", "service": "compute", "path": "instances", "status": 503}
        weather(stage, {**down, "method": "GET", "times": 1000})
        stage.timeline.advance(1000)
        told: list[ReconciledHold] = []
        with pytest.raises(Unavailable):
            reconcile_holds(world, say=told.append)
        assert told == []
