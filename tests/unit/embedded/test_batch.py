"""The batch service: the real google-cloud-batch client drives it, and every exchange is judged by Google's document."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import batch_v1

from orchestrator.embedded.batch_jobs import ENUMS, JOB_STATES
from tests.support.discovery import Discovery, Recorder
from tests.support.google_batch import GoogleBatch, counts, exit_codes, state, template
from tests.support.scripted_machines import ScriptedVm, ShutDown, Steps
from tests.unit.embedded.builders import Stage, scheduling

LONG = 8 * 3600


def work(vm: ScriptedVm) -> Steps:
    """A task of five minutes; `fail-N` as its index's variable makes it end with that code."""
    index = vm.environment["BATCH_TASK_INDEX"]
    vm.log(f"task {index}, attempt {vm.environment['BATCH_TASK_RETRY_ATTEMPT']}")
    try:
        yield 300.0
    except ShutDown:
        return 143
    return int(vm.environment.get(f"EXIT_{index}", "0"))


@pytest.fixture
def stage(tmp_path: Path, recorder: Recorder) -> Iterator[Stage]:
    with Stage(tmp_path, work, observer=recorder) as made:
        yield made
    recorder.assert_all_valid()


@pytest.fixture
def google(stage: Stage) -> GoogleBatch:
    google = GoogleBatch(stage.cloud)
    google.insert_template()
    return google


def test_a_job_runs_all_its_tasks_on_at_most_p_vms_and_every_word_is_valid(
    stage: Stage, google: GoogleBatch, recorder: Recorder
) -> None:
    made = google.create()
    assert state(made) == "QUEUED"
    most = 0
    for _ in range(40):
        stage.advance(30)
        most = max(most, len(stage.cloud.instances()))
    job = google.get()
    assert (state(job), counts(job)) == ("SUCCEEDED", {"SUCCEEDED": 4})
    assert (most, stage.cloud.instances()) == (2, [])
    assert job.status.run_duration >= timedelta(seconds=600)
    assert [batch_v1.TaskStatus.State(task.status.state).name for task in google.tasks()] == ["SUCCEEDED"] * 4
    name = f"{google.parent()}/jobs/j1/taskGroups/group0/tasks/3"
    assert google.client.get_task(name=name).status.status_events
    assert [one.name for one in google.client.list_jobs(parent=google.parent())] == [job.name]
    google.client.delete_job(name=job.name).result(timeout=600)
    with pytest.raises(exceptions.NotFound):
        google.get()
    ours = {method for method in recorder.methods if method.startswith("batch.")}
    assert len(ours) == 6, ours


def test_vms_of_a_job_carry_the_template_and_the_labels_of_the_job(stage: Stage, google: GoogleBatch) -> None:
    google.create()
    stage.advance(120)
    for summary in stage.cloud.instances():
        assert summary["has_deadline"]
        assert summary["labels"]["bench-fleet"] == "f1"
        document = stage.rest.instance(summary["name"], summary["zone"])
        assert document["scheduling"]["terminationTime"] == "2026-11-21T08:00:00Z"
        assert document["scheduling"]["maxRunDuration"] == {"seconds": "1800"}
        assert document["scheduling"]["instanceTerminationAction"] == "DELETE"
    assert all(row.has_deadline for row in stage.cloud.bill().rows)


def test_a_request_id_makes_one_job_and_a_name_is_taken_once(google: GoogleBatch) -> None:
    request = str(uuid.uuid4())
    first = google.create(request_id=request)
    assert google.create(request_id=request).uid == first.uid
    with pytest.raises(exceptions.Conflict):
        google.create(request_id=str(uuid.uuid4()))


