"""From a `JobSpec` to the bodies of `instanceTemplates.insert` and `jobs.create`, as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from orchestrator.adapters.google.instance_body import ending_with_its_disk, network_interface, service_accounts
from orchestrator.core.fleet.batch import MOST_RETRIES, RETRIED, run_seconds
from orchestrator.core.fleet.jobs import JobSpec

Json = dict[str, Any]
KILL_SLACK: Final = timedelta(minutes=3)
"""A child ends itself; Batch ends what did not, a little later."""


def template_body(job: JobSpec, now: datetime, image: str) -> Json:
    """What every machine of the job is. No machine lives past its `terminationTime`, however often it is made again:
    that is what bounds the job in dollars; `maxRunDuration` bounds each machine by itself. Raises `ConfigError`."""
    settings = job.settings
    properties: Json = {
        "machineType": job.machine_type,
        **ending_with_its_disk(
            scheduling_policy(job.provisioning, run_seconds(job, now), job.ends_at),
            image,
            (settings["disk_gb"], settings["disk_type"]),
            job.labels,
        ),
        "networkInterfaces": [network_interface(settings["network"], external_ip=settings["external_ip"])],
        "serviceAccounts": service_accounts(settings.get("service_account")),
    }
    if settings.get("accelerator"):
        properties["guestAccelerators"] = [{"acceleratorType": settings["accelerator"], "acceleratorCount": 1}]
    return {"name": job.name, "description": f"machines of {job.name}", "properties": properties}


def scheduling_policy(provisioning: str, run_s: int, ends_at: datetime) -> Json:
    """How a machine is paid for, how long it may run, and when it ends whenever it began."""
    ends = ends_at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"provisioningModel": provisioning, "maxRunDuration": {"seconds": str(run_s)}, "terminationTime": ends}


def with_one_limit(template: Mapping[str, Any]) -> Json:
    """The same without `maxRunDuration`, for where Google takes one limit or the other: the absolute end alone still
    ends every machine, and bounds the dollars."""
    properties = template["properties"]
    scheduling = {key: value for key, value in properties["scheduling"].items() if key != "maxRunDuration"}
    return {**template, "properties": {**properties, "scheduling": scheduling}}


def job_body(job: JobSpec, region: str, project: str, script: str, variables: Mapping[str, str]) -> Json:
    """One task a child, one task on a machine at a time, and only what the machine is to blame for tried again."""
    limit = min(timedelta(seconds=job.child_s) + KILL_SLACK, timedelta(days=14))
    spec: Json = {
        "runnables": [{"script": {"text": script}}],
        "maxRunDuration": f"{limit.total_seconds():.0f}s",
        "maxRetryCount": MOST_RETRIES,
        "lifecyclePolicies": [{"action": "RETRY_TASK", "actionCondition": {"exitCodes": list(RETRIED)}}],
        "environment": {"variables": dict(sorted(variables.items()))},
    }
    labels = dict(sorted(job.labels.items()))
    template = f"projects/{project}/global/instanceTemplates/{job.name}"
    return {
        "priority": str(job.priority),
        "labels": labels,
        "taskGroups": [
            {
                "taskSpec": spec,
                "taskCount": str(len(job.children)),
                "parallelism": str(min(job.parallel, len(job.children))),
                "taskCountPerNode": "1",
            }
        ],
        "allocationPolicy": {
            "instances": [{"instanceTemplate": template}],
            "location": {"allowedLocations": [f"regions/{region}"]},
            "serviceAccount": {"email": job.settings["service_account"]} if job.settings.get("service_account") else {},
            # These reach the machines and their disks: `bench reap` and the bill know them by these.
            "labels": labels,
        },
        "logsPolicy": {"destination": "CLOUD_LOGGING"},
    }


def variables_of(job: JobSpec, storage: str) -> dict[str, str]:
    """What tells one job's tasks from another's. `storage` is empty on Google."""
    variables = {
        "BENCH_BUCKET": job.payload.bucket,
        "BENCH_PAYLOAD": job.payload.sha256,
        "BENCH_FLEET": job.fleet,
        "BENCH_JOB": job.name,
        "BENCH_ENDS": str(int(job.ends_at.timestamp())),
    }
    return variables | ({"BENCH_STORAGE": storage} if storage else {})


def order_body(job: JobSpec, place: int) -> Json:
    """What the machine of a child is told."""
    order = job.children[place]
    return {
        "schema": 1,
        "index": order.index,
        "attempt": order.attempt,
        "run_id": order.run_id,
        "spec": dict(order.spec),
        "payload": {"bucket": job.payload.bucket, "object": job.payload.object, "sha256": job.payload.sha256},
    }
