"""What a set-up plans: nothing that is there already, and nothing wider than it must be."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.setup import failure
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
from orchestrator.core.setup.calls import PAUSES_S, TOO_YOUNG_S, survey_project, take_step, with_grant
from orchestrator.core.setup.plan import (
    APIS,
    LAUNCHER_ROLE,
    MACHINE_ROLE,
    NOTHING,
    OWN_MACHINES,
    Grant,
    SetupRequest,
    Standing,
    plan_setup,
    policy_grants,
)
from orchestrator.core.setup.plan import parse_setup as asked
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
    describe_step,
    one_line_command,
    setup_script,
    step_command,
    terraform_document,
)
from tests.support.conversations import good, lead, refusal
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
    assert step_command(step) == "bench --project my-project --bucket my-bench budget set --run 1.00"


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
    continents = [continent_of(place) for place in ("EU", "europe-west1", "northamerica-northeast1", "US")]
    assert continents == ["europe", "europe", "us", "us"]


# The requests that a set-up sends.


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
    roles, grants = {"benchMachine": frozenset({"x"})}, [policy_grants(policy)] * 3
    assert seen.result == Standing(frozenset({"a"}), {"location": "US"}, True, roles, *grants, {"bucket": "b"})
    assert lead(survey_project, WANTED, {}, reply=lambda _: refusal(403)).result == NOTHING


def test_apis_are_enabled_when_the_operation_says_so() -> None:
    step = EnableApis("p", ("a",))
    begun = good(name="operations/o")
    talk = lead(take_step, step, reply={":batchEnable": begun, "operations/o": [begun, good(done=True)]})
    assert (talk.result.good, len(talk.paused_s)) == (True, 2)
    failed = lead(take_step, step, reply={":batchEnable": good(done=True, error={"message": "billing"})})
    assert (failed.result.good, failed.result.message) == (False, "billing")
    assert lead(take_step, step, reply={":batchEnable": refusal(403)}).result.status == 403
    for_ever = lead(take_step, step, reply={":batchEnable": begun, "operations/o": begun})
    assert sum(for_ever.paused_s) == 2 * sum(PAUSES_S)


def test_what_somebody_else_made_meanwhile_is_success() -> None:
    assert lead(take_step, MakeAccount("p", "a", "t"), reply={"serviceAccounts": refusal(409)}).result.good
    assert lead(take_step, MakeAccount("p", "a", "t"), reply={"serviceAccounts": refusal(403)}).result.status == 403
    role = MakeRole("p", "r", "t", ("x",))
    talk = lead(take_step, role, reply={"POST /v1/projects/p/roles": refusal(409), "PATCH": good()})
    assert (talk.result.good, talk.lines) == (True, ["POST /v1/projects/p/roles", "PATCH /v1/projects/p/roles/r"])
    assert lead(take_step, role, reply={"POST /v1/projects/p/roles": good()}).lines == ["POST /v1/projects/p/roles"]
    talk = lead(take_step, replace(role, exists=True), reply={"PATCH": good()})
    assert talk.lines == ["PATCH /v1/projects/p/roles/r"]


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
        # written, it would take the place of all others'
        talk = lead(take_step, step, reply={read: nothing, write: good()})
        assert (talk.lines, talk.result.good, "none is written" in talk.result.message) == ([read], False, True)


def test_a_grant_leaves_every_other_binding_as_it_was() -> None:
    theirs = {"role": "r", "members": ["user:eve@example.com"], "condition": {"title": "t", "expression": "e"}}
    policy = {"etag": "x", "bindings": [theirs, {"role": "r", "members": ["user:bob@example.com"]}]}
    plain = with_grant(policy, "r", ADA, None)
    assert plain["bindings"] == [theirs, {"role": "r", "members": ["user:bob@example.com", ADA]}]
    assert (plain["etag"], plain["version"]) == ("x", 3)
    conditional = with_grant(policy, "r", ADA, Condition("t", "e"))
    assert conditional["bindings"][0]["members"] == ["user:eve@example.com", ADA]
    new = with_grant({}, "r", ADA, Condition("t", "e"))
    assert new["bindings"] == [{"role": "r", "members": [ADA], "condition": {"title": "t", "expression": "e"}}]
    assert with_grant(policy, "r", "user:eve@example.com", Condition("t", "e")) is None


# The gcloud commands and the Terraform that a set-up prints.


GOLDEN = Path(__file__).parent / "golden"


def parsed(text: str) -> Any:
    """Terraform's JSON syntax as a strict parser reads it: no key twice, no number that JSON has not."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({key for key, _ in pairs}) == len(pairs), pairs
        return dict(pairs)

    def never(text: str) -> Any:
        raise AssertionError(text)

    return json.loads(text, object_pairs_hook=once, parse_constant=never)


