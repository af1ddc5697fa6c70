"""HTTP errors, broken connections and wrong clocks come to the service that they are forecast for."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from orchestrator.embedded.server import EmbeddedCloud
from tests.support import keyed as requests
from tests.support.patience import PATIENCE_S, await_truth
from tests.support.scripted_machines import HttpFailure, ScriptedVm, Steps, scripted
from tests.unit.embedded.builders import ZONE, Rest, Stage, idle, insert_body
from tests.unit.embedded.weather import forecast, objects


def list_of(stage: Stage, service: str) -> str:
    objects = f"{stage.cloud.storage_url}/storage/v1/b/{stage.cloud.bucket}/o"
    return {"compute": f"{stage.rest.base}/zones", "storage": objects}[service]


@pytest.mark.parametrize(("status", "reason"), [(403, "forbidden"), (409, "alreadyExists"), (429, "rateLimitExceeded"), (500, "backendError"), (503, "backendError")])  # fmt: skip
@pytest.mark.parametrize("service", ["compute", "storage"])
def test_an_http_fault_answers_for_the_service_as_often_as_it_says(
    tmp_path: Path, service: str, status: int, reason: str
) -> None:
    fault = {"fault": "http", "service": service, "method": "get", "path": "/v1/", "status": status, "times": 2}
    with Stage(tmp_path, weather=forecast(fault)) as stage:
        url = list_of(stage, service)
        for _ in range(2):
            answer = requests.get(url, timeout=600)
            assert (answer.status_code, answer.json()["error"]["errors"][0]["reason"]) == (status, reason)
        assert requests.get(url, timeout=600).status_code == 200
        assert stage.cloud.weather.fired("http") == 2


def test_a_fault_may_name_its_own_reason_and_message(tmp_path: Path) -> None:
    fault = {"fault": "http", "status": 403, "reason": "rateLimitExceeded", "message": "slow down"}
    with Stage(tmp_path, weather=forecast(fault)) as stage:
        _, answer = stage.rest.call("GET", "/zones")
        told = {"domain": "global", "message": "slow down", "reason": "rateLimitExceeded"}
        assert answer["error"]["errors"][0] == told


def test_a_request_that_is_cut_off_was_not_done_and_one_whose_answer_is_lost_was(tmp_path: Path) -> None:
    path = f"/zones/{ZONE}/instances"
    for after, expected in (("request", 0), ("response", 1)):
        fault = {"fault": "reset", "service": "compute", "method": "POST", "path": "instances", "after": after}
        with Stage(tmp_path / after, weather=forecast(fault)) as stage:
            with pytest.raises(requests.ConnectionError):
                stage.rest.call("POST", path, insert_body())
            assert len(stage.cloud.instances()) == expected


def test_an_upload_that_is_cut_off_is_not_stored_and_one_whose_answer_is_lost_is(tmp_path: Path) -> None:
    for after, expected in (("request", 404), ("response", 200)):
        fault = {"fault": "reset", "service": "storage", "method": "POST", "after": after}
        with Stage(tmp_path / after, weather=forecast(fault)) as stage:
            base = f"{stage.cloud.storage_url}/upload/storage/v1/b/{stage.cloud.bucket}/o"
            with pytest.raises(requests.ConnectionError):
                requests.post(f"{base}?uploadType=media&name=x", data=b"x", timeout=600)
            found = requests.get(f"{stage.cloud.storage_url}/storage/v1/b/{stage.cloud.bucket}/o/x", timeout=600)
            assert found.status_code == expected


@pytest.mark.parametrize("service", ["compute", "storage"])
def test_a_stalled_request_takes_its_time_and_is_answered(tmp_path: Path, service: str) -> None:
    with Stage(tmp_path, weather=forecast({"fault": "stall", "service": service, "seconds": 40})) as stage:
        url = list_of(stage, service)
        assert requests.get(url, timeout=600).status_code == 200
        assert stage.timeline.elapsed == 40


@pytest.mark.parametrize("service", ["compute", "storage"])
def test_a_stalled_request_is_cut_when_its_cloud_closes(
    tmp_path: Path, service: str, caplog: pytest.LogCaptureFixture
) -> None:
    earlier = set(threading.enumerate())
    stall = {"fault": "stall", "service": service, "seconds": PATIENCE_S}
    with EmbeddedCloud(tmp_path, machines=scripted(idle), weather=forecast(stall)) as cloud:
        rest = Rest(cloud)
        upload = f"{cloud.storage_url}/upload/storage/v1/b/{cloud.bucket}/o?uploadType=media&name=x"
        send = {
            "compute": lambda: rest.call("POST", f"/zones/{ZONE}/instances", insert_body()),
            "storage": lambda: requests.post(upload, data=b"x", timeout=PATIENCE_S),
        }[service]
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(send)
            await_truth(lambda: cloud.weather.fired("stall"))
            cloud.close()
            assert isinstance(answer.exception(PATIENCE_S), requests.ConnectionError)
    await_truth(lambda: set(threading.enumerate()) <= earlier)
    assert cloud.instances() == []
    assert caplog.records == []


def test_a_script_tries_again_over_a_broken_wire_and_gives_up_on_a_refusal(tmp_path: Path) -> None:
    seen: list[int] = []

    def refused(vm: ScriptedVm) -> Steps:
        vm.event("phase_started", {"phase": "measure"})
        try:
            vm.put("x", b"y", create=True)
            vm.put("x", b"z", create=True)
        except HttpFailure as failure:
            seen.append(failure.status)
        try:
            vm.put("y", b"y")
        except HttpFailure as failure:
            seen.append(failure.status)
        try:
            vm.put("y", b"y")
        except OSError:
            seen.append(0)
        yield 1.0

    upload = {"service": "storage", "path": "upload"}
    faults = forecast(
        {"fault": "http", "status": 503, **upload},
        {"fault": "reset", "after": "response", **upload},
        {"fault": "http", "status": 429, **upload},
    )
    with Stage(tmp_path, refused) as stage:
        stage.cloud.weather.replace(faults)
        stage.run_vm()
        assert seen == [412]
        assert objects(stage).count("phase_started") == 1
    seen.clear()
    many = forecast(
        {"fault": "http", "status": 403, "path": "events", "service": "storage"},
        {"fault": "http", "status": 500, "times": 5, "method": "POST", "service": "storage"},
    )
    with Stage(tmp_path / "again", lambda vm: tries(vm, seen)) as stage:
        stage.cloud.weather.replace(many)
        stage.cloud.weather.add({"fault": "reset", "times": 5, "method": "POST", "service": "storage"})
        stage.run_vm()
        assert seen == [500, 0]


def tries(vm: ScriptedVm, seen: list[int]) -> Steps:
    for _ in range(2):
        try:
            vm.put("y", b"y")
        except HttpFailure as failure:
            seen.append(failure.status)
        except OSError:
            seen.append(0)
    yield 1.0


def test_an_error_can_come_after_the_work_is_done(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.cloud.weather.replace(forecast({"fault": "http", "method": "POST", "status": 503, "after": "response"}))
        assert stage.rest.call("POST", f"/zones/{ZONE}/instances", insert_body())[0] == 503
        assert len(stage.cloud.instances()) == 1


def test_the_clock_of_one_service_can_be_wrong_and_the_other_right(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        urls = {
            "compute": f"{stage.rest.base}/zones",
            "storage": f"{stage.cloud.storage_url}/storage/v1/b/{stage.cloud.bucket}",
        }
        for wrong in urls:
            stage.cloud.weather.replace(forecast({"fault": "clock_skew", "seconds": 3600, "service": wrong}))
            for service, url in urls.items():
                said = parsedate_to_datetime(requests.get(url, timeout=600).headers["Date"])
                off = (said - stage.timeline.now()).total_seconds()
                assert abs(off - (3600 if service == wrong else 0)) < 2
