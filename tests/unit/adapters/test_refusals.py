"""Answers of Compute Engine to the request for a machine, each with its source: what the client does, and what it says.

`recalled` marks a body without a public source: its status or code may differ at Google.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.errors import BenchError, PermissionDenied, Unavailable
from orchestrator.core.market.machines import Accepted, CloudRefusal
from tests.support.scripted_server import Answer, Reply, scripted_server
from tests.support.simulated_clock import SimulatedClock
from tests.unit.adapters.compute_script import Compute
from tests.unit.adapters.scripted_compute import cloud, failed
from tests.unit.adapters.test_gce_insert import L4

BODIES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("refusals.json").read_text(encoding="utf-8"))


def http_answer(body: dict[str, Any]) -> Answer:
    """The body as Google's HTTP error, or as a proxy's page."""
    if not body["code"]:
        return Reply(status=body["status"], data=body["message"].encode(), headers={"Content-Type": "text/html"})
    error = {"code": body["status"], "message": body["message"], "errors": [
        {"message": body["message"], "domain": "global", "reason": body["code"]}]}  # fmt: skip
    if body["reason"]:
        error["details"] = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": body["reason"]}]
    return Reply(status=body["status"], json={"error": error})


def always(body: dict[str, Any], times: int = 20) -> Compute:
    if body["operation"]:
        return Compute(failures=[failed(body["code"], body["message"], body["status"]) for _ in range(times)])
    return Compute(before=[http_answer(body) for _ in range(times)])


@pytest.mark.parametrize("body", BODIES, ids=[f"{n}-{body['code'] or 'html'}" for n, body in enumerate(BODIES, 1)])
def test_each_refusal_of_google_has_its_scope_and_its_remedy(body: dict[str, Any]) -> None:
    clock, outcome, words = SimulatedClock(), "", ""
    with scripted_server(always(body)) as server:
        try:
            answer = cloud(server.url, clock).insert(L4)
        except PermissionDenied as exc:
            outcome, words = "denied", exc.hint
        except Unavailable as exc:
            outcome, words = "wait", str(exc)
        except BenchError as exc:
            pytest.fail(f"{type(exc).__name__}: {exc}")
        else:
            assert isinstance(answer, CloudRefusal)
            outcome, words = answer.scope, answer.hint
        sent = len(server.sent("POST", "/instances"))
    if body["outcome"] == "all after a minute":
        outcome += " after a minute" if 45 <= sum(clock.slept) <= 90 else f" after {clock.slept}"
    if body["outcome"] == "same zone later":
        assert (outcome, sum(clock.slept) >= 45, sent) == ("zone", True, 4)
    else:
        assert outcome == body["outcome"]
    assert body["words"] in words
    assert outcome in ("wait", "all after a minute", "zone") or sent == 1


@pytest.mark.parametrize("body", [body for body in BODIES if body["code"] == "rateLimitExceeded"], ids=["403", "429"])
def test_a_rate_limit_gets_five_requests_in_45_seconds_at_most(body: dict[str, Any]) -> None:
    clock = SimulatedClock()
    with scripted_server(always(body)) as server, pytest.raises(Unavailable):
        cloud(server.url, clock).insert(L4)
    moments = [sum(clock.slept[:n]) for n in range(len(clock.slept) + 1)]
    assert max(sum(start <= at < start + 45 for at in moments) for start in moments) <= 5
    assert min(clock.slept) >= 8


def test_the_pause_that_google_asks_for_is_kept() -> None:
    clock = SimulatedClock()
    slow = Reply(status=429, json={"error": {"code": 429, "message": "slow"}}, headers={"Retry-After": "40"})
    with scripted_server(Compute(before=[slow])) as server:
        assert isinstance(cloud(server.url, clock).insert(L4), Accepted)
    assert clock.slept[0] == 40


def test_a_new_projects_network_that_appears_late_is_waited_for() -> None:
    late = next(body for body in BODIES if body["outcome"] == "all after a minute")
    clock = SimulatedClock()
    with scripted_server(always(late, 2)) as server:
        assert isinstance(cloud(server.url, clock).insert(L4), Accepted)
        assert len(server.sent("POST", "/instances")) == 3