def resources_of(text: str) -> dict[str, Any]:
    """Each resource by its address."""
    return {f"{kind}.{name}": body for kind, made in parsed(text)["resource"].items() for name, body in made.items()}


ARGUMENTS = {
    "google_project_service": {"project", "service", "disable_on_destroy"},
    "google_storage_bucket": {"project", "name", "location", "uniform_bucket_level_access", "public_access_prevention",
                              "lifecycle_rule"},
    "google_service_account": {"project", "account_id", "display_name"},
    "google_project_iam_custom_role": {"project", "role_id", "title", "permissions"},
    "google_project_iam_member": {"project", "role", "member", "condition"},
    "google_storage_bucket_iam_member": {"bucket", "role", "member", "condition"},
    "google_service_account_iam_member": {"service_account_id", "role", "member"},
}  # fmt: skip
"""As the provider documents them, of those that a set-up needs."""


def test_the_gcloud_commands_are_those_of_the_golden_file() -> None:
    assert setup_script(plan_setup(WANTED), "/home/ada/settings.yaml") == (GOLDEN / "init.sh").read_text()


def every_step() -> list[Step]:
    return [
        *plan_setup(WANTED),
        MendBucket("b", uniform=True, private=True, lifecycle=True),
        MendBucket("b", uniform=False, private=False, lifecycle=True),
        MakeRole("p", "r", "it's a title", ("x.y.z",), exists=True),
        GrantRole("project", "p", "roles/viewer", ADA, Condition("t", "a == 'b' && c.d(\"e\")")),
    ]


def ran(script: str, folder: Path) -> list[list[str]]:
    """Runs a script with a `gcloud` that notes its arguments, and the content of a file that it is given."""
    log = folder / "asked"
    program = folder / "gcloud"
    program.write_text(
        "#!/usr/bin/env python3\nimport json, os, sys\n"
        "said = [a.partition('=')[0] + '=' + open(os.path.realpath(a.partition('=')[2])).read()\n"
        "        if a.startswith('--lifecycle-file=') else a for a in sys.argv[1:]]\n"
        f"open({str(log)!r}, 'a').write(json.dumps(said) + '\\n')\n"
    )
    program.chmod(0o755)
    shutil.copy(program, folder / "bench")
    path = f"{folder}:{os.environ['PATH']}"
    environment = {"PATH": path, "TMPDIR": str(folder)}
    subprocess.run(["bash", "-euc", script], check=True, env=environment, stdin=subprocess.DEVNULL, timeout=600)
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.parametrize("step", every_step(), ids=describe_step)
def test_every_printed_remedy_is_a_whole_command_that_ends_by_itself(step: Step, tmp_path: Path) -> None:
    for text in (step_command(step), one_line_command(step)):
        subprocess.run(["bash", "-n", "-c", text], check=True, timeout=600)
    if isinstance(step, WriteSettings):
        return
    assert "\n" not in one_line_command(step)
    asked_for = ran(one_line_command(step), tmp_path)
    assert asked_for
    with_rules = [one for arguments in asked_for for one in arguments if one.startswith("--lifecycle-file=")]
    wanted = isinstance(step, MakeBucket) or (isinstance(step, MendBucket) and step.lifecycle)
    assert [json.loads(one.partition("=")[2]) for one in with_rules] == ([LIFECYCLE] if wanted else [])


def test_the_whole_script_gives_the_bucket_its_rules(tmp_path: Path) -> None:
    asked_for = ran(setup_script(plan_setup(WANTED)), tmp_path)
    assert sum(one.startswith("--lifecycle-file=") for arguments in asked_for for one in arguments) == 1


