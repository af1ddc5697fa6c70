"""Sessions: killed at any moment, no finished candidate is lost or measured twice, and the hold is settled."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.api.sessions import UNREADABLE, SessionDesk
from orchestrator.core.candidates import ROWS_BYTES, Candidate, CandidateCase, session_settings
from orchestrator.core.errors import BudgetExceeded, NotFound
from orchestrator.core.ledger.budget import Caps
from orchestrator.core.names import CaseId
from orchestrator.core.naming import candidate_object, candidates_prefix, verdict_object
from orchestrator.core.results import ResultsUnreadable
from orchestrator.core.run.fold import Phase, Run
from orchestrator.runs.engine import Engine
from orchestrator.runs.planning import LaunchOptions
from orchestrator.runs.reconcile import reconcile_holds
from orchestrator.runs.sessions import LiveSession
from tests.integration.stories.stage import RUN, Stage, same_to_the_cent, staged, weather
from tests.support.scripted_machines import Script, ScriptedVm, ShutDown, Steps

CANDIDATES = 5
JUDGE_S = 6.0
ATTEMPTS = "run.attempts=3"


@dataclass
class Judged:
    """What the machines of a session did: the number of each verdict that was stored."""

    verdicts: list[int] = field(default_factory=list)


def session_vm(judged: Judged, idle_s: float = 600.0) -> Script:
    """A machine that judges candidates in order, as the agent does: rows first, the verdict last, both once."""

    def script(vm: ScriptedVm) -> Steps:
        run, number, waited_s = vm.spec["run_id"], 1, 0.0
        vm.event("vm_booted", {"vm": vm.name, "zone": vm.zone, "attempt": int(vm.labels["bench-attempt"])})
        try:
            yield 20
            done = vm.names(f"runs/{run}/artifacts/candidates/")
            while waited_s < idle_s:
                data = vm.read(candidate_object(run, number))
                if data is None:
                    yield 0.5
                    waited_s += 0.5
                    continue
                if json.loads(data).get("closes"):
                    break
                waited_s = 0.0
                if verdict_object(run, number) not in done:
                    yield JUDGE_S
                    vm.put(verdict_object(run, number, "case-1.csv"), b"rows", "text/csv")
                    verdict = {"schema": 1, "number": number, "seconds": JUDGE_S, "reason": f"as said of {number}"}
                    vm.put(verdict_object(run, number), json.dumps(verdict).encode(), "application/json", create=True)
                    judged.verdicts.append(number)
                number += 1
            vm.event("finished", {"outcome": "succeeded", "exit_code": 0})
        except ShutDown:
            vm.event("finished", {"outcome": "preempted" if vm.preempted else "terminated", "exit_code": 143})
        vm.delete_self()
        yield 1

    return script


def begin(stage: Stage, *overrides: str) -> LiveSession:
    """A session that its client has followed until its machine works."""
    plan = stage.plan(ATTEMPTS, *overrides)
    plan = replace(plan, harness=session_settings(plan.harness, 600), cases=())
    world = stage.world()
    live = LiveSession(world, stage.begin(world, plan), "ada")
    live.begin(lambda _: None)
    return live


def version(number: int) -> Candidate:
    return Candidate("mine", "own/mine.py", {"own/mine.py": f"version {number}".encode()})


def assert_settled(stage: Stage, run: Run) -> None:
    entry = stage.ledger().runs[RUN]
    assert entry.settled_usd is not None
    assert same_to_the_cent(entry.settled_usd, stage.billed())
    assert run.closed is not None


MOMENTS: dict[str, dict[str, Any]] = {
    f"{fault['fault']} {fault.get('notice_s', '')} at {seconds} s": {**fault, "at": {"seconds": seconds}}
    for seconds in (1, 21, 26, 33)
    for fault in ({"fault": "preempt", "notice_s": 0}, {"fault": "preempt", "notice_s": 30}, {"fault": "lost"})
}


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
def test_a_session_that_loses_its_machine_at_any_moment_judges_each_candidate_once(
    home: Path, moment: dict[str, Any]
) -> None:
    judged = Judged()
    with staged(home, session_vm(judged)) as stage:
        weather(stage, moment)
        live = begin(stage)
        for number in range(1, CANDIDATES + 1):
            assert live.submit(version(number)) == number
            found = live.wait(number)
            assert found is not None
            assert found.reason == f"as said of {number}"
        run = live.close()
        assert stage.fired() == [1]
        assert Counter(judged.verdicts) == dict.fromkeys(range(1, CANDIDATES + 1), 1)
        assert run.phase is Phase.SUCCEEDED
        assert len(run.vms) == 2
        assert_settled(stage, run)


@pytest.mark.parametrize("killed_after", range(CANDIDATES))
def test_a_client_that_is_killed_loses_nothing_and_another_one_goes_on(home: Path, killed_after: int) -> None:
    judged = Judged()
    with staged(home, session_vm(judged)) as stage:
        first = begin(stage)
        for number in range(1, killed_after + 1):
            first.wait(first.submit(version(number)))
        first.submit(version(killed_after + 1))  # and nothing more is heard of it
        world = stage.world()
        second = LiveSession(world, Engine(world, RUN), "bob")
        assert second.find_candidates() == killed_after + 1
        for number in range(1, killed_after + 2):
            found = second.wait(number)
            assert found is not None
            assert found.number == number
        second.wait(second.submit(version(killed_after + 2)))
        run = second.close()
        assert judged.verdicts == list(range(1, killed_after + 3))
        assert_settled(stage, run)


def test_an_idle_session_of_a_killed_client_ends_and_is_settled_by_the_next(home: Path) -> None:
    judged = Judged()
    with staged(home, session_vm(judged)) as stage:
        live = begin(stage)
        live.submit(version(1))
        stage.timeline.advance(900)
        assert [one.settled for one in reconcile_holds(stage.world())] == [True]
        assert judged.verdicts == [1]
        assert_settled(stage, Engine(stage.world(), RUN).look())
        with pytest.raises(NotFound, match="is over"):
            live.submit(version(2))


def test_a_candidate_is_refused_and_not_queued_where_the_hold_does_not_reach(home: Path) -> None:
    judged = Judged()
    with staged(home, session_vm(judged)) as stage:
        live = begin(stage, "run.max_minutes=8")
        live.wait(live.submit(version(1)))
        vm = live.engine.look().vm
        assert vm is not None
        assert vm.deadline_at is not None
        stage.timeline.advance((vm.deadline_at - stage.timeline.now()).total_seconds() - 95)
        with pytest.raises(BudgetExceeded, match="95 s are left of what the hold pays for"):
            live.submit(version(2))
        assert [entry.name for entry in live.world.bucket.list(candidates_prefix(RUN))] == [candidate_object(RUN, 1)]
        assert_settled(stage, live.close())


def test_a_session_is_not_begun_where_the_budget_does_not_reach(home: Path) -> None:
    with staged(home, session_vm(Judged())) as stage:
        plan = stage.plan(ATTEMPTS)
        with pytest.raises(BudgetExceeded):
            stage.begin(stage.world(Caps(day=plan.ceiling_usd / 2)), plan)
        assert not stage.bill()


def test_a_session_that_is_closed_while_it_judges_gives_its_machine_back_at_once(home: Path) -> None:
    judged = Judged()
    with staged(home, session_vm(judged)) as stage:
        live = begin(stage)
        live.wait(live.submit(version(1)))
        live.submit(version(2))
        run = live.close()
        assert run.phase is Phase.STOPPED
        assert judged.verdicts == [1]
        assert_settled(stage, run)


def test_a_verdict_without_its_rows_is_none_and_its_seconds_are_our_own(home: Path) -> None:
    with staged(home, session_vm(Judged())) as stage:
        live = begin(stage)
        number = live.submit(version(1))
        found = live.wait(number)
        assert found is not None
        listed = tuple(CandidateCase(case_id=CaseId(f"c{at}"), file=f"case-{at}.csv") for at in (1, 2))
        assert dict(live.rows(found.model_copy(update={"cases": listed[:1]}))) == {"c1": b"rows"}
        with pytest.raises(ResultsUnreadable, match="rows of c2 of candidate 1 are missing"):
            live.rows(found.model_copy(update={"cases": listed}))
        large = b"x" * (ROWS_BYTES // 2 + 1)
        live.world.bucket.create(verdict_object(RUN, number, "case-2.csv"), large)
        with pytest.raises(ResultsUnreadable, match="rows of c2 of candidate 1 are missing, or more than"):
            live.rows(found.model_copy(update={"cases": listed}))
        live.submit(version(2))
        lie = {"schema": 1, "number": 2, "seconds": 1e6, "reason": "x"}
        live.world.bucket.create(verdict_object(RUN, 2), json.dumps(lie).encode())
        found = live.wait(2)
        assert found is not None
        assert found.seconds <= max(live.taken_s) < 60
        live.submit(version(3))
        assert_settled(stage, live.close())


def test_a_verdict_that_was_stored_before_its_candidate_is_not_believed(home: Path) -> None:
    """A machine of another run may store one: the session's own would not measure that candidate."""
    with staged(home, session_vm(Judged())) as stage:
        live = begin(stage)
        early = {"schema": 1, "number": 1, "seconds": 1, "reason": "fast"}
        live.world.bucket.create(verdict_object(RUN, 1), json.dumps(early).encode())
        with pytest.raises(ResultsUnreadable, match="stored before the candidate"):
            live.submit(version(1))
        number = live.submit(version(1))
        found = live.wait(number)
        assert (number, found and found.number) == (2, 2)
        assert_settled(stage, live.close())


