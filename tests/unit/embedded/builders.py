"""What the embedded cloud's tests are made of: inserts with defaults, a plain REST client, and clouds that stand still."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.embedded.server import EmbeddedCloud
from tests.support import keyed
from tests.support.scripted_machines import Script, ScriptedVm, Steps, scripted
from tests.support.simulated_timeline import SimulatedTimeline

ZONE = "us-central1-a"
FAMILY = "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2404-nvidia-580"
RUN = "20261121-040506-l4-7f3a"
NAME = f"bench-{RUN}-1"


def scheduling(**changes: Any) -> dict[str, Any]:
    """Spot, deleted at its end, after at most half an hour."""
    given = {
        "provisioningModel": "SPOT",
        "instanceTerminationAction": "DELETE",
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
        "maxRunDuration": {"seconds": "1800"},
    }
    return {key: value for key, value in (given | changes).items() if value is not None}


def insert_body(name: str = NAME, zone: str = ZONE, **changes: Any) -> dict[str, Any]:
    """An insert that is in order: one spot L4. A change of None leaves the field out."""
    machine = changes.pop("machine", "g2-standard-4")
    run_id, _, attempt = name.removeprefix("bench-").rpartition("-")
    disk = {
        "sourceImage": FAMILY,
        "diskSizeGb": "60",
        "diskType": f"zones/{zone}/diskTypes/pd-balanced",
        "labels": {"bench-tool": "spotbench"},
    }
    given: dict[str, Any] = {
        "name": name,
        "machineType": f"zones/{zone}/machineTypes/{machine}",
        "scheduling": scheduling(),
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": disk}],
        "networkInterfaces": [{"network": "global/networks/default", "accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}],
        "serviceAccounts": [
            {"email": "vm@bench.example", "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}
        ],
        "labels": {"bench-tool": "spotbench", "bench-run": run_id, "bench-attempt": attempt, "bench-user": "ada"},
        "metadata": {
            "items": [
                {"key": "startup-script", "value": "#!/bin/bash\n"},
                {"key": "bench-run", "value": json.dumps({"run_id": run_id, "bucket": "bench-embedded"})},
            ]
        },
    }
    return {key: value for key, value in (given | changes).items() if value is not None}


def flex_body(seconds: int | None = 600, name: str = NAME, **changes: Any) -> dict[str, Any]:
    """A flex-start A100 that waits so long for capacity."""
    wait = {} if seconds is None else {"params": {"requestValidForDuration": {"seconds": str(seconds)}}}
    model = {"scheduling": scheduling(provisioningModel="FLEX_START"), **wait}
    affinity = {"reservationAffinity": {"consumeReservationType": "NO_RESERVATION"}}
    return insert_body(name, machine="a2-highgpu-1g", **(model | affinity | changes))


def t4_body(name: str = "bench-t4-1", zone: str = ZONE, count: int = 1, **changes: Any) -> dict[str, Any]:
    """An insert of an N1 machine with T4s attached."""
    accelerator = f"projects/bench-embedded/zones/{zone}/acceleratorTypes/nvidia-tesla-t4"
    attached = [{"acceleratorType": accelerator, "acceleratorCount": count}]
    return insert_body(name, zone, machine="n1-standard-4", guestAccelerators=attached, **changes)


class Rest:
    """The compute API, by hand."""

    def __init__(self, cloud: EmbeddedCloud) -> None:
        self.base = f"{cloud.compute_url}/compute/v1/projects/{cloud.project}"
        keyed.know(cloud)
        self.session = keyed.Session()
        self.session.trust_env = False

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> tuple[int, Any]:
        response = self.session.request(method, self.base + path, json=body, params=query, timeout=600)
        return response.status_code, response.json()

    def get(self, path: str, **query: Any) -> Any:
        status, document = self.call("GET", path, **query)
        assert status == 200, document
        return document

    def insert(self, body: dict[str, Any] | None = None, zone: str = ZONE, **query: Any) -> Any:
        """The operation; the insert must be admitted."""
        status, document = self.call("POST", f"/zones/{zone}/instances", body or insert_body(zone=zone), **query)
        assert status == 200, document
        return document

    def delete(self, name: str, zone: str = ZONE, **query: Any) -> Any:
        status, document = self.call("DELETE", f"/zones/{zone}/instances/{name}", **query)
        assert status == 200, document
        return document

    def instance(self, name: str = NAME, zone: str = ZONE) -> Any:
        """The instance, or None once it is gone."""
        status, document = self.call("GET", f"/zones/{zone}/instances/{name}")
        assert status in (200, 404), document
        return document if status == 200 else None

    def operation(self, name: str, zone: str = ZONE) -> Any:
        return self.get(f"/zones/{zone}/operations/{name}")


class Stage:
    """An embedded cloud in simulated time, and what one does with it."""

    def __init__(self, home: Path, script: Script | None = None, **options: Any) -> None:
        self.timeline = SimulatedTimeline()
        machines = scripted(script or idle)
        self.cloud = EmbeddedCloud(home, timeline=self.timeline, machines=machines, **options)
        self.rest = Rest(self.cloud)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.rest.session.close()
        self.cloud.close()

    def advance(self, seconds: float) -> None:
        self.timeline.advance(seconds)

    def run_vm(self, body: dict[str, Any] | None = None, zone: str = ZONE) -> str:
        """Insert a VM and let time pass until it is RUNNING and has booted; its name."""
        body = body or insert_body(zone=zone)
        self.rest.insert(body, zone)
        self.advance(40)
        return str(body["name"])

    def only_row(self) -> Any:
        """The one row of the bill."""
        (row,) = self.cloud.bill().rows
        return row


def idle(vm: ScriptedVm) -> Steps:
    """A VM that does nothing, and ends when it is shut down."""
    vm.log("idle")
    while True:
        yield 3600.0
