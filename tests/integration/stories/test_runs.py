"""Runs from launch to bill, on simulated time, through the real clients: what goes right, and what goes wrong."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.core.errors import BudgetExceeded
from orchestrator.core.ledger.budget import Caps
from orchestrator.core.naming import instance_name, payload_object
from orchestrator.core.run.events import StopRequested
from orchestrator.core.run.fold import Phase, Run
from orchestrator.runs.engine import Engine
from tests.integration.stories.stage import (
    RUN,
    ZONES,
    Killed,
    Stage,
    body,
    good_vm,
    lingering_vm,
    same_to_the_cent,
    silent_vm,
    staged,
    weather,
)

STORE = {"service": "storage"}


def assert_over(stage: Stage, run: Run) -> None:
    """What holds at the end of every story: no machine, a settled hold, and our account is the cloud's bill."""
    assert run.closed is not None
    assert stage.cloud.instances() == []
    entry = stage.ledger().runs[run.run_id]
    assert entry.held == 0
    assert same_to_the_cent(entry.spent, stage.billed(run.run_id))
    assert entry.spent <= entry.hold_usd
    assert all(row["has_deadline"] for row in stage.bill())


@pytest.mark.smoke
def test_a_run_that_goes_well_is_measured_settled_and_gone(home: Path) -> None:
    with staged(home, good_vm(cases=3)) as stage:
        run = stage.launch()
        assert (run.phase, run.cases_done) == (Phase.SUCCEEDED, 3)
        assert stage.billed() > 0
        assert_over(stage, run)
        assert len(stage.world().bucket.list(f"runs/{RUN}/cases/")) == 3
        assert body(stage, f"index/{RUN}.json")["state"] == "succeeded"


@pytest.mark.smoke
def test_a_payload_is_uploaded_once(stage: Stage) -> None:
    runs = [stage.launch(run_id=run_id) for run_id in (RUN, RUN[:-1] + "9")]
    stored = [run.payload for run in runs if run.payload is not None]
    assert [one.uploaded for one in stored] == [True, False]
    there = stage.world().bucket.list(payload_object(stored[0].sha256))
    assert [one.size for one in there] == [stored[0].size_bytes]


def test_when_every_zone_is_out_of_machines_the_run_ends_and_costs_nothing(stage: Stage) -> None:
    weather(stage, {"fault": "stockout", "times": 3})
    run = stage.launch()
    assert run.phase is Phase.NO_CAPACITY
    assert {vm.zone for vm in run.vms} == set(ZONES)
    assert stage.fired() == [3]
    assert stage.billed() == 0
    assert_over(stage, run)


def test_a_region_without_quota_is_left_alone(stage: Stage) -> None:
    first = stage.plan().offers[0]
    weather(stage, {"fault": "quota", "metric": "NVIDIA_L4_GPUS", "region": first.region})
    run = stage.launch()
    assert run.phase is Phase.SUCCEEDED
    assert run.vms[-1].zone.rpartition("-")[0] != first.region
    assert_over(stage, run)


def test_no_quota_anywhere_ends_the_run_with_the_reason(stage: Stage) -> None:
    weather(stage, {"fault": "quota", "metric": "GPUS_ALL_REGIONS", "global": True})
    run = stage.launch()
    assert run.phase is Phase.FAILED
    assert run.rejected is not None
    assert "GPUS_ALL_REGIONS" in run.rejected.message
    assert len(run.vms) == 1
    assert_over(stage, run)


def test_a_preempted_run_says_so_and_keeps_what_was_measured(home: Path) -> None:
    with staged(home, good_vm(cases=4, seconds_each=40)) as stage:
        weather(stage, {"fault": "preempt", "at": {"case": 3}, "notice_s": 30})
        run = stage.launch()
        assert run.phase is Phase.PREEMPTED
        assert run.cases_done == 2
        assert len(stage.world().bucket.list(f"runs/{RUN}/cases/")) == 2
        assert_over(stage, run)


