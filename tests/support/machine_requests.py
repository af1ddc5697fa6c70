"""Requests for machines, for tests of adapters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.core.market.machines import InstanceRequest
from orchestrator.core.naming import machine_labels

RUN = "20261121-040506-l4-7f3a"
IMAGE = "projects/deeplearning-platform-release/global/images/common-cu129-ubuntu-2204-nvidia-580-v20260818"

L4 = InstanceRequest(
    name=f"bench-{RUN}-1",
    zone="us-central1-a",
    machine_type="g2-standard-4",
    accelerator=None,
    accelerator_count=1,
    provisioning="SPOT",
    max_run_s=1800,
    image=IMAGE,
    disk_gb=60,
    disk_type="pd-balanced",
    network="default",
    external_ip=True,
    service_account="bench-vm@bench-project.iam.gserviceaccount.com",
    labels=machine_labels(RUN, 1, "Ann Example", "my-bench"),
    metadata={"startup-script": "#!/bin/bash\necho hello\n", "bench-run": "{}"},
    request_id="0b7e4f3a-5a0e-5c56-9b0f-6f5f8f1f2a3b",
)
T4 = replace(
    L4,
    zone="europe-west4-b",
    machine_type="n1-standard-4",
    accelerator="nvidia-tesla-t4",
    provisioning="STANDARD",
    network="projects/host/regions/europe-west4/subnetworks/private",
    external_ip=False,
    service_account=None,
)


def l4(**changes: Any) -> InstanceRequest:
    return replace(L4, **changes)
