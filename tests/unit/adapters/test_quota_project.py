"""A login counts requests against a project of its own; what is off there is not blamed on the project looked at."""

from __future__ import annotations

from typing import Any

import pytest
from google.oauth2.credentials import Credentials as Login

from orchestrator.adapters.google.credentials import Bearer, billed_to
from orchestrator.adapters.google.rest import SERVICES, Rest
from orchestrator.core.doctor.verdicts import error_verdict
from orchestrator.core.rest import RestRequest
from tests.support.scripted_server import google_error, in_turn, scripted_server


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