def test_a_cancelled_job_takes_its_vms_along_and_its_operation_says_when(stage: Stage, google: GoogleBatch) -> None:
    google.create()
    stage.advance(120)
    operation = google.client.cancel_job(name=f"{google.parent()}/jobs/j1")
    assert state(google.get()) == "CANCELLATION_IN_PROGRESS"
    stage.advance(60)
    assert isinstance(operation.result(timeout=600), batch_v1.CancelJobResponse)
    assert (state(google.get()), stage.cloud.instances()) == ("CANCELLED", [])
    with pytest.raises(exceptions.BadRequest):
        google.client.cancel_job(name=f"{google.parent()}/jobs/j1")


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ({"fault": "preempt", "at": {"seconds": 90}}, 50001),
        ({"fault": "lost", "at": {"seconds": 90}}, 50002),
        ({"fault": "batch_mute", "seconds": 60}, 50002),
        ({"fault": "batch_recreate", "seconds": 60}, 50006),
    ],
)
def test_what_ends_a_vm_is_the_tasks_exit_code_and_it_is_tried_again(
    stage: Stage, google: GoogleBatch, fault: dict[str, Any], code: int
) -> None:
    stage.cloud.weather.add(fault)
    google.create(google.job(tasks=1, parallel=1))
    stage.advance(1200)
    (task,) = google.tasks()
    assert (state(google.get()), exit_codes(task)) == ("SUCCEEDED", [code])
    assert stage.cloud.weather.fired(fault["fault"]) == 1
    assert len(stage.cloud.bill().rows) == 2


def test_a_vm_that_deletes_itself_is_made_again_and_its_task_ends_with_50006(stage: Stage, google: GoogleBatch) -> None:
    google.create(google.job(tasks=1, parallel=1))
    stage.advance(120)
    (summary,) = stage.cloud.instances()
    stage.rest.delete(summary["name"], summary["zone"])
    stage.advance(900)
    (task,) = google.tasks()
    assert (exit_codes(task), state(google.get())) == ([50006], "SUCCEEDED")


def test_only_named_exit_codes_are_tried_again_and_only_so_often(stage: Stage, google: GoogleBatch) -> None:
    stage.cloud.weather.add({"fault": "preempt", "at": {"seconds": 90}, "times": 3})
    job = google.job(tasks=1, parallel=1)
    job.task_groups[0].task_spec.environment.variables["EXIT_0"] = "7"
    google.create(job, "fails")
    stage.advance(LONG)
    (task,) = google.tasks("fails")
    assert (state(google.get("fails")), exit_codes(task)) == ("FAILED", [50001, 50001, 50001])
    google.insert_template(template("later", scheduling=scheduling(terminationTime="2026-11-22T08:00:00Z")))
    job = google.job(tasks=2, parallel=1, template="later")
    job.task_groups[0].task_spec.environment.variables["EXIT_0"] = "7"
    google.create(job, "once")
    stage.advance(3600)
    first, second = google.tasks("once")
    assert (exit_codes(first), exit_codes(second), counts(google.get("once"))) == (
        [7], [], {"FAILED": 1, "SUCCEEDED": 1},
    )  # fmt: skip


def test_a_task_over_its_time_ends_with_50005(stage: Stage, google: GoogleBatch) -> None:
    google.create(google.job(tasks=1, parallel=1, max_run_s=120))
    stage.advance(600)
    assert [exit_codes(task) for task in google.tasks()] == [[50005]]
    assert stage.cloud.instances() == []


def test_a_silent_queue_has_its_cause_in_an_event_and_no_vm(stage: Stage, google: GoogleBatch) -> None:
    stage.cloud.weather.add(
        {"fault": "batch_silent", "job": "j1"},
        {"fault": "batch_silent", "job": "j2", "cause": "stockout", "seconds": 90},
    )
    google.create()
    google.create(job_id="j2")
    stage.advance(60)
    first, second = google.get(), google.get("j2")
    assert (state(first), state(second), stage.cloud.instances()) == ("QUEUED", "QUEUED", [])
    assert "CODE_GCE_QUOTA_EXCEEDED" in first.status.status_events[-1].description
    assert "ZONE_RESOURCE_POOL_EXHAUSTED" in second.status.status_events[-1].description
    stage.advance(3600)
    assert (state(google.get()), state(google.get("j2"))) == ("QUEUED", "SUCCEEDED")
    google.client.cancel_job(name=f"{google.parent()}/jobs/j1").result(timeout=600)
    assert state(google.get()) == "CANCELLED"