@pytest.mark.parametrize("at", [{"seconds": 1}, {"phase": "build"}], ids=["before its first word", "while it builds"])
def test_a_machine_taken_back_without_notice_is_known_from_the_operations(stage: Stage, at: dict[str, object]) -> None:
    weather(stage, {"fault": "preempt", "at": at, "notice_s": 0})
    run = stage.launch()
    assert run.phase is Phase.PREEMPTED
    assert_over(stage, run)


def test_a_machine_that_vanishes_without_a_trace_ends_the_run(stage: Stage) -> None:
    weather(stage, {"fault": "lost", "at": {"phase": "correctness"}})
    run = stage.launch()
    assert run.phase is Phase.FAILED
    assert "without a message" in run.closed.detail if run.closed else False
    assert_over(stage, run)


def test_a_machine_that_never_says_a_word_is_deleted_by_the_client(home: Path) -> None:
    with staged(home, silent_vm) as stage:
        run = stage.launch()
        assert run.phase is Phase.FAILED
        assert run.vm is not None
        assert run.vm.gone_at is not None
        assert run.vm.started_at is not None
        assert run.vm.gone_at - run.vm.started_at < timedelta(seconds=700)
        assert_over(stage, run)


def test_a_machine_that_does_not_delete_itself_is_deleted_by_the_client(home: Path) -> None:
    with staged(home, lingering_vm) as stage:
        run = stage.launch()
        assert run.phase is Phase.FAILED
        assert run.closed is not None
        assert run.closed.detail == "could not delete myself"
        assert_over(stage, run)


def test_a_machine_that_may_not_be_deleted_is_tried_again_and_said_until_it_is_gone(home: Path) -> None:
    with staged(home, lingering_vm) as stage:
        refused = {"fault": "http", "service": "compute", "method": "DELETE", "status": 403, "times": 40}
        weather(stage, refused)
        said: list[str] = []
        run = stage.begin(stage.world()).follow(trouble=lambda error, _: said.append(str(error)))
        assert run.over
        assert stage.cloud.instances() == []
        assert len(said) >= 20  # far past the ten minutes for which a service that is away is waited for
        assert all("was not deleted" in text and "tries again" in text for text in said)
        assert same_to_the_cent(run.cost(stage.timeline.now()), stage.billed())


def test_with_client_and_machine_dead_the_servers_deadline_deletes_the_machine(home: Path) -> None:
    with staged(home, silent_vm) as stage:
        engine = stage.begin(stage.world(), stage.plan("run.max_minutes=20"))
        while engine.step()[0].vm is None:
            pass
        stage.timeline.advance(21 * 60)
        assert stage.cloud.instances() == []
        run = stage.look_after()
        assert run.phase is Phase.EXPIRED
        assert_over(stage, run)


def test_a_stopped_run_loses_its_machine_and_keeps_its_cases(home: Path) -> None:
    with staged(home, good_vm(cases=50)) as stage:
        engine = stage.begin(stage.world())
        for _ in range(40):
            run, pause = engine.step()
            stage.timeline.advance(pause)
        assert 0 < run.cases_done < 50
        Engine(stage.world(), RUN).log.append(StopRequested(by="bob", reason="enough"))
        over = stage.look_after()
        assert (over.phase, over.closed.detail if over.closed else "") == (Phase.STOPPED, "enough")
        assert over.cases_done >= run.cases_done
        assert_over(stage, over)


def appends_of_a_whole_run(home: Path) -> int:
    with staged(home) as stage:
        world = stage.world()
        engine = stage.begin(world)
        engine.follow()
        return sum(1 for event in engine.log.read() if event.writer.startswith("client-"))


