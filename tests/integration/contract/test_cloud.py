"""The laws of `orchestrator.ports.Cloud`: the real client over the embedded cloud, on simulated time."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.google.compute import GoogleCloud
from orchestrator.adapters.google.credentials import Bearer
from orchestrator.core.errors import NotFound, PermissionDenied, Unavailable
from orchestrator.core.market.machines import NOT_SENT, Accepted, CloudRefusal, Instance, InstanceRequest
from orchestrator.embedded.server import EmbeddedCloud
from orchestrator.ports import Cloud
from tests.support.machine_requests import L4, T4
from tests.support.scripted_machines import ScriptedVm, Steps, scripted
from tests.support.simulated_clock import TimelineClock
from tests.support.simulated_timeline import SimulatedTimeline

NEXT = replace(L4, name=L4.name[:-1] + "2", labels={**L4.labels, "bench-attempt": "2"}, request_id=str(uuid.uuid4()))


def talker(vm: ScriptedVm) -> Steps:
    """A machine that says what time it is, every ten seconds, for as long as it is let."""
    for second in range(0, 100_000, 10):
        vm.log(f"up for {second} s")
        yield 10


class Sky:
    """The embedded cloud and the port to it."""

    def __init__(self, embedded: EmbeddedCloud, timeline: SimulatedTimeline) -> None:
        self.embedded = embedded
        self.timeline = timeline
        self.cloud: Cloud = GoogleCloud(
            embedded.project, embedded.compute_url, credentials=Bearer(embedded.token), clock=TimelineClock(timeline)
        )

    def weather(self, *faults: dict[str, Any]) -> None:
        self.embedded.weather.replace({"faults": list(faults)})

    def calm(self) -> bool:
        """Whether every fault has happened."""
        return not self.embedded.weather.pending

    def launch(self, request: InstanceRequest = L4) -> Instance:
        """A VM that runs."""
        answer = self.cloud.insert(request)
        assert isinstance(answer, Accepted), answer
        self.timeline.advance(120)
        return self.cloud.instance(request.zone, request.name)

    def names(self) -> list[str]:
        return sorted(vm["name"] for vm in self.embedded.instances())


@pytest.fixture
def sky(tmp_path: Path) -> Iterator[Sky]:
    timeline = SimulatedTimeline()
    with EmbeddedCloud(home=tmp_path / "cloud", timeline=timeline, machines=scripted(talker)) as embedded:
        yield Sky(embedded, timeline)


def test_a_request_makes_the_vm_that_was_asked_for(sky: Sky) -> None:
    vm = sky.launch()
    assert (vm.name, vm.zone, vm.machine_type, vm.status) == (L4.name, L4.zone, L4.machine_type, "RUNNING")
    assert vm.labels == L4.labels
    assert vm.preemptible
    assert vm.started_at is not None
    assert vm.started_at >= vm.created_at
    assert vm.deadline_at == vm.started_at + timedelta(seconds=L4.max_run_s)
    standard = sky.launch(T4_HERE)
    assert not standard.preemptible


T4_HERE = replace(T4, name="bench-t4", network="default", request_id=str(uuid.uuid4()))


def test_the_same_request_sent_twice_makes_one_vm(sky: Sky) -> None:
    first, again = sky.cloud.insert(L4), sky.cloud.insert(L4)
    assert isinstance(first, Accepted)
    assert isinstance(again, Accepted)
    assert first.instance.id == again.instance.id
    assert sky.names() == [L4.name]


@pytest.mark.parametrize("after", ["request", "response"])
def test_a_lost_connection_makes_exactly_one_vm(sky: Sky, after: str) -> None:
    sky.weather({"fault": "reset", "service": "compute", "method": "POST", "path": r"/instances\?", "after": after})
    sky.launch()
    assert sky.names() == [L4.name]
    assert len(sky.embedded.bill().rows) == 1
    assert sky.calm()


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_passing_trouble_is_waited_out(sky: Sky, status: int) -> None:
    sky.weather({"fault": "http", "service": "compute", "status": status, "times": 3})
    sky.launch()
    assert sky.names() == [L4.name]
    assert sky.calm()


def test_a_lasting_trouble_is_unavailable_and_makes_no_vm(sky: Sky) -> None:
    sky.weather({"fault": "http", "service": "compute", "status": 503, "times": 50})
    with pytest.raises(Unavailable):
        sky.cloud.insert(L4)
    assert sky.names() == []


def test_a_vm_of_this_run_that_is_there_is_adopted_under_another_request_id(sky: Sky) -> None:
    first = sky.launch()
    again = sky.cloud.insert(replace(L4, request_id=str(uuid.uuid4())))
    assert isinstance(again, Accepted)
    assert again.instance.id == first.id


def test_a_vm_of_another_run_is_left_alone(sky: Sky) -> None:
    sky.launch()
    foreign = replace(L4, request_id=str(uuid.uuid4()), labels={**L4.labels, "bench-run": "20260101-000000-l4-0000"})
    answer = sky.cloud.insert(foreign)
    assert isinstance(answer, CloudRefusal)
    assert answer.scope == "all"


def test_a_stock_out_blocks_its_zone_and_hints_at_others(sky: Sky) -> None:
    sky.weather({"fault": "stockout", "zone": L4.zone, "zones_available": ["us-central1-b", "us-central1-c"]})
    answer = sky.cloud.insert(L4)
    assert isinstance(answer, CloudRefusal)
    assert (answer.scope, answer.zones_available) == ("zone", ("us-central1-b", "us-central1-c"))
    assert sky.names() == []
    sky.launch(NEXT)


@pytest.mark.parametrize(
    ("fault", "scope"),
    [
        ({"metric": "PREEMPTIBLE_NVIDIA_L4_GPUS", "region": "us-central1"}, "region"),
        ({"metric": "GPUS_ALL_REGIONS", "global": True}, "all"),
    ],
)
def test_a_quota_blocks_its_region_or_everything(sky: Sky, fault: dict[str, Any], scope: str) -> None:
    sky.weather({"fault": "quota", **fault})
    answer = sky.cloud.insert(L4)
    assert isinstance(answer, CloudRefusal)
    assert answer.scope == scope
    assert fault["metric"] in answer.hint
    assert sky.names() == []


def test_a_zone_without_the_machine_type_is_a_refusal_of_that_zone(sky: Sky) -> None:
    answer = sky.cloud.insert(replace(L4, zone="us-central1-f"))
    assert isinstance(answer, CloudRefusal)
    assert answer.scope == "zone"


def test_a_missing_right_is_raised_and_missing_credentials_are_a_refusal_of_all(sky: Sky) -> None:
    """Nobody whose token is refused has a machine, so the money is given back as for any other refusal."""
    refused = {"fault": "http", "service": "compute", "method": "POST", "path": r"/instances\?"}
    sky.weather({**refused, "status": 403})
    with pytest.raises(PermissionDenied):
        sky.cloud.insert(L4)
    sky.weather({**refused, "status": 401})
    answer = sky.cloud.insert(L4)
    assert isinstance(answer, CloudRefusal)
    assert (answer.code, answer.scope) == (NOT_SENT, "all")
    assert sky.calm()
    assert sky.names() == []


def test_a_delete_returns_once_the_vm_is_gone_and_may_be_repeated(sky: Sky) -> None:
    sky.launch()
    request_id = str(uuid.uuid4())
    sky.cloud.delete(L4.zone, L4.name, request_id)
    assert sky.names() == []
    assert sky.cloud.instance(L4.zone, L4.name) is None
    sky.cloud.delete(L4.zone, L4.name, request_id)
    sky.cloud.delete(L4.zone, L4.name, str(uuid.uuid4()))


@pytest.mark.parametrize("after", ["request", "response"])
def test_a_delete_whose_answer_is_lost_still_deletes(sky: Sky, after: str) -> None:
    sky.launch()
    sky.weather({"fault": "reset", "service": "compute", "method": "DELETE", "after": after})
    sky.cloud.delete(L4.zone, L4.name, str(uuid.uuid4()))
    assert sky.names() == []
    assert sky.calm()


def test_every_vm_of_ours_is_found_in_all_zones_and_nobody_elses(sky: Sky) -> None:
    sky.launch()
    sky.launch(replace(NEXT, zone="us-east1-b"))
    sky.launch(replace(T4_HERE, labels={"somebody": "else"}))
    assert sorted((vm.name, vm.zone) for vm in sky.cloud.instances()) == [(L4.name, L4.zone), (NEXT.name, "us-east1-b")]


def test_a_vm_that_is_not_there_is_none(sky: Sky) -> None:
    assert sky.cloud.instance(L4.zone, "bench-none") is None
    assert sky.cloud.serial_output(L4.zone, "bench-none", 0) is None
    assert sky.cloud.operations_by_name(L4.zone, "bench-none") == ()
    assert sky.cloud.instances() == ()


def test_a_preemption_is_in_the_operation_log_under_the_id_and_the_name(sky: Sky) -> None:
    vm = sky.launch()
    assert sky.embedded.preempt(vm.name, 0)
    sky.timeline.advance(120)
    assert sky.cloud.instance(vm.zone, vm.name) is None
    for log in (sky.cloud.operations(vm.zone, vm.id), sky.cloud.operations_by_name(vm.zone, vm.name)):
        kinds = [operation.kind for operation in log]
        assert kinds[0] == "insert"
        assert "compute.instances.preempted" in kinds
        assert all(operation.status == "DONE" and operation.ended_at is not None for operation in log)
        times = [operation.started_at for operation in log if operation.started_at]
        assert times == sorted(times)


def test_the_operations_of_two_vms_do_not_mix(sky: Sky) -> None:
    one, two = sky.launch(), sky.launch(NEXT)
    sky.cloud.delete(two.zone, two.name, str(uuid.uuid4()))
    assert [operation.kind for operation in sky.cloud.operations(one.zone, one.id)] == ["insert"]
    assert [operation.kind for operation in sky.cloud.operations(two.zone, two.id)] == ["insert", "delete"]


def test_a_vm_is_deleted_at_its_deadline_by_nobody_but_the_cloud(sky: Sky) -> None:
    vm = sky.launch(replace(L4, max_run_s=300))
    sky.timeline.advance(400)
    assert sky.cloud.instance(vm.zone, vm.name) is None
    assert sky.cloud.instances() == ()


def test_serial_output_is_read_on_from_where_it_ended(sky: Sky) -> None:
    vm = sky.launch()
    first = sky.cloud.serial_output(vm.zone, vm.name, 0)
    assert "up for 0 s" in first.text
    sky.timeline.advance(60)
    more = sky.cloud.serial_output(vm.zone, vm.name, first.next)
    assert more.text
    assert not more.lost
    whole = sky.cloud.serial_output(vm.zone, vm.name, 0)
    assert whole.text == first.text + more.text
    end = sky.cloud.serial_output(vm.zone, vm.name, -5)
    assert whole.text.endswith(end.text)
    assert len(end.text) == 5


def test_a_family_means_a_dated_image_until_it_is_withdrawn(sky: Sky) -> None:
    project, family = "deeplearning-platform-release", "common-cu129-ubuntu-2204-nvidia-580"
    assert sky.cloud.image(project, family) == f"projects/{project}/global/images/{family}-v20260818"
    sky.weather({"fault": "image_gone"})
    with pytest.raises(NotFound, match=family):
        sky.cloud.image(project, family)


def test_quotas_are_those_of_the_region_and_of_the_project(sky: Sky) -> None:
    sky.launch()
    quotas = {(quota.metric, quota.region): quota for quota in sky.cloud.quotas("us-central1")}
    assert quotas["PREEMPTIBLE_NVIDIA_L4_GPUS", "us-central1"].limit > 0
    assert quotas["GPUS_ALL_REGIONS", ""].limit > 0
    with pytest.raises(NotFound):
        sky.cloud.quotas("atlantis-north1")
