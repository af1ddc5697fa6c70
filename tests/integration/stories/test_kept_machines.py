"""Machines that stay after their run: taken over without a cold start, let go at their limit, paid for once."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.core.naming import Mode, cases_prefix, slot_object
from orchestrator.core.run.decide import Observation
from orchestrator.core.run.fold import Phase, Run
from orchestrator.core.run.orphans import Orphan
from orchestrator.core.run.slots import Slot
from orchestrator.core.run.status import status_line
from orchestrator.runs.engine import Engine
from orchestrator.runs.launch import LaunchContext, RunOrder, begin_launch
from orchestrator.runs.reap import survey_machines
from orchestrator.runs.reconcile import reconcile_holds
from tests.integration.stories.keeping import kept_vm
from tests.integration.stories.stage import PAYLOAD, RUN, Killed, Stage, good_vm, same_to_the_cent, staged, weather

NEXT = "20261121-050000-l4-0002"
THIRD = "20261121-050000-l4-0003"
KEEP = "run.keep=true"


def keep(stage: Stage, *more: str, run_id: str = RUN) -> Run:
    """A launch that keeps its machine, followed until the machine waits."""
    engine = stage.begin(stage.world(), stage.plan(KEEP, *more), run_id)
    return engine.follow(until=lambda run: run.kept is not None)


def passes(stage: Stage, seconds: float) -> None:
    for _ in range(int(seconds // 10)):
        stage.timeline.advance(10)


def assert_books_balance(stage: Stage) -> None:
    """No machine; every hold settled; each run's entry is what the cloud metered for the machines that it paid for."""
    assert stage.cloud.instances() == []
    ledger = stage.ledger()
    assert all(entry.settled_usd is not None for entry in ledger.runs.values())
    for run_id, entry in ledger.runs.items():
        assert same_to_the_cent(entry.spent, stage.billed(run_id)), run_id
        assert entry.spent <= entry.hold_usd
    assert all(row["has_deadline"] for row in stage.bill())
    spent = sum((entry.spent for entry in ledger.runs.values()), Decimal(0))
    assert same_to_the_cent(spent, sum((Decimal(row["usd"]) for row in stage.bill()), Decimal(0)))


def test_a_kept_machine_serves_the_next_launch_and_is_paid_for_once(home: Path) -> None:
    with staged(home, kept_vm()) as stage:
        first = keep(stage)
        assert (first.phase, first.cases_done) == (Phase.KEPT, 3)
        asked = stage.timeline.now()
        second = stage.begin(stage.world(), stage.plan(), NEXT).follow()
        assert (second.phase, second.cases_done) == (Phase.SUCCEEDED, 3)
        assert second.taken is not None
        assert second.taken.vm == first.vm.name  # type: ignore[union-attr]
        assert second.vms == ()
        warm = second.report_of(1).first_case_at - asked  # type: ignore[operator]
        assert warm < timedelta(seconds=15) < timedelta(seconds=status_line(first, asked).cold_start_s)
        assert len(stage.bill()) == 1
        done = stage.look_after()
        assert done.phase is Phase.SUCCEEDED
        assert second.cost(stage.timeline.now()) == 0
        assert len(stage.world().bucket.list(cases_prefix(NEXT))) == 3
        assert_books_balance(stage)


def test_a_machine_serves_one_launch_after_another_while_each_keeps_it(home: Path) -> None:
    with staged(home, kept_vm()) as stage:
        keep(stage)
        for run_id in (NEXT, THIRD):
            run = stage.begin(stage.world(), stage.plan(KEEP), run_id).follow()
            assert run.phase is Phase.SUCCEEDED
            passes(stage, 30)
        assert len(stage.bill()) == 1
        assert Engine(stage.world(), RUN).look().kept is not None
        assert stage.look_after().phase is Phase.SUCCEEDED
        assert_books_balance(stage)


def test_a_machine_that_nobody_takes_is_gone_at_its_idle_limit_without_any_client(home: Path) -> None:
    with staged(home, kept_vm()) as stage:
        run = keep(stage, "run.idle_minutes=5")
        passes(stage, 290)
        assert len(stage.cloud.instances()) == 1
        passes(stage, 40)
        assert stage.cloud.instances() == []
        assert stage.look_after().phase is Phase.SUCCEEDED
        row = stage.bill()[0]
        assert row["ended_by"] == "vm"
        assert run.kept is not None
        assert_books_balance(stage)


def test_a_machine_that_is_stuck_beyond_its_limit_is_deleted_by_whoever_looks(home: Path) -> None:
    with staged(home, kept_vm(stuck=True)) as stage:
        keep(stage, "run.idle_minutes=2")
        passes(stage, 150)
        assert len(stage.cloud.instances()) == 1, "its grace is not over"
        passes(stage, 60)
        (finding,) = survey_machines(stage.world())
        assert isinstance(finding.verdict, Orphan)
        run = stage.look_after()
        assert run.phase is Phase.SUCCEEDED
        assert_books_balance(stage)


