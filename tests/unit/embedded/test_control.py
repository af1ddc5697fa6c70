"""The control API says what is, and does what no real cloud would let its users do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.embedded.client import CloudAddress, CloudUnavailable, ask_control
from orchestrator.embedded.documents import utc_stamp
from tests.support import keyed as requests
from tests.unit.embedded.builders import RUN, Stage, insert_body

NAME = f"bench-{RUN}-1"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path) as made:
        yield made


def address(stage: Stage, control: str = "") -> CloudAddress:
    cloud = stage.cloud
    control = control or cloud.control_url
    return CloudAddress(0, cloud.compute_url, cloud.storage_url, control, cloud.project, cloud.bucket, "", cloud.token)


def test_the_status_lists_every_instance_with_its_price_and_deadline(stage: Stage) -> None:
    stage.run_vm()
    status = ask_control(address(stage), "/control/status")
    assert (status["project"], status["bucket"], status["uptime_s"]) == ("bench-embedded", "bench-embedded", 40)
    (instance,) = status["instances"]
    running_at = stage.only_row().started_at
    vm = stage.cloud.fleet.named(NAME)
    assert vm is not None
    assert vm.deadline_at is not None
    assert instance == {
        "name": NAME,
        "zone": "us-central1-a",
        "status": "RUNNING",
        "machine_type": "g2-standard-4",
        "labels": insert_body()["labels"],
        "created_at": utc_stamp(vm.created_at),
        "age_s": 40,
        "usd_per_hour": "0.371939",
        "deadline_at": utc_stamp(vm.deadline_at),
        "has_deadline": True,
        "preemptible": True,
    }
    assert (vm.deadline_at - running_at).total_seconds() == 1800


def test_the_bill_has_a_row_for_every_vm_dead_or_alive(stage: Stage) -> None:
    stage.run_vm()
    stage.rest.delete(NAME)
    stage.advance(60)
    stage.run_vm(insert_body("bench-other-1"))
    bill = ask_control(address(stage), "/control/bill")
    assert [(row["vm"], row["run_id"], row["ended_by"]) for row in bill["rows"]] == [
        (NAME, RUN, "client"),
        ("bench-other-1", "other", None),
    ]
    assert set(bill["rows"][0]) == {
        *("run_id", "vm", "zone", "machine_type", "gpu", "provisioning", "started_at", "ended_at"),
        *("seconds", "usd", "ended_by", "has_deadline"),
    }
    assert bill["usd"] == str(stage.cloud.bill().usd)


def test_weather_can_be_set_and_seen(stage: Stage) -> None:
    answer = ask_control(
        address(stage), "/control/weather", {"faults": [{"fault": "stockout", "zone": "us-central1-a"}]}
    )
    assert answer == ask_control(address(stage), "/control/weather")
    (fault,) = answer["faults"]
    assert (fault["id"], fault["fired"], fault["fault"], fault["zone"]) == (1, 0, "stockout", "us-central1-a")
    with pytest.raises(ValueError, match="rain"):
        ask_control(address(stage), "/control/weather", {"faults": [{"fault": "rain"}]})


def test_a_vm_can_be_preempted_by_name_while_it_runs(stage: Stage) -> None:
    stage.run_vm()
    bodies: list[Any] = [{"name": NAME, "notice_s": "soon"}, {"name": NAME, "notice_s": -1}, {"name": "other"}, []]
    for body in bodies:
        with pytest.raises((ValueError, LookupError), match=r"notice_s|no running VM"):
            ask_control(address(stage), "/control/preempt", body)
    assert ask_control(address(stage), "/control/preempt", {"name": NAME}) == {"name": NAME}
    assert stage.rest.instance()["status"] == "RUNNING"
    stage.advance(90)
    assert stage.rest.instance() is None


def test_a_stop_ends_every_vm_and_asks_the_owner_to_close(stage: Stage) -> None:
    stage.run_vm()
    assert ask_control(address(stage), "/control/stop", {}) == {"stopping": True}
    assert stage.cloud.instances() == []
    assert stage.cloud.stop_requested.is_set()


def test_what_the_control_api_does_not_know_it_says(stage: Stage) -> None:
    assert requests.get(stage.cloud.control_url + "/control/mood", timeout=600).status_code == 404
    url, kind = stage.cloud.control_url + "/control/weather", {"Content-Type": "application/json"}
    assert requests.post(url, data=b"{", headers=kind, timeout=600).status_code == 400


def test_a_cloud_that_is_not_there_is_unavailable(stage: Stage) -> None:
    with pytest.raises(CloudUnavailable, match="does not answer"):
        ask_control(address(stage, "http://127.0.0.1:9"), "/control/status")


def test_a_cloud_is_idle_only_without_vms_and_requests(stage: Stage) -> None:
    stage.run_vm()
    assert stage.cloud.idle_s == 0.0
    stage.rest.delete(NAME)
    stage.advance(60)
    idle = stage.cloud.idle_s
    assert idle > 0
    stage.rest.get("/zones")
    requests.get(stage.cloud.storage_url + "/storage/v1/b", timeout=600)
    assert stage.cloud.idle_s < idle + 1


def test_the_bill_the_operations_and_the_weather_survive_a_restart(tmp_path: Path) -> None:
    faults: dict[str, Any] = {"faults": [{"fault": "stockout", "times": 2}, {"fault": "lost", "vm": "x"}]}
    with Stage(tmp_path, weather=faults) as stage:
        failed = stage.rest.insert(insert_body("unlucky"))
        stage.advance(60)
        weather = stage.cloud.weather.document()
        stage.cloud.weather.add({"fault": "never_boots"})
    with Stage(tmp_path) as stage:
        assert stage.cloud.weather.document()["faults"][:2] == weather["faults"]
        operation = stage.rest.operation(failed["name"])
        assert operation["error"]["errors"][0]["code"].startswith("ZONE_RESOURCE_POOL_EXHAUSTED")
        assert stage.cloud.bill().rows == ()


def test_what_ran_when_the_cloud_was_killed_is_written_off_and_operations_are_done(tmp_path: Path) -> None:
    with Stage(tmp_path / "one") as stage:
        pending = stage.rest.insert()
        # As it would be found after the process was killed: the state on disk, and nobody to close it.
        (tmp_path / "two").mkdir()
        for path in (tmp_path / "one").glob("state.sqlite*"):
            (tmp_path / "two" / path.name).write_bytes(path.read_bytes())
    with Stage(tmp_path / "two") as stage:
        assert stage.cloud.instances() == []
        assert stage.only_row().ended_by == "crash"
        assert stage.cloud.bill().usd == 0
        assert stage.rest.operation(pending["name"])["status"] == "DONE"
