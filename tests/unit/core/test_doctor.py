"""What the answers of a project mean: the corners that no weather reaches."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from orchestrator.core.doctor import capacity, here, machine, project
from orchestrator.core.doctor.checks import cloud_checks
from orchestrator.core.doctor.here import HOST_CHECKS, CommandResult, HostCheck
from orchestrator.core.doctor.verdicts import (
    CheckLevel,
    CheckResult,
    CheckVerdict,
    DoctorCheck,
    Identity,
    Subject,
    count_levels,
    crash_verdict,
    error_verdict,
    exit_code,
    fail_verdict,
    pass_verdict,
    proposed_fixes,
    skip_verdict,
    too_slow,
    warn_verdict,
)
from orchestrator.core.hosts import HostNeeds, HostTarget
from orchestrator.core.market.catalog import CATALOG, find_gpu
from orchestrator.core.permissions import BATCH, LAUNCHER, LOOKER, permission_names
from orchestrator.core.rest import RestAnswer, RestRequest, list_all_pages
from orchestrator.core.setup.plan import APIS, OWN_MACHINES, machine_grants, older_own_objects
from orchestrator.core.setup.steps import EnableApis, MakeAccount
from tests.support.conversations import OFF, SILENCE, good, lead, refusal
from tests.support.remedies import wrong_with

# A project's answers and what a check makes of them.


EMAIL = "bench-vm@proj-1.iam.gserviceaccount.com"
SUBJECT = Subject("proj-1", "my-bench", service_account=EMAIL, who="user:ada@example.com")


def verdict(check: Any, replies: Any, subject: Subject = SUBJECT) -> Any:
    """What a check finds, of which every remedy is a whole command."""
    found = lead(check, subject, reply=replies).result
    assert not isinstance(found, CheckVerdict) or not wrong_with(found.remedy)
    return found


L4 = find_gpu("l4")
assert L4 is not None
OK, WARN, FAIL = CheckLevel.OK, CheckLevel.WARN, CheckLevel.FAIL


# --- verdicts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "level", "remedy"),
    [
        (SILENCE, FAIL, "curl -sSI https://iam.googleapis.com/"),
        (refusal(401), FAIL, "gcloud auth application-default login"),
        (OFF, WARN, "gcloud services enable iam.googleapis.com --project=proj-1"),
        (refusal(403), WARN, "give"),
        (refusal(429), WARN, "bench doctor"),
        (refusal(500), WARN, "bench doctor"),
        (refusal(400), FAIL, "give"),
    ],
)
def test_an_answer_that_is_none_says_which_kind_of_trouble_it_is(
    answer: RestAnswer, level: CheckLevel, remedy: str
) -> None:
    found = error_verdict(answer, "proj-1", "iam.googleapis.com", "give")
    assert (found.level, found.remedy) == (level, remedy)


def test_a_page_ends_with_the_code_of_the_first_failure_and_each_fix_once() -> None:
    step = EnableApis("p", ("a",))
    listed = [
        CheckResult(DoctorCheck("a", "A", "here", exit_code=11), pass_verdict("")),
        CheckResult(DoctorCheck("b", "B", "gce", exit_code=10), warn_verdict("", "", step)),
        CheckResult(DoctorCheck("c", "C", "gce", exit_code=6), fail_verdict("", "do", step)),
        CheckResult(DoctorCheck("d", "D", "gce", exit_code=2), fail_verdict("")),
    ]
    assert exit_code(listed) == 6
    assert exit_code(listed[:2]) == 0
    assert proposed_fixes(listed) == (step,)
    assert count_levels(listed) == {OK: 1, WARN: 1, FAIL: 2, CheckLevel.SKIPPED: 0}
    by_name = {result.check.name: result for result in listed}
    assert skip_verdict(by_name, ("a", "b")) is None
    reason = skip_verdict(by_name, ("a", "c"))
    assert reason.why == "not checked, because this failed: C"
    assert "10 s" in too_slow(listed[0].check).why
    assert "odd" in crash_verdict("odd").why


def test_every_check_comes_after_what_it_needs_and_has_a_name_of_its_own() -> None:
    listed = [check for check, _ in cloud_checks(SUBJECT)]
    seen = {"credentials"}
    for check in listed:
        assert set(check.needs) <= seen, check.name
        assert check.name not in seen
        seen.add(check.name)
    cpu = find_gpu("cpu")
    assert cpu is not None
    assert "quota.all" not in {check.name for check, _ in cloud_checks(replace(SUBJECT, gpus=(cpu,)))}


# --- the project ----------------------------------------------------------------------------------------------------


def test_credentials_are_there_or_the_login_is_named() -> None:
    ada = project.check_credentials(Identity("a login", "user:ada@example.com"), "")
    assert ada.why == "a login of user:ada@example.com"
    assert project.check_credentials(Identity("a login"), "").level is OK
    assert project.check_credentials(None, "none").remedy == "gcloud auth application-default login"


def test_a_project_that_one_api_hides_is_looked_for_with_another() -> None:
    asked = "/v3/projects/proj-1"
    assert verdict(project.check_project, {asked: good()}).level is OK
    assert "undelete" in verdict(project.check_project, {asked: good(state="DELETE_REQUESTED")}).remedy
    assert verdict(project.check_project, {asked: SILENCE}).level is FAIL
    assert verdict(project.check_project, {asked: refusal(403), "/compute/": good()}).level is WARN
    assert verdict(project.check_project, {asked: refusal(403)}).remedy == "gcloud projects list"
    hidden = verdict(project.check_project, {asked: refusal(403), "/compute/": OFF})
    assert (hidden.level, hidden.steps) == (WARN, (EnableApis("proj-1", APIS),))
    assert verdict(project.check_project, {asked: OFF}).level is WARN


def test_what_may_not_be_looked_at_is_a_warning_and_not_a_guess() -> None:
    for check in (
        project.check_billing,
        project.check_apis,
        project.check_roles,
        project.check_object_rights,
        capacity.all_gpus,
        machine.check_network,
    ):
        assert verdict(check, lambda _: refusal(403)).level is WARN


def test_permissions_are_counted_and_those_to_look_matter_less() -> None:
    every = [*permission_names(LAUNCHER), *permission_names(LOOKER), *permission_names(BATCH)]
    path = ":testIamPermissions"
    assert verdict(project.check_roles, {path: good(permissions=every)}).level is OK
    blind = verdict(project.check_roles, {path: good(permissions=list(permission_names(LAUNCHER)))})
    assert (blind.level, "compute.routers.list" in blind.why) == (WARN, True)
    without_jobs = [name for name in every if name != "batch.jobs.create"]
    alone = verdict(project.check_roles, {path: good(permissions=without_jobs)})
    assert (alone.level, alone.why) == (WARN, "enough to launch; missing for fleets on Batch: batch.jobs.create")
    short = [name for name in every if name != "compute.subnetworks.useExternalIp"]
    lacking = verdict(project.check_roles, {path: good(permissions=short)})
    assert lacking.level is FAIL
    assert lacking.remedy == "bench init --project proj-1 --bucket my-bench --launcher user:ada@example.com"
    inward = replace(SUBJECT, external_ip=False)
    assert verdict(project.check_roles, {path: good(permissions=short)}, inward).level is OK


def test_apis_that_are_not_listed_are_off() -> None:
    assert verdict(project.check_apis, {"services": good()}).level is FAIL
    on = [{"name": f"projects/1/services/{api}", "state": "ENABLED"} for api in APIS]
    assert verdict(project.check_apis, {"services": good(services=on)}).level is OK
    assert verdict(project.check_apis, {"services": good(services=on[:2])}).level is WARN
    alone = verdict(project.check_apis, {"services": good(services=on[:-1])})
    assert (alone.level, alone.steps) == (WARN, (EnableApis("proj-1", ("batch.googleapis.com",)),))
    assert "launches work, fleets on Batch do not" in alone.why


def test_the_clock_is_held_against_any_answer_that_has_a_date() -> None:
    def at(skew: float | None) -> Any:
        return verdict(project.check_clock, {"/compute/": RestAnswer(403, skew_s=skew)})

    assert [at(skew).level for skew in (0.4, -4, 30, -61, None)] == [OK, OK, WARN, FAIL, WARN]
    assert "30 s behind" in at(30).why
    assert "61 s ahead" in at(-61).why
    embedded = replace(SUBJECT, embedded=True)
    assert "server's" in verdict(project.check_clock, {"/": RestAnswer(200, skew_s=0)}, embedded).why


# --- the bucket -----------------------------------------------------------------------------------------------------


def test_a_bucket_on_another_continent_is_worse_than_one_in_another_region() -> None:
    near = replace(SUBJECT, zones=("us-central1-a",))
    found = verdict(project.check_bucket, {"/b/": good(location="US-EAST1")}, near)
    assert (found.level, "continent" in found.why) == (WARN, False)
    assert "continent" in verdict(project.check_bucket, {"/b/": good(location="ASIA")}, near).why
    assert verdict(project.check_bucket, {"/b/": good(location="US")}, near).steps
    hidden = verdict(project.check_bucket, {"/b/": refusal(403)}, near)
    assert hidden.remedy.endswith("--role=roles/storage.legacyBucketReader")


HARMFUL = {
    "retention": ({"retentionPolicy": {"retentionPeriod": "604800"}}, "retention policy of 604800 s", "--clear-retention-period"),
    "locked retention": (
        {"retentionPolicy": {"retentionPeriod": "1", "isLocked": True}}, "locked", "bench init --bucket my-bench-bench"),
    "holds": ({"defaultEventBasedHold": True}, "hold on each object", "--no-default-event-based-hold"),
    "requester pays": ({"billing": {"requesterPays": True}}, "charges whoever asks", "--no-requester-pays"),
    "everything is deleted": (
        {"lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": {"age": 30}}]}}, "age 30)", "--clear-lifecycle"),
    "runs are deleted": (
        {"lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": {"age": 9, "matchesPrefix": ["runs/2026"]}}]}},
        "age 9)", "--clear-lifecycle"),
}  # fmt: skip


@pytest.mark.parametrize("name", HARMFUL)
def test_a_setting_of_the_bucket_that_breaks_a_ledger_is_named_with_its_remedy(name: str) -> None:
    settings, why, remedy = HARMFUL[name]
    found = verdict(project.check_bucket, {"/b/": good(location="US-CENTRAL1", **settings)})
    assert found.level is FAIL
    assert why in found.why
    assert remedy in found.remedy


@pytest.mark.parametrize("settings", [
    {"lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": {"age": 180, "matchesPrefix": ["payloads/"]}}]}},
    {"lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": {"isLive": False, "numNewerVersions": 3}}]}},
    {"autoclass": {"enabled": True}, "encryption": {"defaultKmsKeyName": "k"}, "versioning": {"enabled": True}},
])  # fmt: skip
def test_other_settings_of_a_bucket_are_left_alone(settings: dict[str, Any]) -> None:
    assert verdict(project.check_bucket, {"/b/": good(location="US-CENTRAL1", **settings)}).level is not FAIL


# --- what may be had ------------------------------------------------------------------------------------------------


def region(name: str, **limits: float) -> dict[str, Any]:
    return {
        "name": name,
        "quotas": [{"metric": metric, "limit": limit, "usage": 0} for metric, limit in limits.items()],
    }


def test_a_gpu_that_nobody_asked_for_and_that_cannot_be_had_is_a_warning() -> None:
    none = good(items=[region("us-central1", NVIDIA_L4_GPUS=0, PREEMPTIBLE_NVIDIA_L4_GPUS=0)])
    narrow = replace(SUBJECT, gpus=(L4,), zones=("us-central1-a",))
    check = capacity.of_gpu(L4)
    assert verdict(check, {"/regions": none}, narrow).level is WARN
    assert verdict(check, {"/regions": none}, replace(narrow, chosen=True)).level is FAIL
    standard = good(items=[region("us-central1", NVIDIA_L4_GPUS=1, PREEMPTIBLE_NVIDIA_L4_GPUS=0.5)])
    assert "no spot quota; on demand" in verdict(check, {"/regions": standard}, narrow).why
    assert verdict(check, {"/regions": refusal(403)}, narrow).level is WARN
    h100 = find_gpu("h100")
    assert h100 is not None
    only_spot = good(items=[region("us-central1", PREEMPTIBLE_NVIDIA_H100_GPUS=1)])
    found = verdict(capacity.of_gpu(h100), {"/regions": only_spot}, replace(narrow, gpus=(h100,)))
    assert found.why == "spot and flex-start in 1 of 1 region (us-central1)"


def test_a_project_that_lists_no_limit_on_all_gpus_is_a_warning() -> None:
    assert verdict(capacity.all_gpus, {"/projects/": good(quotas=[{"limit": 1}])}).level is WARN


def test_a_retiring_image_is_a_warning_and_one_without_a_successor_names_the_list() -> None:
    check = capacity.of_image("ubuntu-os-cloud", "ubuntu-2404-lts-amd64")
    soon = good(name="u", deprecated={"state": "ACTIVE", "obsolete": "2027-01-01"})
    assert verdict(check, {"/family/": soon}).level is WARN
    assert "ubuntu-os-cloud" in verdict(check, {}).remedy
    assert verdict(check, {"/family/": SILENCE}).level is FAIL
    old = good(items=[{"family": "ubuntu-2404-lts-amd64", "deprecated": {"state": "OBSOLETE"}}])
    assert "is obsolete" in verdict(check, {"/family/": refusal(404), "/images": old}).why
    renamed = good(items=[{"family": "ubuntu-2404-lts"}, "?"])
    foreign = capacity.of_image("mine", "ubuntu-2404-lts-amd64")
    other = verdict(foreign, {"/family/": refusal(404), "/images": renamed})
    assert other.remedy == "bench plan --gpu l4 --set machine.image_family=ubuntu-2404-lts"


def test_by_default_the_whole_catalog_is_of_interest() -> None:
    assert SUBJECT.gpus == CATALOG
    assert len(SUBJECT.every_image) == 2


def test_that_capacity_advice_is_not_used_for_want_of_a_permission_is_said() -> None:
    held = [
        name for name in (*permission_names(LAUNCHER), *permission_names(LOOKER)) if name != "compute.advice.capacity"
    ]
    found = verdict(project.check_roles, {":testIam": good(permissions=held)})
    assert (found.level, found.remedy) == (WARN, SUBJECT.set_up)
    assert "without Google's capacity advice" in found.why
    without_routers = [
        name for name in (*permission_names(LAUNCHER), *permission_names(LOOKER)) if name != "compute.routers.list"
    ]
    assert "advice" not in verdict(project.check_roles, {":testIam": good(permissions=without_routers)}).why


# What is checked of a machine's account and network.


NETWORK = "https://www.googleapis.com/compute/v1/projects/proj-1/global/networks/default"


def test_a_machine_without_an_account_of_its_own_may_do_too_much() -> None:
    bare = replace(SUBJECT, service_account=None)
    assert verdict(machine.check_account, {}, bare).level is WARN
    assert verdict(machine.check_account, {}, replace(bare, embedded=True)).level is OK
    assert "default" in verdict(machine.machine_rights, {}, bare).why
    assert verdict(machine.machine_rights, {}, replace(bare, embedded=True)).level is OK


def test_an_account_is_there_enabled_and_may_be_used() -> None:
    assert verdict(machine.check_account, {}).steps == (MakeAccount("proj-1", "bench-vm", "machines of bench"),)
    theirs = replace(SUBJECT, service_account="vm@other.iam.gserviceaccount.com")
    foreign = verdict(machine.check_account, {}, theirs)
    assert (foreign.level, foreign.steps) == (FAIL, ())
    assert lead(machine.check_account, theirs, reply={}).asked[0].path.startswith("/v1/projects/other/")
    default = replace(SUBJECT, service_account="12-compute@developer.gserviceaccount.com")
    assert lead(machine.check_account, default, reply={}).asked[0].path.startswith("/v1/projects/proj-1/")
    assert verdict(machine.check_account, lambda _: refusal(403)).level is WARN
    tested = {":testIam": refusal(403), "/serviceAccounts/": good()}
    assert verdict(machine.check_account, tested).level is WARN
    unusable = verdict(machine.check_account, {":testIam": good(), "/serviceAccounts/": good()})
    assert (unusable.level, len(unusable.steps)) == (FAIL, 1)
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
OLDER_CONDITION = {"expression": older_own_objects("my-bench").expression}
OLDER_BINDING = {"role": "roles/storage.objectUser", "members": [f"serviceAccount:{EMAIL}"]}
OLDER_POLICY = good(bindings=[OLDER_BINDING | {"condition": OLDER_CONDITION}])
OWN_ROLE = "projects/proj-1/roles/benchMachine"


@pytest.mark.parametrize(
    ("on_bucket", "on_project", "level", "steps"),
    [
        (CAREFUL_POLICY, policy(OWN_ROLE, "roles/batch.agentReporter"), OK, ()),
        (CAREFUL_POLICY, policy(OWN_ROLE, condition=True), WARN, ("project",)),
        (policy("roles/storage.objectUser"), policy(OWN_ROLE, condition=True), WARN, ()),
        (OLDER_POLICY, policy(OWN_ROLE, condition=True), WARN, ()),
        (policy(), policy("roles/editor"), OK, ()),
        (policy(), policy(OWN_ROLE), FAIL, ("bucket", "bucket")),
        (policy("roles/storage.objectUser", condition=True), policy(OWN_ROLE), FAIL, ("bucket", "bucket")),
        (policy("roles/storage.objectUser"), policy(), WARN, ("MakeRole", "project")),
        (CAREFUL_POLICY, policy("projects/proj-1/roles/mine"), OK, ()),
        (refusal(403), policy(OWN_ROLE), WARN, ()),
        (policy("roles/storage.objectUser"), refusal(403), WARN, ()),
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
    assert verdict(machine.check_network, legacy, replace(CLOSED, external_ip=True)).level is OK
    assert verdict(machine.check_network, {"global/networks": good(), "subnetworks": refusal(403)}).level is WARN


def test_a_shared_network_is_looked_for_in_the_project_that_owns_it() -> None:
    shared = replace(SUBJECT, network="projects/host-1/global/networks/common")
    first = lead(machine.check_network, shared, reply={}).asked[0]
    assert first.path == "/compute/v1/projects/host-1/global/networks/common"
    first = lead(machine.check_network, replace(SUBJECT, network="common"), reply={}).asked[0]
    assert first.path.endswith("proj-1/global/networks/common")


def test_without_an_address_a_machine_needs_a_way_to_google_and_one_to_the_internet() -> None:
    base = {"global/networks": good(), "subnetworks": scoped("subnetworks", *REGIONS)}
    cut = verdict(machine.check_network, base | {"routers": scoped("routers", nats=[])}, CLOSED)
    assert (cut.level, "and 2 more" in cut.why) == (FAIL, True)
    open_ = base | {"routers": scoped("routers", *REGIONS, nats=[{"name": "nat"}])}
    assert verdict(machine.check_network, open_, CLOSED).level is OK
    private = {
        "global/networks": good(),
        "subnetworks": scoped("subnetworks", *REGIONS, privateIpGoogleAccess=True),
        "routers": good(),
    }
    assert verdict(machine.check_network, private, CLOSED).level is WARN
    assert verdict(machine.check_network, private, replace(CLOSED, allow_install=False)).level is OK
    assert verdict(machine.check_network, private | {"routers": refusal(403)}, CLOSED).level is WARN


# What is checked of the computer that bench runs on.


def test_this_machines_python_and_libraries_are_new_enough_or_named() -> None:
    assert here.check_python((3, 12, 1)).level is OK
    assert here.check_python((3, 10, 9)).level is FAIL
    needed = ("typer>=0.20", "rich[all]>=13.9", "torch==2; extra == 'cpu'", "plain", ">=1")
    there = {"typer": "0.21rc1", "rich": "13.10", "plain": "odd"}
    assert here.check_libraries(needed, there).why == "3 libraries, all installed and new enough"
    assert here.check_libraries(needed, there | {"rich": "13.8"}).remedy == "pip install --upgrade rich"
    assert here.check_libraries(needed, {"rich": "1"}).remedy == "pip install --upgrade typer plain rich"
    assert here.parse_release("odd") == ()


def test_the_folder_the_files_and_the_prices_are_judged() -> None:
    assert here.check_home("/h", "read-only", 0, "export BENCH_HOME=/tmp/h").level is FAIL
    assert here.check_home("/h", "", 10, "export BENCH_HOME=/tmp/h").level is WARN
    assert here.check_home("/h", "", 1 << 40, "export BENCH_HOME=/tmp/h").level is OK
    assert here.check_documents((), 5).level is OK
    mine = here.check_documents((("my.yaml", "my.yaml:2: x\nmore"), ("l4", "y")), 5)
    assert (mine.why, mine.remedy) == ("my.yaml:2: x (and 1 more)", "bench plan my.yaml")
    assert here.check_documents((("l4", "--set budget.per_run_usd=x"),), 5).remedy == "bench plan --gpu l4"
    ages = [
        here.check_prices(date(2026, 6, 1), day).level
        for day in (date(2026, 5, 1), date(2026, 6, 9), date(2026, 12, 1))
    ]
    assert ages == [WARN, OK, WARN]


def test_the_embedded_cloud_the_compiler_and_torch_matter_where_they_are_used() -> None:
    levels = {state: here.check_embedded(here.Embedded(state)).level for state in ("up", "down", "old", "stale")}
    assert levels == {"up": OK, "down": OK, "old": WARN, "stale": WARN}
    there, missing, unused = ("2", True), ("", True), ("", False)
    assert [here.check_compiler(*state).level for state in (there, missing, unused)] == [OK, FAIL, OK]
    assert [here.check_torch(*state, "2").level for state in (there, missing, unused)] == [OK, WARN, OK]


@pytest.mark.parametrize(
    ("version", "wanted", "is_older"),
    [
        ("2.11.0+cu130", "2.13.0", True),
        ("2.11.0+cu130, cuDNN 9.19.0.56", "2.13.0", True),
        ("2.9.1", "2.13.0", True),
        ("2.13.0+cu130", "2.13.0", False),
        ("2.15.0", "2.13.0", False),
        ("of unknown version", "2.13.0", False),
        ("2.11.0", "", False),
    ],
)
def test_a_torch_older_than_that_of_rented_machines_is_named_for_its_baselines(
    version: str, wanted: str, is_older: bool
) -> None:
    packages = {"torch": version, "numpy": "2", "error": "", "usable": True, "compiles": "", "pythons": ()}
    needs = HostNeeds(cuda=False, compiler=False, min_free_gb=1)
    install = f"pip install torch=={wanted}"
    on_box = here.check_packages(packages, needs, "box", "python3", wanted)
    local = here.check_torch(version, True, wanted)
    for verdict, remedy in ((local, install), (on_box, f"on box: python3 -m {install}")):
        assert f"torch {version}" in verdict.why
        assert (verdict.level, verdict.remedy) == ((WARN, remedy) if is_older else (OK, ""))
        assert (
            f"older than torch {wanted} of rented machines, and so are the baselines that come with it" in verdict.why
        ) == is_older


# What plain commands on a host mean, and that none of them changes it.


BOX = HostTarget("ada", "box", 2222)
ran = CommandResult


def judged(check: HostCheck, replies: Mapping[str, CommandResult]) -> CheckVerdict:
    """The verdict, where a command with one of these words in it is answered so, and any other is not found."""

    def run(line: str) -> CommandResult:
        assert not {"sudo", "install", "rm", "kill"} & set(line.split()), "it only looks"
        return next((reply for word, reply in replies.items() if word in line), CommandResult(127, "", "not found"))

    return check(run, BOX)


TOOLS = "a shell answers\n/usr/bin/bash\n/usr/bin/curl\n/usr/bin/tar\n/usr/bin/setsid\n"
NAMED = "NVIDIA L4, 23034 MiB\n"


@pytest.mark.parametrize(
    ("check", "replies", "level", "says"),
    [
        (here.check_reachable, {"command -v": ran(0, TOOLS)}, OK, "answers"),
        (here.check_reachable, {"command -v": ran(255, "", "Permission denied\n")}, FAIL, "Permission denied"),
        (here.check_reachable, {"command -v": ran(0, "Fri Nov 27 2026\n")}, FAIL, "one command only"),
        (here.check_reachable, {"command -v": ran(255)}, FAIL, "exit 255"),
        (
            here.check_reachable,
            {"command -v": ran(0, "a shell answers\n/usr/bin/bash\n/usr/bin/tar")},
            FAIL,
            "no curl, setsid",
        ),
        (here.check_gpu, {"name,": ran(0, NAMED), "apps": ran(0, "")}, OK, "NVIDIA L4"),
        (here.check_gpu, {"name,": ran(0, NAMED * 2), "apps": ran(1)}, OK, "and 1 more"),
        (here.check_gpu, {"name,": ran(0, NAMED), "apps": ran(0, "17\n[N/A]\n")}, WARN, "in use by 17"),
        (here.check_gpu, {"lspci": ran(0, "3D controller: NVIDIA")}, FAIL, "no driver answers"),
        (here.check_gpu, {"lspci": ran(0, "")}, WARN, "no NVIDIA GPU"),
        (here.check_driver, {"driver_version": ran(0, "580.95.05\n580.95.05\n")}, OK, "driver 580.95.05"),
        (here.check_driver, {"driver_version": ran(0, "550.1")}, WARN, "older PyTorch"),
        (here.check_driver, {"driver_version": ran(0, "470.1")}, FAIL, "too old for every PyTorch"),
        (here.check_driver, {"driver_version": ran(0, "?")}, FAIL, "too old for every PyTorch"),
        (here.check_driver, {}, WARN, "no NVIDIA driver"),
    ],
)
def test_a_host_is_judged_by_what_its_commands_say(
    check: HostCheck, replies: Mapping[str, CommandResult], level: CheckLevel, says: str
) -> None:
    found = judged(check, replies)
    assert (found.level, says in found.why) == (level, True), found
    assert bool(found.remedy) is (level is not OK)


def test_a_remedy_on_a_host_is_one_command_with_its_port() -> None:
    assert here.ssh_command_line(BOX, "df -h") == "ssh -p 2222 ada@box 'df -h'"
    assert here.ssh_command_line(HostTarget("", "box", None), "df -h") == "ssh box 'df -h'"


def test_nothing_is_asked_of_a_host_that_does_not_answer() -> None:
    assert all(check.needs == ("host.reachable",) for check, _ in HOST_CHECKS[1:])


# Requests and answers as data.


@pytest.mark.parametrize(
    ("method", "path", "reads"),
    [
        ("GET", "/v1/x", True),
        ("POST", "/v3/projects/p:testIamPermissions", True),
        ("POST", "/v3/projects/p:getIamPolicy", True),
        ("POST", "/v3/projects/p:setIamPolicy", False),
        ("PUT", "/storage/v1/b/b/iam", False),
        ("PATCH", "/v1/x:getIamPolicy", False),
    ],
)
def test_only_what_changes_nothing_counts_as_looking(method: str, path: str, reads: bool) -> None:
    assert RestRequest("iam", method, path).reads is reads  # type: ignore[arg-type]


def test_an_answer_says_in_one_line_what_went_wrong() -> None:
    assert refusal(403, "no\nbecause").message == "no"
    assert RestAnswer(0, trouble="Timeout").message == "Timeout"
    assert RestAnswer(500, {"error": "what"}).message == "HTTP 500"
    assert RestAnswer(500, {"error": {"message": "  "}}).message == "HTTP 500"


def test_an_api_that_is_off_is_told_from_a_right_that_is_missing() -> None:
    assert OFF.api_off
    assert RestAnswer(403, {"error": {"details": [{"reason": "SERVICE_DISABLED"}, "x"]}}).api_off
    assert not refusal(403, reason="forbidden").api_off
    assert not refusal(404, reason="SERVICE_DISABLED").api_off
    assert not RestAnswer(403).api_off


def test_every_page_of_a_list_is_read_and_lists_over_places_are_joined() -> None:
    def listed(*answers: RestAnswer) -> Any:
        return lead(list_all_pages, RestRequest("compute", "GET", "/l"), reply={"/l": list(answers)})

    flat = listed(good(items=[1], nextPageToken="t"), good(items=[2]), good())
    assert flat.result.document == {"items": [1, 2]}
    assert flat.asked[1].query == {"pageToken": "t"}
    scoped = listed(good(items={"a": 1}, nextPageToken="t"), good(items={"b": 2}))
    assert scoped.result.document == {"items": {"a": 1, "b": 2}}
    assert listed(good()).result.document == {"items": []}
    assert listed(refusal(403)).result.status == 403
