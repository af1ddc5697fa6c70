"""What the compute adapter reads: VMs, operations, serial output, images and quotas."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orchestrator.adapters.google.market import CallPatience, GoogleMarket, instance_from_json
from orchestrator.core.errors import CredentialsMissing, NotFound, PermissionDenied, ProviderError, Unavailable
from orchestrator.core.market.machines import Instance
from tests.support.machine_requests import L4
from tests.support.scripted_server import Answer, Handle, Reply, Request, google_error, in_turn, scripted_server
from tests.unit.adapters.scripted_compute import PROJECT, cloud, compute

# --- looking ---


def test_a_vm_that_is_gone_is_none() -> None:
    with compute() as (_script, _server, ours):
        assert ours.instance(L4.zone, L4.name) is None
        assert ours.serial_output(L4.zone, L4.name, 0) is None


@pytest.mark.parametrize("what", ["projects/bench-project", "projects/bench-project/zones/us-central1-a"])
def test_a_missing_project_or_zone_is_not_taken_for_a_vm_that_is_gone(what: str) -> None:
    with scripted_server(in_turn(google_error(404, f"The resource '{what}' was not found", "notFound"))) as server:
        for use in (
            lambda: cloud(server.url).instance(L4.zone, L4.name),
            lambda: cloud(server.url).delete(L4.zone, L4.name, L4.request_id),
        ):
            with pytest.raises(NotFound):
                use()


def test_a_vm_that_does_not_run_yet_has_no_deadline_yet() -> None:
    with compute() as (script, _server, ours):
        ours.insert(L4)
        del script.vms[L4.name]["lastStartTimestamp"]
        script.vms[L4.name]["status"] = "PENDING_STOP_OF_THE_FUTURE"
        vm = ours.instance(L4.zone, L4.name)
        assert vm is not None
        assert (vm.started_at, vm.deadline_at, vm.status) == (None, None, "PENDING_STOP_OF_THE_FUTURE")


def test_the_deadline_that_the_server_states_counts() -> None:
    with compute() as (script, _server, ours):
        ours.insert(L4)
        script.vms[L4.name]["resourceStatus"] = {"scheduling": {"terminationTimestamp": "2026-11-21T05:00:00Z"}}
        vm = ours.instance(L4.zone, L4.name)
        assert vm is not None
        assert vm.deadline_at == datetime(2026, 11, 21, 5, tzinfo=UTC)


def test_all_our_vms_in_all_zones_are_listed_page_by_page() -> None:
    def handle(request: Request) -> Answer:
        assert request.path.endswith("/aggregated/instances")
        assert request.query["filter"] == "labels.bench-tool=spotbench"
        if "pageToken" in request.query:
            two = {"instances": [{"name": "two", "zone": "z/b", "id": "2", "status": "RUNNING"}]}
            return Reply(json={"items": {"zones/b": two}})
        empty = {"warning": {"code": "NO_RESULTS_ON_PAGE"}}
        one = {"instances": [{"name": "one", "zone": "z/a", "id": "1", "status": "STOPPING"}]}
        return Reply(json={"items": {"zones/a": one, "zones/c": empty}, "nextPageToken": "more"})

    with scripted_server(handle) as server:
        assert [vm.name for vm in cloud(server.url).instances()] == ["one", "two"]


def test_the_operation_log_of_a_vm_is_in_order_and_says_how_it_ended() -> None:
    entries = [
        {"name": "b", "operationType": "compute.instances.preempted", "status": "DONE", "user": "system",
         "statusMessage": "Instance was preempted.", "insertTime": "2026-11-20T20:30:00.000-08:00",
         "startTime": "2026-11-20T20:30:00.100-08:00", "endTime": "2026-11-20T20:30:01.000-08:00"},
        {"name": "a", "operationType": "insert", "status": "DONE", "insertTime": "2026-11-20T20:05:00.000-08:00",
         "error": {"errors": [{"code": "E", "message": "m"}]}},
        {"name": "c", "operationType": "compute.instances.deferredStop", "insertTime": "2026-11-20T20:31:00.000-08:00"},
    ]  # fmt: skip
    with scripted_server(in_turn(Reply(json={"items": entries}))) as server:
        ours = cloud(server.url)
        first, preempted, unknown = ours.operations("us-central1-a", "1001")
        assert (first.kind, first.message) == ("insert", "E: m")
        assert (preempted.kind, preempted.user) == ("compute.instances.preempted", "system")
        assert preempted.message == "Instance was preempted."
        assert preempted.started_at == datetime(2026, 11, 21, 4, 30, 0, 100_000, tzinfo=UTC)
        assert preempted.ended_at == datetime(2026, 11, 21, 4, 30, 1, tzinfo=UTC)
        assert (unknown.kind, unknown.status, unknown.ended_at) == ("compute.instances.deferredStop", "0", None)
        ours.operations_by_name("us-central1-a", "bench-x-1")
        asked = [request.query["filter"] for request in server.requests]
        assert asked == ["targetId=1001", 'targetLink eq ".*/instances/bench-x-1"']


def serial(contents: str, start: int, following: int) -> Handle:
    return in_turn(Reply(json={"contents": contents, "start": str(start), "next": str(following)}))


def test_serial_output_goes_on_where_it_ended() -> None:
    with scripted_server(serial("booted\n", 10, 17)) as server:
        chunk = cloud(server.url).serial_output("z", "vm", 10)
        assert chunk is not None
        assert (chunk.text, chunk.next, chunk.lost) == ("booted\n", 17, False)
        assert (server.requests[0].query["start"], server.requests[0].query["port"]) == ("10", "1")


def test_serial_output_that_has_left_the_buffer_is_said_to_be_lost() -> None:
    with scripted_server(serial("later", 5000, 5005)) as server:
        chunk = cloud(server.url).serial_output("z", "vm", 10)
        assert chunk is not None
        assert chunk.lost
        last = cloud(server.url).serial_output("z", "vm", -5)
        assert last is not None
        assert not last.lost


def test_a_vm_without_a_serial_port_yet_has_said_nothing() -> None:
    early = google_error(400, "The resource 'projects/p/zones/z/instances/vm' is not ready", "resourceNotReady")
    with scripted_server(in_turn(early)) as server:
        chunk = cloud(server.url).serial_output("z", "vm", 3)
        assert chunk is not None
        assert (chunk.text, chunk.next, chunk.lost) == ("", 3, False)
    with scripted_server(in_turn(google_error(400, "Invalid port", "invalid"))) as server, pytest.raises(ProviderError):
        cloud(server.url).serial_output("z", "vm", 0)


# --- the rest ---


def test_a_family_is_resolved_to_its_dated_image() -> None:
    link = "https://www.googleapis.com/compute/v1/projects/deeplearning-platform-release/global/images/common-v20260818"
    with scripted_server(in_turn(Reply(json={"name": "common-v20260818", "selfLink": link}))) as server:
        found = cloud(server.url).image("deeplearning-platform-release", "common")
        assert found == "projects/deeplearning-platform-release/global/images/common-v20260818"
        assert server.requests[0].path.endswith("/global/images/family/common")


def test_a_family_that_was_withdrawn_is_an_error_with_a_remedy() -> None:
    gone = google_error(404, "The resource 'projects/d/global/images/family/gone' was not found", "notFound")
    with scripted_server(in_turn(gone)) as server, pytest.raises(NotFound, match="image family gone") as raised:
        cloud(server.url).image("d", "gone")
    assert "Google withdraws families" in raised.value.hint


def test_quotas_of_the_region_and_of_the_project_are_told_apart() -> None:
    def handle(request: Request) -> Answer:
        if request.path.endswith("/regions/us-central1"):
            return Reply(json={"quotas": [{"metric": "NVIDIA_L4_GPUS", "limit": 2.0, "usage": 1.0}]})
        assert request.path.endswith(f"/projects/{PROJECT}")
        return Reply(json={"quotas": [{"metric": "GPUS_ALL_REGIONS", "limit": 1.0, "usage": 0.0}]})

    with scripted_server(handle) as server:
        regional, everywhere = cloud(server.url).quotas("us-central1")
        assert (regional.metric, regional.region) == ("NVIDIA_L4_GPUS", "us-central1")
        assert (regional.limit, regional.usage) == (2, 1)
        assert (everywhere.metric, everywhere.limit, everywhere.region) == ("GPUS_ALL_REGIONS", 1, "")


def test_no_credentials_travel_to_an_endpoint_of_our_own() -> None:
    with compute() as (_script, server, ours):
        ours.instance(L4.zone, L4.name)
        assert "authorization" not in {key.lower() for key in server.requests[0].headers}


# Asking what exists, without the heavy client, and named errors.


def listing(*names: str, token: str = "") -> Reply:
    items = [{"name": name, "zone": "https://x/zones/us-central1-a", "id": "7", "status": "RUNNING"} for name in names]
    page: dict[str, Any] = {"items": {"zones/us-central1-a": {"instances": items}, "zones/b": {"warning": {}}}}
    return Reply(200, page | ({"nextPageToken": token} if token else {}))


def alive(url: str) -> tuple[Instance, ...]:
    return GoogleMarket("p", url, patience=CallPatience(pauses_s=(0, 0))).instances()


def test_every_page_is_read() -> None:
    with scripted_server(in_turn(listing("one", token="more"), listing("two"))) as server:
        assert [vm.name for vm in alive(server.url)] == ["one", "two"]


def test_a_server_that_stumbles_is_asked_again() -> None:
    with scripted_server(in_turn(google_error(503, "later", "backendError"), listing("one"))) as server:
        assert [vm.name for vm in alive(server.url)] == ["one"]


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (google_error(403, "Required 'compute.instances.list' permission", "forbidden"), PermissionDenied, "instances.list"),
        (Reply(401, data=b"what?"), CredentialsMissing, "list the VMs of p"),
        (Reply(403, data=b"what?"), PermissionDenied, "what?"),
        (google_error(404, "no such project", "notFound"), NotFound, "no such project"),
        (google_error(503, "later", "backendError"), Unavailable, "later"),
        (Reply(200, data=b"not json"), Unavailable, "not a JSON object"),
    ],
)  # fmt: skip
def test_what_stands_in_the_way_has_a_name(answer: Answer, kind: type[Exception], words: str) -> None:
    with scripted_server(in_turn(answer)) as server, pytest.raises(kind, match=words):
        alive(server.url)


def test_a_server_that_is_not_there_is_unavailable() -> None:
    with scripted_server(in_turn(listing())) as server:
        url = server.url
    with pytest.raises(Unavailable, match="list the VMs of p"):
        alive(url)


def test_a_deadline_is_worked_out_where_the_api_does_not_say_it() -> None:
    found = instance_from_json(
        {
            "name": "vm", "zone": "z/a", "lastStartTimestamp": "2026-11-21T04:00:00.000-08:00",
            "scheduling": {"maxRunDuration": {"seconds": "600"}, "provisioningModel": "SPOT"}, "creationTimestamp": "soon",
        }
    )  # fmt: skip
    assert found.started_at is not None
    assert found.deadline_at == found.started_at + timedelta(minutes=10)
    assert found.created_at == found.started_at
    assert found.preemptible
