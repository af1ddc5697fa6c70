"""Machines that are taken back: another one goes on, nothing is measured twice, and the books stay right."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from orchestrator.core.errors import BudgetExceeded, ConfigError, NotFound
from orchestrator.core.ledger.budget import Caps, settle
from orchestrator.core.mode import Mode
from orchestrator.core.naming import payload_object, plan_object
from orchestrator.core.run import events as ev
from orchestrator.core.run.fold import Phase, Run
from orchestrator.runs.engine import Engine
from orchestrator.runs.launch import LaunchContext, Payload, RunOrder, begin
from orchestrator.runs.reap import reap, survey
from orchestrator.runs.resume import resume, stored_plan
from tests.stories.stage import RUN, Killed, Stage, same_to_the_cent, staged, weather
from tests.support.scripted_machines import ScriptedVm, ShutDown, Steps

CASES = 6
THREE = "run.attempts=3"


def stored(vm: ScriptedVm) -> set[str]:
    """What the machine finds in the bucket, as the agent does."""
    prefix = f"runs/{vm.spec['run_id']}/cases/"
    url = f"{vm.guest.storage_url}/storage/v1/b/{vm.spec['bucket']}/o?prefix={quote(prefix, safe='')}"
    names = [entry["name"] for entry in json.loads(vm.request("GET", url)).get("items", [])]
    return {name.removeprefix(prefix).removesuffix(".csv") for name in names}


def careful_vm(*, loses_word_of: str = "") -> Callable[[ScriptedVm], Steps]:
    """A machine that leaves out what is stored. The first one dies between storing one case and saying so."""

    def script(vm: ScriptedVm) -> Steps:
        attempt = int(vm.labels["bench-attempt"])
        vm.event("vm_booted", {"vm": vm.name, "zone": vm.zone, "attempt": attempt})
        try:
            for phase in ("preflight", "environment", "build", "correctness"):
                vm.event("phase_started", {"phase": phase, "limit_s": 300})
                yield 10
                vm.event("phase_finished", {"phase": phase, "exit_code": 0, "seconds": 10})
            vm.event("phase_started", {"phase": "measure", "limit_s": 1500})
            done = stored(vm)
            cases = [f"case-{n}" for n in range(1, CASES + 1) if f"case-{n}" not in done]
            facts: dict[str, Any] = {"cases": len(cases), "total": CASES, "measurements_per_implementation": 12}
            vm.event("measurement_planned", facts)
            for index, case in enumerate(cases, 1):
                vm.event("case_started", {"case_id": case, "index": index, "of": len(cases)})
                yield 20
                body = f"{case} by {vm.name}\n".encode()
                vm.put(f"runs/{vm.spec['run_id']}/cases/{case}.csv", body, "text/csv", create=True)
                if case == loses_word_of and attempt == 1:
                    while True:
                        yield 5
                vm.event(
                    "case_measured",
                    {"case_id": case, "index": index, "of": len(cases), "rows": 2, "seconds": 20, "median_us": {}},
                )
            vm.event("finished", {"outcome": "succeeded", "exit_code": 0})
        except ShutDown:
            outcome = "preempted" if vm.preempted else "terminated"
            vm.event("finished", {"outcome": outcome, "exit_code": 143})
        vm.delete_self()
        yield 1

    return script


def assert_sound(stage: Stage, run: Run) -> None:
    """No machine, every hold settled, what was settled is the bill, and every case was measured by one machine only."""
    assert run.over
    assert stage.cloud.instances() == []
    entries = [entry for key, entry in stage.ledger().runs.items() if key.startswith(run.run_id)]
    assert all(entry.held == 0 and entry.spent <= entry.hold_usd for entry in entries)
    assert same_to_the_cent(sum((entry.spent for entry in entries), Decimal(0)), stage.billed(run.run_id))
    assert run.cases_done == len(stage.world().bucket.list(f"runs/{run.run_id}/cases/"))
    assert len({fact.case_id for fact in run.measured}) == len(run.measured)


MOMENTS: dict[str, dict[str, Any]] = {
    "with notice, while it measures": {"at": {"case": 3}, "notice_s": 30},
    "at once, while it measures": {"at": {"case": 3}, "notice_s": 0},
    "70 s after it runs, with notice": {"at": {"seconds": 70}, "notice_s": 30},
    "before its first word": {"at": {"seconds": 1}, "notice_s": 0},
    "while it builds": {"at": {"phase": "build"}, "notice_s": 0},
}


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
def test_a_machine_taken_back_at_any_moment_is_replaced_and_nothing_is_measured_twice(
    home: Path, moment: dict[str, Any]
) -> None:
    with staged(home, careful_vm()) as stage:
        weather(stage, {"fault": "preempt", **moment})
        run = stage.launch(THREE)
        assert (run.phase, run.cases_done) == (Phase.SUCCEEDED, CASES)
        assert stage.fired() == [1]
        assert [vm.attempt for vm in run.vms] == [1, 2]
        assert run.vms[0].zone != run.vms[1].zone
        assert_sound(stage, run)


def test_a_machine_that_vanishes_without_a_trace_is_replaced(home: Path) -> None:
    with staged(home, careful_vm()) as stage:
        weather(stage, {"fault": "lost", "at": {"case": 4}})
        run = stage.launch(THREE)
        assert (run.phase, run.cases_done, len(run.vms)) == (Phase.SUCCEEDED, CASES, 2)
        assert_sound(stage, run)


def test_a_case_that_was_stored_but_never_told_of_counts_and_is_not_measured_again(home: Path) -> None:
    with staged(home, careful_vm(loses_word_of="case-3")) as stage:
        engine = stage.begin(stage.world(), stage.plan(THREE))
        while not stage.world().bucket.list(f"runs/{RUN}/cases/case-3"):
            _, pause = engine.step()
            stage.timeline.advance(pause)
        assert engine.look().cases_done == 2
        vm = engine.look().vm
        assert vm is not None
        assert stage.cloud.preempt(vm.name, 0)
        run = engine.follow()
        assert (run.phase, run.cases_done, len(run.measured)) == (Phase.SUCCEEDED, CASES, CASES - 1)
        assert_sound(stage, run)


def test_when_the_last_machine_dies_before_it_told_of_a_case_the_files_are_counted(home: Path) -> None:
    with staged(home, careful_vm(loses_word_of="case-2")) as stage:
        weather(stage, {"fault": "preempt", "at": {"seconds": 150}, "notice_s": 0})
        run = stage.launch("run.attempts=1")
        assert (run.phase, run.cases_done, len(run.measured)) == (Phase.PREEMPTED, 2, 1)
        assert_sound(stage, run)


def test_when_every_machine_is_taken_back_the_run_ends_within_its_hold(home: Path) -> None:
    with staged(home, careful_vm()) as stage:
        weather(stage, {"fault": "preempt", "at": {"seconds": 70}, "notice_s": 0, "times": 5})
        run = stage.launch(THREE)
        assert (run.phase, len(run.vms)) == (Phase.PREEMPTED, 3)
        assert stage.fired() == [3]
        assert_sound(stage, run)


def test_when_no_zone_has_another_machine_the_run_says_both(home: Path) -> None:
    with staged(home, careful_vm()) as stage:
        engine = stage.begin(stage.world(), stage.plan(THREE))
        while engine.step()[0].cases_done < 2:
            stage.timeline.advance(5)
        weather(stage, {"fault": "stockout", "times": 9})
        vm = engine.look().vm
        assert vm is not None
        stage.cloud.preempt(vm.name, 0)
        run = engine.follow()
        assert run.phase is Phase.PREEMPTED
        assert run.closed is not None
        assert "was preempted" in run.closed.detail
        assert "no machine in 3 zones" in run.closed.detail
        assert_sound(stage, run)


def test_once_enough_spot_machines_were_taken_back_one_on_demand_is_asked_for(home: Path) -> None:
    with staged(home, careful_vm()) as stage:
        weather(stage, {"fault": "preempt", "at": {"seconds": 70}, "notice_s": 0, "times": 2})
        run = stage.launch(THREE, "placement.on_demand_after=2")
        assert [vm.provisioning for vm in run.vms] == ["SPOT", "SPOT", "STANDARD"]
        assert run.phase is Phase.SUCCEEDED
        assert_sound(stage, run)


# --- resumed by another client ---------------------------------------------------------------------------------------


def packed() -> Payload:
    """A payload that can be found again by its name."""
    script = b"#!/bin/bash\n"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo("startup/startup.sh")
        member.size = len(script)
        archive.addfile(member, io.BytesIO(script))
    data = buffer.getvalue()
    return Payload(sha256(data).hexdigest(), data, script.decode())


PAYLOAD = packed()


def where(stage: Stage) -> LaunchContext:
    return LaunchContext(Mode.GCE, stage.cloud.bucket, "ada", None, require_cuda=False)


def begun(stage: Stage, *, dies_after: int = 0, attempts: str = THREE) -> Engine:
    world = stage.world(dies_after=dies_after)
    return begin(world, RunOrder(RUN, stage.plan(attempts), PAYLOAD, where(stage)))


def resumed(stage: Stage, caps: Caps | None = None, payload: Payload = PAYLOAD, accept: str = "") -> Engine:
    world = stage.world(caps)
    plan = stored_plan(world.bucket, RUN)
    return resume(world, plan, run_id=RUN, where=where(stage), fresh=lambda: payload, accept=accept)


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
        run = resume(world, less, run_id=RUN, where=where(stage), fresh=lambda: PAYLOAD).follow()
        assert (run.phase, run.cases_done) == (Phase.SUCCEEDED, CASES)
        assert run.vm is not None
        assert run.vm.max_run_s == 12 * 60
        assert_sound(stage, run)


def test_a_run_whose_client_died_at_any_append_is_resumed_or_is_over_and_never_has_two_machines_at_once(
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


def test_a_request_that_is_on_its_way_is_waited_for_by_a_client_that_would_not_ask_for_such_a_machine(
    home: Path,
) -> None:
    with staged(home, careful_vm()) as stage:
        with pytest.raises(Killed):
            begun(stage, dies_after=4).follow()
        world = stage.world()
        plan = stored_plan(world.bucket, RUN)
        elsewhere = replace(plan, offers=tuple(one for one in plan.offers if one.zone != plan.offers[0].zone))
        engine = resume(world, elsewhere, run_id=RUN, where=where(stage), fresh=lambda: PAYLOAD)
        assert stage.cloud.instances() == []
        run = engine.follow()
        assert (run.phase, run.cases_done) == (Phase.SUCCEEDED, CASES)
        assert next(vm.how for vm in run.vms) == "unanswered"
        assert_sound(stage, run)


@pytest.mark.parametrize("told", [True, False], ids=["its events say so", "only the ledger says so"])
def test_a_run_whose_end_was_begun_by_a_client_that_died_is_resumed_under_a_hold_of_its_own(
    home: Path, told: bool
) -> None:
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
def test_a_client_that_launches_ends_its_run_when_another_settled_it_before_a_machine_was_asked_for(
    home: Path, told: bool
) -> None:
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


def test_a_resumption_that_the_budget_does_not_allow_is_refused_and_leaves_the_run_as_it_was(home: Path) -> None:
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
            resume(stage.world(), made, run_id=RUN, where=elsewhere, fresh=lambda: PAYLOAD)
        with pytest.raises(NotFound, match="run not found"):
            resume(stage.world(), made, run_id=RUN[:-1] + "9", where=where(stage), fresh=lambda: PAYLOAD)


def test_a_plan_that_was_stored_is_the_plan_that_was_made(home: Path) -> None:
    with staged(home, careful_vm()) as stage:
        made = stage.plan(THREE, "placement.on_demand_after=1")
        begin(stage.world(), RunOrder(RUN, made, PAYLOAD, where(stage)))
        assert stored_plan(stage.world().bucket, RUN) == made


def test_a_machine_that_appears_under_a_run_that_is_over_is_deleted_and_paid_for(home: Path) -> None:
    with staged(home, careful_vm()) as stage:
        sleeper = begun(stage)
        stage.timeline.advance(300)  # a laptop sleeps right after the hold was taken
        assert stage.look_after().phase is Phase.STOPPED
        run = sleeper.follow()
        assert run.phase is Phase.STOPPED
        assert stage.bill() == []
        assert_sound(stage, run)


def test_a_payload_that_is_gone_or_not_what_its_name_says_is_never_run(home: Path) -> None:
    with staged(home, careful_vm()) as stage:
        with pytest.raises(Killed):
            begun(stage, dies_after=4).follow()
        bucket, name = stage.world().bucket, payload_object(PAYLOAD.sha256)
        bucket.replace(name, b"something else", generation=None)
        upgraded = replace(PAYLOAD, sha256="cd" * 32)
        for accept in ("", PAYLOAD.sha256[:11], upgraded.sha256):
            with pytest.raises(
                ConfigError, match=f"runs payload {PAYLOAD.sha256[:12]}, but this installation has payload cdcdcd"
            ):
                resumed(stage, payload=upgraded, accept=accept)
        with pytest.raises(ConfigError, match="not have the checksum that its name gives"):
            resumed(stage, payload=upgraded, accept=PAYLOAD.sha256[:12])
        stage.delete_objects(name)
        with pytest.raises(NotFound, match="payload"):
            resumed(stage, payload=upgraded, accept=PAYLOAD.sha256)
        for nonsense in (b"no plan", b"[]", b"[" * 60_000):
            bucket.replace(plan_object(RUN), nonsense, generation=None)
            with pytest.raises(ConfigError, match="is not JSON"):
                resumed(stage)


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
def test_a_machine_that_comes_after_its_run_was_settled_is_deleted_and_what_it_cost_is_added(
    home: Path, late_s: float
) -> None:
    with staged(home, careful_vm()) as stage:
        world = stage.world()
        cloud: Any = Held(world.cloud())
        with pytest.raises(Killed):
            begin(replace(world, cloud=lambda: cloud), RunOrder(RUN, stage.plan(THREE), PAYLOAD, where(stage))).follow()
        stage.timeline.advance(late_s)
        run = stage.look_after()
        assert (run.phase.over, stage.ledger().runs[RUN].spent) == (True, 0)
        cloud.cloud.insert(cloud.asked[0])
        stage.timeline.advance(90)
        reaper = stage.world()
        reaped = reap(reaper, survey(reaper))
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
        engine = begin(replace(world, cloud=lambda: cloud), RunOrder(RUN, plan, PAYLOAD, where(stage)))
        while not stage.cloud.instances():
            stage.timeline.advance(engine.step()[1])
        Engine(looker, RUN, log=logs[0]).step()
        run = engine.look()
        assert [(vm.zone == plan.offers[0].zone, vm.open) for vm in run.vms] == [(True, False), (False, True)]
        run = engine.follow()
        assert (run.phase, run.cases_done) == (Phase.SUCCEEDED, CASES)
        assert len(stage.bill()) == 1
        assert_sound(stage, run)
