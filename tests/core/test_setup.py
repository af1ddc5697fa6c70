"""What a set-up plans, prints and sends: nothing twice, nothing wider than it must be."""

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
from orchestrator.core.market.places import continent, near
from orchestrator.core.permissions import ACCOUNT, BATCH, BATCH_REPORTER, BUCKET, LAUNCHER, LOOKER, MACHINE, names
from orchestrator.core.setup import gcloud, terraform
from orchestrator.core.setup.asked import wanted as asked
from orchestrator.core.setup.calls import PAUSES_S, TOO_YOUNG_S, survey, take, with_grant
from orchestrator.core.setup.plan import (
    APIS,
    LAUNCHER_ROLE,
    MACHINE_ROLE,
    NOTHING,
    OWN_MACHINES,
    Grant,
    Standing,
    Wanted,
    grants,
    setup,
)
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
    WriteSettings,
    describe,
)
from tests.support.conversations import good, lead, refusal

GOLDEN = Path(__file__).parent / "golden"
ADA = "user:ada@example.com"
WANTED = Wanted(
    "my-project", "my-bench", launcher=ADA, budget=(("per_run_usd", Decimal("1.00")), ("per_day_usd", Decimal("5.00")))
)
CAREFUL = {
    "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "enforced"},
    "lifecycle": LIFECYCLE,
}


def after_all_of_it() -> Standing:
    """What there is once every step of `WANTED` has been taken."""
    on_project, on_bucket, on_account = set(), set(), set()
    roles, values, caps, apis = {}, {}, dict[str, str](), frozenset[str]()
    for step in setup(WANTED):
        match step:
            case EnableApis():
                apis = frozenset(step.apis)
            case MakeRole():
                roles[step.role_id] = frozenset(step.permissions)
            case GrantOnProject():
                on_project.add(Grant(step.role, step.member, step.condition.expression if step.condition else ""))
            case GrantOnBucket():
                on_bucket.add(Grant(step.role, step.member, step.condition.expression if step.condition else ""))
            case GrantOnAccount():
                on_account.add(Grant(step.role, step.member))
            case WriteSettings():
                values = dict(step.values)
            case ShareCaps():
                caps = {str(window): str(usd) for window, usd in step.caps}
            case _:
                pass
    granted = frozenset(on_project), frozenset(on_bucket), frozenset(on_account)
    return Standing(apis, CAREFUL, True, roles, *granted, values, caps)


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


def test_a_second_time_there_is_nothing_to_do() -> None:
    assert setup(WANTED, after_all_of_it()) == ()


@pytest.mark.parametrize("number", range(len(setup(WANTED))))
def test_whatever_single_step_is_missing_is_the_one_that_is_planned(number: int) -> None:
    standing, step = after_all_of_it(), setup(WANTED)[number]
    match step:
        case EnableApis():
            lacking = replace(standing, apis=frozenset())
        case MakeBucket():
            lacking = replace(standing, bucket=None)
        case MakeAccount():
            lacking = replace(standing, account=False)
        case MakeRole():
            lacking = replace(standing, roles={k: v for k, v in standing.roles.items() if k != step.role_id})
        case GrantOnProject():
            gone = {grant for grant in standing.on_project if grant.role == step.role}
            lacking = replace(standing, on_project=standing.on_project - gone)
        case GrantOnBucket():
            expression = step.condition.expression if step.condition else ""
            lacking = replace(standing, on_bucket=standing.on_bucket - {Grant(step.role, step.member, expression)})
        case GrantOnAccount():
            lacking = replace(standing, on_account=frozenset())
        case ShareCaps():
            lacking = replace(standing, caps={})
        case _:
            lacking = replace(standing, settings={})
    assert setup(WANTED, lacking) == (step,)


def test_a_cap_that_somebody_has_set_for_the_bucket_is_left_as_it_is() -> None:
    standing = replace(after_all_of_it(), caps={"day": "900"})
    (step,) = setup(WANTED, standing)
    assert step == ShareCaps("my-project", "my-bench", (("run", Decimal("1.00")),))
    assert gcloud.command(step) == "bench --project my-project --bucket my-bench budget set --run 1.00"


