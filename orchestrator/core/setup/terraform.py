"""Writes the steps of a set-up in Terraform's JSON syntax (`main.tf.json`), for projects that are kept as code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

from orchestrator.core.setup.steps import (
    LIFECYCLE,
    Condition,
    EnableApis,
    GrantRole,
    MakeAccount,
    MakeBucket,
    MakeRole,
    MendBucket,
    ShareCaps,
    Step,
    WriteSettings,
    short_role,
    step_command,
)

Body = dict[str, Any]
Named = tuple[str, str, Body]
"""(kind, name, contents) of a resource."""

BUCKET: Final = "google_storage_bucket.bench"
ACCOUNT: Final = "google_service_account.bench"
SERVICE: Final = "google_project_service"
COMMENT: Final = "//"
"""The key of a comment, which Terraform ignores."""
HEAD: Final = (
    "What `bench init` would do: save this as main.tf.json, then `terraform init && terraform apply`. What exists "
    "already has to be imported first (`terraform import`), or apply says that it is there."
)
PROVIDERS: Final = {
    "required_version": ">= 1.5",
    "required_providers": {"google": {"source": "hashicorp/google", "version": ">= 5.0"}},
}


def terraform_document(steps: Iterable[Step]) -> str:
    """The text of one file in Terraform's JSON syntax."""
    all_steps = tuple(steps)
    declared = frozenset(f"{kind}.{name}" for step in all_steps for kind, name, _ in _resources(step))
    resources: dict[str, dict[str, Body]] = {}
    comments = [HEAD]
    for step in all_steps:
        if isinstance(step, WriteSettings):
            comments += _settings(step)
        if isinstance(step, ShareCaps):
            comments += ["Caps for everybody are in the bucket, not in Terraform:", f"  {step_command(step)}"]
        for kind, name, body in _resources(step):
            assert name not in resources.get(kind, {}), "each resource has a name of its own"
            needs = [address for address in body.pop("depends_on", ()) if address in declared]
            resources.setdefault(kind, {})[name] = _roles(body, declared) | ({"depends_on": needs} if needs else {})
    return (
        json.dumps({COMMENT: comments, "terraform": PROVIDERS, "resource": resources}, indent=2, ensure_ascii=False)
        + "\n"
    )


def _resources(step: Step) -> tuple[Named, ...]:
    match step:
        case EnableApis():
            project = {"project": hcl_text(step.project)}
            return tuple(
                (SERVICE, api.partition(".")[0], {**project, "service": hcl_text(api), "disable_on_destroy": False})
                for api in step.apis
            )
        case MakeBucket():
            where = {
                "project": hcl_text(step.project),
                "name": hcl_text(step.bucket),
                "location": hcl_text(step.location.upper()),
            }
            body = {**where, **_bucket_settings(), "depends_on": [f"{SERVICE}.storage"]}
            return (("google_storage_bucket", "bench", body),)
        case MendBucket():
            return (("google_storage_bucket", "bench", {"name": hcl_text(step.bucket), **_bucket_settings()}),)
        case MakeAccount():
            named = {"account_id": hcl_text(step.account_id), "display_name": hcl_text(step.title)}
            body = {"project": hcl_text(step.project), **named, "depends_on": [f"{SERVICE}.iam"]}
            return (("google_service_account", "bench", body),)
        case MakeRole():
            named = {"role_id": hcl_text(step.role_id), "title": hcl_text(step.title)}
            body = {"project": hcl_text(step.project), **named, "permissions": list(step.permissions)}
            return (("google_project_iam_custom_role", step.role_id, {**body, "depends_on": [f"{SERVICE}.iam"]}),)
        case GrantRole():
            kind, owner, needs = _grant_place(step)
            whom = {"role": hcl_text(step.role), "member": hcl_text(step.member)}
            body = {**owner, **whom, **(_where(step.condition) if step.condition else {}), "depends_on": needs}
            return ((kind, _name(step.role, step.member), body),)
        case _:
            return ()


def _grant_place(step: GrantRole) -> tuple[str, Body, list[str]]:
    """(kind of the resource, what it is a grant on, the resources that it needs)."""
    account = [ACCOUNT] if step.member.startswith("serviceAccount:") else []
    match step.on:
        case "project":  # whose policy is read and written through Resource Manager
            needs = [f"{SERVICE}.cloudresourcemanager", *account]
            return "google_project_iam_member", {"project": hcl_text(step.owner)}, needs
        case "bucket":
            return "google_storage_bucket_iam_member", {"bucket": hcl_text(step.owner)}, [BUCKET, *account]
        case "account":
            name = hcl_text(f"projects/{step.owner}/serviceAccounts/{step.email}")
            return "google_service_account_iam_member", {"service_account_id": name}, [ACCOUNT]


def _where(condition: Condition) -> Body:
    return {"condition": [{"title": hcl_text(condition.title), "expression": hcl_text(condition.expression)}]}


def _roles(body: Body, declared: frozenset[str]) -> Body:
    """`body` with a reference in place of the name of a custom role from this file, so that Terraform makes that
    first."""
    address = f"google_project_iam_custom_role.{short_role(str(body.get('role', '')))}"
    return body | {"role": f"${{{address}.name}}"} if address in declared else body


def _bucket_settings() -> Body:
    rules = [
        {
            "action": [{"type": rule["action"]["type"]}],
            "condition": [{_snake(key): value for key, value in rule["condition"].items()}],
        }
        for rule in LIFECYCLE["rule"]
    ]
    return {
        "uniform_bucket_level_access": True,
        "public_access_prevention": "enforced",
        "lifecycle_rule": rules,
    }


def _settings(step: WriteSettings) -> list[str]:
    lines = [f"  {key}: {json.dumps(value)}" for key, value in step.values]
    return ["Terraform does not write to your machine; add these lines to settings.yaml in BENCH_HOME:", *lines]


def hcl_text(value: str) -> str:
    """`value` with `${` and `%{` escaped, so that Terraform does not read it as a template."""
    return value.replace("${", "$${").replace("%{", "%%{")


def _name(role: str, member: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", f"{short_role(role)}_{member.partition('@')[0]}")


def _snake(key: str) -> str:
    return re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", key)
