"""Takes the steps of a set-up with Google's REST APIs, and reads the state of a project before. Pure: see `core.rest`.

A step succeeds if somebody else has already made the same thing: a second run of the same steps changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orchestrator.core.rest import Api, RestAnswer, RestRequest
from orchestrator.core.setup.plan import (
    APIS,
    LAUNCHER_ROLE,
    MACHINE_ROLE,
    SetupRequest,
    Standing,
    custom_role,
    policy_grants,
)
from orchestrator.core.setup.steps import (
    LIFECYCLE,
    Condition,
    EnableApis,
    GrantRole,
    MakeAccount,
    MakeBucket,
    MakeRole,
    MendBucket,
)

POLICY_VERSION: Final = 3
"""The version of policies with conditions. Writing back an older version would drop the conditions of others."""
PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""The pauses between attempts, in seconds. A new account may be unknown to some services for up to a minute."""

TOO_YOUNG_S: Final = (*PAUSES_S, 30.0, 30.0, 30.0, 30.0)
"""The pauses after enabling an API, in seconds. Requests to it may be refused for some minutes more."""

RestStep = EnableApis | MakeBucket | MendBucket | MakeAccount | MakeRole | GrantRole


def survey_project(api: Api, wanted: SetupRequest, settings: Mapping[str, str]) -> Standing:
    """What exists in the project. Something that cannot be seen counts as missing: the step that makes it then reports
    why it cannot."""
    project = wanted.project
    services = api.ask(enabled_request(project, APIS))
    apis = frozenset(
        str(entry.get("name", "")).rpartition("/")[2]
        for entry in services.document.get("services", ())
        if services.good and entry.get("state") == "ENABLED"
    )
    bucket = api.ask(RestRequest("storage", "GET", f"/storage/v1/b/{wanted.bucket}", {"projection": "noAcl"}))
    account = api.ask(account_of(project, wanted.email))
    roles: dict[str, frozenset[str]] = {}
    for role_id in (MACHINE_ROLE, LAUNCHER_ROLE):
        role = api.ask(RestRequest("iam", "GET", f"/v1/{custom_role(role_id, project)}"))
        if role.good:
            roles[role_id] = frozenset(role.document.get("includedPermissions", ()))
    on_project = api.ask(read_policy("project", project))
    on_bucket = api.ask(read_policy("bucket", wanted.bucket))
    on_account = api.ask(read_policy("account", project, wanted.email)) if account.good else account
    return Standing(
        apis=apis,
        bucket=bucket.document if bucket.good else None,
        account=account.good,
        roles=roles,
        on_project=policy_grants(on_project.document) if on_project.good else frozenset(),
        on_bucket=policy_grants(on_bucket.document) if on_bucket.good else frozenset(),
        on_account=policy_grants(on_account.document) if on_account.good else frozenset(),
        settings=settings,
    )


def take_step(api: Api, step: RestStep) -> RestAnswer:
    """Takes one step, and returns the last answer. While the answer says that the API is off, the step is tried again
    for some minutes: an earlier step has just enabled the API."""
    for pause in TOO_YOUNG_S:
        answer = _once(api, step)
        if not answer.api_off:
            return answer
        api.pause(pause)
    return _once(api, step)


def _once(api: Api, step: RestStep) -> RestAnswer:
    match step:
        case EnableApis():
            return _enable(api, step)
        case MakeBucket():
            return _make_bucket(api, step)
        case MendBucket():
            return _mend_bucket(api, step)
        case MakeAccount():
            body = {"accountId": step.account_id, "serviceAccount": {"displayName": step.title}}
            answer = api.ask(RestRequest("iam", "POST", f"/v1/projects/{step.project}/serviceAccounts", body=body))
            return RestAnswer(200) if answer.status == 409 else answer
        case MakeRole():
            return _make_role(api, step)
        case GrantRole():
            return _grant(api, step)


def enabled_request(project: str, apis: tuple[str, ...]) -> RestRequest:
    """The request for the state of some APIs."""
    names = [f"projects/{project}/services/{api}" for api in apis]
    return RestRequest("serviceusage", "GET", f"/v1/projects/{project}/services:batchGet", {"names": names})


def account_of(project: str, email: str) -> RestRequest:
    return RestRequest("iam", "GET", f"/v1/projects/{project}/serviceAccounts/{email}")


def _enable(api: Api, step: EnableApis) -> RestAnswer:
    path = f"/v1/projects/{step.project}/services:batchEnable"
    answer = api.ask(RestRequest("serviceusage", "POST", path, body={"serviceIds": list(step.apis)}))
    for pause in (*PAUSES_S, *PAUSES_S):
        if not answer.good or answer.document.get("done"):
            break
        api.pause(pause)
        answer = api.ask(RestRequest("serviceusage", "GET", f"/v1/{answer.document.get('name', '')}"))
    error = answer.document.get("error")
    return RestAnswer(400, {"error": error}) if answer.good and error else answer


def _make_bucket(api: Api, step: MakeBucket) -> RestAnswer:
    body = {"name": step.bucket, "location": step.location.upper(), "lifecycle": LIFECYCLE}
    body["iamConfiguration"] = {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "enforced"}
    return api.ask(RestRequest("storage", "POST", "/storage/v1/b", {"project": step.project}, body))


