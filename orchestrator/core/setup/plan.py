"""Finds the steps that a project still needs before `bench` can use it; none if nothing is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from orchestrator.core.errors import ConfigError
from orchestrator.core.ledger.budget import Window
from orchestrator.core.ledger.unlisted import parse_dollars
from orchestrator.core.market.catalog import CATALOG
from orchestrator.core.market.skus import regions_near
from orchestrator.core.permissions import (
    ACCOUNT_USER,
    BATCH,
    BATCH_REPORTER,
    BUCKET_READER,
    LAUNCHER,
    LOOKER,
    MACHINE,
    OBJECT_USER,
    OBJECT_VIEWER,
    permission_names,
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
    ShareCaps,
    Step,
    WriteSettings,
)

APIS: Final = (
    "compute.googleapis.com",
    "storage.googleapis.com",
    "iam.googleapis.com",
    "cloudresourcemanager.googleapis.com",
    "cloudbilling.googleapis.com",
    "batch.googleapis.com",
)
"""Every run needs the first two; fleets on Batch need the last; `bench init`, `bench doctor` and `bench prices
--refresh` need the others."""
RUN_APIS: Final = APIS[:2]
FLEET_APIS: Final = APIS[-1:]
LAUNCHER_ROLE: Final = "benchLauncher"
MACHINE_ROLE: Final = "benchMachine"
ACCOUNT_ID: Final = "bench-vm"
WINDOW_OF: Final[Mapping[str, Window]] = {
    "per_run_usd": "run", "per_day_usd": "day", "per_month_usd": "month", "total_usd": "total",
}  # fmt: skip
"""The window that a key of the `budget` section caps."""
OWN_MACHINES: Final = Condition(
    "machines of bench only", 'resource.name.extract("/instances/{name}").startsWith("bench-")'
)
"""The instances of every run are named bench-…, so this grant does not allow to delete any other instance."""


def own_objects(bucket: str) -> Condition:
    """The condition for the objects that a machine may write: those of runs, and the slots of kept machines. It may not
    write a plan, which says what may be spent; an event under a client's name; or a ledger, index, baseline or host."""
    older = older_own_objects(bucket)
    not_of_client = 'resource.name.extract("Z-client-{event}") == ""'
    return Condition(older.title, f"{older.expression} && {not_of_client}")


def older_own_objects(bucket: str) -> Condition:
    """The condition that older versions used. It lets a machine write an event under a client's name."""
    objects = f'resource.name.startsWith("projects/_/buckets/{bucket}/objects/'
    return Condition(
        "runs and machines only",
        f'resource.type == "storage.googleapis.com/Object" && ({objects}machines/") || {objects}runs/")'
        ' && !resource.name.endsWith("/plan.json"))',
    )


def payloads_and_names(bucket: str) -> Condition:
    """The condition for what a machine may also read: payloads, and the names of objects. Listing is a permission on
    the bucket and shows only names."""
    return Condition(
        "payloads and names only",
        'resource.type == "storage.googleapis.com/Bucket"'
        f' || resource.name.startsWith("projects/_/buckets/{bucket}/objects/payloads/")',
    )


def machine_grants(bucket: str, member: str) -> tuple[GrantRole, ...]:
    """The grants of a machine's account on the bucket."""
    return (
        GrantRole("bucket", bucket, OBJECT_USER, member, own_objects(bucket)),
        GrantRole("bucket", bucket, OBJECT_VIEWER, member, payloads_and_names(bucket)),
    )


@dataclass(frozen=True, slots=True)
class SetupRequest:
    """The set-up that `bench init` was asked for."""

    project: str
    bucket: str
    location: str = "us-central1"
    account_id: str = ACCOUNT_ID
    launcher: str = ""
    """The IAM member that will launch runs, such as `user:ada@example.com`; empty: the user has the rights already."""
    budget: tuple[tuple[str, Decimal], ...] = ()
    """(key of the `budget` section, dollars) for each cap, such as `per_run_usd`."""
    keeps_names: bool = True
    """Whether project, bucket and account are written to the settings. They are not if this is practice on the embedded
    cloud."""

    @property
    def email(self) -> str:
        return f"{self.account_id}@{self.project}.iam.gserviceaccount.com"


