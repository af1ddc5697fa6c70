"""Stock-outs, quotas and missing images come to the insert that they are forecast for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.embedded.weather import BadWeather, Weather
from tests.support import keyed as requests
from tests.unit.embedded.builders import ZONE, Stage, insert_body, t4_body
from tests.unit.embedded.weather import forecast

ERROR = "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"


def test_a_stockout_fails_the_operation_in_googles_own_shape_and_makes_no_vm(tmp_path: Path) -> None:
    hint = ["us-central1-b", "us-central1-f"]
    with Stage(tmp_path, weather=forecast({"fault": "stockout", "zone": ZONE, "zones_available": hint})) as stage:
        operation = stage.rest.insert(t4_body())
        stage.advance(60)
        done = stage.rest.operation(operation["name"])
        assert (done["status"], done["httpErrorStatusCode"]) == ("DONE", 503)
        assert done["httpErrorMessage"] == "SERVICE UNAVAILABLE"
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


@pytest.mark.parametrize("by_weather", [True, False])
def test_spot_gpus_use_the_standard_quota_where_no_preemptible_one_was_granted(
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


# Which forecasts are taken, and what becomes of one that is replaced, saved or restored.


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
    told = [(fault["fault"], fault["times"], fault["fired"]) for fault in listed]
    assert told == [("stockout", 1, 1), ("never_boots", 1, 0)]
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
