"""The steps of a set-up: each is one change to a project, a bucket or this machine's settings, with all its values."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from orchestrator.core.ledger.document import Window
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
class GrantOnProject:
    project: str
    role: str
    member: str
    condition: Condition | None = None


@dataclass(frozen=True, slots=True)
class GrantOnBucket:
    bucket: str
    role: str
    member: str
    condition: Condition | None = None


@dataclass(frozen=True, slots=True)
class GrantOnAccount:
    project: str
    email: str
    role: str
    member: str


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


Step = (
    EnableApis | MakeBucket | MendBucket | MakeAccount | MakeRole | GrantOnProject | GrantOnBucket | GrantOnAccount
    | WriteSettings | ShareCaps
)  # fmt: skip


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
        case GrantOnProject():
            where = f", {step.condition.title}" if step.condition else ""
            return f"grant {short_role(step.role)} on the project to {step.member}{where}"
        case GrantOnBucket():
            where = f", {step.condition.title}" if step.condition else ""
            return f"grant {short_role(step.role)} on gs://{step.bucket} to {step.member}{where}"
        case GrantOnAccount():
            return f"grant {short_role(step.role)} on {step.email} to {step.member}"
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
