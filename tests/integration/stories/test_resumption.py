"""Runs that another client resumes: under its own caps, with one machine at a time."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.core.errors import BudgetExceeded, ConfigError, NotFound
from orchestrator.core.ledger.budget import Caps, settle
from orchestrator.core.naming import Mode, payload_object, plan_object
from orchestrator.core.run import events as ev
from orchestrator.core.run.fold import Phase
from orchestrator.runs.engine import Engine
from orchestrator.runs.launch import PayloadSource, RunOrder, begin_launch
from orchestrator.runs.resume import resume_run, stored_plan
from tests.integration.stories.recovering import CASES, PAYLOAD, THREE, assert_sound, begun, careful_vm, where
from tests.integration.stories.stage import RUN, Killed, Stage, same_to_the_cent, staged, weather


def resumed(stage: Stage, caps: Caps | None = None, payload: PayloadSource = PAYLOAD, accept: str = "") -> Engine:
    world = stage.world(caps)
    plan = stored_plan(world.bucket, RUN)
    return resume_run(world, plan, run_id=RUN, where=where(stage), fresh=lambda: payload, accept=accept)


def test_a_run_that_ended_preempted_is_resumed_under_a_hold_of_its_own_and_finishes(home: Path) -> None:
    with staged(home, careful_vm()) as stage:
        weather(stage, {"fault": "preempt", "at": {"case": 4}, "notice_s": 0})
        first = begun(stage, attempts="run.attempts=1").follow()
        assert (first.phase, first.cases_done) == (Phase.PREEMPTED, 3)
        run = resumed(stage).follow()
        assert (run.phase, run.cases_done) == (Phase.SUCCEEDED, CASES)
        assert set(stage.ledger().runs) == {RUN, f"{RUN}+1"}
        assert same_to_the_cent(run.cost(stage.timeline.now()), stage.billed())
        assert_sound(stage, run)


def test_a_run_that_gets_less_time_than_before_goes_on_with_a_shorter_deadline(home: Path) -> None:
    """The hold is that of the new plan, and pays for no machine of the first one."""
    with staged(home, careful_vm()) as stage:
        weather(stage, {"fault": "preempt", "at": {"case": 4}, "notice_s": 0})
        begun(stage, attempts="run.attempts=1").follow()
        world = stage.world()
        less = stage.plan("run.attempts=1", "run.max_minutes=12")
        assert less.ceiling_usd < stored_plan(world.bucket, RUN).ceiling_usd
        run = resume_run(world, less, run_id=RUN, where=where(stage), fresh=lambda: PAYLOAD).follow()
        assert (run.phase, run.cases_done) == (Phase.SUCCEEDED, CASES)
        assert run.vm is not None
        assert run.vm.max_run_s == 12 * 60
        assert_sound(stage, run)


def test_a_run_with_a_dead_client_is_resumed_or_over_and_never_has_two_machines(
    home: Path,
) -> None:
    for dies_after in range(2, 6):
        with staged(home / str(dies_after), careful_vm()) as stage:
            with pytest.raises(Killed):
                begun(stage, dies_after=dies_after).follow()
            stage.timeline.advance(200)
            run = resumed(stage).follow()
            assert (run.phase, run.cases_done) == (Phase.SUCCEEDED, CASES), dies_after
            assert len(stage.bill()) == 1
            assert_sound(stage, run)


def test_a_pending_request_is_waited_for_by_clients_that_want_no_such_machine(
    home: Path,
) -> None:
    with staged(home, careful_vm()) as stage:
        with pytest.raises(Killed):
            begun(stage, dies_after=4).follow()
        world = stage.world()
        plan = stored_plan(world.bucket, RUN)
        elsewhere = replace(plan, offers=tuple(one for one in plan.offers if one.zone != plan.offers[0].zone))
        engine = resume_run(world, elsewhere, run_id=RUN, where=where(stage), fresh=lambda: PAYLOAD)
        assert stage.cloud.instances() == []
        run = engine.follow()
        assert (run.phase, run.cases_done) == (Phase.SUCCEEDED, CASES)
        assert next(vm.how for vm in run.vms) == "unanswered"
        assert_sound(stage, run)


@pytest.mark.parametrize("told", [True, False], ids=["its events say so", "only the ledger says so"])
def test_a_run_whose_end_a_dead_client_began_is_resumed_under_a_hold_of_its_own(home: Path, told: bool) -> None:
    with staged(home, careful_vm()) as stage:
        with pytest.raises(Killed):
            begun(stage, dies_after=3).follow()
        stage.timeline.advance(400)
        begin_to_end(stage, told=told)
        run = resumed(stage).follow()
        assert (run.phase, run.cases_done) == (Phase.SUCCEEDED, CASES)
        assert set(stage.ledger().runs) == {RUN, f"{RUN}+1"}
        assert_sound(stage, run)


@pytest.mark.parametrize("told", [True, False], ids=["its events say so", "only the ledger says so"])
def test_a_launching_client_ends_its_run_when_another_settled_it_first(home: Path, told: bool) -> None:
    with staged(home, careful_vm()) as stage:
        engine = begun(stage)
        begin_to_end(stage, told=told)
        for _ in range(10):
            run, pause = engine.step()
            stage.timeline.advance(pause)
        assert run.phase is Phase.STOPPED
        assert f"`bench launch --resume {RUN}` continues it" in (run.closed.detail if run.closed else "")
        assert stage.bill() == []
        assert_sound(stage, run)


def begin_to_end(stage: Stage, *, told: bool) -> None:
    """What a client leaves that dies between settling a run without a machine and closing it."""
    world = stage.world()
    world.accounts.change(lambda ledger: settle(ledger, RUN, Decimal(0), stage.timeline.now()))
    if told:
        world.log(RUN).append(ev.Settled(cost_usd=Decimal(0), released_usd=Decimal(0)))


def test_of_two_clients_that_resume_one_run_one_asks_for_a_machine(home: Path) -> None:
    with staged(home, careful_vm()) as stage:
        with pytest.raises(Killed):
            begun(stage, dies_after=3).follow()
        one, other = resumed(stage), resumed(stage)
        for _ in range(4):
            one.step()
            other.step()
        assert len(stage.cloud.instances()) == 1
        assert len(stage.bill()) == 1
        other.follow()
        assert_sound(stage, one.follow())


def test_a_resumption_over_budget_is_refused_and_leaves_the_run_as_it_was(home: Path) -> None:
    with staged(home, careful_vm()) as stage:
        weather(stage, {"fault": "preempt", "at": {"case": 4}, "notice_s": 0})
        begun(stage, attempts="run.attempts=1").follow()
        first = Engine(stage.world(), RUN).look()
        hold = stage.ledger().runs[RUN].hold_usd
        with pytest.raises(BudgetExceeded) as refusal:
            resumed(stage, Caps(run=hold))
        assert refusal.value.exit_code == 3
        assert Engine(stage.world(), RUN).look() == first


def test_what_cannot_be_resumed_is_refused_with_the_reason(home: Path) -> None:
    with staged(home, careful_vm()) as stage:
        with pytest.raises(NotFound, match="has no plan"):
            resumed(stage)
        begun(stage).follow()
        with pytest.raises(ConfigError, match="has measured all its cases"):
            resumed(stage)
        made = stored_plan(stage.world().bucket, RUN)
        elsewhere = replace(where(stage), mode=Mode.EMBEDDED)
        with pytest.raises(ConfigError, match="launched in mode gce"):
            resume_run(stage.world(), made, run_id=RUN, where=elsewhere, fresh=lambda: PAYLOAD)
        with pytest.raises(NotFound, match="run not found"):
            resume_run(stage.world(), made, run_id=RUN[:-1] + "9", where=where(stage), fresh=lambda: PAYLOAD)


def test_a_plan_that_was_stored_is_the_plan_that_was_made(home: Path) -> None:
    with staged(home, careful_vm()) as stage:
        made = stage.plan(THREE, "placement.on_demand_after=1")
        begin_launch(stage.world(), RunOrder(RUN, made, PAYLOAD, where(stage)))
        assert stored_plan(stage.world().bucket, RUN) == made


def test_a_payload_that_is_gone_or_not_what_its_name_says_is_never_run(home: Path) -> None:
    with staged(home, careful_vm()) as stage:
        with pytest.raises(Killed):
            begun(stage, dies_after=4).follow()
        bucket, name = stage.world().bucket, payload_object(PAYLOAD.sha256)
        bucket.replace(name, b"something else", generation=None)
        upgraded = replace(PAYLOAD, sha256="cd" * 32)
        for accept in ("", PAYLOAD.sha256[:31], upgraded.sha256):
            with pytest.raises(
                ConfigError, match=f"runs payload {PAYLOAD.sha256[:12]}, but this installation has payload cdcdcd"
            ):
                resumed(stage, payload=upgraded, accept=accept)
        with pytest.raises(ConfigError, match="not have the checksum that its name gives"):
            resumed(stage, payload=upgraded, accept=PAYLOAD.sha256[:32])
        stage.delete_objects(name)
        with pytest.raises(NotFound, match="payload"):
            resumed(stage, payload=upgraded, accept=PAYLOAD.sha256)
        for nonsense in (b"no plan", b"[]", b"[" * 60_000):
            bucket.replace(plan_object(RUN), nonsense, generation=None)
            with pytest.raises(ConfigError, match="is not JSON"):
                resumed(stage)
