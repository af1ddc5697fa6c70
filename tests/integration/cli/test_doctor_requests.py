"""What `bench doctor` may ask for, and that it says no secret."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.google.credentials import Bearer
from orchestrator.adapters.google.rest import OnlyLooking, Rest, endpoints
from orchestrator.core.doctor.checks import cloud_checks
from orchestrator.core.doctor.verdicts import CheckLevel, Subject
from orchestrator.core.market.catalog import GPU_NAMES
from orchestrator.core.rest import RestRequest
from orchestrator.embedded.server import EmbeddedCloud
from orchestrator.runs.doctor import TaskRun, run_checks
from tests.integration.cli.conftest import EMAIL, Bench
from tests.support.discovery import Recorder
from tests.support.patience import PATIENCE_S

LOOKING = {
    "compute.projects.get", "compute.regions.list", "compute.images.getFromFamily", "compute.images.list",
    "compute.networks.get", "compute.subnetworks.aggregatedList", "compute.routers.aggregatedList",
    "cloudresourcemanager.projects.get", "cloudresourcemanager.projects.testIamPermissions",
    "cloudresourcemanager.projects.getIamPolicy", "serviceusage.services.batchGet", "cloudbilling.projects.getBillingInfo",
    "iam.projects.serviceAccounts.get", "iam.projects.serviceAccounts.testIamPermissions",
    "storage.buckets.get", "storage.buckets.getIamPolicy", "storage.buckets.testIamPermissions",
}  # fmt: skip


@dataclass
class Ward:
    """An embedded cloud in this process, every request to which is judged, and a page of checks made of it."""

    cloud: EmbeddedCloud
    recorder: Recorder

    def page(self, quotas_limit_s: float = PATIENCE_S, **changes: Any) -> dict[str, Any]:
        from dataclasses import replace

        subject = Subject("bench-embedded", "bench-embedded", embedded=True, **changes)
        rest = Rest(
            Bearer(self.cloud.token),
            endpoints(self.cloud.compute_url, self.cloud.storage_url),
            remembers=True,
            timeout_s=PATIENCE_S,
        )

        def task(check: Any, made: Callable[..., Any]) -> TaskRun:
            limit_s = quotas_limit_s if check.name.startswith("quota.") else PATIENCE_S
            return TaskRun(replace(check, limit_s=limit_s), lambda: made(rest, subject))

        try:
            return {
                one.check.name: one.verdict for one in run_checks([task(*entry) for entry in cloud_checks(subject)])
            }
        finally:
            rest.close()


@pytest.fixture
def ward(tmp_path: Path) -> Iterator[Ward]:
    recorder = Recorder()
    with EmbeddedCloud(tmp_path / "cloud", observer=recorder) as cloud:
        yield Ward(cloud, recorder)


def test_its_requests_change_and_cost_nothing_and_google_would_understand_them(ward: Ward) -> None:
    for fault in ({"fault": "image_gone"}, {"fault": "no_nat"}, {"fault": "project_missing"}):
        ward.cloud.weather.replace({"faults": [fault]})
        ward.page(external_ip=False, service_account=EMAIL)
    ward.recorder.assert_all_valid()
    assert set(ward.recorder.methods) <= LOOKING
    assert len(ward.recorder.methods) >= 14
    assert ward.cloud.bill().rows == ()
    assert ward.cloud.instances() == []


def test_one_question_is_asked_once_however_many_checks_want_to_know(ward: Ward) -> None:
    ward.page()
    assert ward.recorder.methods["compute.regions.list"] == 1


def test_a_session_that_only_looks_refuses_to_send_anything_else(ward: Ward) -> None:
    rest = Rest(Bearer(ward.cloud.token), endpoints(ward.cloud.compute_url, ward.cloud.storage_url))
    for method, path in (
        ("POST", "/v1/projects/p/services:batchEnable"),
        ("PUT", "/storage/v1/b/b/iam"),
        ("PATCH", "/x"),
    ):
        with pytest.raises(OnlyLooking):
            rest.ask(RestRequest("compute", method, path))  # type: ignore[arg-type]
    assert ward.recorder.exchanges == 0


def test_a_server_that_stalls_costs_one_check_and_its_limit(ward: Ward) -> None:
    ward.cloud.weather.add({"fault": "stall", "path": "/regions", "seconds": 3600})
    found = ward.page(quotas_limit_s=1)
    slow = {name for name, verdict in found.items() if verdict.why.startswith("no answer within")}
    assert slow == {f"quota.{gpu}" for gpu in GPU_NAMES}
    assert all(found[name].level is CheckLevel.OK for name in found.keys() - slow)


def test_no_secret_is_in_anything_that_it_says_or_writes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = "ya29.PLANTED-" + "x" * 40
    key = tmp_path / "key.json"
    key.write_text(
        json.dumps({"type": "authorized_user", "client_id": "c", "client_secret": secret, "refresh_token": secret})
    )
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    monkeypatch.setenv("BENCH_PROJECT", "some-project-1")
    monkeypatch.setenv("BENCH_BUCKET", "some-bucket")
    ran = bench("doctor", code=None)
    told = bench("doctor", "--json", code=None)
    assert "credentials" in ran.out
    written = "".join(path.read_text("utf-8", "replace") for path in bench.home.rglob("*") if path.is_file())
    assert secret not in ran.out + ran.err + told.out + told.err + written


def test_without_credentials_the_rest_is_skipped_and_the_login_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCH_PROJECT", "some-project-1")
    monkeypatch.setenv("BENCH_BUCKET", "some-bucket")
    monkeypatch.setenv("HOME", str(bench.home))
    checks = {check["name"]: check for check in bench("doctor", "--json", code=6).document["checks"]}
    assert checks["credentials"]["remedy"] == "gcloud auth application-default login"
    assert checks["bucket"]["level"] == "skipped"
    assert checks["quota.l4"]["level"] == "skipped"