def test_a_client_killed_after_any_append_leaves_a_run_that_another_client_ends(home: Path) -> None:
    appends = appends_of_a_whole_run(home / "whole")
    assert appends >= 7
    for dies_after in range(1, appends + 1):
        with staged(home / str(dies_after)) as stage:
            with pytest.raises(Killed):
                stage.begin(stage.world(dies_after=dies_after)).follow()
            run = stage.look_after()
            assert run.phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED), dies_after
            assert stage.cloud.instances() == []
            entry = stage.ledger().runs.get(RUN)
            assert same_to_the_cent(entry.spent if entry else Decimal(0), stage.billed()), dies_after
            assert entry is None or entry.held == 0


def test_a_stop_by_another_client_ends_a_run_whose_client_was_killed_at_any_append(home: Path) -> None:
    for dies_after in range(1, 6):
        with staged(home / str(dies_after), good_vm(cases=100)) as stage:
            with pytest.raises(Killed):
                stage.begin(stage.world(dies_after=dies_after)).follow()
            other = Engine(stage.world(), RUN)
            other.log.append(StopRequested(by="bob", reason="enough"))
            run = other.follow()
            assert run.phase in (Phase.STOPPED, Phase.FAILED)
            assert stage.cloud.instances() == []


def test_a_run_that_holds_money_is_listed_even_if_its_client_dies_first(stage: Stage) -> None:
    stage.begin(stage.world())
    (line,) = stage.world().index.list_runs()
    assert line.run_id == RUN
    assert stage.ledger().runs[RUN].held > 0


def test_of_two_clients_with_money_for_one_run_one_is_refused_before_any_request(stage: Stage) -> None:
    made = stage.plan()
    caps = Caps(day=made.ceiling_usd * Decimal("1.5"))
    winner = stage.begin(stage.world(caps), made, "20261121-040000-l4-0001")
    with pytest.raises(BudgetExceeded) as refusal:
        stage.begin(stage.world(caps), made, "20261121-040000-l4-0002")
    assert refusal.value.exit_code == 3
    loser = Engine(stage.world(), "20261121-040000-l4-0002").look()
    assert loser.phase is Phase.REFUSED
    assert loser.vms == ()
    assert winner.follow().phase is Phase.SUCCEEDED
    assert len(stage.bill()) == 1


def test_alerts_are_said_once_for_each_threshold(home: Path) -> None:
    with staged(home, good_vm(cases=10, seconds_each=100)) as stage:
        caps = Caps(day=Decimal("0.30"))
        for number in range(1, 3):
            stage.launch(run_id=f"20261121-040000-l4-{number:04d}", caps=caps)
        said = [(notice.kind, notice.data["threshold_percent"]) for notice in stage.heard.notices]
        assert said == [("budget", "50")] or said == [("budget", "50"), ("budget", "80")]


def test_a_storage_that_stumbles_loses_nothing(stage: Stage) -> None:
    weather(
        stage,
        {"fault": "http", **STORE, "method": "POST", "status": 503, "times": 3},
        {"fault": "reset", **STORE, "method": "POST", "after": "response", "times": 2},
        {"fault": "http", **STORE, "method": "GET", "status": 429, "times": 2},
    )
    run = stage.launch()
    assert run.phase is Phase.SUCCEEDED
    assert stage.fired() == [3, 2, 2]
    assert_over(stage, run)


def test_a_machine_is_named_after_its_run_and_labelled_so_that_anyone_can_find_it(home: Path) -> None:
    with staged(home, silent_vm) as stage:
        engine = stage.begin(stage.world())
        while engine.step()[0].vm is None:
            pass
        (found,) = stage.world().cloud().instances()
        assert found.name == instance_name(RUN, 1)
        assert found.labels["bench-run"] == RUN
        assert found.deadline_at is not None
        engine.log.append(StopRequested(by="ada", reason="enough"))
        engine.follow()


def test_a_look_that_finds_nothing_new_folds_nothing_and_a_new_word_folds(stage: Stage) -> None:
    engine, _ = stage.with_a_machine()
    other = Engine(stage.world(), RUN)
    before = other.look()
    assert other.look() is before
    engine.log.append(StopRequested(by="ada", reason="enough"))
    assert before.stop is None
    assert other.look().stop is not None
