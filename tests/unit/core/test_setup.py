"""What a set-up plans: nothing that is there already, and nothing wider than it must be."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from orchestrator.core.errors import ConfigError
from orchestrator.core.market.skus import continent_of, regions_near
from orchestrator.core.permissions import (
    ACCOUNT,
    BATCH,
    BATCH_REPORTER,
    BUCKET,
    LAUNCHER,
    LOOKER,
    MACHINE,
    permission_names,
)
from orchestrator.core.setup import steps
from orchestrator.core.setup.plan import LAUNCHER_ROLE, MACHINE_ROLE, OWN_MACHINES, Grant, SetupRequest, plan_setup
from orchestrator.core.setup.plan import parse_setup as asked
from orchestrator.core.setup.steps import (
    LIFECYCLE,
    EnableApis,
    GrantRole,
    MakeAccount,
    MakeBucket,
    MakeRole,
    MendBucket,
    ShareCaps,
    WriteSettings,
    describe_step,
)
from tests.unit.core.set_up import ADA, CAREFUL, WANTED, after_all_of_it


def test_a_second_time_there_is_nothing_to_do() -> None:
    assert plan_setup(WANTED, after_all_of_it()) == ()


@pytest.mark.parametrize("number", range(len(plan_setup(WANTED))))
def test_whatever_single_step_is_missing_is_the_one_that_is_planned(number: int) -> None:
    standing, step = after_all_of_it(), plan_setup(WANTED)[number]
    match step:
        case EnableApis():
            lacking = replace(standing, apis=frozenset())
        case MakeBucket():
            lacking = replace(standing, bucket=None)
        case MakeAccount():
            lacking = replace(standing, account=False)
        case MakeRole():
            lacking = replace(standing, roles={k: v for k, v in standing.roles.items() if k != step.role_id})
        case GrantRole(on="project"):
            gone = {grant for grant in standing.on_project if grant.role == step.role}
            lacking = replace(standing, on_project=standing.on_project - gone)
        case GrantRole(on="bucket"):
            expression = step.condition.expression if step.condition else ""
            lacking = replace(standing, on_bucket=standing.on_bucket - {Grant(step.role, step.member, expression)})
        case GrantRole():
            lacking = replace(standing, on_account=frozenset())
        case ShareCaps():
            lacking = replace(standing, caps={})
        case _:
            lacking = replace(standing, settings={})
    assert plan_setup(WANTED, lacking) == (step,)


def test_a_cap_that_somebody_has_set_for_the_bucket_is_left_as_it_is() -> None:
    standing = replace(after_all_of_it(), caps={"day": "900"})
    (step,) = plan_setup(WANTED, standing)
    assert step == ShareCaps("my-project", "my-bench", (("run", Decimal("1.00")),))
    assert steps.step_command(step) == "bench --project my-project --bucket my-bench budget set --run 1.00"


def test_the_machine_may_delete_machines_of_bench_and_nothing_else_of_the_project() -> None:
    steps = plan_setup(replace(WANTED, launcher=""))
    made = [step for step in steps if isinstance(step, MakeRole)]
    assert [(step.role_id, step.permissions) for step in made] == [(MACHINE_ROLE, permission_names(MACHINE))]
    granted, reports = (step for step in steps if isinstance(step, GrantRole) and step.on == "project")
    assert granted.condition == OWN_MACHINES
    assert reports.role == BATCH_REPORTER, "which lets it say how its own task is, and nothing else"
    assert {type(step) for step in steps if getattr(step, "member", "") == ADA} == set()


def test_a_role_that_grew_keeps_what_somebody_added_to_it() -> None:
    roles = {**after_all_of_it().roles, LAUNCHER_ROLE: frozenset({"compute.disks.get"})}
    (step,) = plan_setup(WANTED, replace(after_all_of_it(), roles=roles))
    assert isinstance(step, MakeRole)
    assert step.exists
    assert set(step.permissions) == {*permission_names(LAUNCHER, LOOKER, BATCH), "compute.disks.get"}


def test_a_bucket_is_mended_where_kept_otherwise_and_others_rules_do_not_matter() -> None:
    bare = replace(after_all_of_it(), bucket={"location": "US"})
    assert plan_setup(WANTED, bare) == (MendBucket("my-bench", uniform=True, private=True, lifecycle=True),)
    more = {"rule": [{"action": {"type": "Delete"}, "condition": {"age": 1}}, *LIFECYCLE["rule"]]}
    assert plan_setup(WANTED, replace(bare, bucket=CAREFUL | {"lifecycle": more})) == ()


def test_settings_that_say_otherwise_are_named_before_they_are_replaced() -> None:
    standing = replace(after_all_of_it(), settings={**after_all_of_it().settings, "bucket": "other"})
    (step,) = plan_setup(WANTED, standing)
    assert step == WriteSettings((("bucket", "my-bench"),), ("bucket",))
    assert "replaces bucket" in describe_step(step)
    practice = plan_setup(replace(WANTED, keeps_names=False))[-2]
    assert isinstance(practice, WriteSettings)
    assert [key for key, _ in practice.values] == ["per_run_usd", "per_day_usd"]


def test_every_permission_is_listed_once_and_the_bucket_role_fits_the_code() -> None:
    every = [need.permission for group in (LAUNCHER, LOOKER, BATCH, BUCKET, ACCOUNT) for need in group]
    assert len(every) == len(set(every))
    assert all(need.why and need.code for group in (LAUNCHER, LOOKER, BUCKET, ACCOUNT, MACHINE) for need in group)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"project": "P!"}, "--project"),
        ({"bucket": "Bucket"}, "--bucket"),
        ({"bucket": "my-google"}, "--bucket"),
        ({"bucket": "goog-x"}, "--bucket"),
        ({"account_id": "vm"}, "--service-account"),
        ({"location": "mars-1"}, "--location"),
        ({"launcher": "ada"}, "--launcher"),
        ({"caps": {"per_run_usd": "much"}}, "--per-run much"),
        ({"caps": {"per_day_usd": "-1"}}, "--per-day -1"),
    ],
)
def test_what_google_would_not_take_is_refused_before_anything_is_asked(changes: dict[str, Any], says: str) -> None:
    given: dict[str, Any] = {"project": "my-project", "bucket": "my-bench"} | changes
    project, bucket = given.pop("project"), given.pop("bucket")
    with pytest.raises(ConfigError, match=says) as raised:
        asked(project, bucket, **given)
    assert raised.value.hint


def test_what_is_asked_for_is_taken_as_it_is_meant() -> None:
    found = asked("my-project", "my-bench", location="EU", launcher=ADA, caps={"per_run_usd": "$2", "per_day_usd": ""})
    assert found == SetupRequest("my-project", "my-bench", "eu", launcher=ADA, budget=(("per_run_usd", Decimal(2)),))
    assert found.email == "bench-vm@my-project.iam.gserviceaccount.com"


def test_a_bucket_is_near_its_own_region_or_those_of_its_continent() -> None:
    zones = ("us-central1-a", "us-central1-b", "europe-west4-a", "northamerica-northeast1-b")
    assert regions_near("US-CENTRAL1", zones) == ("us-central1",)
    assert regions_near("us", zones) == ("us-central1", "northamerica-northeast1")
    assert regions_near("EUR4", zones) == ("europe-west4",)
    assert regions_near("asia", zones) == ()
    assert [continent_of(place) for place in ("EU", "europe-west1", "northamerica-northeast1", "US")] == [
        "europe",
        "europe",
        "us",
        "us",
    ]
