"""Writes the steps of a set-up as a shell script of gcloud commands."""

from __future__ import annotations

import json
from collections.abc import Iterable
from shlex import quote

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
    ShareCaps,
    Step,
    describe_step,
)

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
        case GrantOnProject():
            return _binding(f"projects add-iam-policy-binding {step.project}", step) + _where(step.condition)
        case GrantOnBucket():
            where = f"storage buckets add-iam-policy-binding gs://{step.bucket}"
            return _binding(where, step) + _where(step.condition)
        case GrantOnAccount():
            where = f"iam service-accounts add-iam-policy-binding {step.email} --project={step.project}"
            return _binding(where, step)
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


def _binding(where: str, step: GrantOnProject | GrantOnBucket | GrantOnAccount) -> str:
    return f"gcloud {where} --member={quote(step.member)} --role={step.role}"


def _where(condition: Condition | None) -> str:
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