def test_a_stuck_machine_that_nobody_watches_ends_at_the_servers_deadline(home: Path) -> None:
    with staged(home, kept_vm(stuck=True)) as stage:
        run = keep(stage)
        assert run.vm is not None
        assert run.vm.deadline_at is not None
        passes(stage, (run.vm.deadline_at - stage.timeline.now()).total_seconds() + 60)
        assert stage.cloud.instances() == []
        assert stage.look_after().phase is Phase.SUCCEEDED, "what came after its work was done says nothing about that"
        assert_books_balance(stage)


@pytest.mark.parametrize(
    "fault",
    [{"fault": "preempt", "notice_s": 0}, {"fault": "preempt", "notice_s": 30}, {"fault": "kill", "target": "agent"}],
    ids=["taken back", "taken back with notice", "its agent dies"],
)
def test_a_machine_that_is_lost_while_it_waits_changes_nothing_about_its_run(
    home: Path, fault: dict[str, object]
) -> None:
    with staged(home, kept_vm()) as stage:
        weather(stage, fault | {"at": {"seconds": 200}})
        keep(stage)
        passes(stage, 200)
        assert stage.fired() == [1]
        assert stage.cloud.instances() == []
        run = stage.look_after()
        assert (run.phase, run.cases_done, len(run.vms)) == (Phase.SUCCEEDED, 3, 1)
        assert_books_balance(stage)


def test_a_launch_that_finds_the_machine_gone_takes_one_of_its_own(home: Path) -> None:
    with staged(home, kept_vm()) as stage:
        weather(stage, {"fault": "preempt", "notice_s": 0, "at": {"seconds": 150}})
        keep(stage)
        passes(stage, 100)
        assert stage.cloud.instances() == []
        run = stage.begin(stage.world(), stage.plan(), NEXT).follow()
        assert (run.phase, run.taken, len(run.vms)) == (Phase.SUCCEEDED, None, 1)
        stage.look_after()
        assert_books_balance(stage)


def test_a_machine_that_does_not_take_up_its_claim_is_deleted_and_the_claimant_told(home: Path) -> None:
    with staged(home, kept_vm(deaf=True)) as stage:
        keep(stage)
        run = stage.begin(stage.world(), stage.plan(), NEXT).follow()
        assert run.phase is Phase.FAILED
        assert run.cost(stage.timeline.now()) == 0
        assert stage.cloud.instances() == []
        assert stage.look_after().phase is Phase.SUCCEEDED
        assert_books_balance(stage)


def test_a_machine_that_is_taken_back_from_a_guest_leaves_what_the_guest_measured(home: Path) -> None:
    with staged(home, kept_vm(cases=4, seconds_each=40)) as stage:
        weather(stage, {"fault": "preempt", "notice_s": 30, "at": {"seconds": 300}})
        keep(stage)
        run = stage.begin(stage.world(), stage.plan(), NEXT).follow()
        assert run.phase is Phase.PREEMPTED
        assert 0 < run.cases_done < 4
        assert run.next_attempt == 2, "a machine of its own has a number of its own"
        assert stage.look_after().phase is Phase.SUCCEEDED
        assert_books_balance(stage)


class Held(Engine):
    """A client that is held up between its look at the log and its look at the machine, until the machine is gone."""

    def observe(self, run: Run) -> Observation:
        while run.guest_of is not None and run.cases_done and self.world.cloud().instances():
            self.world.clock.sleep(10)
        return super().observe(run)


def test_a_machine_that_ends_unwatched_has_not_lost_the_guest(home: Path) -> None:
    with staged(home, kept_vm()) as stage:
        keep(stage)
        stage.begin(stage.world(), stage.plan(), NEXT)
        run = Held(stage.world(), NEXT).follow()
        assert (run.phase, run.cases_done) == (Phase.SUCCEEDED, 3)
        assert stage.look_after().phase is Phase.SUCCEEDED
        assert_books_balance(stage)


def test_stopping_a_guest_deletes_the_machine_and_ends_both_runs(home: Path) -> None:
    with staged(home, kept_vm(cases=9, seconds_each=40)) as stage:
        keep(stage, "run.max_minutes=60")
        engine = stage.begin(stage.world(), stage.plan(), NEXT)
        engine.follow(until=lambda run: run.cases_done > 0)
        engine.request_stop("ada", "enough")
        run = engine.follow()
        assert run.phase is Phase.STOPPED
        assert stage.look_after().phase is Phase.SUCCEEDED
        assert_books_balance(stage)


def test_stopping_the_run_of_a_waiting_machine_lets_the_machine_go(home: Path) -> None:
    with staged(home, kept_vm()) as stage:
        keep(stage)
        engine = Engine(stage.world(), RUN)
        engine.request_stop("ada", "enough")
        assert engine.follow().phase is Phase.SUCCEEDED
        assert_books_balance(stage)


