"""What the answers of a project mean: the corners that no weather reaches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.doctor import capacity, machine, project
from orchestrator.core.doctor.checks import cloud_checks
from orchestrator.core.doctor.verdicts import (
    CheckLevel,
    CheckResult,
    DoctorCheck,
    Identity,
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
from orchestrator.core.market.catalog import CATALOG, find_gpu
from orchestrator.core.permissions import BATCH, LAUNCHER, LOOKER, permission_names
from orchestrator.core.rest import RestAnswer
from orchestrator.core.setup.plan import APIS
from orchestrator.core.setup.steps import EnableApis
from tests.support.conversations import OFF, SILENCE, good, refusal
from tests.unit.core.doctored import SUBJECT, verdict

L4 = find_gpu("l4")


assert L4 is not None


# --- verdicts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "level", "remedy"),
    [
        (SILENCE, CheckLevel.FAIL, "curl -sSI https://iam.googleapis.com/"),
        (refusal(401), CheckLevel.FAIL, "gcloud auth application-default login"),
        (OFF, CheckLevel.WARN, "gcloud services enable iam.googleapis.com --project=proj-1"),
        (refusal(403), CheckLevel.WARN, "give"),
        (refusal(429), CheckLevel.WARN, "bench doctor"),
        (refusal(500), CheckLevel.WARN, "bench doctor"),
        (refusal(400), CheckLevel.FAIL, "give"),
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
    assert count_levels(listed) == {CheckLevel.OK: 1, CheckLevel.WARN: 1, CheckLevel.FAIL: 2, CheckLevel.SKIPPED: 0}
    by_name = {result.check.name: result for result in listed}
    assert skip_verdict(by_name, ("a", "b")) is None
    reason = skip_verdict(by_name, ("a", "c"))
    assert reason is not None
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
    assert (
        project.check_credentials(Identity("a login", "user:ada@example.com"), "").why
        == "a login of user:ada@example.com"
    )
    assert project.check_credentials(Identity("a login"), "").level is CheckLevel.OK
    assert project.check_credentials(None, "none").remedy == "gcloud auth application-default login"


def test_a_project_that_one_api_hides_is_looked_for_with_another() -> None:
    asked = "/v3/projects/proj-1"
    assert verdict(project.check_project, {asked: good()}).level is CheckLevel.OK
    assert "undelete" in verdict(project.check_project, {asked: good(state="DELETE_REQUESTED")}).remedy
    assert verdict(project.check_project, {asked: SILENCE}).level is CheckLevel.FAIL
    assert verdict(project.check_project, {asked: refusal(403), "/compute/": good()}).level is CheckLevel.WARN
    assert verdict(project.check_project, {asked: refusal(403)}).remedy == "gcloud projects list"
    hidden = verdict(project.check_project, {asked: refusal(403), "/compute/": OFF})
    assert (hidden.level, hidden.steps) == (CheckLevel.WARN, (EnableApis("proj-1", APIS),))
    assert verdict(project.check_project, {asked: OFF}).level is CheckLevel.WARN


def test_what_may_not_be_looked_at_is_a_warning_and_not_a_guess() -> None:
    for check in (
        project.check_billing,
        project.check_apis,
        project.check_roles,
        project.check_object_rights,
        capacity.all_gpus,
        machine.check_network,
    ):
        assert verdict(check, lambda _: refusal(403)).level is CheckLevel.WARN


def test_permissions_are_counted_and_those_to_look_matter_less() -> None:
    every = [*permission_names(LAUNCHER), *permission_names(LOOKER), *permission_names(BATCH)]
    path = ":testIamPermissions"
    assert verdict(project.check_roles, {path: good(permissions=every)}).level is CheckLevel.OK
    blind = verdict(project.check_roles, {path: good(permissions=list(permission_names(LAUNCHER)))})
    assert (blind.level, "compute.routers.list" in blind.why) == (CheckLevel.WARN, True)
    alone = verdict(
        project.check_roles, {path: good(permissions=[name for name in every if name != "batch.jobs.create"])}
    )
    assert (alone.level, alone.why) == (
        CheckLevel.WARN,
        "enough to launch; missing for fleets on Batch: batch.jobs.create",
    )
    short = [name for name in every if name != "compute.subnetworks.useExternalIp"]
    lacking = verdict(project.check_roles, {path: good(permissions=short)})
    assert lacking.level is CheckLevel.FAIL
    assert lacking.remedy == "bench init --project proj-1 --bucket my-bench --launcher user:ada@example.com"
    assert (
        verdict(project.check_roles, {path: good(permissions=short)}, replace(SUBJECT, external_ip=False)).level
        is CheckLevel.OK
    )


def test_apis_that_are_not_listed_are_off() -> None:
    assert verdict(project.check_apis, {"services": good()}).level is CheckLevel.FAIL
    on = [{"name": f"projects/1/services/{api}", "state": "ENABLED"} for api in APIS]
    assert verdict(project.check_apis, {"services": good(services=on)}).level is CheckLevel.OK
    assert verdict(project.check_apis, {"services": good(services=on[:2])}).level is CheckLevel.WARN
    alone = verdict(project.check_apis, {"services": good(services=on[:-1])})
    assert (alone.level, alone.steps) == (CheckLevel.WARN, (EnableApis("proj-1", ("batch.googleapis.com",)),))
    assert "launches work, fleets on Batch do not" in alone.why


def test_the_clock_is_held_against_any_answer_that_has_a_date() -> None:
    def at(skew: float | None) -> Any:
        return verdict(project.check_clock, {"/compute/": RestAnswer(403, skew_s=skew)})

    assert [at(skew).level for skew in (0.4, -4, 30, -61, None)] == [
        CheckLevel.OK,
        CheckLevel.OK,
        CheckLevel.WARN,
        CheckLevel.FAIL,
        CheckLevel.WARN,
    ]
    assert "30 s behind" in at(30).why
    assert "61 s ahead" in at(-61).why
    assert (
        "server's"
        in verdict(project.check_clock, {"/": RestAnswer(200, skew_s=0)}, replace(SUBJECT, embedded=True)).why
    )


# --- the bucket -----------------------------------------------------------------------------------------------------


def test_a_bucket_on_another_continent_is_worse_than_one_in_another_region() -> None:
    near = replace(SUBJECT, zones=("us-central1-a",))
    found = verdict(project.check_bucket, {"/b/": good(location="US-EAST1")}, near)
    assert (found.level, "continent" in found.why) == (CheckLevel.WARN, False)
    assert "continent" in verdict(project.check_bucket, {"/b/": good(location="ASIA")}, near).why
    assert verdict(project.check_bucket, {"/b/": good(location="US")}, near).steps
    assert verdict(project.check_bucket, {"/b/": refusal(403)}, near).remedy.endswith(
        "--role=roles/storage.legacyBucketReader"
    )


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
    assert found.level is CheckLevel.FAIL
    assert why in found.why
    assert remedy in found.remedy


@pytest.mark.parametrize("settings", [
    {"lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": {"age": 180, "matchesPrefix": ["payloads/"]}}]}},
    {"lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": {"isLive": False, "numNewerVersions": 3}}]}},
    {"autoclass": {"enabled": True}, "encryption": {"defaultKmsKeyName": "k"}, "versioning": {"enabled": True}},
])  # fmt: skip
def test_other_settings_of_a_bucket_are_left_alone(settings: dict[str, Any]) -> None:
    assert verdict(project.check_bucket, {"/b/": good(location="US-CENTRAL1", **settings)}).level is not CheckLevel.FAIL


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
    assert verdict(check, {"/regions": none}, narrow).level is CheckLevel.WARN
    assert verdict(check, {"/regions": none}, replace(narrow, chosen=True)).level is CheckLevel.FAIL
    standard = good(items=[region("us-central1", NVIDIA_L4_GPUS=1, PREEMPTIBLE_NVIDIA_L4_GPUS=0.5)])
    assert "no spot quota; on demand" in verdict(check, {"/regions": standard}, narrow).why
    assert verdict(check, {"/regions": refusal(403)}, narrow).level is CheckLevel.WARN
    h100 = find_gpu("h100")
    assert h100 is not None
    only_spot = good(items=[region("us-central1", PREEMPTIBLE_NVIDIA_H100_GPUS=1)])
    where = replace(narrow, gpus=(h100,))
    assert verdict(capacity.of_gpu(h100), {"/regions": only_spot}, where).why == "spot in 1 of 1 region (us-central1)"


def test_a_project_that_lists_no_limit_on_all_gpus_is_a_warning() -> None:
    assert verdict(capacity.all_gpus, {"/projects/": good(quotas=[{"limit": 1}])}).level is CheckLevel.WARN


def test_a_retiring_image_is_a_warning_and_one_without_a_successor_names_the_list() -> None:
    check = capacity.of_image("ubuntu-os-cloud", "ubuntu-2404-lts-amd64")
    soon = good(name="u", deprecated={"state": "ACTIVE", "obsolete": "2027-01-01"})
    assert verdict(check, {"/family/": soon}).level is CheckLevel.WARN
    assert "ubuntu-os-cloud" in verdict(check, {}).remedy
    assert verdict(check, {"/family/": SILENCE}).level is CheckLevel.FAIL
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
    assert (found.level, found.remedy) == (CheckLevel.WARN, SUBJECT.set_up)
    assert "without Google's capacity advice" in found.why
    without_routers = [
        name for name in (*permission_names(LAUNCHER), *permission_names(LOOKER)) if name != "compute.routers.list"
    ]
    assert "advice" not in verdict(project.check_roles, {":testIam": good(permissions=without_routers)}).why
