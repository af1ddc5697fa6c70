"""The gate before Batch: four answers from a job that really ran, and no fleet before they were given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.cloud import batch_v1, compute_v1

from orchestrator.adapters.batch.check import BatchCheck, CheckSighting, Clients, check_answers
from orchestrator.adapters.batch.templates import InstanceTemplates
from orchestrator.adapters.google.network import Session
from orchestrator.core.fleet.batch import (
    QUESTIONS,
    REQUIRED,
    GateAnswer,
    GatePace,
    GateSite,
    GateVerdict,
    gate_refusal,
    parse_gate,
)
from tests.support.google_batch import GoogleBatch
from tests.support.scripted_machines import ScriptedVm, ShutDown, Steps
from tests.support.simulated_clock import TimelineClock
from tests.unit.embedded.builders import Stage

NOW = datetime(2026, 11, 22, 4, 5, tzinfo=UTC)


def task(vm: ScriptedVm) -> Steps:
    """What `startup/batch/check.sh` does."""
    index, attempt = vm.environment["BATCH_TASK_INDEX"], vm.environment["BATCH_TASK_RETRY_ATTEMPT"]
    try:
        yield float(vm.environment["BENCH_STEP_S"])
        if index == "0" or (index == "1" and attempt != "0"):
            return 0
        if index == "1":
            vm.delete_self()
        yield 36_000.0
    except ShutDown:
        return 143
    return 0


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path, task) as made:
        yield made


def look(stage: Stage) -> GateVerdict:
    google, clock = GoogleBatch(stage.cloud), TimelineClock(stage.timeline)
    session = Session(google.credentials, stage.cloud.compute_url)
    return BatchCheck(
        GateSite(
            stage.cloud.project, "us-central1", "e2-standard-4", "projects/debian-cloud/global/images/family/debian-12"
        ),
        Clients(
            google.client,
            InstanceTemplates(google.project, clock, session),
            session.client(compute_v1.InstancesClient),
        ),
        clock,
        script="#!/bin/bash\n",
        pace=GatePace(poll_s=15),
        say=lambda _: None,
    ).run()


def assert_nothing_left(stage: Stage) -> None:
    stage.advance(200)
    assert stage.cloud.instances() == []
    assert stage.cloud.batch.jobs == {}
    assert stage.cloud.store.all("instance_template") == []


def test_a_batch_that_keeps_the_template_passes_and_nothing_is_left_over(stage: Stage) -> None:
    verdict = look(stage)
    assert verdict.passed
    assert {name for name, answer in verdict.answers.items() if answer.ok} == set(QUESTIONS), verdict
    assert "50006" in verdict.answers["recreate"].seen
    assert "termination time" in verdict.answers["end"].seen
    assert stage.cloud.bill().usd < 1
    assert_nothing_left(stage)
    assert parse_gate(verdict.dump()) == verdict


def test_where_google_takes_one_limit_only_the_absolute_end_is_asked_for_and_passes(stage: Stage) -> None:
    stage.cloud.weather.add({"fault": "one_time_limit"})
    verdict = look(stage)
    assert verdict.passed
    assert "Google refused maxRunDuration" in verdict.answers["limits"].seen
    assert_nothing_left(stage)


def test_a_check_that_gets_no_machine_does_not_pass(stage: Stage) -> None:
    stage.cloud.weather.add({"fault": "batch_silent"})
    verdict = look(stage)
    assert not verdict.passed
    assert "0 of 0 machines" in verdict.answers["limits"].seen
    assert_nothing_left(stage)


@pytest.mark.parametrize(
    ("change", "bad"),
    [
        ({"scheduling": [("", 900)]}, "limits"),
        ({"scheduling": [("2026-11-22T04:05:01Z", 900)]}, "limits"),
        ({"scheduling": [("2026-11-22T04:05:00Z", 0)]}, "limits"),
        ({"alive_late": 1}, "limits"),
        ({"made_late": {"b"}}, "end"),
        ({"most": 3}, "bound"),
        ({"preempted": ""}, "bound"),
    ],
)
def test_each_behaviour_on_which_dollars_rest_can_fail_the_check(change: dict[str, Any], bad: str) -> None:
    good: dict[str, Any] = {"most": 2, "names": {"a"}, "scheduling": [("2026-11-22T04:05:00Z", 900)], "preempted": "a"}
    found = check_answers(CheckSighting(**(good | change)), NOW, batch_v1.Job(), {1: [50006]}, both=True)
    assert [name for name, answer in found.items() if not answer.ok] == [bad]
    assert not GateVerdict(project="p", checked_at=NOW, answers=found).passed


def test_that_a_deleted_machine_is_not_made_again_fails_nothing() -> None:
    found = {name: GateAnswer(ok=True) for name in REQUIRED} | {"recreate": GateAnswer(ok=False)}
    assert GateVerdict(project="p", checked_at=NOW, answers=found).passed


@pytest.mark.parametrize(
    ("verdict", "word"),
    [
        (None, "has not been checked in project p"),
        (
            GateVerdict(project="other", checked_at=NOW, answers={name: GateAnswer(ok=True) for name in REQUIRED}),
            "not been checked",
        ),
        (GateVerdict(project="p", checked_at=NOW), "cannot keep a fleet within its cap"),
        (
            GateVerdict(project="p", checked_at=NOW, answers={"limits": GateAnswer(ok=False, seen="0 of 2\n[red]")}),
            "0 of 2",
        ),
    ],
)
def test_a_fleet_is_refused_until_a_check_has_passed_in_its_own_project(verdict: GateVerdict | None, word: str) -> None:
    assert word in gate_refusal("p", verdict)


def test_a_verdict_that_passed_lets_fleets_pass() -> None:
    found = {name: GateAnswer(ok=True) for name in REQUIRED}
    assert gate_refusal("p", GateVerdict(project="p", checked_at=NOW, answers=found)) == ""


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"schema": 2}', json.dumps({"project": "p", "schema": 1}).encode(), None]
)
def test_what_is_no_verdict_is_none(data: bytes | None) -> None:
    assert parse_gate(data) is None
