"""After a run: why it failed is said, what its machine said is kept, and what nobody owns is deleted."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from orchestrator.adapters.hosts.cloud import HostCloud, ZoneRouter
from orchestrator.core.errors import PermissionDenied, Unavailable
from orchestrator.core.hosts import HostRecord, HostRun, HostTarget, parse_target, record_object
from orchestrator.core.naming import instance_name, machine_labels
from orchestrator.core.run.fold import Phase
from orchestrator.runs.logs import log_of, serial_object
from orchestrator.runs.reap import reap_orphans, survey_machines
from tests.integration.stories.stage import RUN, Stage, good_vm, lingering_vm, silent_vm, staged, weather
from tests.support.machine_requests import L4
from tests.support.scripted_machines import ScriptedVm, Steps


def mumbling_vm(vm: ScriptedVm) -> Steps:
    """A machine that never reaches the bucket, and says why on its serial port."""
    while True:
        vm.log("startup-script: bash: python3: command not found")
        yield 60


class SwitchedOff:
    """A host that nobody can reach."""

    def __init__(self, target: HostTarget) -> None:
        self.target = target

    def ask(self, *_: Any, **__: Any) -> Any:
        raise Unavailable(f"{self.target} cannot be reached")

    def put(self, data: bytes, path: str) -> None: ...

    def get(self, path: str, *, limit: int) -> bytes | None: ...

    def close(self) -> None: ...


class Unreadable:
    """A log that the bucket does not give."""

    def append(self, fact: Any) -> Any:
        raise Unavailable("no")

    def read(self) -> Any:
        raise Unavailable("no")


def forgotten(stage: Stage, number: int) -> str:
    """A machine that carries our labels, and whose run is not in the bucket."""
    run = f"20261120-01020{number}-l4-00aa"
    world = stage.world()
    name = instance_name(run, 1)
    image = world.cloud().image("deeplearning-platform-release", "common-cu129-ubuntu-2404-nvidia-580")
    tags = machine_labels(run, 1, "ada", world.bucket.name)
    request = str(uuid4())
    world.cloud().insert(replace(L4, name=name, labels=tags, image=image, metadata={}, request_id=request))
    return name


def left_alone(stage: Stage, seconds: float) -> None:
    """A run whose client is gone as soon as there is a machine."""
    stage.with_a_machine()
    stage.timeline.advance(seconds)


def test_a_silent_machines_serial_output_outlives_it_and_explains_the_end(home: Path) -> None:
    with staged(home, mumbling_vm) as stage:
        run = stage.launch()
        assert run.phase is Phase.FAILED
        (said,) = run.diagnoses
        assert said.cause == "no_python"
        assert "python3: command not found" in log_of(stage.world().bucket, RUN, 1)


def test_a_machine_is_deleted_though_its_serial_port_cannot_be_read(home: Path) -> None:
    with staged(home, silent_vm) as stage:
        weather(stage, {"fault": "http", "service": "compute", "path": "serialPort", "status": 403})
        run = stage.launch()
        assert stage.fired() == [1]
        assert stage.cloud.instances() == []
        assert stage.world().bucket.read(serial_object(RUN, 1)) is None
        assert [said.cause for said in run.diagnoses] == ["no_boot"]


def test_a_run_without_capacity_is_diagnosed_as_one(stage: Stage) -> None:
    weather(stage, {"fault": "stockout", "times": 3})
    run = stage.launch()
    assert run.phase is Phase.NO_CAPACITY
    assert [said.cause for said in run.diagnoses] == ["stockout"]


def test_a_run_that_goes_well_has_no_diagnosis(stage: Stage) -> None:
    assert stage.launch().diagnoses == ()


def test_a_machine_at_work_is_not_reaped_though_its_client_is_gone(home: Path) -> None:
    with staged(home, good_vm(cases=5)) as stage:
        left_alone(stage, 100)
        world = stage.world()
        (finding,) = survey_machines(world)
        assert not finding.orphan
        assert finding.usd_per_hour is not None
        assert finding.cost_usd is not None
        assert finding.cost_usd > 0
        assert reap_orphans(world, survey_machines(world)).gone == ()
        assert stage.look_after().phase is Phase.SUCCEEDED


def test_a_machine_that_hangs_on_is_reaped_from_another_machine_and_its_run_settled(home: Path) -> None:
    with staged(home, lingering_vm) as stage:
        left_alone(stage, 300)
        world = stage.world()
        (finding,) = survey_machines(world)
        assert finding.verdict.reason == "it finished but did not delete itself"
        assert reap_orphans(world, (finding,)).gone == (finding,)
        assert stage.cloud.instances() == []
        assert stage.ledger().runs[RUN].held == 0
        assert survey_machines(world) == ()


def test_a_machine_whose_run_was_deleted_from_the_bucket_is_found_and_reaped(home: Path) -> None:
    with staged(home, silent_vm) as stage:
        left_alone(stage, 30)
        stage.delete_objects("runs/")
        world = stage.world()
        (finding,) = survey_machines(world)
        assert finding.verdict.reason == f"run {RUN} is not in this bucket"
        assert reap_orphans(world, (finding,)).gone == (finding,)
        assert stage.cloud.instances() == []


def test_every_machine_is_tried_though_the_first_may_not_be_deleted(home: Path) -> None:
    with staged(home, silent_vm) as stage:
        world = stage.world()
        made = [forgotten(stage, number) for number in (1, 2, 3)]
        weather(stage, {"fault": "http", "service": "compute", "method": "DELETE", "path": made[0], "status": 403})
        findings = survey_machines(world)
        assert [one.instance.name for one in findings if one.orphan] == made
        done = reap_orphans(world, findings)
        assert [one.instance.name for one in done.gone] == made[1:]
        (failure,) = done.failed
        assert made[0] in failure.what
        assert isinstance(failure.error, PermissionDenied)
        assert [vm["name"] for vm in stage.cloud.instances()] == made[:1]
        assert [one.instance.name for one in reap_orphans(world, survey_machines(world)).gone] == made[:1]


def test_a_host_that_is_switched_off_keeps_no_rented_machine_alive(home: Path) -> None:
    with staged(home, silent_vm) as stage:
        world = stage.world()
        hosts = HostCloud(world.bucket, world.clock, SwitchedOff)
        everywhere = ZoneRouter(world.cloud, hosts, world.cloud)
        both = replace(world, cloud=lambda: everywhere)
        target, run = parse_target("me@box"), "20261120-010203-cpu-00aa"
        entry = HostRun(run_id=run, labels=machine_labels(run, 1, "ada", world.bucket.name), id="7",
                        created_at=world.clock.now(), deadline_at=world.clock.now() + timedelta(hours=1))  # fmt: skip
        record = HostRecord(target=str(target), runs={instance_name(run, 1): entry})
        world.bucket.create(record_object(target.zone), record.model_dump_json(by_alias=True).encode())
        rented = forgotten(stage, 1)
        findings = survey_machines(both)
        assert sorted((one.instance.status, one.orphan) for one in findings) == [
            ("RUNNING", True),
            ("UNREACHABLE", True),
        ]
        done = reap_orphans(both, findings)
        assert [one.instance.name for one in done.gone] == [rented]
        assert [type(one.error) for one in done.failed] == [Unavailable]
        assert stage.cloud.instances() == []


def test_a_machine_with_an_unreadable_run_keeps_its_deadline_and_hides_no_other(home: Path) -> None:
    with staged(home, silent_vm) as stage:
        left_alone(stage, 30)
        orphan = forgotten(stage, 1)
        world = stage.world()
        unreadable = replace(world, log=lambda run_id: Unreadable() if run_id == RUN else world.log(run_id))
        verdicts = {one.instance.name: one.orphan for one in survey_machines(unreadable)}
        assert verdicts == {orphan: True, instance_name(RUN, 1): False}
        stage.timeline.advance(7200)
        assert stage.cloud.instances() == []


def test_reaping_what_is_gone_already_is_success(home: Path) -> None:
    with staged(home, lingering_vm) as stage:
        left_alone(stage, 300)
        world = stage.world()
        findings = survey_machines(world)
        assert [len(reap_orphans(world, findings).gone) for _ in range(2)] == [1, 1]
        assert stage.cloud.instances() == []
        assert stage.timeline.now() - stage.timeline.start < timedelta(minutes=15)
