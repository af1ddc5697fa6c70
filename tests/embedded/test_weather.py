"""Bad weather comes when it is forecast, to whom it is forecast, as often as it is forecast, and is seen to have come."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest

from orchestrator.embedded.weather import BadWeather, Weather
from tests.embedded.builders import RUN, ZONE, Stage, insert_body, t4_body
from tests.support import keyed as requests
from tests.support.scripted_machines import HttpFailure, ScriptedVm, ShutDown, Steps, Struck

NAME = f"bench-{RUN}-1"
ERROR = "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"


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


def forecast(*faults: dict[str, Any]) -> dict[str, Any]:
    return {"faults": list(faults)}


def ended_by(stage: Stage) -> list[str | None]:
    return [row.ended_by for row in stage.cloud.bill().rows]


def objects(stage: Stage) -> list[str]:
    """The kinds of the events in the bucket, in order."""
    url = f"{stage.cloud.storage_url}/storage/v1/b/{stage.cloud.bucket}/o"
    items = requests.get(url, timeout=600).json().get("items", [])
    return [item["name"].rpartition("-")[2].removesuffix(".json") for item in items]


# At the insert


def test_a_stockout_fails_the_operation_in_googles_own_shape_and_makes_no_vm(tmp_path: Path) -> None:
    hint = ["us-central1-b", "us-central1-f"]
    with Stage(tmp_path, weather=forecast({"fault": "stockout", "zone": ZONE, "zones_available": hint})) as stage:
        operation = stage.rest.insert(t4_body())
        stage.advance(60)
        done = stage.rest.operation(operation["name"])
        assert (done["status"], done["httpErrorStatusCode"], done["httpErrorMessage"]) == (
            "DONE",
            503,
            "SERVICE UNAVAILABLE",
        )
        (error,) = done["error"]["errors"]
        assert error["code"] == ERROR
        info = next(detail["errorInfo"] for detail in error["errorDetails"] if "errorInfo" in detail)
        assert info["metadatas"] == {
            "vmType": "n1-standard-4",
            "attachment": "nvidia-tesla-t4:1",
            "zone": ZONE,
            "zonesAvailable": ",".join(hint),
        }
        assert stage.cloud.instances() == []
        assert stage.cloud.bill().rows == ()
        assert stage.cloud.weather.pending == ()
        stage.run_vm(t4_body())
        assert stage.cloud.instances()[0]["status"] == "RUNNING"


def test_a_stockout_without_a_hint_has_none_and_waits_for_its_zone(tmp_path: Path) -> None:
    with Stage(tmp_path, weather=forecast({"fault": "stockout", "zone": "us-east4-a"})) as stage:
        stage.run_vm()
        assert stage.cloud.weather.fired("stockout") == 0
        operation = stage.rest.insert(insert_body("vm", "us-east4-a"), "us-east4-a")
        stage.advance(60)
        text = str(stage.rest.operation(operation["name"], "us-east4-a"))
        assert ERROR in text
        assert "zonesAvailable" not in text


def test_a_refused_request_uses_up_no_stockout(tmp_path: Path) -> None:
    with Stage(tmp_path, weather=forecast({"fault": "stockout"})) as stage:
        stage.rest.call("POST", f"/zones/{ZONE}/instances", insert_body("Bad"))
        assert len(stage.cloud.weather.pending) == 1


@pytest.mark.parametrize(
    ("fault", "where", "limit_name"),
    [
        ({"metric": "GPUS_ALL_REGIONS", "global": True}, "globally", "GPUS-ALL-REGIONS-per-project"),
        ({"metric": "PREEMPTIBLE_NVIDIA_L4_GPUS", "region": "us-central1", "limit": 1}, "in region us-central1",
         "PREEMPTIBLE-NVIDIA-L4-GPUS-per-project-region"),
    ],
)  # fmt: skip
def test_a_quota_fault_names_the_quota(tmp_path: Path, fault: dict[str, Any], where: str, limit_name: str) -> None:
    with Stage(tmp_path, weather=forecast({"fault": "quota", **fault})) as stage:
        operation = stage.rest.insert()
        stage.advance(60)
        (error,) = stage.rest.operation(operation["name"])["error"]["errors"]
        assert error["code"] == "QUOTA_EXCEEDED"
        assert where in error["message"]
        (detail,) = error["errorDetails"]
        assert detail["quotaInfo"]["limitName"] == limit_name
        assert detail["quotaInfo"]["limit"] == fault.get("limit", 0)


def test_a_quota_fault_of_another_region_or_machine_waits(tmp_path: Path) -> None:
    faults = forecast(
        {"fault": "quota", "metric": "X", "region": "us-east4"},
        {"fault": "stockout", "machine_type": "n1-standard-4"},
    )
    with Stage(tmp_path, weather=faults) as stage:
        stage.run_vm()
        assert len(stage.cloud.weather.pending) == 2


@pytest.mark.parametrize(
    ("quotas", "metric"),
    [
        ({"PREEMPTIBLE_NVIDIA_L4_GPUS": 1}, "PREEMPTIBLE_NVIDIA_L4_GPUS"),
        ({"us-central1/PREEMPTIBLE_CPUS": 4}, "PREEMPTIBLE_CPUS"),
        ({"GPUS_ALL_REGIONS": 1}, "GPUS_ALL_REGIONS"),
        ({"CPUS_ALL_REGIONS": 7}, "CPUS_ALL_REGIONS"),
        ({"INSTANCES": 1}, "INSTANCES"),
    ],
)
def test_what_exceeds_a_quota_fails_and_what_fits_does_not(
    tmp_path: Path, quotas: dict[str, float], metric: str
) -> None:
    with Stage(tmp_path, quotas=quotas) as stage:
        stage.run_vm(insert_body("first"))
        operation = stage.rest.insert(insert_body("second"))
        stage.advance(60)
        assert f"'{metric}' exceeded" in stage.rest.operation(operation["name"])["error"]["errors"][0]["message"]
        listed = stage.rest.get("/regions/us-central1")["quotas"] + stage.rest.get("")["quotas"]
        quota = next(quota for quota in listed if quota["metric"] == metric)
        assert 0 < quota["usage"] <= quota["limit"]


def test_no_quota_of_preemptible_cpus_means_that_they_come_out_of_the_ordinary_ones(tmp_path: Path) -> None:
    with Stage(tmp_path, quotas={"PREEMPTIBLE_CPUS": 0}) as stage:
        stage.run_vm()
        quotas = {quota["metric"]: quota["usage"] for quota in stage.rest.get("/regions/us-central1")["quotas"]}
        assert (quotas["CPUS"], quotas["PREEMPTIBLE_CPUS"]) == (4, 0)


def test_a_vanished_image_family_is_not_found_once(tmp_path: Path) -> None:
    family = "common-cu129-ubuntu-2404-nvidia-580"
    with Stage(tmp_path, weather=forecast({"fault": "image_gone", "family": family})) as stage:
        url = f"{stage.cloud.compute_url}/compute/v1/projects/deeplearning-platform-release/global/images/family/"
        assert requests.get(url + "common-cu129-ubuntu-2204-nvidia-580", timeout=600).status_code == 200
        assert requests.get(url + family, timeout=600).status_code == 404
        assert requests.get(url + family, timeout=600).json()["name"] == family + "-v20260626"


# On the wire


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
        assert answer["error"]["errors"][0] == {
            "domain": "global",
            "message": "slow down",
            "reason": "rateLimitExceeded",
        }


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


# On a VM


def test_a_slow_boot_delays_the_script_and_is_billed(tmp_path: Path) -> None:
    with Stage(tmp_path, working, weather=forecast({"fault": "slow_boot", "seconds": 300})) as stage:
        stage.run_vm()
        assert objects(stage) == []
        stage.advance(300)
        assert "phase_started" in objects(stage)
        stage.advance(400)
        assert stage.only_row().seconds > 480


def test_a_vm_that_never_boots_runs_until_its_deadline_and_says_nothing(tmp_path: Path) -> None:
    with Stage(tmp_path, working, weather=forecast({"fault": "never_boots"})) as stage:
        stage.run_vm()
        assert stage.cloud.instances()[0]["status"] == "RUNNING"
        stage.advance(2000)
        assert objects(stage) == []
        assert ended_by(stage) == ["deadline"]


@pytest.mark.parametrize(
    ("at", "last"),
    [
        ({"phase": "measure"}, "phase_started"),
        ({"case": 2}, "case_started"),
        ({"seconds": 90}, "case_started"),
    ],
)
def test_a_preemption_without_notice_comes_at_its_moment(tmp_path: Path, at: dict[str, Any], last: str) -> None:
    with Stage(tmp_path, working, weather=forecast({"fault": "preempt", "at": at, "notice_s": 0})) as stage:
        stage.run_vm()
        stage.advance(600)
        assert objects(stage)[-1] == last
        assert ended_by(stage) == ["preemption"]
        assert stage.cloud.weather.fired("preempt") == 1
        assert stage.cloud.weather.document()["faults"][0]["victims"] == [NAME]


def test_a_preemption_with_notice_lets_the_vm_say_its_last_word(tmp_path: Path) -> None:
    with Stage(tmp_path, working, weather=forecast({"fault": "preempt", "at": {"case": 1}, "notice_s": 20})) as stage:
        stage.run_vm()
        stage.advance(600)
        assert objects(stage)[-1] == "preempted"
        assert ended_by(stage) == ["preemption"]


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


def test_a_hung_vm_says_nothing_more_and_ends_at_its_deadline(tmp_path: Path) -> None:
    with Stage(tmp_path, working, weather=forecast({"fault": "hang", "at": {"case": 2}})) as stage:
        stage.run_vm()
        stage.advance(2000)
        assert objects(stage)[-1] == "case_started"
        assert ended_by(stage) == ["deadline"]
        assert stage.cloud.weather.fired("hang") == 1


@pytest.mark.parametrize("target", ["harness", "agent"])
def test_a_killed_process_is_noticed_by_the_script(tmp_path: Path, target: str) -> None:
    with Stage(tmp_path, working, weather=forecast({"fault": "kill", "at": {"case": 2}, "target": target})) as stage:
        stage.run_vm()
        stage.advance(600)
        assert objects(stage)[-1] == "finished"
        assert ended_by(stage) == ["vm"]


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


# The forecast itself


@pytest.mark.parametrize(
    ("document", "word"),
    [
        ([], "faults"),
        ({}, "faults"),
        ({"faults": ["rain"]}, "fault must be one of"),
        ({"faults": [{"fault": "rain"}]}, "rain"),
        ({"faults": [{"fault": "lost", "zones": "a"}]}, "zones"),
        ({"faults": [{"fault": "http"}]}, "needs status"),
        ({"faults": [{"fault": "quota"}]}, "needs metric"),
        ({"faults": [{"fault": "stockout", "times": 0}]}, "times"),
        ({"faults": [{"fault": "stockout", "times": "often"}]}, "times"),
        ({"faults": [{"fault": "slow_boot", "seconds": -1}]}, "seconds"),
        ({"faults": [{"fault": "slow_boot", "seconds": True}]}, "seconds"),
        ({"faults": [{"fault": "http", "status": 200}]}, "status"),
        ({"faults": [{"fault": "reset", "after": "lunch"}]}, "after"),
        ({"faults": [{"fault": "reset", "service": "mail"}]}, "service"),
        ({"faults": [{"fault": "kill", "target": "client"}]}, "target"),
        ({"faults": [{"fault": "http", "status": 500, "path": "("}]}, "path"),
        ({"faults": [{"fault": "lost", "at": 3}]}, "at"),
        ({"faults": [{"fault": "lost", "at": {"phase": "build", "case": 1}}]}, "at"),
        ({"faults": [{"fault": "lost", "at": {"moon": 1}}]}, "at"),
        ({"faults": [{"fault": "lost", "at": {"seconds": "soon"}}]}, "seconds"),
        ({"faults": [{"fault": ["rain"]}]}, "fault must be one of"),
        ({"faults": [{"fault": "lost", 1: 2, "x": 3}]}, "not 1, x"),
        ({"faults": [{"fault": "http", "status": "bad"}]}, "status"),
    ],
)
def test_a_forecast_that_cannot_be_meant_is_refused_with_its_place(document: Any, word: str) -> None:
    with pytest.raises(BadWeather, match=word):
        Weather().replace(document)


def test_a_new_forecast_replaces_what_waits_and_keeps_what_has_happened() -> None:
    weather = Weather()
    weather.replace(forecast({"fault": "stockout", "times": 3, "note": "for the docs"}))
    assert weather.take("vm", lambda fault: True) is not None
    weather.replace(forecast({"fault": "never_boots"}))
    listed = weather.document()["faults"]
    assert [(fault["fault"], fault["times"], fault["fired"]) for fault in listed] == [
        ("stockout", 1, 1),
        ("never_boots", 1, 0),
    ]
    assert [fault.kind for fault in weather.pending] == ["never_boots"]


def test_weather_saved_and_restored_goes_on_where_it_was() -> None:
    weather = Weather()
    weather.replace(forecast({"fault": "stockout", "times": 2}, {"fault": "lost"}))
    weather.take("vm", lambda fault: True)
    again = Weather()
    again.restore(weather.document())
    assert again.document() == weather.document()
    again.add({"fault": "never_boots"})
    assert [fault["id"] for fault in again.document()["faults"]] == [1, 2, 3]


def test_an_insert_that_comes_late_comes_all_the_same_and_its_client_hears_nothing(tmp_path: Path) -> None:
    with Stage(tmp_path) as stage:
        stage.cloud.weather.replace(forecast({"fault": "late_insert", "seconds": 90, "zone": ZONE}))
        with pytest.raises(requests.ConnectionError):
            stage.rest.call("POST", f"/zones/{ZONE}/instances", insert_body())
        stage.advance(80)
        assert stage.cloud.instances() == []
        stage.advance(60)
        assert [vm["status"] for vm in stage.cloud.instances()] == ["RUNNING"]
        assert not stage.cloud.weather.pending


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


@pytest.mark.parametrize("by_weather", [True, False])
def test_spot_gpus_come_out_of_the_standard_quota_where_no_preemptible_one_was_granted(
    tmp_path: Path, by_weather: bool
) -> None:
    none = {"PREEMPTIBLE_NVIDIA_L4_GPUS": 0.0}
    with Stage(tmp_path, quotas={"NVIDIA_L4_GPUS": 1.0} | ({} if by_weather else none)) as stage:
        if by_weather:
            stage.cloud.weather.replace(forecast({"fault": "quota_limit", "metric": "PREEMPTIBLE_NVIDIA_L4_GPUS"}))
        stage.run_vm()
        used = {quota["metric"]: quota["usage"] for quota in stage.rest.get("/regions/us-central1")["quotas"]}
        assert (used["NVIDIA_L4_GPUS"], used["PREEMPTIBLE_NVIDIA_L4_GPUS"]) == (1, 0)
        second = stage.rest.insert(insert_body("bench-second-1"))
        stage.advance(60)
        error = stage.rest.operation(second["name"])["error"]["errors"][0]
        assert "Quota 'NVIDIA_L4_GPUS' exceeded" in error["message"]
