"""The requests that a set-up sends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.setup.calls import PAUSES_S, survey_project, take_step, with_grant
from orchestrator.core.setup.plan import NOTHING, Standing, policy_grants
from orchestrator.core.setup.steps import (
    Condition,
    EnableApis,
    GrantRole,
    MakeAccount,
    MakeRole,
)
from tests.support.conversations import good, lead, refusal
from tests.unit.core.set_up import ADA, WANTED


def test_what_is_there_is_seen_and_what_may_not_be_seen_counts_as_not_there() -> None:
    policy = {"bindings": [{"role": "r", "members": ["m"], "condition": {"expression": "e"}}, {}]}
    replies = {
        "services:batchGet": good(services=[{"name": "projects/1/services/a", "state": "ENABLED"}, {"name": "b"}]),
        "/b/my-bench/iam": good(**policy),
        "GET /storage/v1/b/my-bench": good(location="US"),
        "roles/benchMachine": good(includedPermissions=["x"]),
        ":getIamPolicy": good(**policy),
        "/serviceAccounts/": good(),
    }
    seen = lead(survey_project, WANTED, {"bucket": "b"}, reply=replies)
    assert seen.result == Standing(
        frozenset({"a"}),
        {"location": "US"},
        True,
        {"benchMachine": frozenset({"x"})},
        *[policy_grants(policy)] * 3,
        {"bucket": "b"},
    )
    assert lead(survey_project, WANTED, {}, reply=lambda _: refusal(403)).result == NOTHING


def test_apis_are_enabled_when_the_operation_says_so() -> None:
    step = EnableApis("p", ("a",))
    talk = lead(
        take_step,
        step,
        reply={":batchEnable": good(name="operations/o"), "operations/o": [good(name="operations/o"), good(done=True)]},
    )
    assert (talk.result.good, len(talk.paused_s)) == (True, 2)
    failed = lead(take_step, step, reply={":batchEnable": good(done=True, error={"message": "billing"})})
    assert (failed.result.good, failed.result.message) == (False, "billing")
    assert lead(take_step, step, reply={":batchEnable": refusal(403)}).result.status == 403
    for_ever = lead(
        take_step, step, reply={":batchEnable": good(name="operations/o"), "operations/o": good(name="operations/o")}
    )
    assert sum(for_ever.paused_s) == 2 * sum(PAUSES_S)


def test_what_somebody_else_made_meanwhile_is_success() -> None:
    assert lead(take_step, MakeAccount("p", "a", "t"), reply={"serviceAccounts": refusal(409)}).result.good
    assert lead(take_step, MakeAccount("p", "a", "t"), reply={"serviceAccounts": refusal(403)}).result.status == 403
    role = MakeRole("p", "r", "t", ("x",))
    talk = lead(take_step, role, reply={"POST /v1/projects/p/roles": refusal(409), "PATCH": good()})
    assert (talk.result.good, talk.lines) == (True, ["POST /v1/projects/p/roles", "PATCH /v1/projects/p/roles/r"])
    assert lead(take_step, role, reply={"POST /v1/projects/p/roles": good()}).lines == ["POST /v1/projects/p/roles"]
    assert lead(take_step, replace(role, exists=True), reply={"PATCH": good()}).lines == [
        "PATCH /v1/projects/p/roles/r"
    ]


@pytest.mark.parametrize(
    ("step", "read", "write"),
    [
        (GrantRole("project", "p", "r", ADA), "POST /v3/projects/p:getIamPolicy", "POST /v3/projects/p:setIamPolicy"),
        (GrantRole("bucket", "b", "r", ADA), "GET /storage/v1/b/b/iam", "PUT /storage/v1/b/b/iam"),
        (GrantRole("account", "p", "r", ADA, email="e"), "POST /v1/projects/p/serviceAccounts/e:getIamPolicy", "POST /v1/projects/p/serviceAccounts/e:setIamPolicy"),
    ],
)  # fmt: skip
def test_a_grant_is_read_changed_and_written_again_when_the_policy_changed_meanwhile(
    step: Any, read: str, write: str
) -> None:
    replies = {write: [refusal(409), refusal(400), good()], read: good(etag="e", bindings=[])}
    talk = lead(take_step, step, reply=replies)
    assert talk.result.good
    assert talk.lines == [read, write] * 3
    assert talk.paused_s == list(PAUSES_S[:2])
    held = {read: good(etag="e", bindings=[{"role": "r", "members": [ADA]}])}
    assert lead(take_step, step, reply=held).lines == [read]
    assert lead(take_step, step, reply={read: refusal(403)}).result.status == 403
    assert lead(take_step, step, reply={read: good(etag="e"), write: refusal(403)}).result.status == 403
    assert lead(take_step, step, reply={read: good(etag="e"), write: refusal(409)}).result.status == 409
    for nothing in (good(), good(etag=""), good(bindings=[{"role": "r", "members": []}])):
        talk = lead(
            take_step, step, reply={read: nothing, write: good()}
        )  # written, it would take the place of all others'
        assert (talk.lines, talk.result.good, "none is written" in talk.result.message) == ([read], False, True)


def test_a_grant_leaves_every_other_binding_as_it_was() -> None:
    theirs = {"role": "r", "members": ["user:eve@example.com"], "condition": {"title": "t", "expression": "e"}}
    policy = {"etag": "x", "bindings": [theirs, {"role": "r", "members": ["user:bob@example.com"]}]}
    plain = with_grant(policy, "r", ADA, None)
    assert plain is not None
    assert plain["bindings"] == [theirs, {"role": "r", "members": ["user:bob@example.com", ADA]}]
    assert (plain["etag"], plain["version"]) == ("x", 3)
    conditional = with_grant(policy, "r", ADA, Condition("t", "e"))
    assert conditional is not None
    assert conditional["bindings"][0]["members"] == ["user:eve@example.com", ADA]
    new = with_grant({}, "r", ADA, Condition("t", "e"))
    assert new is not None
    assert new["bindings"] == [{"role": "r", "members": [ADA], "condition": {"title": "t", "expression": "e"}}]
    assert with_grant(policy, "r", "user:eve@example.com", Condition("t", "e")) is None
