"""The gcloud commands and the Terraform that a set-up prints."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.adapters.setup import failure
from orchestrator.core.permissions import BATCH_REPORTER
from orchestrator.core.setup import steps as st
from orchestrator.core.setup import terraform
from orchestrator.core.setup.calls import TOO_YOUNG_S, take_step
from orchestrator.core.setup.plan import APIS, plan_setup
from orchestrator.core.setup.steps import (
    LIFECYCLE,
    Condition,
    GrantRole,
    MakeAccount,
    MakeBucket,
    MakeRole,
    MendBucket,
    Step,
    WriteSettings,
    describe_step,
)
from tests.support.conversations import good, lead, refusal
from tests.unit.core.set_up import ADA, WANTED, after_all_of_it

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
    assert st.setup_script(plan_setup(WANTED), "/home/ada/settings.yaml") == (GOLDEN / "init.sh").read_text()


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
    subprocess.run(
        ["bash", "-euc", script],
        check=True,
        env={"PATH": path, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        timeout=600,
    )
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.parametrize("step", every_step(), ids=describe_step)
def test_every_printed_remedy_is_a_whole_command_that_ends_by_itself(step: Step, tmp_path: Path) -> None:
    for text in (st.step_command(step), st.one_line_command(step)):
        subprocess.run(["bash", "-n", "-c", text], check=True, timeout=600)
    if isinstance(step, WriteSettings):
        return
    assert "\n" not in st.one_line_command(step)
    asked_for = ran(st.one_line_command(step), tmp_path)
    assert asked_for
    with_rules = [one for arguments in asked_for for one in arguments if one.startswith("--lifecycle-file=")]
    wanted = isinstance(step, MakeBucket) or (isinstance(step, MendBucket) and step.lifecycle)
    assert [json.loads(one.partition("=")[2]) for one in with_rules] == ([LIFECYCLE] if wanted else [])


def test_the_whole_script_gives_the_bucket_its_rules(tmp_path: Path) -> None:
    asked_for = ran(st.setup_script(plan_setup(WANTED)), tmp_path)
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
    text = terraform.terraform_document(plan_setup(WANTED))
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
    everything = terraform.terraform_document(plan_setup(WANTED))
    missing_one = terraform.terraform_document(plan_setup(WANTED, replace(after_all_of_it(), on_project=frozenset())))
    for text in (everything, missing_one):
        made = resources_of(text)
        needed = {address for body in made.values() for address in body.get("depends_on", ())}
        named = set(re.findall(r"(?<!\$)\$\{(\w+\.\w+)\.name\}", text))
        assert needed | named <= set(made)
    assert '"projects/my-project/roles/benchMachine"' in missing_one


def test_what_is_granted_on_the_project_waits_for_resource_manager_and_for_its_role() -> None:
    made = resources_of(terraform.terraform_document(plan_setup(WANTED)))
    members = {address: body for address, body in made.items() if address.startswith("google_project_iam_member.")}
    assert len(members) == 3
    for body in members.values():
        assert "google_project_service.cloudresourcemanager" in body["depends_on"]
        assert body["role"].startswith("${google_project_iam_custom_role.") or body["role"] == BATCH_REPORTER


def test_what_looks_like_a_template_in_a_name_is_text_in_terraform() -> None:
    text = terraform.terraform_document([MakeAccount("p", "a", "${oops} %{oops}")])
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
    script = st.setup_script(steps)
    assert script.count("--uniform-bucket-level-access") == 2
    assert script.count("--lifecycle-file") == 2
    assert "roles update r" in script
    assert [describe_step(step) for step in steps][3] == "change the role r (t): 1 permission"
    assert set(resources_of(terraform.terraform_document(steps[1:2]))) == {"google_storage_bucket.bench"}
