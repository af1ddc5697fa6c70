"""Requests to make or change an instance, sent once or again."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.support.discovery import Recorder
from tests.unit.embedded.builders import NAME, ZONE, Stage, insert_body


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