def test_stock_outs_and_quotas_are_events_and_the_next_zone_is_asked(stage: Stage, google: GoogleBatch) -> None:
    stage.cloud.weather.add({"fault": "stockout"}, {"fault": "quota", "metric": "NVIDIA_L4_GPUS"})
    google.create(google.job(tasks=1, parallel=1))
    stage.advance(1200)
    told = [event.description for event in google.get().status.status_events]
    assert any("CODE_GCE_ZONE_RESOURCE_POOL_EXHAUSTED" in text for text in told), told
    assert any("CODE_GCE_QUOTA_EXCEEDED" in text for text in told), told
    assert state(google.get()) == "SUCCEEDED"


def test_a_machine_that_the_region_lacks_fails_the_job_without_any_task(stage: Stage, google: GoogleBatch) -> None:
    google.insert_template(template("a100", machine="a2-highgpu-1g"))
    google.create(google.job(template="a100"), region="us-central1")
    stage.cloud.weather.add({"fault": "batch_no_tasks", "job": "j2"})
    google.create(google.job(), "j2")
    elsewhere = google.job(template="a100")
    elsewhere.allocation_policy.location.allowed_locations = ["regions/us-west1"]
    google.create(elsewhere, region="us-west1")
    stage.advance(60)
    assert state(google.get()) == "RUNNING"
    assert (state(google.get("j2")), google.tasks("j2")) == ("FAILED", [])
    assert (state(google.get(region="us-west1")), google.tasks(region="us-west1")) == ("FAILED", [])


def test_no_vm_lives_past_the_templates_end_and_none_is_made_after_it(stage: Stage, google: GoogleBatch) -> None:
    google.insert_template(template("short", scheduling=scheduling(terminationTime="2026-11-21T04:10:00Z")))
    google.create(google.job(tasks=50, parallel=3, template="short"))
    end = stage.timeline.start + timedelta(minutes=10)
    stage.advance(LONG)
    rows = stage.cloud.bill().rows
    assert rows
    assert all(row.ended_at is not None and row.ended_at <= end + timedelta(seconds=30) for row in rows)
    assert state(google.get()) == "RUNNING", "only a client ends it"
    assert "termination time" in google.get().status.status_events[-1].description


def test_a_template_is_inserted_listed_found_and_deleted(stage: Stage, google: GoogleBatch, recorder: Recorder) -> None:
    operation = google.insert_template(template("two"), request_id=str(uuid.uuid4()))
    assert google.operations.wait(project=google.project, operation=operation.name).status == operation.Status.DONE
    assert google.operations.get(project=google.project, operation=operation.name).operation_type == "insert"
    assert [one.name for one in google.templates.list(project=google.project)] == ["bench-template", "two"]
    found = google.templates.get(project=google.project, instance_template="two")
    assert found.properties.scheduling.termination_time == "2026-11-21T08:00:00Z"
    with pytest.raises(exceptions.Conflict):
        google.insert_template(template("two"))
    with pytest.raises(exceptions.BadRequest):
        google.insert_template(template("three", machine="g2-standard-5"))
    google.templates.delete_unary(project=google.project, instance_template="two")
    with pytest.raises(exceptions.NotFound):
        google.templates.get(project=google.project, instance_template="two")
    assert recorder.methods["compute.instanceTemplates.insert"] == 4