@pytest.mark.parametrize(
    "step",
    [
        MakeAccount("p", "a", "t"),
        MakeRole("p", "r", "t", ("x.y.z",)),
        GrantRole("project", "p", "roles/viewer", ADA),
        GrantRole("account", "p", "roles/viewer", ADA, email="a@p"),
    ],
    ids=describe_step,
)
def test_an_api_that_was_enabled_a_moment_ago_is_asked_again_for_some_minutes(step: Any) -> None:
    off = refusal(403, "it is off", "SERVICE_DISABLED")
    assert off.api_off
    for times in (1, 5):
        answers = iter([off] * times)
        talk = lead(take_step, step, reply=lambda _, answers=answers: next(answers, good(etag="e", bindings=[])))  # type: ignore[misc]
        assert talk.result.good
        assert talk.paused_s == list(TOO_YOUNG_S[:times])
    talk = lead(take_step, step, reply=lambda _: off)
    assert not talk.result.good
    assert 120 < sum(talk.paused_s) < 300
    assert "owner" not in failure(talk.result, "make it").hint


def test_the_terraform_is_that_of_the_golden_file_and_names_what_the_provider_knows() -> None:
    text = terraform_document(plan_setup(WANTED))
    assert text == (GOLDEN / "init.tf.json").read_text()
    assert set(parsed(text)) == {"//", "terraform", "resource"}
    made = resources_of(text)
    kinds = [address.partition(".")[0] for address in made]
    assert kinds.count("google_project_service") == len(APIS)
    assert set(kinds) == set(ARGUMENTS)
    for address, body in made.items():
        assert set(body) - {"depends_on"} <= ARGUMENTS[address.partition(".")[0]], address
        assert re.fullmatch(r"[a-z_]+\.[A-Za-z_][A-Za-z0-9_-]*", address)
        conditions = body.get("condition", [])
        assert all(set(one) == {"title", "expression"} for one in conditions)
    rules = made["google_storage_bucket.bench"]["lifecycle_rule"]
    assert [set(rule) for rule in rules] == [{"action", "condition"}] * len(LIFECYCLE["rule"])


def test_terraform_refers_only_to_what_it_declares() -> None:
    everything = terraform_document(plan_setup(WANTED))
    missing_one = terraform_document(plan_setup(WANTED, replace(after_all_of_it(), on_project=frozenset())))
    for text in (everything, missing_one):
        made = resources_of(text)
        needed = {address for body in made.values() for address in body.get("depends_on", ())}
        named = set(re.findall(r"(?<!\$)\$\{(\w+\.\w+)\.name\}", text))
        assert needed | named <= set(made)
    assert '"projects/my-project/roles/benchMachine"' in missing_one


def test_what_is_granted_on_the_project_waits_for_resource_manager_and_for_its_role() -> None:
    made = resources_of(terraform_document(plan_setup(WANTED)))
    members = {address: body for address, body in made.items() if address.startswith("google_project_iam_member.")}
    assert len(members) == 3
    for body in members.values():
        assert "google_project_service.cloudresourcemanager" in body["depends_on"]
        assert body["role"].startswith("${google_project_iam_custom_role.") or body["role"] == BATCH_REPORTER


def test_what_looks_like_a_template_in_a_name_is_text_in_terraform() -> None:
    text = terraform_document([MakeAccount("p", "a", "${oops} %{oops}")])
    (account,) = resources_of(text).values()
    assert account["display_name"] == "$${oops} %%{oops}"


def test_a_bucket_that_is_mended_and_a_role_that_is_changed_are_printed_too() -> None:
    steps = [
        MendBucket("b", uniform=True, private=True, lifecycle=True),
        MendBucket("b", uniform=False, private=False, lifecycle=True),
        MendBucket("b", uniform=True, private=False, lifecycle=False),
        MakeRole("p", "r", "t", ("x.y.z",), exists=True),
        GrantRole("project", "p", "roles/viewer", ADA, Condition("t", "true")),
    ]
    script = setup_script(steps)
    assert script.count("--uniform-bucket-level-access") == 2
    assert script.count("--lifecycle-file") == 2
    assert "roles update r" in script
    assert [describe_step(step) for step in steps][3] == "change the role r (t): 1 permission"
    assert set(resources_of(terraform_document(steps[1:2]))) == {"google_storage_bucket.bench"}
