"""What the answers of a project mean: the corners that no weather reaches."""

from __future__ import annotations

import shlex
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from orchestrator.core.doctor import bucket, capacity, here, machine, project
from orchestrator.core.doctor.checks import cloud_checks
from orchestrator.core.doctor.subject import Subject
from orchestrator.core.doctor.verdicts import (
    Check,
    Level,
    Result,
    Verdict,
    bad,
    counted,
    crashed,
    doubt,
    exit_code,
    fine,
    fixes,
    refused,
    skipped,
    too_slow,
)
from orchestrator.core.identity import Identity
from orchestrator.core.market.catalog import CATALOG, lookup
from orchestrator.core.permissions import BATCH, LAUNCHER, LOOKER, names
from orchestrator.core.rest import Answer
from orchestrator.core.setup.plan import APIS, OWN_MACHINES, machine_grants, older_own_objects
from orchestrator.core.setup.steps import EnableApis, GrantOnBucket, GrantOnProject, MakeAccount, MakeRole
from tests.support.conversations import OFF, SILENCE, good, lead, refusal
from tests.support.remedies import wrong_with

EMAIL = "bench-vm@proj-1.iam.gserviceaccount.com"
SUBJECT = Subject("proj-1", "my-bench", service_account=EMAIL, who="user:ada@example.com")
L4 = lookup("l4")
assert L4 is not None
NETWORK = "https://www.googleapis.com/compute/v1/projects/proj-1/global/networks/default"


def verdict(check: Any, replies: Any, subject: Subject = SUBJECT) -> Any:
    """What a check finds, of which every remedy is a whole command."""
    found = lead(check, subject, reply=replies).result
    assert not isinstance(found, Verdict) or not wrong_with(found.remedy)
    return found


# --- verdicts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "level", "remedy"),
    [
        (SILENCE, Level.FAIL, "curl -sSI https://iam.googleapis.com/"),
        (refusal(401), Level.FAIL, "gcloud auth application-default login"),
        (OFF, Level.WARN, "gcloud services enable iam.googleapis.com --project=proj-1"),
        (refusal(403), Level.WARN, "give"),
        (refusal(429), Level.WARN, "bench doctor"),
        (refusal(500), Level.WARN, "bench doctor"),
        (refusal(400), Level.FAIL, "give"),
    ],
)
def test_an_answer_that_is_none_says_which_kind_of_trouble_it_is(answer: Answer, level: Level, remedy: str) -> None:
    found = refused(answer, "proj-1", "iam.googleapis.com", "give")
    assert (found.level, found.remedy) == (level, remedy)


def test_a_page_ends_with_the_code_of_the_first_failure_and_each_fix_once() -> None:
    step = EnableApis("p", ("a",))
    listed = [
        Result(Check("a", "A", "here", exit_code=11), fine("")),
        Result(Check("b", "B", "gce", exit_code=10), doubt("", "", step)),
        Result(Check("c", "C", "gce", exit_code=6), bad("", "do", step)),
        Result(Check("d", "D", "gce", exit_code=2), bad("")),
    ]
    assert exit_code(listed) == 6
    assert exit_code(listed[:2]) == 0
    assert fixes(listed) == (step,)
    assert counted(listed) == {Level.OK: 1, Level.WARN: 1, Level.FAIL: 2, Level.SKIPPED: 0}
    by_name = {result.check.name: result for result in listed}
    assert skipped(by_name, ("a", "b")) is None
    reason = skipped(by_name, ("a", "c"))
    assert reason is not None
    assert reason.why == "not checked, because this failed: C"
    assert "10 s" in too_slow(listed[0].check).why
    assert "odd" in crashed("odd").why


def test_every_check_comes_after_what_it_needs_and_has_a_name_of_its_own() -> None:
    listed = [check for check, _ in cloud_checks(SUBJECT)]
    seen = {"credentials"}
    for check in listed:
        assert set(check.needs) <= seen, check.name
        assert check.name not in seen
        seen.add(check.name)
    cpu = lookup("cpu")
    assert cpu is not None
    assert "quota.all" not in {check.name for check, _ in cloud_checks(replace(SUBJECT, gpus=(cpu,)))}


# --- the project ----------------------------------------------------------------------------------------------------