class SavedDesk(SessionDesk):
    """A desk whose workload is as it was saved."""

    def read(self) -> Any:
        return None, "mine", version(1)


def test_one_verdict_that_cannot_be_read_keeps_nobody_from_attaching(home: Path) -> None:
    """And no machine says how long, or for how much, its candidates were measured."""
    with staged(home, session_vm(Judged())) as stage:
        live = begin(stage)
        bucket = live.world.bucket
        for number in (1, 2, 3):
            live.submit(version(number))
        no_rows = {"schema": 1, "number": 2, "cases": [{"case_id": "c1", "file": "case-1.csv"}]}
        bucket.create(verdict_object(RUN, 1), b"[")
        bucket.create(verdict_object(RUN, 2), json.dumps(no_rows).encode())
        bucket.create(verdict_object(RUN, 3), b'{"schema": 1, "number": 3, "seconds": 1e6, "reason": "slow"}')
        wiring: Any = SimpleNamespace(world=stage.world, user="ada")
        desk = SavedDesk(wiring, LaunchOptions("l4", None, ()))
        desk.attach(RUN)
        assert [line.verdict for line in desk.lines] == [UNREADABLE] * 3
        assert desk.lines[-1].reason == "slow"
        assert desk.lines[-1].seconds < 120
        assert_settled(stage, live.close())