def test_the_weather_can_refuse_two_time_limits_at_once(stage: Stage, google: GoogleBatch) -> None:
    stage.cloud.weather.add({"fault": "one_time_limit"})
    with pytest.raises(exceptions.BadRequest, match="maxRunDuration"):
        google.insert_template(template("two"))
    google.insert_template(
        template("two", scheduling=scheduling(maxRunDuration=None, terminationTime="2026-11-21T08:00:00Z"))
    )


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"parallelism": 9999}, "parallelism"),
        ({"task_count": 200_000}, "taskCount"),
        ({"task_count_per_node": 0}, "taskCountPerNode"),
    ],
)
def test_a_job_that_google_would_refuse_is_refused(google: GoogleBatch, change: dict[str, int], word: str) -> None:
    job = google.job()
    for key, value in change.items():
        setattr(job.task_groups[0], key, value)
    with pytest.raises(exceptions.BadRequest, match=word):
        google.create(job)
    job = google.job()
    job.allocation_policy.location.allowed_locations = ["regions/us-east1"]
    with pytest.raises(exceptions.BadRequest, match="allowedLocations"):
        google.create(job)
    with pytest.raises(exceptions.NotFound):
        google.create(region="nowhere1")


def test_an_api_that_is_off_and_a_missing_permission_are_refusals(stage: Stage, google: GoogleBatch) -> None:
    stage.cloud.weather.add({"fault": "api_disabled", "api": "batch.googleapis.com"})
    with pytest.raises(exceptions.Forbidden, match="Batch API"):
        google.create()
    stage.cloud.weather.replace({"faults": [{"fault": "permission_missing", "permission": "batch.jobs.create"}]})
    with pytest.raises(exceptions.Forbidden, match=r"batch\.jobs\.create"):
        google.create()


def test_a_restarted_cloud_knows_its_jobs_and_that_their_vms_are_gone(tmp_path: Path) -> None:
    with Stage(tmp_path, work) as stage:
        google = GoogleBatch(stage.cloud)
        google.insert_template()
        google.create()
        stage.advance(120)
    with Stage(tmp_path, work) as stage:
        google = GoogleBatch(stage.cloud)
        assert (state(google.get()), stage.cloud.instances()) == ("FAILED", [])
        assert google.templates.get(project=google.project, instance_template="bench-template").name


# The judge itself


def test_the_numbers_of_enums_are_those_of_googles_own_client() -> None:
    """The document lists enums by name; both the judge and the service take their place in it for their number."""
    found = 0
    for _, message in inspect.getmembers(batch_v1, inspect.isclass):
        for inner in [message, *(value for _, value in inspect.getmembers(message, inspect.isclass))]:
            if isinstance(inner, type(batch_v1.JobStatus.State)):
                assert [member.value for member in inner] == list(range(len(inner))), inner
                found += 1
    assert found >= 7
    for field, kind in {
        "provisioningModel": batch_v1.AllocationPolicy.ProvisioningModel,
        "action": batch_v1.LifecyclePolicy.Action,
        "schedulingPolicy": batch_v1.TaskGroup.SchedulingPolicy,
        "destination": batch_v1.LogsPolicy.Destination,
        "taskState": batch_v1.TaskStatus.State,
    }.items():
        assert tuple(member.name for member in kind) == ENUMS[field]
    assert tuple(member.name for member in batch_v1.JobStatus.State) == JOB_STATES


def test_the_judge_reads_enums_by_number_and_finds_those_that_are_none() -> None:
    judge = Discovery.load("batch.v1")
    path = "/v1/projects/p/locations/us-central1/jobs"
    policy: dict[str, Any] = {"action": 1, "actionCondition": {"exitCodes": [50001]}}
    body = {"taskGroups": [{"taskSpec": {"lifecyclePolicies": [policy]}}]}
    assert judge.problems_of_request("POST", path, {"jobId": "j", "$alt": "json;enum-encoding=int"}, body) == []
    policy["action"] = 9
    (problem,) = judge.problems_of_request("POST", path, {"jobId": "j"}, body)
    assert "enum" in problem
