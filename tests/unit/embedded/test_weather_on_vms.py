"""Preemptions, losses, hangs and kills come to the VM that they are forecast for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support import keyed as requests
from tests.support.scripted_machines import ScriptedVm, ShutDown, Steps, Struck
from tests.unit.embedded.builders import RUN, ZONE, Stage, flex_body, insert_body
from tests.unit.embedded.weather import forecast, objects

NAME = f"bench-{RUN}-1"


def working(vm: ScriptedVm) -> Steps:
    """A VM that reports a phase and three cases, a minute each, and deletes itself."""
    try:
        vm.event("phase_started", {"phase": "measure", "limit_s": 600})
        for index in (1, 2, 3):
            vm.event("case_started", {"case_id": f"c{index}", "index": index, "of": 3})
            yield 60.0
            vm.event("case_measured", {"case_id": f"c{index}", "index": index, "of": 3})
    except ShutDown:
        vm.event("preempted", {"detail": "told to end"})
    except Struck as struck:
        vm.log(f"{struck.args[0]} was killed")
        vm.event("finished", {"outcome": "failed"})
    vm.delete_self()


def ended_by(stage: Stage) -> list[str | None]:
    return [row.ended_by for row in stage.cloud.bill().rows]


def test_a_slow_boot_delays_the_script_and_is_billed(tmp_path: Path) -> None:
    with Stage(tmp_path, working, weather=forecast({"fault": "slow_boot", "seconds": 300})) as stage:
        stage.run_vm()
        assert objects(stage) == []
        stage.advance(300)
        assert "phase_started" in objects(stage)
        stage.advance(400)
        assert stage.only_row().seconds > 480


@pytest.mark.parametrize(("seconds", "runs"), [(500, True), (900, False)], ids=["there is capacity", "there is none"])
def test_a_flex_start_vm_waits_unpaid_then_runs_or_is_deleted(tmp_path: Path, seconds: float, runs: bool) -> None:
    with Stage(tmp_path, working, weather=forecast({"fault": "queue", "seconds": seconds})) as stage:
        operation = stage.rest.insert(flex_body(600))
        stage.advance(490)
        seen = stage.rest.instance()
        assert (seen["status"], "lastStartTimestamp" in seen) == ("PENDING", False)
        assert stage.rest.operation(operation["name"])["status"] == "RUNNING"
        assert stage.cloud.bill().usd == 0
        stage.advance(140)
        done = stage.rest.operation(operation["name"])
        assert (done["status"], "error" in done) == ("DONE", not runs)
        seen = stage.rest.instance()
        assert (seen is not None and seen["status"] == "RUNNING") is runs
        stage.advance(3600)
        row = stage.only_row()
        assert (row.provisioning, row.ended_by, row.usd > 0) == ("flex_start", "vm" if runs else "queue", runs)
        assert stage.cloud.weather.fired("queue") == 1


def test_a_vm_that_never_boots_runs_until_its_deadline_and_says_nothing(tmp_path: Path) -> None:
    with Stage(tmp_path, working, weather=forecast({"fault": "never_boots"})) as stage:
        stage.run_vm()
        assert stage.cloud.instances()[0]["status"] == "RUNNING"
        stage.advance(2000)
        assert objects(stage) == []
        assert ended_by(stage) == ["deadline"]


@pytest.mark.parametrize(
    ("fault", "last", "end"),
    [
        ({"fault": "preempt", "at": {"phase": "measure"}, "notice_s": 0}, "phase_started", "preemption"),
        ({"fault": "preempt", "at": {"case": 2}, "notice_s": 0}, "case_started", "preemption"),
        ({"fault": "preempt", "at": {"seconds": 90}, "notice_s": 0}, "case_started", "preemption"),
        ({"fault": "preempt", "at": {"case": 1}, "notice_s": 20}, "preempted", "preemption"),
        ({"fault": "hang", "at": {"case": 2}}, "case_started", "deadline"),
        ({"fault": "kill", "at": {"case": 2}, "target": "harness"}, "finished", "vm"),
        ({"fault": "kill", "at": {"case": 2}, "target": "agent"}, "finished", "vm"),
    ],
    ids=["phase", "case", "seconds", "with notice", "hung", "harness killed", "agent killed"],
)
def test_what_befalls_a_vm_comes_at_its_moment_and_once(
    tmp_path: Path, fault: dict[str, Any], last: str, end: str
) -> None:
    with Stage(tmp_path, working, weather=forecast(fault)) as stage:
        stage.run_vm()
        stage.advance(2000)
        assert objects(stage)[-1] == last
        assert ended_by(stage) == [end]
        assert stage.cloud.weather.fired(fault["fault"]) == 1
        assert stage.cloud.weather.document()["faults"][0]["victims"] == [NAME]


def test_two_preemptions_befall_two_attempts_in_turn(tmp_path: Path) -> None:
    fault = {"fault": "preempt", "at": {"case": 1}, "notice_s": 0}
    with Stage(tmp_path, working, weather=forecast(fault, fault)) as stage:
        for attempt in (1, 2, 3):
            stage.run_vm(insert_body(f"bench-{RUN}-{attempt}"))
            stage.advance(600)
        assert ended_by(stage) == ["preemption", "preemption", "vm"]


@pytest.mark.parametrize("at", [{"phase": "measure"}, {"seconds": 60}])
def test_a_lost_vm_is_gone_with_no_operation(tmp_path: Path, at: dict[str, Any]) -> None:
    with Stage(tmp_path, working, weather=forecast({"fault": "lost", "at": at})) as stage:
        stage.run_vm()
        stage.advance(600)
        assert ended_by(stage) == ["lost"]
        kinds = {operation["operationType"] for operation in stage.rest.get(f"/zones/{ZONE}/operations")["items"]}
        assert kinds == {"insert"}


def test_a_strike_waits_until_there_is_something_to_strike(tmp_path: Path) -> None:
    faults = forecast({"fault": "slow_boot", "seconds": 100}, {"fault": "hang", "at": {"seconds": 1}})
    with Stage(tmp_path, working, weather=faults) as stage:
        stage.run_vm()
        assert stage.cloud.weather.fired("hang") == 0
        stage.advance(200)
        assert stage.cloud.weather.fired("hang") == 1


def test_a_fault_kept_for_a_vm_that_ends_first_waits_for_the_next_one(tmp_path: Path) -> None:
    with Stage(tmp_path, working, weather=forecast({"fault": "lost", "at": {"seconds": 900}})) as stage:
        stage.run_vm()
        stage.advance(600)
        assert ended_by(stage) == ["vm"]
        assert stage.cloud.weather.fired("lost") == 0
        assert len(stage.cloud.weather.pending) == 1


def test_a_strike_that_never_finds_its_target_waits_for_the_next_vm(tmp_path: Path) -> None:
    faults = forecast({"fault": "never_boots"}, {"fault": "kill", "at": {"seconds": 1}})
    with Stage(tmp_path, working, weather=faults) as stage:
        stage.run_vm()
        stage.advance(3000)
        assert stage.cloud.weather.fired("kill") == 0


def test_a_fault_for_one_vm_passes_the_others_by(tmp_path: Path) -> None:
    fault = {"fault": "preempt", "vm": "bench-other-1", "notice_s": 0}
    with Stage(tmp_path, working, weather=forecast(fault)) as stage:
        stage.run_vm()
        stage.run_vm(insert_body("bench-other-1"))
        assert [instance["name"] for instance in stage.cloud.instances()] == [NAME]


def test_events_that_are_nobodys_or_unreadable_change_nothing(tmp_path: Path) -> None:
    with Stage(tmp_path, weather=forecast({"fault": "lost", "at": {"case": 1}})) as stage:
        stage.run_vm()
        base = f"{stage.cloud.storage_url}/upload/storage/v1/b/{stage.cloud.bucket}/o?uploadType=media&name="
        event = '{"run_id": "unknown", "writer": "vm-1", "kind": "case_started", "data": {"index": 1}}'
        for body in (event, "{", "[]", '{"kind": "x"}', event.replace("unknown", RUN).replace("vm-1", "vm-2")):
            requests.post(f"{base}runs/{RUN}/events/x.json", data=body, timeout=600)
        mixed = {"Content-Type": "multipart/related; boundary=b"}
        requests.post(base.replace("media", "multipart"), data=b"--b", headers=mixed, timeout=600)
        assert len(stage.cloud.instances()) == 1