def _mend_bucket(api: Api, step: MendBucket) -> RestAnswer:
    path = f"/storage/v1/b/{step.bucket}"
    bucket_answer = api.ask(RestRequest("storage", "GET", path, {"projection": "noAcl"}))
    if not bucket_answer.good:
        return bucket_answer
    if bucket_answer.document.get("name") != step.bucket:
        return RestAnswer(
            0, trouble=f"what was answered about gs://{step.bucket} is not about it, so it is not changed"
        )
    access = dict(bucket_answer.document.get("iamConfiguration", {}))
    access |= {"uniformBucketLevelAccess": {"enabled": True}} if step.uniform else {}
    access |= {"publicAccessPrevention": "enforced"} if step.private else {}
    our_rules = LIFECYCLE["rule"]
    other_rules = [
        rule for rule in bucket_answer.document.get("lifecycle", {}).get("rule", ()) if rule not in our_rules
    ]
    kept = {"lifecycle": {"rule": [*other_rules, *our_rules]}} if step.lifecycle else {}
    return api.ask(RestRequest("storage", "PATCH", path, {"projection": "noAcl"}, {"iamConfiguration": access, **kept}))


def _make_role(api: Api, step: MakeRole) -> RestAnswer:
    role = {"title": step.title, "includedPermissions": list(step.permissions), "stage": "GA"}
    if not step.exists:
        answer = api.ask(
            RestRequest(
                "iam", "POST", f"/v1/projects/{step.project}/roles", body={"roleId": step.role_id, "role": role}
            )
        )
        if answer.status != 409:
            return answer
    path = f"/v1/{custom_role(step.role_id, step.project)}"
    return api.ask(RestRequest("iam", "PATCH", path, {"updateMask": "title,includedPermissions,stage"}, role))


def read_policy(kind: str, owner: str, email: str = "") -> RestRequest:
    """The request for the policy of a `project`, a `bucket`, or an `account` (of the project `owner`)."""
    if kind == "bucket":
        path = f"/storage/v1/b/{owner}/iam"
        return RestRequest("storage", "GET", path, {"optionsRequestedPolicyVersion": POLICY_VERSION})
    if kind == "account":
        path = f"/v1/projects/{owner}/serviceAccounts/{email}:getIamPolicy"
        return RestRequest("iam", "POST", path, {"options.requestedPolicyVersion": POLICY_VERSION})
    body = {"options": {"requestedPolicyVersion": POLICY_VERSION}}
    return RestRequest("cloudresourcemanager", "POST", f"/v3/projects/{owner}:getIamPolicy", body=body)


def _write_policy(step: GrantRole, policy: Mapping[str, Any]) -> RestRequest:
    if step.on == "bucket":
        return RestRequest("storage", "PUT", f"/storage/v1/b/{step.owner}/iam", body=policy)
    if step.on == "account":
        path = f"/v1/projects/{step.owner}/serviceAccounts/{step.email}:setIamPolicy"
        return RestRequest("iam", "POST", path, body={"policy": policy})
    path = f"/v3/projects/{step.owner}:setIamPolicy"
    return RestRequest("cloudresourcemanager", "POST", path, body={"policy": policy})


def _grant(api: Api, step: GrantRole) -> RestAnswer:
    """Reads, changes and writes a policy. It starts again if the policy was changed in between, or if the new account
    is not known there yet."""
    pauses = iter(PAUSES_S)
    while True:
        policy_answer = api.ask(read_policy(step.on, step.owner, step.email))
        if not policy_answer.good:
            return policy_answer
        if not policy_answer.document.get("etag"):  # written without one, it would take the place of whatever is there
            return RestAnswer(0, trouble=f"no policy of {step.owner} was answered with, so none is written")
        policy = with_grant(policy_answer.document, step.role, step.member, step.condition)
        if policy is None:
            return policy_answer
        answer = api.ask(_write_policy(step, policy))
        # 409 and 412: somebody else changed it first. 400 and 404: the new account or role is not known here yet.
        pause = next(pauses, None) if answer.status in (400, 404, 409, 412) else None
        if pause is None:
            return answer
        api.pause(pause)


def with_grant(policy: Mapping[str, Any], role: str, member: str, condition: Condition | None) -> dict[str, Any] | None:
    """The policy with `member` added to the binding of `role`; None if the member is in it already."""
    wanted = {"title": condition.title, "expression": condition.expression} if condition else None
    bindings = [dict(binding) for binding in policy.get("bindings", ())]
    for binding in bindings:
        present = binding.get("condition") or {}
        same = present.get("expression") == wanted["expression"] if wanted else not present
        if binding.get("role") == role and same:
            if member in binding.get("members", ()):
                return None
            binding["members"] = [*binding.get("members", ()), member]
            break
    else:
        bindings.append({"role": role, "members": [member]} | ({"condition": wanted} if wanted else {}))
    return {"version": POLICY_VERSION, "etag": policy.get("etag", ""), "bindings": bindings}
