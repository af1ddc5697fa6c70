"""Google's REST APIs over one thin session: every kind of answer, and none, comes back as data."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import RefreshError
from google.oauth2.credentials import Credentials as Login

from orchestrator.adapters.google.credentials import Bearer, credential_identity, prove_identity
from orchestrator.adapters.google.rest import SERVICES, Rest
from orchestrator.core.errors import CredentialsMissing
from orchestrator.core.rest import RestRequest
from tests.support.scripted_server import Answer, Drop, Reply, google_error, in_turn, scripted_server

LOOK = RestRequest("iam", "GET", "/v1/a b/roles", {"names": ["x", "y"]})


def rest(url: str, **options: Any) -> Rest:
    return Rest(AnonymousCredentials(), dict.fromkeys(SERVICES, url), **options)  # type: ignore[no-untyped-call]


def asked(*answers: Answer, request: RestRequest = LOOK, **options: Any) -> Any:
    with scripted_server(in_turn(*answers)) as server:
        session = rest(server.url, **options)
        try:
            return session.ask(request), server.requests
        finally:
            session.close()


def test_a_good_answer_is_its_document_and_lists_in_queries_are_repeated() -> None:
    answer, requests = asked(Reply(200, {"a": 1}))
    assert (answer.good, answer.document) == (True, {"a": 1})
    assert requests[0].path == "/v1/a b/roles"
    assert requests[0].query["names"] == "x"


@pytest.mark.parametrize(
    ("answers", "status", "sent"),
    [
        ((google_error(403, "no"),), 403, 1),
        ((google_error(503, "later"), Reply(200, {})), 200, 2),
        ((google_error(503, "later"),), 503, 2),
        ((Drop(), Reply(200, {})), 200, 2),
        ((Drop(),), 0, 2),
        ((Reply(200, data=b"<html>"),), 0, 2),
        ((Reply(200, [1]),), 0, 2),
        ((Reply(200, data=b"<html>"), Reply(200, {"items": []})), 200, 2),
    ],
)
def test_a_lost_answer_to_a_question_is_asked_for_once_more(
    answers: tuple[Answer, ...], status: int, sent: int
) -> None:
    answer, requests = asked(*answers)
    assert (answer.status, len(requests)) == (status, sent)


def test_a_change_is_sent_once_even_when_its_answer_is_lost() -> None:
    change = RestRequest("iam", "POST", "/v1/projects/p/roles", body={"roleId": "r"})
    answer, requests = asked(Drop(), request=change, changes=True)
    assert (answer.status, len(requests)) == (0, 1)
    assert requests[0].json == {"roleId": "r"}


def test_what_was_answered_well_is_remembered_and_what_was_not_is_asked_again() -> None:
    with scripted_server(in_turn(google_error(403, "no"), Reply(200, {"a": 1}))) as server:
        session = rest(server.url, remembers=True)
        assert [session.ask(LOOK).status for _ in range(4)] == [403, 200, 200, 200]
        assert len(server.requests) == 2
        with ThreadPoolExecutor(5) as pool:
            assert {answer.status for answer in pool.map(session.ask, [RestRequest("iam", "GET", "/new")] * 5)} == {200}
        assert len(server.sent("GET", "/new")) == 1
        session.close()


def test_credentials_that_give_no_token_are_an_answer_and_name_the_login() -> None:
    with scripted_server(in_turn(google_error(400, "invalid_grant"))) as server:
        found = Login(None, refresh_token="r", token_uri=f"{server.url}/token", client_id="c", client_secret="s")  # type: ignore[no-untyped-call]
        session = Rest(found, dict.fromkeys(SERVICES, server.url))
        assert session.ask(LOOK).status == 401
        with pytest.raises(CredentialsMissing, match="no token") as raised:
            prove_identity(found)
        assert isinstance(raised.value.__cause__, RefreshError)
        session.close()


def test_an_identity_is_told_as_far_as_the_credentials_know_it() -> None:
    class Account:
        service_account_email = "ci@p.iam.gserviceaccount.com"

    login = Login("token", account="ada@example.com")  # type: ignore[no-untyped-call]
    assert credential_identity(Account()).member == "serviceAccount:ci@p.iam.gserviceaccount.com"  # type: ignore[arg-type]
    assert credential_identity(login).member == "user:ada@example.com"
    assert credential_identity(Login("token")).member == ""  # type: ignore[no-untyped-call]
    assert "embedded" in prove_identity(Bearer("t")).kind


def test_a_refusal_of_nobody_is_an_answer_with_the_servers_time() -> None:
    with scripted_server(in_turn(google_error(401, "Login Required."))) as server:
        session = rest(server.url)
        answer = session.ask(LOOK)
        session.close()
    assert answer.status == 401
    assert answer.skew_s is not None