@dataclass(frozen=True, slots=True)
class Grant:
    """One member's role in a policy. `expression` is that of its condition; empty if it has none."""

    role: str
    member: str
    expression: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """What exists already. The default is an empty project."""

    apis: frozenset[str] = frozenset()
    bucket: Mapping[str, Any] | None = None
    account: bool = False
    roles: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The permissions of each custom role that exists."""
    on_project: frozenset[Grant] = frozenset()
    on_bucket: frozenset[Grant] = frozenset()
    on_account: frozenset[Grant] = frozenset()
    settings: Mapping[str, str] = field(default_factory=dict)
    caps: Mapping[str, str] = field(default_factory=dict)
    """The bucket's caps, by window."""


NOTHING: Final = Standing()


def custom_role(role_id: str, project: str) -> str:
    return f"projects/{project}/roles/{role_id}"


def policy_grants(policy: Mapping[str, Any]) -> frozenset[Grant]:
    """The grants in a policy document."""
    return frozenset(
        Grant(str(binding.get("role", "")), str(member), str((binding.get("condition") or {}).get("expression", "")))
        for binding in policy.get("bindings", ())
        for member in binding.get("members", ())
    )


def plan_setup(wanted: SetupRequest, standing: Standing = NOTHING) -> tuple[Step, ...]:
    """The steps from what exists to what is wanted, in the order in which they must be taken."""
    steps: list[Step] = []
    off = tuple(api for api in APIS if api not in standing.apis)
    if off:
        steps.append(EnableApis(wanted.project, off))
    steps += bucket_steps(wanted.project, wanted.bucket, wanted.location, standing.bucket)
    steps += machine_steps(wanted, standing)
    if wanted.launcher:
        steps += _launcher(wanted, standing)
    values = _settings(wanted)
    new = tuple((key, value) for key, value in values if standing.settings.get(key) != value)
    if new:
        steps.append(WriteSettings(new, tuple(key for key, _ in new if key in standing.settings)))
    shared = tuple((WINDOW_OF[key], usd) for key, usd in wanted.budget if WINDOW_OF[key] not in standing.caps)
    if shared:
        steps.append(ShareCaps(wanted.project, wanted.bucket, shared))
    return tuple(steps)


def bucket_steps(project: str, bucket: str, location: str, found: Mapping[str, Any] | None) -> tuple[Step, ...]:
    """The step that makes the bucket, or corrects its settings; none if they are right. A bucket cannot be moved."""
    if found is None:
        return (MakeBucket(project, bucket, location),)
    access: Mapping[str, Any] = found.get("iamConfiguration", {})
    uniform = access.get("uniformBucketLevelAccess", {}).get("enabled") is True
    private = access.get("publicAccessPrevention") == "enforced"
    mend = MendBucket(bucket, uniform=not uniform, private=not private, lifecycle=not has_lifecycle(found))
    return (mend,) if mend.uniform or mend.private or mend.lifecycle else ()


def has_lifecycle(bucket: Mapping[str, Any]) -> bool:
    """Whether the bucket has our lifecycle rules. It may have others too."""
    rules: Sequence[Any] = bucket.get("lifecycle", {}).get("rule", [])
    return all(rule in rules for rule in LIFECYCLE["rule"])


def machine_steps(wanted: SetupRequest, standing: Standing) -> tuple[Step, ...]:
    """The steps that make the service account of machines and grant it its few rights."""
    steps: list[Step] = []
    member = f"serviceAccount:{wanted.email}"
    if not standing.account:
        steps.append(MakeAccount(wanted.project, wanted.account_id, "machines of bench"))
    steps += _role(wanted.project, MACHINE_ROLE, "bench: a machine deletes itself", permission_names(MACHINE), standing)
    role = custom_role(MACHINE_ROLE, wanted.project)
    if Grant(role, member, OWN_MACHINES.expression) not in standing.on_project:
        steps.append(GrantRole("project", wanted.project, role, member, OWN_MACHINES))
    if Grant(BATCH_REPORTER, member) not in standing.on_project:
        steps.append(GrantRole("project", wanted.project, BATCH_REPORTER, member))
    steps += [grant for grant in machine_grants(wanted.bucket, member) if _as_held(grant) not in standing.on_bucket]
    return tuple(steps)


def _as_held(step: GrantRole) -> Grant:
    return Grant(step.role, step.member, step.condition.expression if step.condition else "")


