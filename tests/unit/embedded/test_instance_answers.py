"""What is read of instances: serial output, lists and their pages."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.embedded.guest import Console
from tests.support.discovery import Recorder
from tests.support.scripted_machines import ScriptedVm, Steps
from tests.unit.embedded.builders import NAME, ZONE, Stage, insert_body


def test_serial_output_is_read_on_from_where_one_left_off(tmp_path: Path) -> None:
    def talkative(vm: ScriptedVm) -> Steps:
        vm.log("one")
        yield 60.0
        vm.log("two")
        yield 3600.0

    with Stage(tmp_path, talkative) as stage:
        stage.run_vm()
        path = f"/zones/{ZONE}/instances/{NAME}/serialPort"
        first = stage.rest.get(path)
        assert (first["contents"], first["start"], first["next"]) == ("one\n", "0", "4")
        stage.advance(60)
        assert stage.rest.get(path, start=first["next"])["contents"] == "two\n"
        assert stage.rest.get(path, start="-2")["contents"] == "o\n"
        assert stage.rest.get(path, port=2)["contents"] == ""
        assert stage.rest.call("GET", path, port=9)[0] == 400
        assert stage.rest.call("GET", path, start="x")[0] == 400


def test_instances_are_found_by_their_labels_in_a_zone_and_in_all_of_them(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.rest.insert(insert_body("bench-r1-1"))
        stage.rest.insert(insert_body("bench-r2-1", "europe-west4-a"), "europe-west4-a")
        stage.rest.insert(insert_body("other", labels={"bench-tool": "else"}))
        mine = stage.rest.get(f"/zones/{ZONE}/instances", filter="labels.bench-tool=spotbench")
        assert [item["name"] for item in mine["items"]] == ["bench-r1-1"]
        everywhere = stage.rest.get("/aggregated/instances", filter="labels.bench-tool=spotbench")
        found = {
            zone: [i["name"] for i in scope["instances"]]
            for zone, scope in everywhere["items"].items()
            if "instances" in scope
        }
        assert found == {"zones/us-central1-a": ["bench-r1-1"], "zones/europe-west4-a": ["bench-r2-1"]}
        assert everywhere["items"]["zones/us-east4-a"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"
        assert "items" not in stage.rest.get(f"/zones/{ZONE}/instances", filter="name=nothing")


def test_pages_together_hold_everything_once(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        for number in range(5):
            stage.rest.insert(insert_body(f"vm-{number}"))
        for path in (f"/zones/{ZONE}/instances", "/aggregated/instances"):
            names: list[str] = []
            token = ""
            while True:
                page = stage.rest.get(path, maxResults=2, pageToken=token)
                scopes = page["items"].values() if isinstance(page["items"], dict) else [{"instances": page["items"]}]
                names += [item["name"] for scope in scopes for item in scope.get("instances", ())]
                token = page.get("nextPageToken", "")
                if not token:
                    break
            assert sorted(names) == [f"vm-{number}" for number in range(5)]


def test_lists_come_by_name_or_newest_first_and_in_no_other_order(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        for name in ("b", "a", "c"):
            stage.rest.insert(insert_body(name))
            stage.advance(1)
        path = f"/zones/{ZONE}/instances"
        assert [item["name"] for item in stage.rest.get(path)["items"]] == ["a", "b", "c"]
        newest = stage.rest.get(path, orderBy="creationTimestamp desc")
        assert [item["name"] for item in newest["items"]] == ["c", "a", "b"]
        for bad in ({"orderBy": "size"}, {"maxResults": 501}, {"maxResults": "x"}, {"pageToken": "!"}):
            assert stage.rest.call("GET", path, **bad)[0] == 400


# The serial port's ring: nothing is read twice, and what is lost is known to be.


@given(st.lists(st.binary(max_size=30), max_size=20), st.integers(min_value=1, max_value=64))
def test_the_ring_holds_the_last_bytes_and_says_where_they_begin(pieces: list[bytes], capacity: int) -> None:
    console = Console(capacity)
    for piece in pieces:
        console.write(piece)
    written = b"".join(pieces)
    assert bytes(console.kept) == written[-capacity:][:capacity]
    output = console.read(0)
    assert output.start == max(0, len(written) - capacity)
    assert output.next <= len(written)


@given(st.lists(st.text(max_size=10), max_size=20))
def test_read_on_from_next_every_character_comes_once_and_whole(pieces: list[str]) -> None:
    console = Console()
    data = "".join(pieces).encode()
    read, position = "", 0
    for cut in range(0, len(data), 3):
        console.write(data[cut : cut + 3])
        output = console.read(position)
        read, position = read + output.contents, output.next
    assert read == "".join(pieces)
    assert position == len(data)


def test_a_negative_start_counts_from_the_end() -> None:
    console = Console()
    console.write(b"hello")
    assert console.read(-2).contents == "lo"
    assert console.read(-99).contents == "hello"
    assert console.read(99) == console.read(5)
    assert console.read(5).contents == ""


# What stands there can be listed and looked up.


def test_zones_lie_in_regions_and_regions_have_zones(stage: Stage) -> None:
    zones = stage.rest.get("/zones")["items"]
    regions = {region["name"]: region for region in stage.rest.get("/regions")["items"]}
    for zone in zones:
        region = regions[zone["region"].rpartition("/")[2]]
        assert zone["selfLink"] in region["zones"]
    assert stage.rest.get(f"/zones/{ZONE}") in zones
    assert stage.rest.get("/regions/us-central1")["name"] == "us-central1"


def test_every_region_has_quotas_of_every_gpu_on_offer(stage: Stage) -> None:
    metrics = {quota["metric"] for quota in stage.rest.get("/regions/us-east4")["quotas"]}
    assert {f"PREEMPTIBLE_NVIDIA_{gpu}_GPUS" for gpu in ("L4", "T4", "A100", "H100")} <= metrics
    assert [quota["metric"] for quota in stage.rest.get("")["quotas"]] == ["GPUS_ALL_REGIONS", "CPUS_ALL_REGIONS"]


def test_a_quota_can_be_set_for_one_region_only(stage: Stage) -> None:
    inventory = stage.cloud.fleet.inventory
    inventory.overrides["us-east4/SPECIAL"] = 3
    try:
        east = {quota["metric"]: quota["limit"] for quota in stage.rest.get("/regions/us-east4")["quotas"]}
        west = {quota["metric"] for quota in stage.rest.get("/regions/us-west1")["quotas"]}
    finally:
        del inventory.overrides["us-east4/SPECIAL"]
    assert east["SPECIAL"] == 3
    assert "SPECIAL" not in west


def test_a_machine_type_brings_its_own_gpu_or_none(stage: Stage) -> None:
    listed = {entry["name"]: entry for entry in stage.rest.get(f"/zones/{ZONE}/machineTypes")["items"]}
    assert listed["g2-standard-4"]["accelerators"][0]["guestAcceleratorType"] == "nvidia-l4"
    assert "accelerators" not in listed["n1-standard-4"]
    assert stage.rest.get(f"/zones/{ZONE}/machineTypes/g2-standard-4") == listed["g2-standard-4"]
    assert stage.rest.call("GET", f"/zones/{ZONE}/machineTypes/x9")[0] == 404


def test_accelerators_and_machines_are_found_over_all_zones(stage: Stage) -> None:
    scopes = stage.rest.get("/aggregated/acceleratorTypes", filter="name=nvidia-h100-80gb")["items"]
    found = {zone for zone, scope in scopes.items() if "acceleratorTypes" in scope}
    assert found == {f"zones/{zone}" for zone in ("us-central1-a", "us-central1-b", "us-central1-c", "us-east4-a", "us-east4-b", "europe-west4-b")}  # fmt: skip
    assert stage.rest.get(f"/zones/{ZONE}/acceleratorTypes/nvidia-l4")["maximumCardsPerInstance"] == 8
    machines = stage.rest.get("/aggregated/machineTypes", filter="name=g2-standard-4")["items"]
    assert "machineTypes" in machines["zones/asia-southeast1-b"]
    assert "warning" in machines["zones/us-west2-b"]
    assert "disks" not in stage.rest.get("/aggregated/disks")["items"]["zones/us-west2-b"]


def test_disk_types_and_networks_are_there(stage: Stage) -> None:
    assert {item["name"] for item in stage.rest.get(f"/zones/{ZONE}/diskTypes")["items"]} >= {"pd-balanced"}
    (network,) = stage.rest.get("/global/networks")["items"]
    assert stage.rest.get("/global/networks/default") == network
    assert stage.rest.call("GET", "/global/networks/other")[0] == 404


def test_an_image_is_found_by_family_and_by_name_in_the_project_that_owns_it(stage: Stage) -> None:
    base = f"{stage.cloud.compute_url}/compute/v1/projects"
    images = f"{base}/deeplearning-platform-release/global/images"
    newest = stage.rest.session.get(f"{images}/family/common-cu129-ubuntu-2404-nvidia-580").json()
    assert stage.rest.session.get(f"{images}/{newest['name']}").json() == newest
    assert stage.rest.session.get(f"{images}/nothing").status_code == 404
    assert stage.rest.session.get(f"{images}/family/nothing").status_code == 404
    assert stage.rest.session.get(f"{base}/deeplearning-platform-release/zones").status_code == 404


def test_operations_are_found_by_name_in_their_own_zone(stage: Stage) -> None:
    operation = stage.rest.insert()
    assert stage.rest.operation(operation["name"])["id"] == operation["id"]
    assert stage.rest.call("GET", f"/zones/us-east4-a/operations/{operation['name']}")[0] == 404
    assert stage.rest.call("GET", f"/zones/{ZONE}/operations/nothing")[0] == 404
    assert stage.rest.call("POST", f"/zones/{ZONE}/operations/nothing/wait")[0] == 404


# Requests to make or change an instance, sent once or again.


def test_a_replayed_request_returns_the_original_operation_and_does_nothing_again(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        request = str(uuid.uuid4())
        first = stage.rest.insert(requestId=request)
        assert first["clientOperationId"] == request
        assert stage.rest.insert(requestId=request)["name"] == first["name"]
        stage.advance(40)
        gone = str(uuid.uuid4())
        deleted = stage.rest.delete(NAME, requestId=gone)
        stage.advance(60)
        replayed = stage.rest.delete(NAME, requestId=gone)
        assert (replayed["name"], replayed["status"]) == (deleted["name"], "DONE")
        assert len(stage.cloud.bill().rows) == 1


def test_a_replay_after_the_vm_is_gone_does_not_make_it_again(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        request = str(uuid.uuid4())
        stage.rest.insert(requestId=request)
        stage.advance(2000)
        assert stage.rest.insert(requestId=request)["status"] == "DONE"
        assert stage.rest.instance() is None


@pytest.mark.parametrize("request_id", ["not-a-uuid", str(uuid.UUID(int=0))])
def test_a_request_id_must_be_a_uuid_and_not_zero(tmp_path: Path, request_id: str) -> None:
    with Stage(tmp_path) as stage:
        status, _ = stage.rest.call("POST", f"/zones/{ZONE}/instances", insert_body(), requestId=request_id)
        assert status == 400


def test_a_name_can_be_taken_once_in_a_zone_and_again_in_another(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.rest.insert()
        status, answer = stage.rest.call("POST", f"/zones/{ZONE}/instances", insert_body())
        assert (status, answer["error"]["errors"][0]["reason"]) == (409, "alreadyExists")
        stage.rest.insert(zone="us-central1-b")


def test_labels_change_only_for_who_knows_the_present_ones(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.run_vm()
        path = f"/zones/{ZONE}/instances/{NAME}/setLabels"
        known = stage.rest.instance()["labelFingerprint"]
        request = str(uuid.uuid4())
        body = {"labels": {"mine": "yes"}, "labelFingerprint": known}
        status, operation = stage.rest.call("POST", path, body, requestId=request)
        assert (status, operation["operationType"]) == (200, "setLabels")
        assert stage.rest.call("POST", path, body, requestId=request)[1]["name"] == operation["name"]
        stage.advance(10)
        assert stage.rest.operation(operation["name"])["status"] == "DONE"
        assert stage.rest.instance()["labels"] == {"mine": "yes"}
        status, answer = stage.rest.call("POST", path, body)
        assert (status, answer["error"]["errors"][0]["reason"]) == (412, "conditionNotMet")


def test_metadata_changes_only_for_who_has_seen_it(tmp_path: Path) -> None:
    recorder = Recorder()
    with Stage(tmp_path, observer=recorder) as stage:
        at = f"/zones/{ZONE}/instances/{stage.run_vm()}"
        known = stage.rest.get(at)["metadata"]["fingerprint"]
        change = {"fingerprint": known, "items": [{"key": "a", "value": "b"}]}
        assert stage.rest.call("POST", f"{at}/setMetadata", change)[0] == 200
        assert stage.rest.get(at)["metadata"]["items"] == [{"key": "a", "value": "b"}]
        assert stage.rest.call("POST", f"{at}/setMetadata", change)[0] == 412
        asked = {"permissions": ["compute.instances.delete"]}
        assert stage.rest.call("POST", f"{at}/testIamPermissions", asked)[1] == asked
        everywhere = stage.rest.get("/aggregated/operations", filter=r'operationType eq ".*\binsert\b.*"')
        assert len(everywhere["items"][f"zones/{ZONE}"]["operations"]) == 1
    recorder.assert_all_valid()