def test_credentials_are_there_or_the_login_is_named() -> None:
    assert project.credentials(Identity("a login", "user:ada@example.com"), "").why == "a login of user:ada@example.com"
    assert project.credentials(Identity("a login"), "").level is Level.OK
    assert project.credentials(None, "none").remedy == "gcloud auth application-default login"


def test_a_project_that_one_api_hides_is_looked_for_with_another() -> None:
    asked = "/v3/projects/proj-1"
    assert verdict(project.project, {asked: good()}).level is Level.OK
    assert "undelete" in verdict(project.project, {asked: good(state="DELETE_REQUESTED")}).remedy
    assert verdict(project.project, {asked: SILENCE}).level is Level.FAIL
    assert verdict(project.project, {asked: refusal(403), "/compute/": good()}).level is Level.WARN
    assert verdict(project.project, {asked: refusal(403)}).remedy == "gcloud projects list"
    hidden = verdict(project.project, {asked: refusal(403), "/compute/": OFF})
    assert (hidden.level, hidden.steps) == (Level.WARN, (EnableApis("proj-1", APIS),))
    assert verdict(project.project, {asked: OFF}).level is Level.WARN


def test_what_may_not_be_looked_at_is_a_warning_and_not_a_guess() -> None:
    for check in (project.billing, project.apis, project.roles, bucket.rights, capacity.all_gpus, machine.network):
        assert verdict(check, lambda _: refusal(403)).level is Level.WARN


def test_permissions_are_counted_and_those_to_look_matter_less() -> None:
    every = [*names(LAUNCHER), *names(LOOKER), *names(BATCH)]
    path = ":testIamPermissions"
    assert verdict(project.roles, {path: good(permissions=every)}).level is Level.OK
    blind = verdict(project.roles, {path: good(permissions=list(names(LAUNCHER)))})
    assert (blind.level, "compute.routers.list" in blind.why) == (Level.WARN, True)
    alone = verdict(project.roles, {path: good(permissions=[name for name in every if name != "batch.jobs.create"])})
    assert (alone.level, alone.why) == (
        Level.WARN,
        "enough to launch; missing for fleets on Batch: batch.jobs.create",
    )
    short = [name for name in every if name != "compute.subnetworks.useExternalIp"]
    lacking = verdict(project.roles, {path: good(permissions=short)})
    assert lacking.level is Level.FAIL
    assert lacking.remedy == "bench init --project proj-1 --bucket my-bench --launcher user:ada@example.com"
    assert (
        verdict(project.roles, {path: good(permissions=short)}, replace(SUBJECT, external_ip=False)).level is Level.OK
    )


def test_apis_that_are_not_listed_are_off() -> None:
    assert verdict(project.apis, {"services": good()}).level is Level.FAIL
    on = [{"name": f"projects/1/services/{api}", "state": "ENABLED"} for api in APIS]
    assert verdict(project.apis, {"services": good(services=on)}).level is Level.OK
    assert verdict(project.apis, {"services": good(services=on[:2])}).level is Level.WARN
    alone = verdict(project.apis, {"services": good(services=on[:-1])})
    assert (alone.level, alone.steps) == (Level.WARN, (EnableApis("proj-1", ("batch.googleapis.com",)),))
    assert "launches work, fleets on Batch do not" in alone.why


def test_the_clock_is_held_against_any_answer_that_has_a_date() -> None:
    def at(skew: float | None) -> Any:
        return verdict(project.clock, {"/compute/": Answer(403, skew_s=skew)})

    assert [at(skew).level for skew in (0.4, -4, 30, -61, None)] == [
        Level.OK,
        Level.OK,
        Level.WARN,
        Level.FAIL,
        Level.WARN,
    ]
    assert "30 s behind" in at(30).why
    assert "61 s ahead" in at(-61).why
    assert "server's" in verdict(project.clock, {"/": Answer(200, skew_s=0)}, replace(SUBJECT, embedded=True)).why


# --- the bucket -----------------------------------------------------------------------------------------------------