def test_the_machine_may_delete_machines_of_bench_and_nothing_else_of_the_project() -> None:
    steps = setup(replace(WANTED, launcher=""))
    made = [step for step in steps if isinstance(step, MakeRole)]
    assert [(step.role_id, step.permissions) for step in made] == [(MACHINE_ROLE, names(MACHINE))]
    granted, reports = (step for step in steps if isinstance(step, GrantOnProject))
    assert granted.condition == OWN_MACHINES
    assert reports.role == BATCH_REPORTER, "which lets it say how its own task is, and nothing else"
    assert {type(step) for step in steps if getattr(step, "member", "") == ADA} == set()


def test_a_role_that_grew_keeps_what_somebody_added_to_it() -> None:
    roles = {**after_all_of_it().roles, LAUNCHER_ROLE: frozenset({"compute.disks.get"})}
    (step,) = setup(WANTED, replace(after_all_of_it(), roles=roles))
    assert isinstance(step, MakeRole)
    assert step.exists
    assert set(step.permissions) == {*names(LAUNCHER, LOOKER, BATCH), "compute.disks.get"}


def test_a_bucket_is_mended_where_it_is_kept_otherwise_and_rules_of_others_do_not_matter() -> None:
    bare = replace(after_all_of_it(), bucket={"location": "US"})
    assert setup(WANTED, bare) == (MendBucket("my-bench", uniform=True, private=True, lifecycle=True),)
    more = {"rule": [{"action": {"type": "Delete"}, "condition": {"age": 1}}, *LIFECYCLE["rule"]]}
    assert setup(WANTED, replace(bare, bucket=CAREFUL | {"lifecycle": more})) == ()


def test_settings_that_say_otherwise_are_named_before_they_are_replaced() -> None:
    standing = replace(after_all_of_it(), settings={**after_all_of_it().settings, "bucket": "other"})
    (step,) = setup(WANTED, standing)
    assert step == WriteSettings((("bucket", "my-bench"),), ("bucket",))
    assert "replaces bucket" in describe(step)
    practice = setup(replace(WANTED, keeps_names=False))[-2]
    assert isinstance(practice, WriteSettings)
    assert [key for key, _ in practice.values] == ["per_run_usd", "per_day_usd"]


def test_every_permission_is_listed_once_and_the_bucket_role_is_no_wider_than_the_code() -> None:
    every = [need.permission for group in (LAUNCHER, LOOKER, BATCH, BUCKET, ACCOUNT) for need in group]
    assert len(every) == len(set(every))
    assert all(need.why and need.code for group in (LAUNCHER, LOOKER, BUCKET, ACCOUNT, MACHINE) for need in group)


# --- printed --------------------------------------------------------------------------------------------------------


def test_the_gcloud_commands_are_those_of_the_golden_file() -> None:
    assert gcloud.script(setup(WANTED), "/home/ada/settings.yaml") == (GOLDEN / "init.sh").read_text()


class ResourceName(str):
    """A resource's name with IAM's `extract`: what stands where the template has its braces, or nothing."""

    def extract(self, template: str) -> str:
        before, _, rest = template.partition("{")
        after = rest.partition("}")[2]
        if before not in self or after not in self.partition(before)[2]:
            return ""
        tail = self.partition(before)[2]
        return tail.partition(after)[0] if after else tail


def allowed(name: str, permission: str, *, bucket: str = "my-bench") -> bool:
    """Whether the machine's account may do that with an object, by the expressions that are granted: evaluated here as
    the Common Expression Language has it, for the few forms that they use."""
    roles = {
        "roles/storage.objectUser": {"create", "get", "list", "delete"},
        "roles/storage.objectViewer": {"get", "list"},
    }
    of_bucket = permission == "list"  # Cloud Storage asks for it on the bucket itself
    resource = {
        "type": "storage.googleapis.com/Bucket" if of_bucket else "storage.googleapis.com/Object",
        "name": f"projects/_/buckets/{bucket}" + ("" if of_bucket else f"/objects/{name}"),
    }
    for step in setup(WANTED):
        if not isinstance(step, GrantOnBucket) or not step.member.startswith("serviceAccount:"):
            continue
        assert step.condition is not None, "nothing on the bucket without a condition"
        python = step.condition.expression.replace("&&", " and ").replace("||", " or ")
        python = re.sub(r"!(?!=)", " not ", python).replace("startsWith", "startswith").replace("endsWith", "endswith")
        python = python.replace("resource.type", "kind").replace("resource.name", "name")
        held = eval(python, {"__builtins__": {}}, {"kind": resource["type"], "name": ResourceName(resource["name"])})
        if held and permission in roles[step.role]:
            return True
    return False