def _launcher(wanted: SetupRequest, standing: Standing) -> tuple[Step, ...]:
    project, member = wanted.project, wanted.launcher
    steps = list(
        _role(project, LAUNCHER_ROLE, "bench: launch and look", permission_names(LAUNCHER, LOOKER, BATCH), standing)
    )
    role = custom_role(LAUNCHER_ROLE, project)
    if Grant(role, member) not in standing.on_project:
        steps.append(GrantRole("project", project, role, member))
    on_bucket = [role for role in (OBJECT_USER, BUCKET_READER) if Grant(role, member) not in standing.on_bucket]
    steps += [GrantRole("bucket", wanted.bucket, role, member) for role in on_bucket]
    if Grant(ACCOUNT_USER, member) not in standing.on_account:
        steps.append(GrantRole("account", project, ACCOUNT_USER, member, email=wanted.email))
    return tuple(steps)


def _role(project: str, role_id: str, title: str, wanted: tuple[str, ...], standing: Standing) -> tuple[Step, ...]:
    present = standing.roles.get(role_id)
    if present is not None and present >= set(wanted):
        return ()
    everything = tuple(sorted({*wanted, *(present or ())}))
    return (MakeRole(project, role_id, title, everything, exists=present is not None),)


def _settings(wanted: SetupRequest) -> tuple[tuple[str, str], ...]:
    named = (("project", wanted.project), ("bucket", wanted.bucket), ("service_account", wanted.email))
    return (*(named if wanted.keeps_names else ()), *((key, str(usd)) for key, usd in wanted.budget))


# Checks the options of `bench init` before any request: names by Google's rules, amounts as money.


PROJECT: Final = re.compile(r"(?:[a-z0-9.-]+:)?[a-z](?:[-a-z0-9]{4,28})[a-z0-9]")
BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
ACCOUNT: Final = re.compile(r"[a-z][-a-z0-9]{4,28}[a-z0-9]")
MEMBER: Final = re.compile(r"(?:user|group|serviceAccount):[^@\s]+@[^@\s]+\.[^@\s]+")
DEFAULT_LOCATION: Final = "us-central1"
DEFAULT_CAPS: Final[Mapping[str, str]] = {
    "per_run_usd": "1.00",
    "per_day_usd": "5.00",
    "per_month_usd": "20.00",
    "total_usd": "100.00",
}


def parse_setup(
    project: str,
    bucket: str,
    *,
    location: str = DEFAULT_LOCATION,
    account_id: str = ACCOUNT_ID,
    launcher: str = "",
    caps: Mapping[str, str] = DEFAULT_CAPS,
    keeps_names: bool = True,
) -> SetupRequest:
    """The set-up that the options ask for. Raises `ConfigError` that names the flag and what is valid."""
    a_project(project)
    a_bucket(bucket, project)
    if not ACCOUNT.fullmatch(account_id):
        raise ConfigError(
            f"--service-account {account_id}: 6 to 30 lower-case letters, digits and hyphens, without @ and domain",
            hint=f"for example: {ACCOUNT_ID}",
        )
    a_location(location)
    a_launcher(launcher)
    budget = tuple((key, a_cap(key, text)) for key, text in caps.items() if text)
    return SetupRequest(project, bucket, location.lower(), account_id, launcher, budget, keeps_names)


def a_project(text: str) -> str:
    """Returns `text` if it is a valid project id for Google. It raises `ConfigError` if not, as do the functions
    below."""
    if not PROJECT.fullmatch(text):
        raise ConfigError(
            f"--project {text}: a project id has 6 to 30 lower-case letters, digits and hyphens",
            hint="`gcloud projects list` shows the ids of yours",
        )
    return text


def a_bucket(text: str, project: str = "my-project") -> str:
    if not BUCKET.fullmatch(text) or text.startswith("goog") or "google" in text:
        raise ConfigError(
            f"--bucket {text}: a bucket's name has 3 to 63 lower-case letters, digits, dots, hyphens and underscores,"
            " and not the word google",
            hint=f"for example: {project}-bench",
        )
    return text


def a_location(text: str) -> str:
    zones = [zone for gpu in CATALOG for zone in gpu.zones]
    if not regions_near(text, zones):
        raise ConfigError(
            f"--location {text}: no machine of the catalog is in a region of that name",
            hint="us-central1 has most kinds of machines; US, EU and ASIA are possible too",
        )
    return text


def a_launcher(text: str) -> str:
    if text and not MEMBER.fullmatch(text):
        raise ConfigError(
            f"--launcher {text}: expected user:, group: or serviceAccount: and an address",
            hint="for example: user:ada@example.com",
        )
    return text


def a_cap(key: str, text: str) -> Decimal:
    return parse_dollars(text, zero=True, option=f"--{key.replace('_', '-').removesuffix('-usd')}")
