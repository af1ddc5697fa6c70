"""What goes over the wire when a machine is asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.adapters.google.instance_body import MAX_RUN_S, MAX_VALUE_BYTES, MIN_RUN_S, instance_body
from orchestrator.core.errors import ConfigError
from orchestrator.core.market.machines import InstanceRequest
from tests.support.machine_requests import IMAGE, L4, RUN, T4

LABELS = {
    "bench-attempt": "1",
    "bench-run": RUN,
    "bench-tool": "spotbench",
    "bench-bucket": "my-bench-fd9f73293147bfae",
    "bench-user": "ann-example",
}
METADATA = {
    "items": [{"key": "bench-run", "value": "{}"}, {"key": "startup-script", "value": "#!/bin/bash\necho hello\n"}]
}
SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]

GOLDEN_L4 = {
    "name": f"bench-{RUN}-1",
    "machineType": "zones/us-central1-a/machineTypes/g2-standard-4",
    "scheduling": {
        "provisioningModel": "SPOT",
        "instanceTerminationAction": "DELETE",
        "maxRunDuration": {"seconds": "1800"},
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
    },
    "disks": [
        {
            "boot": True,
            "autoDelete": True,
            "initializeParams": {
                "sourceImage": IMAGE,
                "diskSizeGb": "60",
                "diskType": "zones/us-central1-a/diskTypes/pd-balanced",
                "labels": LABELS,
            },
        }
    ],
    "networkInterfaces": [
        {"network": "global/networks/default", "accessConfigs": [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]}
    ],
    "serviceAccounts": [{"email": "bench-vm@bench-project.iam.gserviceaccount.com", "scopes": SCOPES}],
    "labels": LABELS,
    "metadata": METADATA,
}

GOLDEN_T4 = {
    "name": f"bench-{RUN}-1",
    "machineType": "zones/europe-west4-b/machineTypes/n1-standard-4",
    "guestAccelerators": [
        {
            "acceleratorType": "projects/bench-project/zones/europe-west4-b/acceleratorTypes/nvidia-tesla-t4",
            "acceleratorCount": 1,
        }
    ],
    "scheduling": {
        "provisioningModel": "STANDARD",
        "instanceTerminationAction": "DELETE",
        "maxRunDuration": {"seconds": "1800"},
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
    },
    "disks": [
        {
            "boot": True,
            "autoDelete": True,
            "initializeParams": {
                "sourceImage": IMAGE,
                "diskSizeGb": "60",
                "diskType": "zones/europe-west4-b/diskTypes/pd-balanced",
                "labels": LABELS,
            },
        }
    ],
    "networkInterfaces": [{"subnetwork": "projects/host/regions/europe-west4/subnetworks/private"}],
    "serviceAccounts": [{"email": "default", "scopes": SCOPES}],
    "labels": LABELS,
    "metadata": METADATA,
}


def test_a_spot_l4_is_asked_for_like_this() -> None:
    assert instance_body(L4, "bench-project") == GOLDEN_L4


FLEX = replace(
    L4, machine_type="a3-highgpu-1g", provisioning="FLEX_START", queue_s=7200, external_ip=False, max_run_s=604_800
)
GOLDEN_FLEX = GOLDEN_L4 | {
    "machineType": "zones/us-central1-a/machineTypes/a3-highgpu-1g",
    "scheduling": {
        "provisioningModel": "FLEX_START",
        "instanceTerminationAction": "DELETE",
        "maxRunDuration": {"seconds": "604800"},
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
    },
    "params": {"requestValidForDuration": {"seconds": "7200"}},
    "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"},
    "networkInterfaces": [{"network": "global/networks/default"}],
}


def test_a_flex_start_h100_that_may_wait_two_hours_is_asked_for_like_this() -> None:
    assert instance_body(FLEX, "bench-project") == GOLDEN_FLEX


@pytest.mark.parametrize(
    "changes",
    [{"queue_s": 89}, {"queue_s": 7201}, {"queue_s": 0}, {"max_run_s": 604_801}, {"provisioning": "SPOT"}],
    ids=str,
)
def test_a_wait_or_a_run_that_google_does_not_sell_as_flex_start_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        instance_body(replace(FLEX, **changes), "bench-project")


def test_a_standard_t4_in_a_private_network_is_asked_for_like_this() -> None:
    assert instance_body(T4, "bench-project") == GOLDEN_T4


@given(
    max_run_s=st.integers(-10, MAX_RUN_S + 10),
    provisioning=st.sampled_from(["SPOT", "STANDARD"]),
    accelerator=st.sampled_from([None, "nvidia-tesla-t4"]),
    external_ip=st.booleans(),
)
def test_no_machine_is_ever_asked_for_without_a_deadline_that_deletes_it(max_run_s: int, **others: Any) -> None:
    request = replace(L4, max_run_s=max_run_s, **others)
    try:
        body = instance_body(request, "bench-project")
    except ConfigError:
        assert not MIN_RUN_S <= max_run_s <= MAX_RUN_S
        return
    scheduling = body["scheduling"]
    assert scheduling["instanceTerminationAction"] == "DELETE"
    assert MIN_RUN_S <= int(scheduling["maxRunDuration"]["seconds"]) <= MAX_RUN_S
    assert all(disk["autoDelete"] for disk in body["disks"])


@pytest.mark.parametrize("max_run_s", [0, 29, MAX_RUN_S + 1])
def test_a_deadline_that_google_would_refuse_is_refused_here(max_run_s: int) -> None:
    with pytest.raises(ConfigError, match="s to run"):
        instance_body(replace(L4, max_run_s=max_run_s), "p")


def test_an_unknown_way_to_provision_is_refused() -> None:
    with pytest.raises(ConfigError, match="'SPOTTY' is not a valid provisioning") as raised:
        instance_body(replace(L4, provisioning="SPOTTY"), "p")
    assert "spot, flex-start or standard" in raised.value.hint


def test_metadata_that_google_would_refuse_is_refused_here() -> None:
    with pytest.raises(ConfigError, match="metadata value bench-run has 262145 bytes"):
        instance_body(replace(L4, metadata={"bench-run": "x" * (MAX_VALUE_BYTES + 1)}), "p")
    with pytest.raises(ConfigError, match="machine's metadata"):
        instance_body(replace(L4, metadata={f"k{n}": "é" * 100_000 for n in range(3)}), "p")


def test_a_network_is_a_name_or_a_url() -> None:
    for given_, sent in (
        ("lan", {"network": "global/networks/lan"}),
        ("projects/p/global/networks/lan", {"network": "projects/p/global/networks/lan"}),
        ("regions/r/subnetworks/s", {"network": None}),
    ):
        interface = instance_body(replace(L4, network=given_, external_ip=False), "p")["networkInterfaces"][0]
        assert interface.get("network") == sent["network"]


# What is sent is checked against Google's own description of its API, not against our memory of it.


@cache
def schemas() -> dict[str, Any]:
    document = files("googleapiclient").joinpath("discovery_cache/documents/compute.v1.json").read_text()
    found: dict[str, Any] = json.loads(document)["schemas"]
    return found


def problems(value: Any, schema: dict[str, Any], where: str) -> list[str]:
    """What Google would find wrong with `value`."""
    schema = schemas()[schema["$ref"]] if "$ref" in schema else schema
    if schema.get("readOnly"):
        return [f"{where} is output only"]
    kind = schema.get("type")
    if kind == "object":
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        found = []
        for key, part in value.items():
            if key not in known and others is None:
                found.append(f"{where}.{key} is unknown")
            else:
                found += problems(part, known.get(key, others), f"{where}.{key}")
        return found
    if kind == "array":
        return [problem for part in value for problem in problems(part, schema["items"], where)]
    python = {"string": str, "boolean": bool, "integer": int, "number": float}[str(kind)]
    if type(value) is not python:
        return [f"{where} is {value!r}, not {kind}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{where} is {value!r}, not one of {schema['enum']}"]
    return []


@pytest.mark.parametrize("request_", [L4, T4], ids=["l4", "t4"])
def test_what_is_sent_is_what_google_describes(request_: InstanceRequest) -> None:
    assert problems(instance_body(request_, "bench-project"), {"$ref": "Instance"}, "instance") == []


def test_the_check_finds_what_is_wrong() -> None:
    body = instance_body(L4, "bench-project")
    body["status"] = "RUNNING"
    body["scheduling"]["provisioningModel"] = "SPOTTY"
    body["disks"][0]["initializeParams"]["diskSizeGb"] = 60
    body["colour"] = "red"
    assert len(problems(body, {"$ref": "Instance"}, "instance")) == 4