def test_a_bucket_on_another_continent_is_worse_than_one_in_another_region() -> None:
    near = replace(SUBJECT, zones=("us-central1-a",))
    found = verdict(bucket.bucket, {"/b/": good(location="US-EAST1")}, near)
    assert (found.level, "continent" in found.why) == (Level.WARN, False)
    assert "continent" in verdict(bucket.bucket, {"/b/": good(location="ASIA")}, near).why
    assert verdict(bucket.bucket, {"/b/": good(location="US")}, near).steps
    assert verdict(bucket.bucket, {"/b/": refusal(403)}, near).remedy.endswith(
        "--role=roles/storage.legacyBucketReader"
    )


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
    assert verdict(check, {"/regions": none}, narrow).level is Level.WARN
    assert verdict(check, {"/regions": none}, replace(narrow, chosen=True)).level is Level.FAIL
    standard = good(items=[region("us-central1", NVIDIA_L4_GPUS=1, PREEMPTIBLE_NVIDIA_L4_GPUS=0.5)])
    assert "no spot quota; on demand" in verdict(check, {"/regions": standard}, narrow).why
    assert verdict(check, {"/regions": refusal(403)}, narrow).level is Level.WARN
    h100 = lookup("h100")
    assert h100 is not None
    only_spot = good(items=[region("us-central1", PREEMPTIBLE_NVIDIA_H100_GPUS=1)])
    where = replace(narrow, gpus=(h100,))
    assert verdict(capacity.of_gpu(h100), {"/regions": only_spot}, where).why == "spot in 1 of 1 region (us-central1)"


def test_a_project_that_lists_no_limit_on_all_gpus_is_a_warning() -> None:
    assert verdict(capacity.all_gpus, {"/projects/": good(quotas=[{"limit": 1}])}).level is Level.WARN


def test_an_image_that_is_to_be_retired_is_a_warning_and_one_without_a_successor_names_the_list() -> None:
    check = capacity.of_image("ubuntu-os-cloud", "ubuntu-2404-lts-amd64")
    soon = good(name="u", deprecated={"state": "ACTIVE", "obsolete": "2027-01-01"})
    assert verdict(check, {"/family/": soon}).level is Level.WARN
    assert "ubuntu-os-cloud" in verdict(check, {}).remedy
    assert verdict(check, {"/family/": SILENCE}).level is Level.FAIL
    old = good(items=[{"family": "ubuntu-2404-lts-amd64", "deprecated": {"state": "OBSOLETE"}}])
    assert "is obsolete" in verdict(check, {"/family/": refusal(404), "/images": old}).why
    renamed = good(items=[{"family": "ubuntu-2404-lts"}, "?"])
    foreign = capacity.of_image("mine", "ubuntu-2404-lts-amd64")
    other = verdict(foreign, {"/family/": refusal(404), "/images": renamed})
    assert other.remedy == "bench plan --gpu l4 --set machine.image_family=ubuntu-2404-lts"


# --- the machine ----------------------------------------------------------------------------------------------------


def test_a_machine_without_an_account_of_its_own_may_do_too_much() -> None:
    bare = replace(SUBJECT, service_account=None)
    assert verdict(machine.account, {}, bare).level is Level.WARN
    assert verdict(machine.account, {}, replace(bare, embedded=True)).level is Level.OK
    assert "default" in verdict(machine.machine_rights, {}, bare).why
    assert verdict(machine.machine_rights, {}, replace(bare, embedded=True)).level is Level.OK


def test_an_account_is_there_enabled_and_may_be_used() -> None:
    assert verdict(machine.account, {}).steps == (MakeAccount("proj-1", "bench-vm", "machines of bench"),)
    theirs = replace(SUBJECT, service_account="vm@other.iam.gserviceaccount.com")
    foreign = verdict(machine.account, {}, theirs)
    assert (foreign.level, foreign.steps) == (Level.FAIL, ())
    assert lead(machine.account, theirs, reply={}).asked[0].path.startswith("/v1/projects/other/")
    default = replace(SUBJECT, service_account="12-compute@developer.gserviceaccount.com")
    assert lead(machine.account, default, reply={}).asked[0].path.startswith("/v1/projects/proj-1/")
    assert verdict(machine.account, lambda _: refusal(403)).level is Level.WARN
    tested = {":testIam": refusal(403), "/serviceAccounts/": good()}
    assert verdict(machine.account, tested).level is Level.WARN
    unusable = verdict(machine.account, {":testIam": good(), "/serviceAccounts/": good()})
    assert (unusable.level, len(unusable.steps)) == (Level.FAIL, 1)
    nobody = verdict(machine.account, {":testIam": good(), "/serviceAccounts/": good()}, replace(SUBJECT, who=""))
    assert (nobody.steps, "--member=user:YOUR_ADDRESS" in nobody.remedy) == ((), True)