EVENTS = "runs/20261121-040506-l4-7f3a/events/"


@pytest.mark.parametrize(
    ("name", "permissions"),
    [
        ("runs/20261121-040506-l4-7f3a/events/x.json", {"create", "get", "delete", "list"}),
        ("runs/20261121-040506-l4-7f3a/cases/a.csv", {"create", "get", "delete", "list"}),
        (f"{EVENTS}20261121T040506.000000Z-vm-1-0a1b2c3d-000001-vm_booted.json", {"create", "get", "delete", "list"}),
        (f"{EVENTS}20261121T040506.000000Z-boot-1-000001-vm_booted.json", {"create", "get", "delete", "list"}),
        (f"{EVENTS}20261121T040506.000000Z-client-0a1b2c-000001-machine_taken.json", {"list"}),
        ("runs/20261121-040506-l4-7f3a/cases/client-side.csv", {"create", "get", "delete", "list"}),
        ("runs/20261121-040506-l4-7f3a/plan.json", {"list"}),
        ("machines/bench-20261121-040506-l4-7f3a-1.json", {"create", "get", "delete", "list"}),
        ("payloads/ab.tar.gz", {"get", "list"}),
        ("ledger/ledger.json", {"list"}),
        ("index/20261121-040506-l4-7f3a.json", {"list"}),
        ("hosts/host-box-123456.json", {"list"}),
        ("baselines/main.json", {"list"}),
        ("fleets/fleet-20261121-040506-7f3a/control.json", {"list"}),
        ("placement/g2-standard-4.json", {"list"}),
        ("xruns/a", {"list"}),
    ],
)
def test_a_machines_account_reaches_its_runs_and_slots_and_no_money(name: str, permissions: set[str]) -> None:
    assert {one for one in ("create", "get", "delete", "list") if allowed(name, one)} == permissions


def test_a_machines_account_reaches_no_other_bucket() -> None:
    assert not any(allowed("runs/a/cases/x.csv", one, bucket="my-bench-2") for one in ("create", "get", "delete"))


