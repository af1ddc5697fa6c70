"""The steps of a set-up: each is one change to a project, a bucket or this machine's settings, with all its values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from shlex import quote
from typing import Any, Final, Literal

from orchestrator.core.ledger.budget import Window
from orchestrator.core.text import count

PAYLOAD_DAYS: Final = 180
"""After this many days a payload is deleted. It is uploaded again when it is needed. All other objects are kept."""
LIFECYCLE: Final[dict[str, Any]] = {
    "rule": [
        {"action": {"type": "Delete"}, "condition": {"age": PAYLOAD_DAYS, "matchesPrefix": ["payloads/"]}},
        {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 7}},
    ]
}


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition of a grant. `expression` is in the Common Expression Language."""

    title: str
    expression: str


@dataclass(frozen=True, slots=True)
class EnableApis:
    project: str
    apis: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MakeBucket:
    """Make a bucket with uniform access, no public access, and `LIFECYCLE`."""

    project: str
    bucket: str
    location: str


@dataclass(frozen=True, slots=True)
class MendBucket:
    """Give an existing bucket the same settings. Its objects stay."""

    bucket: str
    uniform: bool
    private: bool
    lifecycle: bool


@dataclass(frozen=True, slots=True)
class MakeAccount:
    project: str
    account_id: str
    title: str


@dataclass(frozen=True, slots=True)
class MakeRole:
    """Make a custom role; if it `exists`, give it these permissions."""

    project: str
    role_id: str
    title: str
    permissions: tuple[str, ...]
    exists: bool = False


@dataclass(frozen=True, slots=True)
class GrantRole:
    """Grant a member a role on a project, on a bucket, or on a service account of a project (its `email`)."""

    on: Literal["project", "bucket", "account"]
    owner: str
    """The project, or the bucket."""
    role: str
    member: str
    condition: Condition | None = None
    email: str = ""


@dataclass(frozen=True, slots=True)
class WriteSettings:
    """Write keys of this machine's `settings.yaml`; other keys stay. `replaces` are the keys that have another value
    now."""

    values: tuple[tuple[str, str], ...]
    replaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShareCaps:
    """Set caps in the bucket's ledger, in dollars by window. They apply to everybody who uses the bucket."""

    project: str
    bucket: str
    caps: tuple[tuple[Window, Decimal], ...]


Step = EnableApis | MakeBucket | MendBucket | MakeAccount | MakeRole | GrantRole | WriteSettings | ShareCaps


def describe_step(step: Step) -> str:
    """The step as text for the user, without a full stop."""
    match step:
        case EnableApis():
            return f"enable {', '.join(step.apis)}"
        case MakeBucket():
            return (
                f"make the bucket gs://{step.bucket} in {step.location}: uniform access, no public access, payloads"
                f" deleted after {PAYLOAD_DAYS} days"
            )
        case MendBucket():
            todo = [
                text
                for wanted, text in (
                    (step.uniform, "uniform access"),
                    (step.private, "no public access"),
                    (step.lifecycle, f"payloads deleted after {PAYLOAD_DAYS} days"),
                )
                if wanted
            ]
            return f"set on gs://{step.bucket}: {', '.join(todo)}"
        case MakeAccount():
            return f"make the service account {step.account_id} ({step.title})"
        case MakeRole():
            verb = "change" if step.exists else "make"
            return f"{verb} the role {step.role_id} ({step.title}): {count(len(step.permissions), 'permission')}"
        case GrantRole():
            where = f", {step.condition.title}" if step.condition else ""
            place = {"project": "the project", "bucket": f"gs://{step.owner}", "account": step.email}[step.on]
            return f"grant {short_role(step.role)} on {place} to {step.member}{where}"
        case ShareCaps():
            values = ", ".join(f"{window} ${usd}" for window, usd in step.caps)
            return f"cap what everybody spends through gs://{step.bucket}: {values}"
        case _:
            values = ", ".join(f"{key}: {value}" for key, value in step.values)
            over = f" (replaces {', '.join(step.replaces)})" if step.replaces else ""
            return f"write to settings.yaml: {values}{over}"


def short_role(role: str) -> str:
    """A role's name without its path: `storage.objectUser`, or `benchMachine` for `projects/p/roles/benchMachine`."""
    return role.rpartition("/")[2]


# Writes the steps of a set-up as a shell script of gcloud commands.


HEAD = """#!/usr/bin/env bash
# What `bench init` would do. It can be run again: what exists already is reported and not changed.
set -u
"""


def setup_script(steps: Iterable[Step], settings: str = "settings.yaml") -> str:
    """The bash script that takes the steps. `settings` is the path of the settings file."""
    return HEAD + "".join(f"\n# {describe_step(step)}\n{step_command(step, settings)}\n" for step in steps)


