"""Requests and answers as data."""

from __future__ import annotations

import pytest

from orchestrator.core.rest import RestAnswer, RestRequest, list_all_pages
from tests.support.conversations import OFF, good, lead, refusal


@pytest.mark.parametrize(
    ("method", "path", "reads"),
    [
        ("GET", "/v1/x", True),
        ("POST", "/v3/projects/p:testIamPermissions", True),
        ("POST", "/v3/projects/p:getIamPolicy", True),
        ("POST", "/v3/projects/p:setIamPolicy", False),
        ("PUT", "/storage/v1/b/b/iam", False),
        ("PATCH", "/v1/x:getIamPolicy", False),
    ],
)
def test_only_what_changes_nothing_counts_as_looking(method: str, path: str, reads: bool) -> None:
    assert RestRequest("iam", method, path).reads is reads  # type: ignore[arg-type]


def test_an_answer_says_in_one_line_what_went_wrong() -> None:
    assert refusal(403, "no\nbecause").message == "no"
    assert RestAnswer(0, trouble="Timeout").message == "Timeout"
    assert RestAnswer(500, {"error": "what"}).message == "HTTP 500"
    assert RestAnswer(500, {"error": {"message": "  "}}).message == "HTTP 500"


def test_an_api_that_is_off_is_told_from_a_right_that_is_missing() -> None:
    assert OFF.api_off
    assert RestAnswer(403, {"error": {"details": [{"reason": "SERVICE_DISABLED"}, "x"]}}).api_off
    assert not refusal(403, reason="forbidden").api_off
    assert not refusal(404, reason="SERVICE_DISABLED").api_off
    assert not RestAnswer(403).api_off


def test_every_page_of_a_list_is_read_and_lists_over_places_are_joined() -> None:
    flat = lead(
        list_all_pages,
        RestRequest("compute", "GET", "/l"),
        reply={"/l": [good(items=[1], nextPageToken="t"), good(items=[2]), good()]},
    )
    assert flat.result.document == {"items": [1, 2]}
    assert flat.asked[1].query == {"pageToken": "t"}
    scoped = lead(
        list_all_pages,
        RestRequest("compute", "GET", "/l"),
        reply={"/l": [good(items={"a": 1}, nextPageToken="t"), good(items={"b": 2})]},
    )
    assert scoped.result.document == {"items": {"a": 1, "b": 2}}
    assert lead(list_all_pages, RestRequest("compute", "GET", "/l"), reply={"/l": good()}).result.document == {
        "items": []
    }
    assert lead(list_all_pages, RestRequest("compute", "GET", "/l"), reply={"/l": refusal(403)}).result.status == 403