def every_step() -> list[Step]:
    return [
        *setup(WANTED),
        MendBucket("b", uniform=True, private=True, lifecycle=True),
        MendBucket("b", uniform=False, private=False, lifecycle=True),
        MakeRole("p", "r", "it's a title", ("x.y.z",), exists=True),
        GrantOnProject("p", "roles/viewer", ADA, Condition("t", "a == 'b' && c.d(\"e\")")),
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
    subprocess.run(
        ["bash", "-euc", script],
        check=True,
        env={"PATH": path, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        timeout=600,
    )
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.parametrize("step", every_step(), ids=describe)
def test_every_printed_remedy_is_a_whole_command_that_ends_by_itself(step: Step, tmp_path: Path) -> None:
    for text in (gcloud.command(step), gcloud.pasted(step)):
        subprocess.run(["bash", "-n", "-c", text], check=True, timeout=600)
    if isinstance(step, WriteSettings):
        return
    assert "\n" not in gcloud.pasted(step)
    asked_for = ran(gcloud.pasted(step), tmp_path)
    assert asked_for
    with_rules = [one for arguments in asked_for for one in arguments if one.startswith("--lifecycle-file=")]
    wanted = isinstance(step, MakeBucket) or (isinstance(step, MendBucket) and step.lifecycle)
    assert [json.loads(one.partition("=")[2]) for one in with_rules] == ([LIFECYCLE] if wanted else [])


def test_the_whole_script_gives_the_bucket_its_rules(tmp_path: Path) -> None:
    asked_for = ran(gcloud.script(setup(WANTED)), tmp_path)
    assert sum(one.startswith("--lifecycle-file=") for arguments in asked_for for one in arguments) == 1


@pytest.mark.skipif(shutil.which("gcloud") is None, reason="there is no gcloud here")
def test_gclouds_own_parser_takes_every_printed_command(tmp_path: Path) -> None:
    nowhere = {**os.environ, "CLOUDSDK_CONFIG": str(tmp_path), "CLOUDSDK_CORE_DISABLE_PROMPTS": "1"}
    steps = [step for step in every_step() if not isinstance(step, WriteSettings | ShareCaps)]
    # Values are the shell's: gcloud parses names, so one of each command with the same flags is enough.
    of_a_kind = {(type(step), *re.findall(r"--[a-z-]+", gcloud.pasted(step))): step for step in steps}
    for step in of_a_kind.values():
        said = subprocess.run(
            ["bash", "-c", gcloud.pasted(step)], env=nowhere, capture_output=True, text=True, timeout=600, check=False
        ).stderr
        assert "argument" not in said.lower(), said


@pytest.mark.parametrize(
    "step",
    [
        MakeAccount("p", "a", "t"),
        MakeRole("p", "r", "t", ("x.y.z",)),
        GrantOnProject("p", "roles/viewer", ADA),
        GrantOnAccount("p", "a@p", "roles/viewer", ADA),
    ],
    ids=describe,
)
def test_an_api_that_was_enabled_a_moment_ago_is_asked_again_for_some_minutes(step: Any) -> None:
    off = refusal(403, "it is off", "SERVICE_DISABLED")
    assert off.api_off
    for times in (1, 5):
        answers = iter([off] * times)
        talk = lead(take, step, reply=lambda _, answers=answers: next(answers, good(bindings=[])))  # type: ignore[misc]
        assert talk.result.good
        assert talk.paused_s == list(TOO_YOUNG_S[:times])
    talk = lead(take, step, reply=lambda _: off)
    assert not talk.result.good
    assert 120 < sum(talk.paused_s) < 300
    assert "owner" not in failure(talk.result, "make it").hint


def test_the_terraform_is_that_of_the_golden_file_and_names_what_the_provider_knows() -> None:
    text = terraform.document(setup(WANTED))
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
    everything = terraform.document(setup(WANTED))
    missing_one = terraform.document(setup(WANTED, replace(after_all_of_it(), on_project=frozenset())))
    for text in (everything, missing_one):
        made = resources_of(text)
        needed = {address for body in made.values() for address in body.get("depends_on", ())}
        named = set(re.findall(r"(?<!\$)\$\{(\w+\.\w+)\.name\}", text))
        assert needed | named <= set(made)
    assert '"projects/my-project/roles/benchMachine"' in missing_one


def test_what_is_granted_on_the_project_waits_for_resource_manager_and_for_its_role() -> None:
    made = resources_of(terraform.document(setup(WANTED)))
    members = {address: body for address, body in made.items() if address.startswith("google_project_iam_member.")}
    assert len(members) == 3
    for body in members.values():
        assert "google_project_service.cloudresourcemanager" in body["depends_on"]
        assert body["role"].startswith("${google_project_iam_custom_role.") or body["role"] == BATCH_REPORTER


def test_what_looks_like_a_template_in_a_name_is_text_in_terraform() -> None:
    text = terraform.document([MakeAccount("p", "a", "${oops} %{oops}")])
    (account,) = resources_of(text).values()
    assert account["display_name"] == "$${oops} %%{oops}"


def test_a_bucket_that_is_mended_and_a_role_that_is_changed_are_printed_too() -> None:
    steps = [
        MendBucket("b", uniform=True, private=True, lifecycle=True),
        MendBucket("b", uniform=False, private=False, lifecycle=True),
        MendBucket("b", uniform=True, private=False, lifecycle=False),
        MakeRole("p", "r", "t", ("x.y.z",), exists=True),
        GrantOnProject("p", "roles/viewer", ADA, Condition("t", "true")),
    ]
    script = gcloud.script(steps)
    assert script.count("--uniform-bucket-level-access") == 2
    assert script.count("--lifecycle-file") == 2
    assert "roles update r" in script
    assert [describe(step) for step in steps][3] == "change the role r (t): 1 permission"
    assert set(resources_of(terraform.document(steps[1:2]))) == {"google_storage_bucket.bench"}


# --- sent -----------------------------------------------------------------------------------------------------------


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
    seen = lead(survey, WANTED, {"bucket": "b"}, reply=replies)
    assert seen.result == Standing(
        frozenset({"a"}),
        {"location": "US"},
        True,
        {"benchMachine": frozenset({"x"})},
        *[grants(policy)] * 3,
        {"bucket": "b"},
    )
    assert lead(survey, WANTED, {}, reply=lambda _: refusal(403)).result == NOTHING


def test_apis_are_enabled_when_the_operation_says_so() -> None:
    step = EnableApis("p", ("a",))
    talk = lead(
        take,
        step,
        reply={":batchEnable": good(name="operations/o"), "operations/o": [good(name="operations/o"), good(done=True)]},
    )
    assert (talk.result.good, len(talk.paused_s)) == (True, 2)
    failed = lead(take, step, reply={":batchEnable": good(done=True, error={"message": "billing"})})
    assert (failed.result.good, failed.result.message) == (False, "billing")
    assert lead(take, step, reply={":batchEnable": refusal(403)}).result.status == 403
    for_ever = lead(
        take, step, reply={":batchEnable": good(name="operations/o"), "operations/o": good(name="operations/o")}
    )
    assert sum(for_ever.paused_s) == 2 * sum(PAUSES_S)


def test_what_somebody_else_made_meanwhile_is_success() -> None:
    assert lead(take, MakeAccount("p", "a", "t"), reply={"serviceAccounts": refusal(409)}).result.good
    assert lead(take, MakeAccount("p", "a", "t"), reply={"serviceAccounts": refusal(403)}).result.status == 403
    role = MakeRole("p", "r", "t", ("x",))
    talk = lead(take, role, reply={"POST /v1/projects/p/roles": refusal(409), "PATCH": good()})
    assert (talk.result.good, talk.lines) == (True, ["POST /v1/projects/p/roles", "PATCH /v1/projects/p/roles/r"])
    assert lead(take, role, reply={"POST /v1/projects/p/roles": good()}).lines == ["POST /v1/projects/p/roles"]
    assert lead(take, replace(role, exists=True), reply={"PATCH": good()}).lines == ["PATCH /v1/projects/p/roles/r"]


@pytest.mark.parametrize(
    ("step", "read", "write"),
    [
        (GrantOnProject("p", "r", ADA), "POST /v3/projects/p:getIamPolicy", "POST /v3/projects/p:setIamPolicy"),
        (GrantOnBucket("b", "r", ADA), "GET /storage/v1/b/b/iam", "PUT /storage/v1/b/b/iam"),
        (GrantOnAccount("p", "e", "r", ADA), "POST /v1/projects/p/serviceAccounts/e:getIamPolicy", "POST /v1/projects/p/serviceAccounts/e:setIamPolicy"),
    ],
)  # fmt: skip
def test_a_grant_is_read_changed_and_written_again_when_the_policy_changed_meanwhile(
    step: Any, read: str, write: str
) -> None:
    replies = {write: [refusal(409), refusal(400), good()], read: good(etag="e", bindings=[])}
    talk = lead(take, step, reply=replies)
    assert talk.result.good
    assert talk.lines == [read, write] * 3
    assert talk.paused_s == list(PAUSES_S[:2])
    held = {read: good(bindings=[{"role": "r", "members": [ADA]}])}
    assert lead(take, step, reply=held).lines == [read]
    assert lead(take, step, reply={read: refusal(403)}).result.status == 403
    assert lead(take, step, reply={read: good(), write: refusal(403)}).result.status == 403
    assert lead(take, step, reply={read: good(), write: refusal(409)}).result.status == 409


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


# --- asked for ------------------------------------------------------------------------------------------------------


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
    assert found == Wanted("my-project", "my-bench", "eu", launcher=ADA, budget=(("per_run_usd", Decimal(2)),))
    assert found.email == "bench-vm@my-project.iam.gserviceaccount.com"


def test_a_bucket_is_near_its_own_region_or_those_of_its_continent() -> None:
    zones = ("us-central1-a", "us-central1-b", "europe-west4-a", "northamerica-northeast1-b")
    assert near("US-CENTRAL1", zones) == ("us-central1",)
    assert near("us", zones) == ("us-central1", "northamerica-northeast1")
    assert near("EUR4", zones) == ("europe-west4",)
    assert near("asia", zones) == ()
    assert [continent(place) for place in ("EU", "europe-west1", "northamerica-northeast1", "US")] == [
        "europe",
        "europe",
        "us",
        "us",
    ]