def step_command(step: Step, settings: str = "settings.yaml") -> str:
    """The step as one command or several lines."""
    match step:
        case EnableApis():
            return f"gcloud services enable {' '.join(step.apis)} --project={step.project}"
        case MakeBucket():
            create = (
                f"gcloud storage buckets create gs://{step.bucket} --project={step.project} --location={step.location}"
                " --uniform-bucket-level-access --public-access-prevention"
            )
            return f"{create}\n{_lifecycle(step.bucket)}"
        case MendBucket():
            flags = [
                flag
                for wanted, flag in (
                    (step.uniform, "--uniform-bucket-level-access"),
                    (step.private, "--public-access-prevention"),
                )
                if wanted
            ]
            lines = [f"gcloud storage buckets update gs://{step.bucket} {' '.join(flags)}"] if flags else []
            return "\n".join([*lines, *([_lifecycle(step.bucket)] if step.lifecycle else [])])
        case MakeAccount():
            title = quote(step.title)
            return (
                f"gcloud iam service-accounts create {step.account_id} --project={step.project} --display-name={title}"
            )
        case MakeRole():
            verb = "update" if step.exists else "create"
            return (
                f"gcloud iam roles {verb} {step.role_id} --project={step.project} --title={quote(step.title)}"
                f" --stage=GA --permissions={','.join(step.permissions)}"
            )
        case GrantRole():
            place = {
                "project": f"projects add-iam-policy-binding {step.owner}",
                "bucket": f"storage buckets add-iam-policy-binding gs://{step.owner}",
                "account": f"iam service-accounts add-iam-policy-binding {step.email} --project={step.owner}",
            }[step.on]
            where = "" if step.on == "account" else _condition_option(step.condition)
            return f"gcloud {place} --member={quote(step.member)} --role={step.role}{where}"
        case ShareCaps():
            caps = " ".join(f"--{window} {usd}" for window, usd in step.caps)
            return f"bench --project {step.project} --bucket {step.bucket} budget set {caps}"
        case _:
            lines_of_file = "".join(f"\n#   {key}: {json.dumps(value)}" for key, value in step.values)
            return f"# by hand: these lines, in {settings}{lines_of_file}"


def one_line_command(step: Step) -> str:
    """The step as one line for a shell; its description if it is not a command and must be done by hand."""
    return " && ".join(line for line in step_command(step).splitlines() if not line.startswith("#")) or describe_step(
        step
    )


def _condition_option(condition: Condition | None) -> str:
    """The option for a condition. It is given even without a condition: gcloud asks if the policy has conditions."""
    if condition is None:
        return " --condition=None"
    return f" --condition={quote(f'expression={condition.expression},title={condition.title}')}"


def _lifecycle(bucket: str) -> str:
    """The command that sets the lifecycle rules. gcloud opens the file's real path, so it cannot be a pipe such as
    `/dev/stdin`."""
    rules = quote(json.dumps(LIFECYCLE))
    return (
        f"rules=$(mktemp) && printf '%s\\n' {rules} >\"$rules\""
        f' && gcloud storage buckets update gs://{bucket} --lifecycle-file="$rules"; rm -f "$rules"'
    )


# Writes the steps of a set-up in Terraform's JSON syntax (`main.tf.json`), for projects that are kept as code.


HclBody = dict[str, Any]
Named = tuple[str, str, HclBody]
"""(kind, name, contents) of a resource."""

BUCKET: Final = "google_storage_bucket.bench"
ACCOUNT: Final = "google_service_account.bench"
SERVICE: Final = "google_project_service"
COMMENT: Final = "//"
"""The key of a comment, which Terraform ignores."""
TERRAFORM_HEAD: Final = (
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
    resources: dict[str, dict[str, HclBody]] = {}
    comments = [TERRAFORM_HEAD]
    for step in all_steps:
        if isinstance(step, WriteSettings):
            comments += _settings_comment(step)
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
            body = {**owner, **whom, "depends_on": needs}
            if step.condition is not None:
                condition = {"title": step.condition.title, "expression": step.condition.expression}
                body["condition"] = [{key: hcl_text(text) for key, text in condition.items()}]
            name = re.sub(r"[^A-Za-z0-9]+", "_", f"{short_role(step.role)}_{step.member.partition('@')[0]}")
            return ((kind, name, body),)
        case _:
            return ()


def _grant_place(step: GrantRole) -> tuple[str, HclBody, list[str]]:
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


def _roles(body: HclBody, declared: frozenset[str]) -> HclBody:
    """`body` with a reference in place of the name of a custom role from this file, so that Terraform makes that
    first."""
    address = f"google_project_iam_custom_role.{short_role(str(body.get('role', '')))}"
    return body | {"role": f"${{{address}.name}}"} if address in declared else body


def _bucket_settings() -> HclBody:
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


def _settings_comment(step: WriteSettings) -> list[str]:
    lines = [f"  {key}: {json.dumps(value)}" for key, value in step.values]
    return ["Terraform does not write to your machine; add these lines to settings.yaml in BENCH_HOME:", *lines]


def hcl_text(value: str) -> str:
    """`value` with `${` and `%{` escaped, so that Terraform does not read it as a template."""
    return value.replace("${", "$${").replace("%{", "%%{")


def _snake(key: str) -> str:
    return re.sub(r"([A-Z])", lambda found: f"_{found[1].lower()}", key)
