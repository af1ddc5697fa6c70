"""What Compute Engine refuses at once, the embedded cloud refuses at once, and with the same status."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.unit.embedded.builders import FAMILY, ZONE, Stage, flex_body, insert_body, scheduling, t4_body


def disk(**changes: Any) -> list[dict[str, Any]]:
    parameters = {"sourceImage": FAMILY, "diskSizeGb": "60", "diskType": f"zones/{ZONE}/diskTypes/pd-balanced"}
    return [{"boot": True, "autoDelete": True, "initializeParams": parameters | changes}]


def metadata(*items: tuple[str, str]) -> dict[str, Any]:
    return {"items": [{"key": key, "value": value} for key, value in items]}


L4 = [{"acceleratorType": f"zones/{ZONE}/acceleratorTypes/nvidia-l4", "acceleratorCount": 1}]
BAD: dict[str, tuple[int, dict[str, Any]]] = {
    "a flex-start VM that may take a reservation": (400, flex_body(reservationAffinity=None)),
    "a flex-start VM without an end": (
        400,
        flex_body(scheduling=scheduling(provisioningModel="FLEX_START", maxRunDuration=None, instanceTerminationAction=None)),
    ),
    "a flex-start VM of eight days": (
        400,
        flex_body(scheduling=scheduling(provisioningModel="FLEX_START", maxRunDuration={"seconds": 8 * 86400})),
    ),
    "a wait of three hours": (400, flex_body(10_800)),
    "a flex-start VM that is not sold": (400, flex_body() | {"machineType": f"zones/{ZONE}/machineTypes/g2-standard-4"}),
    "a spot VM that waits": (400, insert_body(params={"requestValidForDuration": {"seconds": "600"}})),
    "a name with a capital": (400, insert_body("Bench")),
    "a name that ends in a dash": (400, insert_body("bench-")),
    "a name of 64 letters": (400, insert_body("b" * 64)),
    "no machine type": (400, insert_body(machineType=None)),
    "a machine type of another zone": (400, insert_body(machineType="zones/us-east1-b/machineTypes/g2-standard-4")),
    "a machine type that does not exist": (400, insert_body(machine="g2-standard-5")),
    "an L4 on N1": (400, insert_body(machine="n1-standard-4", guestAccelerators=L4)),
    "a T4 on E2": (400, t4_body() | {"machineType": f"zones/{ZONE}/machineTypes/e2-standard-4"}),
    "five T4s": (400, t4_body(count=5)),
    "a GPU that is nowhere": (404, insert_body(guestAccelerators=[{"acceleratorType": "nvidia-x", "acceleratorCount": 1}])),
    "two types of GPU": (400, insert_body(guestAccelerators=L4 * 2)),
    "two of the bundled GPU": (400, insert_body(guestAccelerators=[L4[0] | {"acceleratorCount": 2}])),
    "a GPU that is to migrate": (
        400,
        insert_body(scheduling=scheduling(provisioningModel=None, onHostMaintenance="MIGRATE", automaticRestart=None)),
    ),
    "a spot VM that is to migrate": (
        400,
        insert_body(machine="e2-standard-4", scheduling=scheduling(onHostMaintenance="MIGRATE")),
    ),
    "a spot VM that is to restart": (400, insert_body(scheduling=scheduling(automaticRestart=True))),
    "an unknown provisioning model": (400, insert_body(scheduling=scheduling(provisioningModel="SPOTTY"))),
    "an unknown termination action": (400, insert_body(scheduling=scheduling(instanceTerminationAction="PAUSE"))),
    "a run of 29 seconds": (400, insert_body(scheduling=scheduling(maxRunDuration={"seconds": "29"}))),
    "a run of 121 days": (400, insert_body(scheduling=scheduling(maxRunDuration={"seconds": 121 * 86400}))),
    "a run of some time": (400, insert_body(scheduling=scheduling(maxRunDuration={"seconds": "some"}))),
    "a run time with no action": (400, insert_body(scheduling=scheduling(instanceTerminationAction=None))),
    "a termination action without cause": (
        400,
        insert_body(scheduling=scheduling(provisioningModel="STANDARD", maxRunDuration=None)),
    ),
    "a run time on a legacy preemptible VM": (
        400,
        insert_body(scheduling=scheduling(provisioningModel=None, preemptible=True)),
    ),
    "a small A3 on demand": (
        400,
        insert_body(machine="a3-highgpu-1g", scheduling=scheduling(provisioningModel="STANDARD")),
    ),
    "no disk": (400, insert_body(disks=None)),
    "two boot disks": (400, insert_body(disks=disk() * 2)),
    "a disk smaller than its image": (400, insert_body(disks=disk(diskSizeGb="49"))),
    "a disk type that does not exist": (400, insert_body(disks=disk(diskType="pd-imaginary"))),
    "an image family that is gone": (404, insert_body(disks=disk(sourceImage=FAMILY + "9"))),
    "an image that is none": (400, insert_body(disks=disk(sourceImage="some image"))),
    "an image of ours, of which there is none": (404, insert_body(disks=disk(sourceImage="global/images/mine"))),
    "a disk label with a capital": (400, insert_body(disks=disk(labels={"A": "b"}))),
    "no network": (400, insert_body(networkInterfaces=None)),
    "a field that no instance has": (400, insert_body(frobnicate=1)),
    "a network that does not exist": (400, insert_body(networkInterfaces=[{"network": "global/networks/mine"}])),
    "two service accounts": (400, insert_body(serviceAccounts=[{"email": "a"}, {"email": "b"}])),
    "a label with a capital": (400, insert_body(labels={"bench-user": "Ada"})),
    "a label key with a dot": (400, insert_body(labels={"bench.user": "ada"})),
    "a label value of 64 letters": (400, insert_body(labels={"a": "b" * 64})),
    "65 labels": (400, insert_body(labels={f"l{number}": "" for number in range(65)})),
    "metadata with a bad key": (400, insert_body(metadata=metadata(("a key", "v")))),
    "metadata with a key twice": (400, insert_body(metadata=metadata(("k", "v"), ("k", "w")))),
    "a metadata value above 256 KiB": (400, insert_body(metadata=metadata(("k", "v" * 262_145)))),
    "metadata above 512 KiB": (400, insert_body(metadata=metadata(*((f"k{n}", "v" * 200_000) for n in range(3))))),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_what_is_out_of_order_is_refused_and_leaves_nothing_behind(stage: Stage, what: str) -> None:
    expected, body = BAD[what]
    before = {instance["name"] for instance in stage.cloud.instances()}
    status, answer = stage.rest.call("POST", f"/zones/{ZONE}/instances", body)
    assert status == expected, answer
    assert answer["error"]["code"] == expected
    assert {instance["name"] for instance in stage.cloud.instances()} == before


@pytest.mark.parametrize("body", [[], "text"])
def test_a_body_that_is_no_object_is_refused(stage: Stage, body: object) -> None:
    assert stage.rest.call("POST", f"/zones/{ZONE}/instances", body)[0] == 400


JSON = {"Content-Type": "application/json"}


def test_a_body_that_is_no_json_is_refused(stage: Stage) -> None:
    response = stage.rest.session.post(f"{stage.rest.base}/zones/{ZONE}/instances", data=b"{", headers=JSON)
    assert (response.status_code, response.json()["error"]["errors"][0]["reason"]) == (400, "parseError")


GOOD: dict[str, dict[str, Any]] = {
    "spot-l4": insert_body("spot-l4"),
    "named-bundled-gpu": insert_body("named-bundled-gpu", guestAccelerators=L4),
    "four-t4": t4_body("four-t4", count=4),
    "standard-l4": insert_body(
        "standard-l4", scheduling=scheduling(provisioningModel="STANDARD", automaticRestart=None)
    ),
    "legacy": insert_body("legacy", scheduling={"preemptible": True}),
    "shortest": insert_body(
        "shortest", scheduling=scheduling(maxRunDuration={"seconds": 29, "nanos": 999_999_999 + 1})
    ),
    "longest": insert_body("longest", scheduling=scheduling(maxRunDuration={"seconds": str(120 * 86400)})),
    "with-notice": insert_body("with-notice", scheduling=scheduling(preemptionNoticeDuration={"seconds": "120"})),
    "dated-image": insert_body("dated-image", disks=disk(sourceImage=FAMILY.replace("family/", "") + "-v20260626")),
    "bare": insert_body("bare", labels=None, metadata=None, serviceAccounts=None, disks=disk(diskSizeGb="50")),
    "h100": insert_body("h100", machine="a3-highgpu-1g"),
    "flex-start": flex_body(7200, name="flex-start"),
    "flex-start-at-once": flex_body(None, name="flex-start-at-once"),
    "full-urls": insert_body(
        "full-urls",
        machineType=f"https://www.googleapis.com/compute/v1/projects/bench-embedded/zones/{ZONE}/machineTypes/g2-standard-4",
        networkInterfaces=[{"network": "projects/bench-embedded/global/networks/default"}],
    ),
}


@pytest.mark.parametrize("what", GOOD)
def test_what_is_in_order_is_admitted(stage: Stage, what: str) -> None:
    stage.rest.insert(deepcopy(GOOD[what]))
    assert stage.rest.instance(what)["name"] == what
    stage.rest.delete(what)
    stage.advance(60)


def test_an_unknown_zone_region_or_project_is_not_found(stage: Stage) -> None:
    assert stage.rest.call("POST", "/zones/mars-north1-a/instances", insert_body())[0] == 404
    assert stage.rest.call("GET", "/regions/mars-north1")[0] == 404
    other = f"{stage.cloud.compute_url}/compute/v1/projects/other-project/zones"
    assert stage.rest.session.get(other).status_code == 404


@pytest.mark.parametrize(
    "path", ["zones/z:1", f"zones/{ZONE}/instances/a:b", "global/networks/a:b", "global/images/a:b"]
)
def test_a_colon_in_a_name_is_a_name_that_nothing_has(stage: Stage, path: str) -> None:
    assert stage.rest.call("GET", f"/{path}")[0] == 404


def test_what_this_cloud_cannot_do_is_said_and_not_guessed(stage: Stage) -> None:
    assert stage.rest.call("PUT", "/zones")[0] == 405
    assert stage.rest.call("GET", "/global/addresses")[0] == 501
    assert stage.rest.get("/global/firewalls")["kind"] == "compute#firewallList"
    assert stage.rest.session.get(stage.cloud.compute_url + "/elsewhere").status_code == 404
    assert stage.rest.call("POST", "/regions/us-central1/advice/capacity", {})[0] == 501


def test_a_stack_of_clouds_can_live_side_by_side(stage: Stage, tmp_path: Path) -> None:
    before = stage.cloud.instances()
    with Stage(tmp_path, project="bench-other", bucket="bench-other") as other:
        other.rest.insert({**insert_body(), "name": "bench-20261121-040506-l4-07e5-1"})
        assert len(other.cloud.instances()) == 1
        assert stage.cloud.instances() == before


def fields(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path to every value in a document."""
    if at:
        yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from fields(one, (*at, key))


@pytest.mark.parametrize("wrong", [None, [], {}, "x", -1, 10**30, True, [None], [[]], {"x": None}], ids=str)
def test_any_field_value_is_refused_or_taken_and_never_the_clouds_own_fault(stage: Stage, wrong: Any) -> None:
    for path in fields(insert_body()):
        body = copy.deepcopy(insert_body())
        place: Any = body
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = wrong
        status, answer = stage.rest.call("POST", f"/zones/{ZONE}/instances", body)
        assert status < 500, (path, answer)
        if status >= 400:
            assert answer["error"]["errors"][0]["message"]
        for vm in stage.cloud.fleet.all():
            stage.cloud.fleet.lose(vm)


def test_a_null_in_an_insert_is_as_if_the_field_were_absent(stage: Stage) -> None:
    body = insert_body()
    body["disks"][0]["initializeParams"]["diskSizeGb"] = None
    body["description"] = None
    stage.rest.insert(body)
    stage.advance(40)
    assert stage.rest.instance()["disks"][0]["diskSizeGb"] == "50"
