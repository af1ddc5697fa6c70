"""The steps of a set-up as Terraform (HCL), for projects that are kept as code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from orchestrator.core.setup.steps import (
    LIFECYCLE,
    Condition,
    EnableApis,
    GrantOnAccount,
    GrantOnBucket,
    GrantOnProject,
    MakeAccount,
    MakeBucket,
    MakeRole,
    MendBucket,
    Step,
    WriteSettings,
    describe,
    short,
)

Body = Sequence[tuple[str, Any]]
"""Attributes in order; a value that is a `Block` or a list of them is a nested block."""


class Block(tuple[tuple[str, Any], ...]):
    """The body of a nested block."""


class Raw(str):
    """An expression: a reference, not a string."""


BUCKET = "google_storage_bucket.bench"
ACCOUNT = ("google_service_account.bench",)
HEAD = """# What `bench init` would do, as Terraform: `terraform init && terraform apply`.
# What exists already has to be imported first (`terraform import`), or apply says that it is there.
terraform {
  required_version = ">= 1.5"
  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 5.0"
    }
  }
}
"""


def document(steps: Iterable[Step]) -> str:
    """One file of HCL."""
    listed = tuple(steps)
    declared = frozenset(address for step in listed for address in _declares(step))
    return "\n".join([HEAD, *(f"# {describe(step)}\n{_resources(step, declared)}" for step in listed)])


def _declares(step: Step) -> tuple[str, ...]:
    """The addresses that other resources can wait for."""
    match step:
        case EnableApis():
            return tuple(f"google_project_service.{api.partition('.')[0]}" for api in step.apis)
        case MakeBucket() | MendBucket():
            return ("google_storage_bucket.bench",)
        case MakeAccount():
            return ("google_service_account.bench",)
        case MakeRole():
            return (f"google_project_iam_custom_role.{step.role_id}",)
        case _:
            return ()


def _resources(step: Step, declared: frozenset[str]) -> str:
    def after(*addresses: str) -> Body:
        needs = [Raw(address) for address in addresses if address in declared]
        return [("depends_on", needs)] if needs else []

    match step:
        case EnableApis():
            return "".join(
                _resource(
                    "google_project_service",
                    api.partition(".")[0],
                    [("project", step.project), ("service", api), ("disable_on_destroy", False)],
                )
                for api in step.apis
            )
        case MakeBucket():
            return _resource("google_storage_bucket", "bench", [
                ("project", step.project), ("name", step.bucket), ("location", step.location.upper()), *_careful(),
                *after("google_project_service.storage"),
            ])  # fmt: skip
        case MendBucket():
            return _resource("google_storage_bucket", "bench", [("name", step.bucket), *_careful()])
        case MakeAccount():
            body = [("project", step.project), ("account_id", step.account_id), ("display_name", step.title)]
            return _resource("google_service_account", "bench", [*body, *after("google_project_service.iam")])
        case MakeRole():
            role_body: Body = [
                ("project", step.project),
                ("role_id", step.role_id),
                ("title", step.title),
                ("permissions", list(step.permissions)),
                *after("google_project_service.iam"),
            ]
            return _resource("google_project_iam_custom_role", step.role_id, role_body)
        case GrantOnProject():
            address = f"google_project_iam_custom_role.{short(step.role)}"
            role = Raw(f"{address}.name") if address in declared else step.role
            where: Body = [("project", step.project), ("role", role), ("member", step.member), *_where(step.condition)]
            service = "google_project_service.cloudresourcemanager"
            needs = after(service, *(ACCOUNT if step.member.startswith("serviceAccount:") else ()))
            return _resource("google_project_iam_member", _name(step.role, step.member), [*where, *needs])
        case GrantOnBucket():
            where = [("bucket", step.bucket), ("role", step.role), ("member", step.member), *_where(step.condition)]
            needs = after(BUCKET, *(ACCOUNT if step.member.startswith("serviceAccount:") else ()))
            return _resource("google_storage_bucket_iam_member", _name(step.role, step.member), [*where, *needs])
        case GrantOnAccount():
            account = f"projects/{step.project}/serviceAccounts/{step.email}"
            where = [("service_account_id", account), ("role", step.role), ("member", step.member)]
            name = _name(step.role, step.member)
            return _resource("google_service_account_iam_member", name, [*where, *after(*ACCOUNT)])
        case _:
            return _settings(step)


def _where(condition: Condition | None) -> Body:
    if condition is None:
        return []
    return [("condition", Block((("title", condition.title), ("expression", condition.expression))))]


def _careful() -> Body:
    rules = []
    for rule in LIFECYCLE["rule"]:
        condition = tuple((_snake(key), value) for key, value in rule["condition"].items())
        rules.append(Block((("action", Block((("type", rule["action"]["type"]),))), ("condition", Block(condition)))))
    return [
        ("uniform_bucket_level_access", True),
        ("public_access_prevention", "enforced"),
        ("lifecycle_rule", rules),
    ]


def _settings(step: WriteSettings) -> str:
    lines = "".join(f"#   {key}: {json.dumps(value)}\n" for key, value in step.values)
    return f"# Terraform does not write to this machine; add these lines to settings.yaml in BENCH_HOME:\n{lines}"


def _resource(kind: str, name: str, body: Body) -> str:
    return f'resource "{kind}" "{name}" {{\n{_lines(body, 1)}}}\n'


def _lines(body: Body, depth: int) -> str:
    pad, text = "  " * depth, ""
    width = max((len(key) for key, value in body if not _nested(value)), default=0)
    for key, value in body:
        blocks = value if isinstance(value, list) and _nested(value) else [value]
        for one in blocks:
            if isinstance(one, Block):
                text += f"{pad}{key} {{\n{_lines(one, depth + 1)}{pad}}}\n"
            else:
                text += f"{pad}{key:{width}} = {_value(one, depth)}\n"
    return text


def _nested(value: Any) -> bool:
    return isinstance(value, Block) or (isinstance(value, list) and isinstance(value[0], Block))


def _value(value: Any, depth: int) -> str:
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, list):
        pad = "  " * (depth + 1)
        inner = "".join(f"{pad}{_value(one, depth)},\n" for one in value)
        return f"[\n{inner}{'  ' * depth}]"
    # A template is begun by ${ or %{; no text of ours may begin one.
    return json.dumps(value).replace("${", "$${").replace("%{", "%%{")


def _name(role: str, member: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", f"{short(role)}_{member.partition('@')[0]}")


def _snake(key: str) -> str:
    return re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", key)
