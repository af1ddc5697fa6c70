"""From the insert to the last cent: what an instance goes through, in simulated time, over the real wire."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.embedded.documents import parse_stamp
from orchestrator.embedded.vm import EmbeddedVm
from tests.support.discovery import Recorder
from tests.support.scripted_machines import ScriptedVm, ShutDown, Steps
from tests.unit.embedded.builders import NAME, ZONE, Stage, insert_body, scheduling, t4_body

PREEMPTED = "compute.instances.preempted"


def test_an_instance_is_provisioned_staged_running_and_then_its_operation_is_done(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        operation = stage.rest.insert()
        assert operation["status"] == "RUNNING"
        assert stage.rest.instance()["status"] == "PROVISIONING"
        stage.advance(4)
        assert stage.rest.instance()["status"] == "STAGING"
        assert stage.rest.operation(operation["name"])["status"] == "RUNNING"
        stage.advance(8)
        instance = stage.rest.instance()
        assert instance["status"] == "RUNNING"
        assert stage.rest.operation(operation["name"])["status"] == "DONE"
        assert operation["targetId"] == instance["id"]


def test_waiting_for_an_operation_lets_simulated_time_pass_until_it_is_done(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        operation = stage.rest.insert()
        status, done = stage.rest.call("POST", f"/zones/{ZONE}/operations/{operation['name']}/wait")
        assert (status, done["status"], done["progress"]) == (200, "DONE", 100)
        assert stage.timeline.elapsed == 12


def test_nothing_is_billed_before_running_and_the_deadline_counts_from_there(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.rest.insert()
        stage.advance(11)
        assert stage.cloud.bill().usd == 0
        assert stage.cloud.instances()[0]["deadline_at"] is None
        stage.advance(1)
        instance = stage.rest.instance()
        started = parse_stamp(instance["lastStartTimestamp"])
        ends = parse_stamp(instance["resourceStatus"]["scheduling"]["terminationTimestamp"])
        assert (ends - started).total_seconds() == 1800
        assert stage.only_row().started_at == started


def test_at_its_deadline_even_a_stubborn_vm_is_deleted_within_thirty_seconds(tmp_path: Path) -> None:
    def stubborn(vm: ScriptedVm) -> Steps:
        while True:
            try:
                yield 10.0
            except ShutDown:
                vm.log("no")

    with Stage(tmp_path, stubborn) as stage:
        stage.run_vm()
        stage.advance(1800 - 28 - 1)
        assert stage.rest.instance()["status"] == "RUNNING"
        stage.advance(2)
        assert stage.rest.instance()["status"] == "STOPPING"
        stage.advance(40)
        row = stage.only_row()
        assert stage.rest.instance() is None
        assert row.ended_by == "deadline"
        assert 1800 < row.seconds <= 1830


def test_a_vm_that_ends_when_it_is_told_to_is_gone_before_its_grace_is_over(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.run_vm()
        stage.rest.delete(NAME)
        stage.advance(6)
        assert stage.rest.instance() is None


def test_a_deleted_instance_is_stopping_then_gone_and_both_deletions_are_done(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.run_vm()
        first, second = stage.rest.delete(NAME), stage.rest.delete(NAME)
        assert first["name"] != second["name"]
        assert stage.rest.instance()["status"] == "STOPPING"
        stage.advance(30)
        assert stage.rest.instance() is None
        assert {stage.rest.operation(each["name"])["status"] for each in (first, second)} == {"DONE"}
        assert stage.only_row().ended_by == "client"
        status, answer = stage.rest.call("DELETE", f"/zones/{ZONE}/instances/{NAME}")
        assert (status, answer["error"]["errors"][0]["reason"]) == (404, "notFound")


@pytest.mark.parametrize("seconds", [0, 5])
def test_an_instance_deleted_before_it_ran_never_runs_and_costs_nothing(tmp_path: Path, seconds: float) -> None:
    with Stage(tmp_path) as stage:
        operation = stage.rest.insert()
        stage.advance(seconds)
        stage.rest.delete(NAME)
        stage.advance(60)
        assert stage.rest.instance() is None
        assert stage.cloud.bill().usd == 0
        assert stage.rest.operation(operation["name"])["status"] == "DONE"


def test_a_vm_that_deletes_itself_is_known_by_its_token(tmp_path: Path) -> None:
    def brief(vm: ScriptedVm) -> Steps:
        yield 100.0
        vm.delete_self()

    with Stage(tmp_path, brief) as stage:
        stage.run_vm()
        stage.advance(200)
        row = stage.only_row()
        assert row.ended_by == "vm"
        assert row.seconds == 20 + 100 + 5
        assert row.usd == (stage_rate(stage) * row.seconds / 3600).quantize(Decimal("0.000001"))


def stage_rate(stage: Stage) -> Decimal:
    """Dollars per hour of the only VM there ever was."""
    (account,) = stage.cloud.meter.accounts.values()
    return account.rate.usd_per_hour


def test_a_preempted_vm_is_told_shut_down_and_gone_and_the_operation_log_says_so(tmp_path: Path) -> None:
    seen: list[tuple[str, float]] = []

    def attentive(vm: ScriptedVm) -> Steps:
        try:
            while not vm.preempted:
                yield 1.0
            seen.append(("preempted", vm.guest.timeline.now().timestamp()))
            yield 3600.0
        except ShutDown:
            seen.append(("shut down", vm.guest.timeline.now().timestamp()))

    with Stage(tmp_path, attentive) as stage:
        stage.run_vm()
        instance = stage.rest.instance()
        began = stage.timeline.now().timestamp()
        assert stage.cloud.preempt(NAME, 30)
        stage.cloud.preempt(NAME, 30)  # a second notice changes nothing
        stage.advance(90)
        assert [(what, round(when - began)) for what, when in seen] == [("preempted", 1), ("shut down", 30)]
        assert stage.rest.instance() is None
        assert stage.only_row().ended_by == "preemption"
        wanted = f'operationType="{PREEMPTED}" AND targetId={instance["id"]}'
        listed = stage.rest.get(f"/zones/{ZONE}/operations", filter=wanted)
        (operation,) = listed["items"]
        assert operation["status"] == "DONE"
        assert operation["statusMessage"] == "Instance was preempted."
        assert operation["user"] == "system"


def test_a_preemption_without_notice_kills_at_once(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.run_vm()
        assert stage.cloud.preempt(NAME, 0)
        assert stage.rest.instance() is None
        assert not stage.cloud.preempt(NAME, 0)


def test_a_lost_vm_leaves_no_operation_behind(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.run_vm()
        vm = stage.cloud.fleet.named(NAME)
        assert isinstance(vm, EmbeddedVm)
        stage.cloud.fleet.lose(vm)
        stage.cloud.fleet.lose(vm)
        assert stage.rest.instance() is None
        kinds = [operation["operationType"] for operation in stage.rest.get(f"/zones/{ZONE}/operations")["items"]]
        assert kinds == ["insert"]
        assert stage.only_row().ended_by == "lost"


def test_a_vm_stopped_at_its_deadline_keeps_paying_for_its_disk_without_a_deadline(tmp_path: Path) -> None:
    body = insert_body(scheduling=scheduling(instanceTerminationAction="STOP"))
    with Stage(tmp_path) as stage:
        stage.run_vm(body)
        stage.advance(2000)
        stopped = stage.rest.instance()
        assert stopped["status"] == "TERMINATED"
        assert "resourceStatus" not in stopped
        assert "natIP" not in stopped["networkInterfaces"][0]["accessConfigs"][0]
        assert "lastStopTimestamp" in stopped
        before = stage.cloud.bill().usd
        stage.advance(3600)
        grown = stage.cloud.bill().usd - before
        (account,) = stage.cloud.meter.accounts.values()
        assert abs(grown - account.rate.disk) < Decimal("0.000002")
        quotas = {quota["metric"]: quota["usage"] for quota in stage.rest.get("/regions/us-central1")["quotas"]}
        assert (quotas["PREEMPTIBLE_NVIDIA_L4_GPUS"], quotas["SSD_TOTAL_GB"], quotas["INSTANCES"]) == (0, 60, 1)
        stage.rest.delete(NAME)
        stage.advance(60)
        assert stage.rest.instance() is None
        assert stage.only_row().ended_by == "deadline"


def test_an_insert_without_a_deadline_is_accepted_and_flagged(tmp_path: Path) -> None:
    body = insert_body(scheduling=scheduling(maxRunDuration=None))
    with Stage(tmp_path) as stage:
        stage.run_vm(body)
        stage.advance(86_400)
        (instance,) = stage.cloud.instances()
        assert instance["status"] == "RUNNING"
        assert (instance["has_deadline"], instance["deadline_at"]) == (False, None)
        assert not stage.only_row().has_deadline


def test_an_attached_gpu_shows_on_the_instance_and_a_standard_vm_may_migrate(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.rest.insert(t4_body(count=2))
        (attached,) = stage.rest.instance("bench-t4-1")["guestAccelerators"]
        assert attached["acceleratorType"].endswith(f"/zones/{ZONE}/acceleratorTypes/nvidia-tesla-t4")
        assert attached["acceleratorCount"] == 2
        inward = [{"network": "global/networks/default"}]
        bare = {"scheduling": {}, "serviceAccounts": None, "networkInterfaces": inward}
        stage.rest.insert(insert_body("plain", machine="e2-standard-4", **bare))
        plain = stage.rest.instance("plain")
        assert plain["scheduling"]["onHostMaintenance"] == "MIGRATE"
        assert not {"guestAccelerators", "serviceAccounts"} & set(plain)
        assert "accessConfigs" not in plain["networkInterfaces"][0]
        stage.advance(60)
        assert {row.provisioning for row in stage.cloud.bill().rows} == {"spot", "standard"}


def test_the_boot_disk_lives_as_long_as_the_instance(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.run_vm()
        (disk,) = stage.rest.get(f"/zones/{ZONE}/disks")["items"]
        assert (disk["sizeGb"], disk["labels"]) == ("60", {"bench-tool": "spotbench"})
        assert stage.rest.get(f"/zones/{ZONE}/disks/{NAME}")["id"] == disk["id"]
        stage.rest.delete(NAME)
        stage.advance(60)
        assert "items" not in stage.rest.get(f"/zones/{ZONE}/disks")


def test_a_script_that_fails_leaves_its_error_on_the_serial_port_and_the_vm_running(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(vm: ScriptedVm) -> Steps:
        yield 1.0
        raise RuntimeError("on purpose")

    with Stage(tmp_path, broken) as stage:
        stage.run_vm()
        assert "on purpose" in stage.rest.get(f"/zones/{ZONE}/instances/{NAME}/serialPort")["contents"]
        assert stage.rest.instance()["status"] == "RUNNING"
        assert "on purpose" in caplog.text


def test_closing_the_cloud_ends_every_vm_and_says_so_on_the_bill(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.run_vm()
    assert stage.cloud.fleet.all() == []
    assert [account.ended_by for account in stage.cloud.meter.accounts.values()] == ["shutdown"]
    stage.cloud.close()


def test_a_stopped_instance_keeps_its_disk_and_runs_again(tmp_path: Path) -> None:
    recorder = Recorder()
    with Stage(tmp_path, observer=recorder) as stage:
        name = stage.run_vm()
        at = f"/zones/{ZONE}/instances/{name}"
        stage.advance(100)
        stops = [stage.rest.call("POST", f"{at}/stop", requestId=f"c0ffee00-0000-4000-8000-{1:012}") for _ in range(2)]
        status, operation = stops[0]
        assert (status, operation["operationType"]) == (200, "stop")
        assert stops[1][1]["id"] == operation["id"]
        stage.advance(60)
        stopped = stage.rest.instance(name)
        assert stopped["status"] == "TERMINATED"
        assert "resourceStatus" not in stopped
        assert stage.rest.operation(operation["name"])["status"] == "DONE"
        before = stage.only_row().usd
        stage.advance(3600)
        assert before < stage.only_row().usd < before + Decimal("0.02")
        assert stage.rest.call("POST", f"{at}/start")[0] == 200
        stage.advance(60)
        again = stage.rest.instance(name)
        assert again["status"] == "RUNNING"
        assert again["id"] == stopped["id"]
        assert len(stage.cloud.bill().rows) == 2
        stage.advance(2000)
        assert stage.rest.instance(name) is None
        assert [row.ended_by for row in stage.cloud.bill().rows] == ["stop", "deadline"]
    recorder.assert_all_valid()


def test_a_stopping_instance_can_be_deleted_and_one_without_room_does_not_start(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        name = stage.run_vm()
        at = f"/zones/{ZONE}/instances/{name}"
        stage.rest.call("POST", f"{at}/stop")
        assert stage.rest.call("POST", f"{at}/start")[0] == 400
        stage.rest.delete(name)
        stage.advance(60)
        assert stage.rest.instance(name) is None
        name = stage.run_vm()
        stage.rest.call("POST", f"{at}/stop")
        stage.advance(60)
        stage.cloud.weather.replace({"faults": [{"fault": "stockout"}]})
        _, operation = stage.rest.call("POST", f"{at}/start")
        stage.advance(60)
        assert stage.rest.operation(operation["name"])["error"]["errors"][0]["code"].startswith(
            "ZONE_RESOURCE_POOL_EXHAUSTED"
        )
        assert stage.rest.instance(name)["status"] == "TERMINATED"