def test_of_two_launches_one_gets_the_machine_and_the_other_its_own(home: Path) -> None:
    with staged(home, kept_vm()) as stage:
        keep(stage)
        one = stage.begin(stage.world(), stage.plan(), NEXT)
        other = stage.begin(stage.world(), stage.plan(), THIRD)
        runs = [one.follow(), other.follow()]
        assert [run.taken is not None for run in runs] == [True, False]
        assert {run.phase for run in runs} == {Phase.SUCCEEDED}
        stage.look_after()
        assert_books_balance(stage)


def test_a_claim_that_another_made_in_between_is_lost_without_a_trace(home: Path) -> None:
    with staged(home, kept_vm()) as stage:
        keep(stage)
        world = stage.world()
        vm = next(iter(stage.cloud.instances()))["name"]
        there = world.bucket.read(slot_object(vm))
        assert there is not None
        slot = Slot.parse(there.data)
        assert slot is not None
        closed = slot.model_copy(update={"state": "closed"}).dump()
        assert world.bucket.replace(slot_object(vm), closed, generation=there.generation) is not None
        run = stage.begin(stage.world(), stage.plan(), NEXT).follow()
        assert (run.phase, run.taken) == (Phase.SUCCEEDED, None)


def test_a_launch_for_another_type_or_a_cold_start_leaves_the_kept_machine_alone(home: Path) -> None:
    with staged(home, kept_vm()) as stage:
        keep(stage)
        bigger = stage.begin(stage.world(), stage.plan("machine.type=g2-standard-8"), NEXT).follow()
        assert bigger.taken is None
        where = LaunchContext(Mode.GCE, stage.cloud.bucket, "ada", None, require_cuda=False)
        cold = begin_launch(stage.world(), RunOrder(THIRD, stage.plan(), PAYLOAD, where), cold=True).follow()
        assert (cold.phase, cold.taken) == (Phase.SUCCEEDED, None)
        stage.look_after()
        assert_books_balance(stage)


def test_a_machine_whose_deadline_is_near_is_not_taken_over(home: Path) -> None:
    with staged(home, kept_vm()) as stage:
        keep(stage, "run.max_minutes=8", "run.idle_minutes=60")
        passes(stage, 150)
        run = stage.begin(stage.world(), stage.plan(), NEXT).follow()
        assert run.taken is None
        stage.look_after()
        assert_books_balance(stage)


def test_a_run_on_a_machine_that_is_not_kept_leaves_no_slot(home: Path) -> None:
    with staged(home, good_vm()) as stage:
        stage.launch()
        assert stage.world().bucket.list("machines/") == ()


def look_after_everything(stage: Stage) -> None:
    """What `bench status` does about each run, and about holds that nobody settled."""
    world = stage.world()
    names = [entry.name for entry in world.bucket.list("runs/") if "/events/" in entry.name]
    for run_id in dict.fromkeys(name.split("/")[1] for name in names):
        if not Engine(stage.world(), run_id).look().over:
            Engine(stage.world(), run_id).follow()
    reconcile_holds(world)


@pytest.mark.parametrize("after", range(1, 7))
def test_a_client_that_dies_taking_a_machine_over_leaves_nothing_running_or_unpaid(home: Path, after: int) -> None:
    with staged(home, kept_vm()) as stage:
        keep(stage)
        try:
            stage.begin(stage.world(dies_after=after), stage.plan(), NEXT).follow()
        except Killed:
            died = True
        else:
            died = False
        assert died or after > 5, "the client was killed"
        passes(stage, 900)
        look_after_everything(stage)
        assert stage.look_after().phase is Phase.SUCCEEDED
        run = Engine(stage.world(), NEXT).look()
        assert run.closed is not None
        assert run.phase in (Phase.SUCCEEDED, Phase.STOPPED)
        assert_books_balance(stage)


@pytest.mark.parametrize("after", range(1, 8))
def test_a_client_that_dies_launching_a_kept_machine_leaves_nothing_unpaid(home: Path, after: int) -> None:
    with staged(home, kept_vm()) as stage:
        try:
            stage.begin(stage.world(dies_after=after), stage.plan(KEEP), RUN).follow(
                until=lambda run: run.kept is not None
            )
        except Killed:
            pass
        passes(stage, 2400)
        look_after_everything(stage)
        assert_books_balance(stage)


def test_the_cost_of_a_machine_that_served_three_runs_is_in_the_ledger_once(home: Path) -> None:
    with staged(home, kept_vm()) as stage:
        keep(stage)
        for run_id, again in ((NEXT, (KEEP,)), (THIRD, ())):
            stage.begin(stage.world(), stage.plan(*again), run_id).follow()
            passes(stage, 20)
        look_after_everything(stage)
        spent = {run_id: entry.spent for run_id, entry in stage.ledger().runs.items()}
        assert spent[NEXT] == spent[THIRD] == 0
        assert same_to_the_cent(spent[RUN], sum((Decimal(row["usd"]) for row in stage.bill()), Decimal(0)))
        assert_books_balance(stage)
