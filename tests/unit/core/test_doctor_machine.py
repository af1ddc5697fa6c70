"""What is checked of a machine's account and network."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from orchestrator.core.doctor import here, machine
from orchestrator.core.doctor.here import HOST_CHECKS, CommandResult, HostCheck
from orchestrator.core.doctor.verdicts import CheckLevel, CheckVerdict
from orchestrator.core.hosts import HostTarget
from orchestrator.core.rest import RestAnswer
from orchestrator.core.setup.plan import OWN_MACHINES, machine_grants, older_own_objects
from orchestrator.core.setup.steps import MakeAccount
from tests.support.conversations import good, lead, refusal
from tests.unit.core.doctored import EMAIL, SUBJECT, verdict

NETWORK = "https://www.googleapis.com/compute/v1/projects/proj-1/global/networks/default"


def test_a_machine_without_an_account_of_its_own_may_do_too_much() -> None:
    bare = replace(SUBJECT, service_account=None)
    assert verdict(machine.check_account, {}, bare).level is CheckLevel.WARN
    assert verdict(machine.check_account, {}, replace(bare, embedded=True)).level is CheckLevel.OK
    assert "default" in verdict(machine.machine_rights, {}, bare).why
    assert verdict(machine.machine_rights, {}, replace(bare, embedded=True)).level is CheckLevel.OK


def test_an_account_is_there_enabled_and_may_be_used() -> None:
    assert verdict(machine.check_account, {}).steps == (MakeAccount("proj-1", "bench-vm", "machines of bench"),)
    theirs = replace(SUBJECT, service_account="vm@other.iam.gserviceaccount.com")
    foreign = verdict(machine.check_account, {}, theirs)
    assert (foreign.level, foreign.steps) == (CheckLevel.FAIL, ())
    assert lead(machine.check_account, theirs, reply={}).asked[0].path.startswith("/v1/projects/other/")
    default = replace(SUBJECT, service_account="12-compute@developer.gserviceaccount.com")
    assert lead(machine.check_account, default, reply={}).asked[0].path.startswith("/v1/projects/proj-1/")
    assert verdict(machine.check_account, lambda _: refusal(403)).level is CheckLevel.WARN
    tested = {":testIam": refusal(403), "/serviceAccounts/": good()}
    assert verdict(machine.check_account, tested).level is CheckLevel.WARN
    unusable = verdict(machine.check_account, {":testIam": good(), "/serviceAccounts/": good()})
    assert (unusable.level, len(unusable.steps)) == (CheckLevel.FAIL, 1)
    nobody = verdict(machine.check_account, {":testIam": good(), "/serviceAccounts/": good()}, replace(SUBJECT, who=""))
    assert (nobody.steps, "--member=user:YOUR_ADDRESS" in nobody.remedy) == ((), True)


def policy(*roles: str, condition: bool = False) -> RestAnswer:
    where = {"condition": {"title": "t", "expression": OWN_MACHINES.expression}} if condition else {}
    return good(bindings=[{"role": role, "members": [f"serviceAccount:{EMAIL}"], **where} for role in roles])


CAREFUL_POLICY = good(
    bindings=[
        {"role": one.role, "members": [one.member], "condition": {"expression": one.condition.expression}}
        for one in machine_grants("my-bench", f"serviceAccount:{EMAIL}")
        if one.condition is not None
    ]
)
OLDER_POLICY = good(
    bindings=[
        {
            "role": "roles/storage.objectUser",
            "members": [f"serviceAccount:{EMAIL}"],
            "condition": {"expression": older_own_objects("my-bench").expression},
        }
    ]
)
OWN_ROLE = "projects/proj-1/roles/benchMachine"


@pytest.mark.parametrize(
    ("on_bucket", "on_project", "level", "steps"),
    [
        (CAREFUL_POLICY, policy(OWN_ROLE, "roles/batch.agentReporter"), CheckLevel.OK, ()),
        (CAREFUL_POLICY, policy(OWN_ROLE, condition=True), CheckLevel.WARN, ("project",)),
        (policy("roles/storage.objectUser"), policy(OWN_ROLE, condition=True), CheckLevel.WARN, ()),
        (OLDER_POLICY, policy(OWN_ROLE, condition=True), CheckLevel.WARN, ()),
        (policy(), policy("roles/editor"), CheckLevel.OK, ()),
        (policy(), policy(OWN_ROLE), CheckLevel.FAIL, ("bucket", "bucket")),
        (
            policy("roles/storage.objectUser", condition=True),
            policy(OWN_ROLE),
            CheckLevel.FAIL,
            ("bucket", "bucket"),
        ),
        (policy("roles/storage.objectUser"), policy(), CheckLevel.WARN, ("MakeRole", "project")),
        (CAREFUL_POLICY, policy("projects/proj-1/roles/mine"), CheckLevel.OK, ()),
        (refusal(403), policy(OWN_ROLE), CheckLevel.WARN, ()),
        (policy("roles/storage.objectUser"), refusal(403), CheckLevel.WARN, ()),
    ],
)
def test_what_a_machine_may_do_is_read_from_the_policies(
    on_bucket: RestAnswer, on_project: RestAnswer, level: CheckLevel, steps: tuple[str, ...]
) -> None:
    found = verdict(machine.machine_rights, {"/b/": on_bucket, "/v3/": on_project})
    assert (found.level, tuple(getattr(step, "on", type(step).__name__) for step in found.steps)) == (level, steps)


def test_an_account_that_may_write_as_a_client_is_named_with_its_removal() -> None:
    found = verdict(machine.machine_rights, {"/b/": OLDER_POLICY, "/v3/": policy(OWN_ROLE)})
    assert "under a client's name" in found.why
    init, remove = found.remedy.split(" && ", 1)
    assert init.startswith("bench init --project ")
    words = shlex.split(remove)
    assert words[:4] == ["gcloud", "storage", "buckets", "remove-iam-policy-binding"]
    condition = f"expression={older_own_objects('my-bench').expression},title=runs and machines only"
    assert words[-1] == f"--condition={condition}"


def scoped(kind: str, *regions: str, **more: Any) -> RestAnswer:
    items = {f"regions/{name}": {kind: [{"name": "default", "network": NETWORK, **more}]} for name in regions}
    return good(items=items | {"regions/other": {"warning": {}}})


CLOSED = replace(
    SUBJECT, zones=("us-central1-a", "us-east4-a", "us-west1-a", "us-west4-a", "us-east1-b"), external_ip=False
)
REGIONS = CLOSED.regions


def test_a_network_must_have_a_subnet_where_machines_are_asked_for() -> None:
    here_ = {"global/networks": good(), "subnetworks": scoped("subnetworks", "us-central1")}
    assert "no subnet in 4 of 5" in verdict(machine.check_network, here_, replace(CLOSED, external_ip=True)).why
    nowhere = {"global/networks": good(), "subnetworks": scoped("subnetworks", "asia-east1")}
    assert "subnets create" in verdict(machine.check_network, nowhere, CLOSED).remedy
    legacy = {"global/networks": good(IPv4Range="10.0.0.0/8"), "subnetworks": good()}
    assert verdict(machine.check_network, legacy, replace(CLOSED, external_ip=True)).level is CheckLevel.OK
    assert (
        verdict(machine.check_network, {"global/networks": good(), "subnetworks": refusal(403)}).level
        is CheckLevel.WARN
    )


def test_a_shared_network_is_looked_for_in_the_project_that_owns_it() -> None:
    shared = replace(SUBJECT, network="projects/host-1/global/networks/common")
    assert (
        lead(machine.check_network, shared, reply={}).asked[0].path
        == "/compute/v1/projects/host-1/global/networks/common"
    )
    assert (
        lead(machine.check_network, replace(SUBJECT, network="common"), reply={})
        .asked[0]
        .path.endswith("proj-1/global/networks/common")
    )


def test_without_an_address_a_machine_needs_a_way_to_google_and_one_to_the_internet() -> None:
    base = {"global/networks": good(), "subnetworks": scoped("subnetworks", *REGIONS)}
    cut = verdict(machine.check_network, base | {"routers": scoped("routers", nats=[])}, CLOSED)
    assert (cut.level, "and 2 more" in cut.why) == (CheckLevel.FAIL, True)
    open_ = base | {"routers": scoped("routers", *REGIONS, nats=[{"name": "nat"}])}
    assert verdict(machine.check_network, open_, CLOSED).level is CheckLevel.OK
    private = {
        "global/networks": good(),
        "subnetworks": scoped("subnetworks", *REGIONS, privateIpGoogleAccess=True),
        "routers": good(),
    }
    assert verdict(machine.check_network, private, CLOSED).level is CheckLevel.WARN
    assert verdict(machine.check_network, private, replace(CLOSED, allow_install=False)).level is CheckLevel.OK
    assert verdict(machine.check_network, private | {"routers": refusal(403)}, CLOSED).level is CheckLevel.WARN


# What is checked of the computer that bench runs on.


def test_this_machines_python_and_libraries_are_new_enough_or_named() -> None:
    assert here.check_python((3, 12, 1)).level is CheckLevel.OK
    assert here.check_python((3, 10, 9)).level is CheckLevel.FAIL
    needed = ("typer>=0.20", "rich[all]>=13.9", "torch==2; extra == 'cpu'", "plain", ">=1")
    there = {"typer": "0.21rc1", "rich": "13.10", "plain": "odd"}
    assert here.check_libraries(needed, there).why == "3 libraries, all installed and new enough"
    assert here.check_libraries(needed, there | {"rich": "13.8"}).remedy == "pip install --upgrade rich"
    assert here.check_libraries(needed, {"rich": "1"}).remedy == "pip install --upgrade typer plain rich"
    assert here.parse_release("odd") == ()


def test_the_folder_the_files_and_the_prices_are_judged() -> None:
    assert here.check_home("/h", "read-only", 0, "export BENCH_HOME=/tmp/h").level is CheckLevel.FAIL
    assert here.check_home("/h", "", 10, "export BENCH_HOME=/tmp/h").level is CheckLevel.WARN
    assert here.check_home("/h", "", 1 << 40, "export BENCH_HOME=/tmp/h").level is CheckLevel.OK
    assert here.check_documents((), 5).level is CheckLevel.OK
    mine = here.check_documents((("my.yaml", "my.yaml:2: x\nmore"), ("l4", "y")), 5)
    assert (mine.why, mine.remedy) == ("my.yaml:2: x (and 1 more)", "bench plan my.yaml")
    assert here.check_documents((("l4", "--set budget.per_run_usd=x"),), 5).remedy == "bench plan --gpu l4"
    ages = [
        here.check_prices(date(2026, 6, 1), day).level
        for day in (date(2026, 5, 1), date(2026, 6, 9), date(2026, 12, 1))
    ]
    assert ages == [CheckLevel.WARN, CheckLevel.OK, CheckLevel.WARN]


def test_the_embedded_cloud_the_compiler_and_torch_matter_where_they_are_used() -> None:
    levels = {state: here.check_embedded(here.Embedded(state)).level for state in ("up", "down", "old", "stale")}
    assert levels == {"up": CheckLevel.OK, "down": CheckLevel.OK, "old": CheckLevel.WARN, "stale": CheckLevel.WARN}
    assert [here.check_compiler(path, uses).level for path, uses in (("/g++", True), ("", True), ("", False))] == [
        CheckLevel.OK,
        CheckLevel.FAIL,
        CheckLevel.OK,
    ]
    assert [here.check_torch(version, uses).level for version, uses in (("2", True), ("", True), ("", False))] == [
        CheckLevel.OK,
        CheckLevel.WARN,
        CheckLevel.OK,
    ]


# What plain commands on a host mean, and that none of them changes it.


BOX = HostTarget("ada", "box", 2222)


def judged(check: HostCheck, replies: Mapping[str, CommandResult]) -> CheckVerdict:
    """The verdict, where a command with one of these words in it is answered so, and any other is not found."""

    def run(line: str) -> CommandResult:
        assert not {"sudo", "install", "rm", "kill"} & set(line.split()), "it only looks"
        return next((ran for word, ran in replies.items() if word in line), CommandResult(127, "", "not found"))

    return check(run, BOX)


TOOLS = "a shell answers\n/usr/bin/bash\n/usr/bin/curl\n/usr/bin/tar\n/usr/bin/setsid\n"
NAMED = "NVIDIA L4, 23034 MiB\n"


@pytest.mark.parametrize(
    ("check", "replies", "level", "says"),
    [
        (here.check_reachable, {"command -v": CommandResult(0, TOOLS)}, CheckLevel.OK, "answers"),
        (
            here.check_reachable,
            {"command -v": CommandResult(255, "", "Permission denied\n")},
            CheckLevel.FAIL,
            "Permission denied",
        ),
        (
            here.check_reachable,
            {"command -v": CommandResult(0, "Fri Nov 27 2026\n")},
            CheckLevel.FAIL,
            "one command only",
        ),
        (here.check_reachable, {"command -v": CommandResult(255)}, CheckLevel.FAIL, "exit 255"),
        (
            here.check_reachable,
            {"command -v": CommandResult(0, "a shell answers\n/usr/bin/bash\n/usr/bin/tar")},
            CheckLevel.FAIL,
            "no curl, setsid",
        ),
        (here.check_gpu, {"name,": CommandResult(0, NAMED), "apps": CommandResult(0, "")}, CheckLevel.OK, "NVIDIA L4"),
        (here.check_gpu, {"name,": CommandResult(0, NAMED * 2), "apps": CommandResult(1)}, CheckLevel.OK, "and 1 more"),
        (
            here.check_gpu,
            {"name,": CommandResult(0, NAMED), "apps": CommandResult(0, "17\n[N/A]\n")},
            CheckLevel.WARN,
            "in use by 17",
        ),
        (here.check_gpu, {"lspci": CommandResult(0, "3D controller: NVIDIA")}, CheckLevel.FAIL, "no driver answers"),
        (here.check_gpu, {"lspci": CommandResult(0, "")}, CheckLevel.WARN, "no NVIDIA GPU"),
        (
            here.check_driver,
            {"driver_version": CommandResult(0, "580.95.05\n580.95.05\n")},
            CheckLevel.OK,
            "driver 580.95.05",
        ),
        (here.check_driver, {"driver_version": CommandResult(0, "550.1")}, CheckLevel.WARN, "older PyTorch"),
        (
            here.check_driver,
            {"driver_version": CommandResult(0, "470.1")},
            CheckLevel.FAIL,
            "too old for every PyTorch",
        ),
        (here.check_driver, {"driver_version": CommandResult(0, "?")}, CheckLevel.FAIL, "too old for every PyTorch"),
        (here.check_driver, {}, CheckLevel.WARN, "no NVIDIA driver"),
    ],
)
def test_a_host_is_judged_by_what_its_commands_say(
    check: HostCheck, replies: Mapping[str, CommandResult], level: CheckLevel, says: str
) -> None:
    found = judged(check, replies)
    assert (found.level, says in found.why) == (level, True), found
    assert bool(found.remedy) is (level is not CheckLevel.OK)


def test_a_remedy_on_a_host_is_one_command_with_its_port() -> None:
    assert here.ssh_command_line(BOX, "df -h") == "ssh -p 2222 ada@box 'df -h'"
    assert here.ssh_command_line(HostTarget("", "box", None), "df -h") == "ssh box 'df -h'"


def test_nothing_is_asked_of_a_host_that_does_not_answer() -> None:
    assert all(check.needs == ("host.reachable",) for check, _ in HOST_CHECKS[1:])