def policy(*roles: str, condition: bool = False) -> Answer:
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
        (CAREFUL_POLICY, policy(OWN_ROLE, "roles/batch.agentReporter"), Level.OK, ()),
        (CAREFUL_POLICY, policy(OWN_ROLE, condition=True), Level.WARN, (GrantOnProject,)),
        (policy("roles/storage.objectUser"), policy(OWN_ROLE, condition=True), Level.WARN, ()),
        (OLDER_POLICY, policy(OWN_ROLE, condition=True), Level.WARN, ()),
        (policy(), policy("roles/editor"), Level.OK, ()),
        (policy(), policy(OWN_ROLE), Level.FAIL, (GrantOnBucket, GrantOnBucket)),
        (
            policy("roles/storage.objectUser", condition=True),
            policy(OWN_ROLE),
            Level.FAIL,
            (GrantOnBucket, GrantOnBucket),
        ),
        (policy("roles/storage.objectUser"), policy(), Level.WARN, (MakeRole, GrantOnProject)),
        (CAREFUL_POLICY, policy("projects/proj-1/roles/mine"), Level.OK, ()),
        (refusal(403), policy(OWN_ROLE), Level.WARN, ()),
        (policy("roles/storage.objectUser"), refusal(403), Level.WARN, ()),
    ],
)
def test_what_a_machine_may_do_is_read_from_the_policies(
    on_bucket: Answer, on_project: Answer, level: Level, steps: tuple[type, ...]
) -> None:
    found = verdict(machine.machine_rights, {"/b/": on_bucket, "/v3/": on_project})
    assert (found.level, tuple(type(step) for step in found.steps)) == (level, steps)


def test_an_account_that_may_still_write_as_a_client_is_named_with_what_takes_that_away() -> None:
    found = verdict(machine.machine_rights, {"/b/": OLDER_POLICY, "/v3/": policy(OWN_ROLE)})
    assert "under a client's name" in found.why
    init, remove = found.remedy.split(" && ", 1)
    assert init.startswith("bench init --project ")
    words = shlex.split(remove)
    assert words[:4] == ["gcloud", "storage", "buckets", "remove-iam-policy-binding"]
    condition = f"expression={older_own_objects('my-bench').expression},title=runs and machines only"
    assert words[-1] == f"--condition={condition}"


def scoped(kind: str, *regions: str, **more: Any) -> Answer:
    items = {f"regions/{name}": {kind: [{"name": "default", "network": NETWORK, **more}]} for name in regions}
    return good(items=items | {"regions/other": {"warning": {}}})


CLOSED = replace(
    SUBJECT, zones=("us-central1-a", "us-east4-a", "us-west1-a", "us-west4-a", "us-east1-b"), external_ip=False
)
REGIONS = CLOSED.regions


def test_a_network_must_have_a_subnet_where_machines_are_asked_for() -> None:
    here_ = {"global/networks": good(), "subnetworks": scoped("subnetworks", "us-central1")}
    assert "no subnet in 4 of 5" in verdict(machine.network, here_, replace(CLOSED, external_ip=True)).why
    nowhere = {"global/networks": good(), "subnetworks": scoped("subnetworks", "asia-east1")}
    assert "subnets create" in verdict(machine.network, nowhere, CLOSED).remedy
    legacy = {"global/networks": good(IPv4Range="10.0.0.0/8"), "subnetworks": good()}
    assert verdict(machine.network, legacy, replace(CLOSED, external_ip=True)).level is Level.OK
    assert verdict(machine.network, {"global/networks": good(), "subnetworks": refusal(403)}).level is Level.WARN


def test_a_shared_network_is_looked_for_in_the_project_that_owns_it() -> None:
    shared = replace(SUBJECT, network="projects/host-1/global/networks/common")
    assert lead(machine.network, shared, reply={}).asked[0].path == "/compute/v1/projects/host-1/global/networks/common"
    assert (
        lead(machine.network, replace(SUBJECT, network="common"), reply={})
        .asked[0]
        .path.endswith("proj-1/global/networks/common")
    )


