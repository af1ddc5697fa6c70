"""The scheduler on Google Cloud Batch, against the embedded one: what it asks for, what it says, and when it gives up."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.batch.bodies import job_body, template_body, variables_of, with_one_limit
from orchestrator.cli.fleet.commands import POLL_S
from orchestrator.core.errors import ConfigError
from orchestrator.core.fleet import batch as rules
from orchestrator.core.fleet.jobs import JobCost, JobStatus
from tests.support.discovery import Discovery
from tests.unit.fleet.batch_story import FLEET, IMAGE, PRICE, Story

JOB = f"bench-{FLEET}-0"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Story]:
    made = Story(tmp_path / "cloud", 1, children=6, parallel=2, wall_s=3 * 3600, calm=True)
    made.hold()
    yield made
    made.close()


def follow(stage: Story, seconds: float) -> JobStatus:
    """The job's status after so long, with a look each minute."""
    for _ in range(int(seconds // 60)):
        stage.timeline.sleep(60)
        stage.scheduler.reconcile(FLEET, [JOB], range(6))
    (status,) = stage.scheduler.counts([JOB])
    return status


def placed(stage: Story) -> dict[str, Any]:
    blob = stage.bucket.read(rules.record_object(FLEET, JOB))
    assert blob is not None
    found: dict[str, Any] = json.loads(blob.data)
    return found


def test_the_bodies_are_what_googles_documents_describe(stage: Story) -> None:
    job = stage.job([0, 1, 2], {})
    template = template_body(job, stage.clock.now(), IMAGE)
    compute, batch = Discovery.load(), Discovery.load("batch.v1")
    at = f"/compute/v1/projects/{stage.cloud.project}/global/instanceTemplates"
    assert compute.problems_of_request("POST", at, {}, template) == []
    body = job_body(job, "us-central1", "p", "#!/bin/bash\n", variables_of(job, "http://127.0.0.1:1"))
    at = "/v1/projects/p/locations/us-central1/jobs"
    assert batch.problems_of_request("POST", at, {"jobId": "j", "requestId": str(uuid.uuid4())}, body) == []
    limits = template["properties"]["scheduling"]
    assert limits["terminationTime"] == stage.ends[-1].strftime("%Y-%m-%dT%H:%M:%SZ")
    assert (limits["maxRunDuration"], limits["instanceTerminationAction"]) == ({"seconds": "10800"}, "DELETE")
    alone = with_one_limit(template)["properties"]["scheduling"]
    assert "maxRunDuration" not in alone
    assert (alone["terminationTime"], alone["instanceTerminationAction"]) == (limits["terminationTime"], "DELETE")
    (policy,) = body["taskGroups"][0]["taskSpec"]["lifecyclePolicies"]
    assert policy == {"action": "RETRY_TASK", "actionCondition": {"exitCodes": [50001, 50002, 50003, 50006]}}
    assert body["allocationPolicy"]["labels"] == {"bench-tool": "spotbench", "bench-fleet": FLEET}


def test_a_job_without_time_to_bring_anything_back_is_not_asked_for(stage: Story) -> None:
    job = replace(stage.job([0], {}), ends_at=stage.clock.now() + timedelta(seconds=120))
    with pytest.raises(ConfigError, match="too short to measure anything"):
        stage.scheduler.submit([job])
    assert stage.scheduler.counts([job.name])[0].state == "absent"


def test_a_job_is_asked_for_once_whatever_is_sent_again_or_lost(stage: Story) -> None:
    stage.cloud.weather.add(
        {"fault": "reset", "service": "batch", "method": "POST", "after": "response"},
        {"fault": "http", "service": "batch", "method": "POST", "status": 503, "after": "response"},
        {"fault": "reset", "service": "compute", "method": "POST", "after": "response"},
    )
    job = stage.job(list(range(6)), {})
    for _ in range(3):
        stage.scheduler.submit([job])
    stage.fresh().submit([job])
    assert len(stage.cloud.batch.jobs) == 1
    assert [fault.kind for fault in stage.cloud.weather.pending] == []
    assert follow(stage, 3600).state == "succeeded"
    assert sum(stage.deeds.stored.values()) == 12


def test_a_silent_queue_is_named_with_its_cause_within_a_minute_and_left_after_ten(stage: Story) -> None:
    stage.cloud.weather.add({"fault": "batch_silent", "region": "us-central1", "cause": "quota"})
    stage.scheduler.submit([stage.job(list(range(6)), {})])
    status = follow(stage, 60)
    assert status.state == "queued"
    assert "us-central1: the quota is used up" in status.reason
    assert status.reason_at is not None
    follow(stage, 8 * 60)
    assert (placed(stage)["regions"][placed(stage)["at"]], placed(stage)["stage"]) == ("us-central1", "placed")
    follow(stage, 4 * 60)
    assert (placed(stage)["regions"][placed(stage)["at"]], placed(stage)["stage"]) == ("us-east4", "placed")
    assert follow(stage, 3600).state == "succeeded"
    assert {row.zone[:8] for row in stage.cloud.bill().rows} == {"us-east4"}


def test_the_cause_is_read_within_a_minute_and_the_queue_given_up_after_ten(
    stage: Story,
) -> None:
    """The service itself would let the job wait for a week."""
    stage.cloud.weather.add({"fault": "batch_silent", "region": "us-central1", "cause": "stockout"})
    stage.scheduler.submit([stage.job(list(range(6)), {})])
    began, named_s, left_s = stage.clock.now(), 0.0, 0.0
    while not left_s and stage.clock.now() < began + timedelta(hours=1):
        stage.timeline.sleep(POLL_S)
        waits = {one.reason for one in stage.scheduler.reconcile(FLEET, [JOB], range(6)) if one.state == "queued"}
        since = (stage.clock.now() - began).total_seconds()
        if not named_s and len(waits) == 1 and "no machine of that kind is left" in waits.pop():
            named_s = since
        if placed(stage)["stage"] == "leaving":
            left_s = since
    assert 0 < named_s <= 60
    assert rules.PATIENCE.total_seconds() <= left_s <= rules.PATIENCE.total_seconds() + 60


def test_a_job_that_fails_without_a_task_goes_to_the_next_region_at_once(stage: Story) -> None:
    stage.cloud.weather.add({"fault": "batch_no_tasks"})
    stage.scheduler.submit([stage.job(list(range(6)), {})])
    follow(stage, 180)
    assert placed(stage)["at"] == 1
    assert "there is no machine of that kind" in placed(stage)["left"][0]


def test_where_no_region_has_machines_the_job_is_over_and_says_why(stage: Story) -> None:
    stage.cloud.weather.add(*({"fault": "batch_silent", "cause": "stockout"} for _ in range(3)))
    stage.scheduler.submit([stage.job(list(range(6)), {})])
    status = follow(stage, 45 * 60)
    assert status.state in ("cancelled", "failed")
    assert "no machine of that kind is left" in status.reason
    seen = stage.scheduler.reconcile(FLEET, [JOB], range(6))
    assert {one.state for one in seen} == {"absent"}
    assert stage.cloud.instances() == []


def test_two_jobs_of_one_gpu_never_have_machines_at_the_same_time(stage: Story) -> None:
    first, second = stage.job([0, 1, 2], {}), stage.job([3, 4, 5], {})
    assert list(stage.scheduler.submit([first, second])) == [f"{second.name} begins when {first.name} has ended"]
    most = 0
    for _ in range(60):
        stage.timeline.sleep(60)
        stage.scheduler.reconcile(FLEET, [first.name, second.name], range(6))
        most = max(most, len(stage.cloud.instances()))
    assert most == 2
    assert [one.state for one in stage.scheduler.counts([first.name, second.name])] == ["succeeded", "succeeded"]
    assert stage.cloud.bill().usd <= JobCost("l4", 2, PRICE, stage.wall_s).hold


def test_a_cancelled_job_ends_with_its_machines_and_cancelling_again_is_nothing(stage: Story) -> None:
    stage.scheduler.submit([stage.job(list(range(6)), {})])
    follow(stage, 120)
    stage.scheduler.cancel([JOB])
    stage.scheduler.cancel([JOB, f"bench-{FLEET}-7"])
    assert follow(stage, 120).state == "cancelled"
    assert stage.cloud.instances() == []
    assert placed(stage)["stage"] == "over"


def test_what_is_over_leaves_no_template_behind(stage: Story) -> None:
    stage.scheduler.submit([stage.job(list(range(6)), {})])
    assert stage.cloud.store.get("instance_template", JOB) is not None
    assert follow(stage, 3600).state == "succeeded"
    assert stage.cloud.store.get("instance_template", JOB) is None


def test_nothing_is_asked_for_before_the_gate_lets_it_pass(stage: Story) -> None:
    def refuse() -> None:
        raise ConfigError("not checked", hint="`bench fleet check-batch`")

    stage.scheduler.gate = refuse
    with pytest.raises(ConfigError, match="not checked"):
        stage.scheduler.submit([stage.job(list(range(6)), {})])
    assert stage.cloud.batch.jobs == {}


def test_a_fleets_settlement_is_between_the_bill_and_the_hold(stage: Story) -> None:
    stage.cloud.weather.add({"fault": "preempt", "at": {"seconds": 60}}, {"fault": "batch_mute", "seconds": 20})
    stage.scheduler.submit([stage.job(list(range(6)), {})])
    assert follow(stage, 3600).state == "succeeded"
    lived = stage.scheduler.machine_seconds([JOB, f"bench-{FLEET}-7"])["l4"]
    settled = PRICE * Decimal(lived) / 3600 * Decimal("1.1")
    assert stage.cloud.bill().usd <= settled <= JobCost("l4", 2, PRICE, stage.wall_s).hold


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"seconds": -1, "exit_code": 0}', b'{"seconds": true, "exit_code": 0}',
     b'{"seconds": 1e99, "exit_code": 0}', b'{"seconds": 1, "exit_code": "0"}', b'{"seconds": NaN, "exit_code": 0}'],
)  # fmt: skip
def test_a_cost_that_a_machine_made_up_is_none(data: bytes) -> None:
    assert rules.parse_cost("machines/batch/f/costs/1-1.json", data) is None


@pytest.mark.parametrize("name", ["x/1-0.json", "x/1-13.json", "x/-1-1.json", "x/1.json", "x/1-1.txt", "x/a-1.json"])
def test_an_object_of_another_name_is_no_claim(name: str) -> None:
    assert rules.index_and_attempt(name) is None
