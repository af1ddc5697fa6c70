"""The real google-cloud-batch client over REST, pointed at an embedded cloud, and requests with defaults."""

from __future__ import annotations

from typing import Any

from google.cloud import batch_v1, compute_v1
from google.cloud.batch_v1.services.batch_service.transports import BatchServiceRestTransport
from google.oauth2.credentials import Credentials
from google.protobuf.json_format import ParseDict

from orchestrator.embedded.server import EmbeddedCloud
from tests.unit.embedded.builders import FAMILY, scheduling

REGION = "us-central1"
RETRIED = (50001, 50002, 50003, 50006)


def template(name: str = "bench-template", **changes: Any) -> dict[str, Any]:
    """A template that is in order: one spot L4 that is deleted at an absolute end."""
    machine = changes.pop("machine", "g2-standard-4")
    ends = changes.pop("scheduling", scheduling(terminationTime="2026-11-21T08:00:00Z"))
    disk = {"sourceImage": FAMILY, "diskSizeGb": "60", "diskType": "pd-balanced"}
    properties = {
        "machineType": machine,
        "scheduling": ends,
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": disk}],
        "networkInterfaces": [{"network": "global/networks/default", "accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}],
        "serviceAccounts": [{"email": "vm@b.example", "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}],
        "labels": {"bench-tool": "spotbench"},
        "metadata": {"items": [{"key": "bench-bucket", "value": "bench-embedded"}]},
    }
    return {"name": name, "properties": properties | changes}


class GoogleBatch:
    """Google's clients of both services."""

    def __init__(self, cloud: EmbeddedCloud) -> None:
        self.cloud = cloud
        self.project = cloud.project
        self.credentials = Credentials(cloud.token)  # type: ignore[no-untyped-call, unused-ignore]
        transport = BatchServiceRestTransport(
            host=cloud.compute_url.removeprefix("http://"), url_scheme="http", credentials=self.credentials
        )
        self.client = batch_v1.BatchServiceClient(transport=transport)

    @property
    def templates(self) -> compute_v1.InstanceTemplatesClient:
        options = {"api_endpoint": self.cloud.compute_url}
        return compute_v1.InstanceTemplatesClient(credentials=self.credentials, client_options=options)

    @property
    def operations(self) -> compute_v1.GlobalOperationsClient:
        options = {"api_endpoint": self.cloud.compute_url}
        return compute_v1.GlobalOperationsClient(credentials=self.credentials, client_options=options)

    def insert_template(self, body: dict[str, Any] | None = None, **more: Any) -> Any:
        resource = compute_v1.InstanceTemplate()
        ParseDict(body or template(), type(resource).pb(resource))
        request = {"project": self.project, "instance_template_resource": resource, **more}
        return self.templates.insert_unary(request=request)

    def parent(self, region: str = REGION) -> str:
        return f"projects/{self.project}/locations/{region}"

    def job(self, tasks: int = 4, parallel: int = 2, **changes: Any) -> batch_v1.Job:
        """A job that is in order; its VMs are of `bench-template`."""
        spec = batch_v1.TaskSpec(
            runnables=[batch_v1.Runnable(script=batch_v1.Runnable.Script(text=changes.pop("script", "true")))],
            max_run_duration={"seconds": changes.pop("max_run_s", 1800)},
            max_retry_count=changes.pop("retries", 2),
            lifecycle_policies=[
                batch_v1.LifecyclePolicy(
                    action=batch_v1.LifecyclePolicy.Action.RETRY_TASK,
                    action_condition=batch_v1.LifecyclePolicy.ActionCondition(exit_codes=list(RETRIED)),
                )
            ],
            environment=batch_v1.Environment(variables={"BENCH_BUCKET": self.cloud.bucket}),
        )
        name = changes.pop("template", "bench-template")
        policy = batch_v1.AllocationPolicy(
            instances=[
                batch_v1.AllocationPolicy.InstancePolicyOrTemplate(
                    instance_template=f"projects/{self.project}/global/instanceTemplates/{name}"
                )
            ],
            labels={"bench-tool": "spotbench", "bench-fleet": "f1"},
            location=batch_v1.AllocationPolicy.LocationPolicy(allowed_locations=["regions/us-central1"]),
        )
        return batch_v1.Job(
            task_groups=[
                batch_v1.TaskGroup(task_spec=spec, task_count=tasks, parallelism=parallel, task_count_per_node=1)
            ],
            allocation_policy=policy,
            labels={"bench-tool": "spotbench"},
            **changes,
        )

    def create(self, job: batch_v1.Job | None = None, job_id: str = "j1", **more: Any) -> batch_v1.Job:
        region = more.pop("region", REGION)
        request = {"parent": self.parent(region), "job": job or self.job(), "job_id": job_id, **more}
        return self.client.create_job(request=request)

    def get(self, job_id: str = "j1", region: str = REGION) -> batch_v1.Job:
        return self.client.get_job(name=f"{self.parent(region)}/jobs/{job_id}")

    def tasks(self, job_id: str = "j1", region: str = REGION) -> list[batch_v1.Task]:
        return list(self.client.list_tasks(parent=f"{self.parent(region)}/jobs/{job_id}/taskGroups/group0"))


def state(job: batch_v1.Job) -> str:
    return str(batch_v1.JobStatus.State(job.status.state).name)


def counts(job: batch_v1.Job) -> dict[str, int]:
    return dict(job.status.task_groups["group0"].counts)


def exit_codes(task: batch_v1.Task) -> list[int]:
    return [event.task_execution.exit_code for event in task.status.status_events if event.task_execution.exit_code]