def test_without_an_address_a_machine_needs_a_way_to_google_and_one_to_the_internet() -> None:
    base = {"global/networks": good(), "subnetworks": scoped("subnetworks", *REGIONS)}
    cut = verdict(machine.network, base | {"routers": scoped("routers", nats=[])}, CLOSED)
    assert (cut.level, "and 2 more" in cut.why) == (Level.FAIL, True)
    open_ = base | {"routers": scoped("routers", *REGIONS, nats=[{"name": "nat"}])}
    assert verdict(machine.network, open_, CLOSED).level is Level.OK
    private = {
        "global/networks": good(),
        "subnetworks": scoped("subnetworks", *REGIONS, privateIpGoogleAccess=True),
        "routers": good(),
    }
    assert verdict(machine.network, private, CLOSED).level is Level.WARN
    assert verdict(machine.network, private, replace(CLOSED, allow_install=False)).level is Level.OK
    assert verdict(machine.network, private | {"routers": refusal(403)}, CLOSED).level is Level.WARN


# --- this machine ---------------------------------------------------------------------------------------------------


def test_this_machines_python_and_libraries_are_new_enough_or_named() -> None:
    assert here.python((3, 12, 1)).level is Level.OK
    assert here.python((3, 10, 9)).level is Level.FAIL
    needed = ("typer>=0.20", "rich[all]>=13.9", "torch==2; extra == 'cpu'", "plain", ">=1")
    there = {"typer": "0.21rc1", "rich": "13.10", "plain": "odd"}
    assert here.libraries(needed, there).why == "3 libraries, all installed and new enough"
    assert here.libraries(needed, there | {"rich": "13.8"}).remedy == "pip install --upgrade rich"
    assert here.libraries(needed, {"rich": "1"}).remedy == "pip install --upgrade typer plain rich"
    assert here.release("odd") == ()


def test_the_folder_the_files_and_the_prices_are_judged() -> None:
    assert here.home("/h", "read-only", 0).level is Level.FAIL
    assert here.home("/h", "", 10).level is Level.WARN
    assert here.home("/h", "", 1 << 40).level is Level.OK
    assert here.documents((), 5).level is Level.OK
    mine = here.documents((("my.yaml", "my.yaml:2: x\nmore"), ("l4", "y")), 5)
    assert (mine.why, mine.remedy) == ("my.yaml:2: x (and 1 more)", "bench plan my.yaml")
    assert here.documents((("l4", "--set budget.per_run_usd=x"),), 5).remedy == "bench plan --gpu l4"
    ages = [here.prices(date(2026, 6, 1), day).level for day in (date(2026, 5, 1), date(2026, 6, 9), date(2026, 12, 1))]
    assert ages == [Level.WARN, Level.OK, Level.WARN]


def test_the_embedded_cloud_the_compiler_and_torch_matter_where_they_are_used() -> None:
    levels = {state: here.embedded(here.Embedded(state)).level for state in ("up", "down", "old", "stale")}
    assert levels == {"up": Level.OK, "down": Level.OK, "old": Level.WARN, "stale": Level.WARN}
    assert [here.compiler(path, uses).level for path, uses in (("/g++", True), ("", True), ("", False))] == [
        Level.OK,
        Level.FAIL,
        Level.OK,
    ]
    assert [here.torch(version, uses).level for version, uses in (("2", True), ("", True), ("", False))] == [
        Level.OK,
        Level.WARN,
        Level.OK,
    ]


def test_by_default_the_whole_catalog_is_of_interest() -> None:
    assert SUBJECT.gpus == CATALOG
    assert len(SUBJECT.every_image) == 2


def test_that_capacity_advice_is_not_used_for_want_of_a_permission_is_said() -> None:
    held = [name for name in (*names(LAUNCHER), *names(LOOKER)) if name != "compute.advice.capacity"]
    found = verdict(project.roles, {":testIam": good(permissions=held)})
    assert (found.level, found.remedy) == (Level.WARN, SUBJECT.set_up)
    assert "without Google's capacity advice" in found.why
    without_routers = [name for name in (*names(LAUNCHER), *names(LOOKER)) if name != "compute.routers.list"]
    assert "advice" not in verdict(project.roles, {":testIam": good(permissions=without_routers)}).why
