"""A child on a machine of Batch that really runs: the task fetches the payload, and bootstrap and agent run unchanged."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.batch.scheduler import GoogleBatch, Service
from orchestrator.adapters.clock import SystemClock
from orchestrator.adapters.google.credentials import Bearer
from orchestrator.adapters.google.storage import GoogleBucket
from orchestrator.core.fleet import batch as rules
from orchestrator.core.fleet.jobs import ChildOrder, JobSpec, PayloadRef
from orchestrator.core.names import child_run
from orchestrator.embedded.server import EmbeddedCloud
from tests.support.patience import PATIENCE_S, await_truth
from tests.unit.fleet.batch_story import FLEET, IMAGE, PRICE
from tests.unit.startup.machine import CASES, ROOT, fast_python, payload, run_spec

SCRIPT = (ROOT / "startup" / "batch" / "task.sh").read_text(encoding="utf-8")


class Site:
    """A cloud whose machines are processes, and a scheduler on it."""

    def __init__(self, home: Path) -> None:
        self.cloud = EmbeddedCloud(home)
        credentials = Bearer(self.cloud.token)
        self.bucket = GoogleBucket(
            self.cloud.bucket, endpoint=self.cloud.storage_url, credentials=credentials, patience_s=PATIENCE_S
        )
        self.scheduler = GoogleBatch(
            Service(self.cloud.project, credentials, self.cloud.compute_url, self.cloud.storage_url),
            self.bucket,
            SystemClock(),
            # The interpreter answers the agent's probe without the seconds that torch needs.
            script=SCRIPT.replace("\n", f"\nexport PATH={fast_python(home / 'stubs').parent}:$PATH\n", 1),
            image=lambda _project, _family: IMAGE,
            gate=lambda: None,
            known=set(),
        )

    def job(self, *specs: dict[str, Any]) -> JobSpec:
        data = payload()
        sha256 = hashlib.sha256(data).hexdigest()
        orders = []
        for index, spec in enumerate(specs):
            run = child_run(FLEET, "cpu", index)
            told = {**spec, "run_id": run, "vm": f"bench-{run}-1", "bucket": self.cloud.bucket}
            orders.append(ChildOrder(index, 1, run, told))
        return JobSpec(
            fleet=FLEET,
            number=0,
            gpu="cpu",
            machine_type="e2-standard-4",
            children=tuple(orders),
            parallel=2,
            ends_at=SystemClock().now() + timedelta(minutes=30),
            child_s=600,
            payload=PayloadRef(self.cloud.bucket, f"payloads/{sha256}.tar.gz", sha256, "", data),
            usd_per_hour=PRICE,
            regions=("us-central1",),
            labels={"bench-tool": "spotbench", "bench-fleet": FLEET},
            settings={
                "accelerator": None, "disk_gb": 60, "disk_type": "pd-balanced", "external_ip": True,
                "network": "global/networks/default", "service_account": "vm@b.example",
                "image_project": "p", "image_family": "f",
            },
        )  # fmt: skip

    def document(self, name: str) -> dict[str, Any]:
        blob = self.bucket.read(name)
        assert blob is not None, name
        found: dict[str, Any] = json.loads(blob.data)
        return found

    def ended(self, job: JobSpec) -> None:
        await_truth(lambda: self.scheduler.counts([job.name])[0].state in ("succeeded", "failed"))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path / "cloud")
    with made.cloud:
        yield made


def events(site: Site, run: str) -> list[str]:
    return [entry.name.rpartition("-")[2].removesuffix(".json") for entry in site.bucket.list(f"runs/{run}/events/")]


def test_children_are_measured_in_turn_and_their_machine_outlives_each(site: Site) -> None:
    job = site.job(run_spec(), run_spec(), run_spec())
    site.scheduler.submit([replace(job, parallel=1)])
    site.ended(job)
    seen = site.scheduler.reconcile(FLEET, [job.name], range(3))
    assert [(one.state, one.attempt, one.exit_code) for one in seen] == [("succeeded", 1, 0)] * 3
    for index in range(3):
        run = child_run(FLEET, "cpu", index)
        stored = [entry.name for entry in site.bucket.list(f"runs/{run}/cases/")]
        assert stored == [f"runs/{run}/cases/{case}.csv" for case in sorted(CASES)]
        assert events(site, run)[-1] == "finished"
        cost = site.document(f"{rules.costs_prefix(FLEET)}{index}-1.json")
        assert (cost["exit_code"], cost["child"], cost["seconds"] > 0) == (0, index, True)
    await_truth(lambda: site.cloud.instances() == [])
    (row,) = site.cloud.bill().rows
    assert (row.ended_by, row.has_deadline) == ("batch", True), "no child has deleted the machine under the next one"


def test_a_wrong_kernel_is_a_result_and_a_crash_is_not(site: Site) -> None:
    wrong = {"correctness": [{"say": {"fact": "correctness", "path": "correctness.csv", "checked": 2, "failed": 1}},
                             {"exit": 10}]}  # fmt: skip
    job = site.job(run_spec(script=wrong), run_spec(script={"build": [{"exit": 9}]}))
    site.scheduler.submit([job])
    site.ended(job)
    first, second = site.scheduler.reconcile(FLEET, [job.name], range(2))
    assert second.state == "failed"
    assert second.exit_code not in (0, 10, None)
    assert first.state in ("succeeded", "failed")
    status = site.scheduler.counts([job.name])[0]
    assert status.failed >= 1


def test_a_machine_that_is_taken_back_is_told_and_its_child_is_measured_by_another(site: Site) -> None:
    waits = {"measure": [{"hang": 1}]}
    job = site.job(run_spec(script=waits))
    site.scheduler.submit([job])
    run = child_run(FLEET, "cpu", 0)
    await_truth(lambda: "phase_started" in events(site, run) and len(events(site, run)) > 6)
    (before,) = site.cloud.instances()
    site.cloud.preempt(str(before["name"]), 2)
    await_truth(lambda: site.bucket.read(f"{rules.claims_prefix(FLEET)}0-2.json") is not None)
    cost = site.document(f"{rules.costs_prefix(FLEET)}0-1.json")
    assert cost["exit_code"] == rules.TAKEN
    assert "preempted" in events(site, run)
    site.scheduler.cancel([job.name])
    await_truth(lambda: site.cloud.instances() == [])


def test_the_task_is_in_every_payload() -> None:
    assert os.access(ROOT / "startup" / "batch" / "task.sh", os.R_OK)
    assert SCRIPT.startswith("#!/bin/bash\n")
