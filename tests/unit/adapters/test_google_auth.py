"""Credentials are found, or said to be missing at once with the way to get them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import google.oauth2.credentials
import pytest
from google.auth import compute_engine
from google.auth.credentials import AnonymousCredentials
from google.oauth2.credentials import Credentials as Login

from orchestrator.adapters.google.compute import GoogleCloud
from orchestrator.adapters.google.credentials import Bearer, billed_to, credentials_for, default_credentials
from orchestrator.adapters.google.rest import SERVICES, Rest
from orchestrator.adapters.google.storage import GoogleBucket
from orchestrator.core.doctor.verdicts import error_verdict
from orchestrator.core.errors import CredentialsMissing
from orchestrator.core.rest import RestRequest
from tests.support.patience import PATIENCE_S
from tests.support.ports import deaf_port
from tests.support.scripted_server import Answer, Reply, Request, Stall, google_error, in_turn, scripted_server


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user without any credentials, on a machine without a metadata server."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    metadata_at(monkeypatch, f"127.0.0.1:{deaf_port()}")


def metadata_at(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("GCE_METADATA_IP", address)
    monkeypatch.setenv("GCE_METADATA_HOST", address)


def assert_missing_and_not_waited_for() -> None:
    begun = time.monotonic()
    for use in (default_credentials, lambda: GoogleCloud("p"), lambda: GoogleBucket("b")):
        with pytest.raises(CredentialsMissing) as raised:
            use()
        for remedy in ("gcloud auth application-default login", "GOOGLE_APPLICATION_CREDENTIALS", "embedded cloud"):
            assert remedy in raised.value.hint
    assert time.monotonic() - begun < PATIENCE_S


def test_without_credentials_the_remedy_is_named_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    assert_missing_and_not_waited_for()
    assert capfd.readouterr() == ("", "")


def test_a_network_that_swallows_requests_to_the_metadata_server_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_server(lambda _request: Stall()) as server:
        metadata_at(monkeypatch, server.url.removeprefix("http://"))
        begun = time.monotonic()
        with pytest.raises(CredentialsMissing):
            default_credentials()
        assert time.monotonic() - begun < PATIENCE_S
        assert len(server.requests) == 1


def test_something_else_at_the_metadata_servers_address_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted_server(lambda _request: Reply(200, data=b"a captive portal")) as server:
        metadata_at(monkeypatch, server.url.removeprefix("http://"))
        begun = time.monotonic()
        with pytest.raises(CredentialsMissing):
            default_credentials()
        assert time.monotonic() - begun < PATIENCE_S


@pytest.mark.parametrize("content", [None, "not json", '{"type": "unknown"}', "{}"])
def test_a_key_file_that_cannot_be_used_is_said_to_be_unusable(
    content: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "key.json"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    with pytest.raises(CredentialsMissing, match="no usable Google credentials"):
        default_credentials()


def test_a_users_own_credentials_are_found_without_asking_anyone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "gcloud" / "application_default_credentials.json"
    path.parent.mkdir()
    user = {"type": "authorized_user", "client_id": "i", "client_secret": "s", "refresh_token": "r"}
    path.write_text(json.dumps(user))
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p")
    assert isinstance(default_credentials(), google.oauth2.credentials.Credentials)


def test_on_googles_machines_the_metadata_servers_credentials_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def metadata(request: Request) -> Answer:
        data = b"bench-project" if request.path.endswith("project-id") else b"computeMetadata/\n"
        return Reply(data=data, headers={"Metadata-Flavor": "Google", "Content-Type": "application/text"})

    with scripted_server(metadata) as server:
        metadata_at(monkeypatch, server.url.removeprefix("http://"))
        assert isinstance(default_credentials(), compute_engine.Credentials)


def test_an_endpoint_of_our_own_needs_no_credentials() -> None:
    assert isinstance(credentials_for("http://127.0.0.1:1"), AnonymousCredentials)


# A login counts requests against a project of its own; what is off there is not blamed on the project looked at.


def login() -> Any:
    """As `gcloud auth application-default login` leaves it, where gcloud's default project is another."""
    return Login("a-token", quota_project_id="somebody-elses")  # type: ignore[no-untyped-call]


def off(consumer: str) -> Any:
    details = [{"reason": "SERVICE_DISABLED", "metadata": {"consumer": consumer}}]
    return google_error(403, "IAM API has not been used in project 123 before", "accessNotConfigured", details)


def asked(credentials: Any, consumer: str) -> tuple[Any, str]:
    with scripted_server(in_turn(off(consumer))) as server:
        session = Rest(credentials, dict.fromkeys(SERVICES, server.url))
        answer = session.ask(RestRequest("iam", "GET", "/v1/projects/mine/roles/r"))
        session.close()
        headers = {key.lower(): value for key, value in server.requests[0].headers.items()}
        return answer, headers.get("x-goog-user-project", "")


@pytest.mark.parametrize("consumer", ["projects/somebody-elses", "projects/123456789"])
def test_an_api_that_is_off_in_the_logins_own_project_is_blamed_on_that_one(consumer: str) -> None:
    answer, counted = asked(login(), consumer)
    assert counted == "somebody-elses"
    verdict = error_verdict(answer, "mine", "iam.googleapis.com", "")
    assert "not enabled in somebody-elses" in verdict.why
    assert verdict.remedy == "gcloud auth application-default set-quota-project mine"
    assert verdict.steps == (), "nothing is enabled in a project that has nothing to do with it"


@pytest.mark.parametrize("consumer", ["projects/mine", "projects/123456789"])
def test_requests_that_are_counted_against_the_project_itself_blame_it(consumer: str) -> None:
    answer, counted = asked(billed_to(login(), "mine"), consumer)
    assert counted == "mine"
    verdict = error_verdict(answer, "mine", "iam.googleapis.com", "")
    assert verdict.remedy == "gcloud services enable iam.googleapis.com --project=mine"


def test_credentials_that_know_no_such_project_stay_as_they_are() -> None:
    token = Bearer("t")
    assert billed_to(token, "mine") is token
    assert billed_to(login(), "").quota_project_id == "somebody-elses"
