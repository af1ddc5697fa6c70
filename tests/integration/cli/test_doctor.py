"""`bench doctor`: every fault that can be known before money is spent is named, with the command that mends it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.embedded.client import stop_cloud
from orchestrator.embedded.weather import EVERY_KEY
from tests.integration.cli import test_doctor_requests
from tests.integration.cli.conftest import EMAIL, Bench
from tests.support.remedies import wrong_with

ACCOUNT = ("--set", f"machine.service_account={EMAIL}")
CLOSED = ("--set", "machine.external_ip=false")
L4_IMAGE = "common-cu129-ubuntu-2404-nvidia-580"


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A project that `bench init` has set up, for all tests here; each brings its own weather."""
    home = tmp_path_factory.mktemp("clinic")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BENCH_HOME", str(home))
        patch.chdir(home)
        bench = Bench(home)
        bench("init", "--embedded", "--bucket", "bench-embedded", "--yes")
        yield bench
        stop_cloud(home / "cloud")


def look(clinic: Bench, *faults: dict[str, Any], flags: tuple[str, ...] = ()) -> dict[str, Any]:
    """The checks by name, in that weather."""
    clinic.control("/control/weather", {"faults": list(faults)})
    arguments = ("doctor", "--gpu", "l4", *ACCOUNT, *flags, "--json")
    document = clinic(*arguments, code=None).document
    return {check["name"]: check for check in document["checks"]}


def asked(clinic: Bench, check: str, fault: dict[str, Any], flags: tuple[str, ...]) -> dict[str, Any]:
    """A look in which every check but one has answered: a machine that is busy with something else may keep others
    waiting beyond their limits, three times at most."""
    for _ in range(3):
        found = look(clinic, fault, flags=flags)
        if not any("no answer within" in one["why"] for name, one in found.items() if name != check):
            break
    return found


def wrong(checks: dict[str, Any]) -> set[str]:
    """What is not in order, beside the prices, whose age is that of the day."""
    return {name for name, check in checks.items() if check["level"] in ("warn", "fail") and name != "prices"}


# fault, the check that names it, its level, a part of the remedy, further flags
SEEN: tuple[tuple[dict[str, Any], str, str, str, tuple[str, ...]], ...] = (
    ({"fault": "http", "path": "/regions", "status": 503, "times": 9}, "quota.l4", "warn", "bench doctor", ()),
    ({"fault": "http", "path": "/regions", "status": 401, "times": 9}, "quota.l4", "fail", "application-default login", ()),
    ({"fault": "http", "service": "iam", "status": 403, "times": 9}, "account", "warn", "bench init", ()),
    ({"fault": "reset", "path": "/networks", "times": 9}, "network", "fail", "curl -sSI https://compute.googleapis.com/", ()),
    ({"fault": "image_gone", "family": L4_IMAGE}, f"image.{L4_IMAGE}", "fail", "machine.image_family=", ()),
    ({"fault": "project_missing"}, "project", "fail", "gcloud projects list", ()),
    ({"fault": "billing_off"}, "billing", "fail", "gcloud billing projects link", ()),
    ({"fault": "api_disabled", "api": "compute.googleapis.com"}, "apis", "fail", "gcloud services enable compute.googleapis.com --project=bench-embedded", ()),
    ({"fault": "api_disabled", "api": "storage.googleapis.com"}, "apis", "fail", "gcloud services enable storage.googleapis.com", ()),
    ({"fault": "api_disabled", "api": "iam.googleapis.com"}, "apis", "warn", "gcloud services enable iam.googleapis.com", ()),
    ({"fault": "api_disabled", "api": "batch.googleapis.com"}, "apis", "warn", "gcloud services enable batch.googleapis.com", ()),
    ({"fault": "permission_missing", "permission": "batch.jobs.create"}, "roles", "warn", "bench init --project bench-embedded", ()),
    ({"fault": "permission_missing", "permission": "compute.instances.create"}, "roles", "fail", "bench init --project bench-embedded", ()),
    ({"fault": "permission_missing", "permission": "compute.routers.list"}, "roles", "warn", "bench init", ()),
    ({"fault": "permission_missing", "permission": "storage.objects.create"}, "bucket.rights", "fail", "--role=roles/storage.objectUser", ()),
    ({"fault": "permission_missing", "permission": "storage.buckets.get"}, "bucket", "warn", "--role=roles/storage.legacyBucketReader", ()),
    ({"fault": "permission_missing", "permission": "iam.serviceAccounts.actAs"}, "account", "fail", "--role=roles/iam.serviceAccountUser", ()),
    ({"fault": "permission_missing", "permission": "storage.buckets.getIamPolicy"}, "account.rights", "warn", "bench init", ()),
    ({"fault": "quota_limit", "metric": "GPUS_ALL_REGIONS"}, "quota.all", "fail", "--quota-id=GPUS-ALL-REGIONS-per-project", ()),
    ({"fault": "image_renamed", "family": L4_IMAGE, "to": f"{L4_IMAGE}-b"}, f"image.{L4_IMAGE}", "fail", f"machine.image_family={L4_IMAGE}-b", ()),
    ({"fault": "image_deprecated", "family": L4_IMAGE, "replacement": "common-cu129-ubuntu-2204-nvidia-580"}, f"image.{L4_IMAGE}", "fail", "machine.image_family=common-cu129-ubuntu-2204-nvidia-580", ()),
    ({"fault": "bucket_missing"}, "bucket", "fail", "gcloud storage buckets create gs://bench-embedded", ()),
    ({"fault": "bucket_elsewhere", "location": "southamerica-west1"}, "bucket", "warn", "--location us-central1", ()),
    ({"fault": "network_missing"}, "network", "fail", "gcloud compute networks create default", ()),
    ({"fault": "no_nat"}, "network", "warn", "gcloud compute routers nats create", CLOSED),
    ({"fault": "service_account_missing"}, "account", "fail", "gcloud iam service-accounts create bench-vm", ()),
    ({"fault": "service_account_disabled"}, "account", "fail", "gcloud iam service-accounts enable", ()),
    ({"fault": "clock_skew", "seconds": 20}, "clock", "warn", "timedatectl set-ntp true", ()),
    ({"fault": "clock_skew", "seconds": -4000}, "clock", "fail", "timedatectl set-ntp true", ()),
)  # fmt: skip
ELSEWHERE = {
    "stall": "test_a_server_that_stalls_costs_one_check_and_its_limit",
    "no_private_access": "test_a_closed_network_without_a_way_to_google_is_a_failure",
}
"""Faults that have a test of their own, below or in `test_doctor_requests.py`."""
UNSEEN = {
    "stockout": "only an insert tells whether a machine is there; capacity advice and past stock-outs are the plan's affair",
    "queue": "befalls a request for a flex-start machine, which waits",
    "quota": "strikes one insert, whatever the lists say, as when somebody else takes the last unit in between",
    "slow_boot": "befalls a machine that does not exist yet",
    "never_boots": "befalls a machine that does not exist yet",
    "preempt": "nobody knows before which machine will be taken back",
    "lost": "befalls a machine that does not exist yet",
    "late_insert": "strikes one insert, whose machine comes later than its answer",
    "api_settling": "an API that was enabled a moment ago is a matter of minutes, and of who enables it",
    "api_propagation": "strikes who enables an API, and nobody has by then",
    "hang": "befalls a process on a machine that does not exist yet",
    "kill": "befalls a process on a machine that does not exist yet",
    "batch_silent": "befalls a job that does not exist yet",
    "batch_no_tasks": "befalls a job that does not exist yet",
    "batch_mute": "befalls a job that does not exist yet",
    "batch_recreate": "befalls a job that does not exist yet",
    "one_time_limit": "strikes one insert, of a machine with two ends",
    "image_vanishes": "befalls an image that is being made or asked for, not a look",
    "image_failed": "befalls an image that does not exist yet",
    "image_pending": "befalls an image that does not exist yet",
}
"""Faults that no preflight can see, and why."""


@pytest.mark.parametrize(
    ("fault", "check", "level", "remedy", "flags"),
    SEEN,
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_every_fault_that_a_preflight_can_see_is_named_with_its_remedy(
    clinic: Bench, fault: dict[str, Any], check: str, level: str, remedy: str, flags: tuple[str, ...]
) -> None:
    found = asked(clinic, check, fault, flags)
    assert (found[check]["level"], remedy in found[check]["remedy"]) == (level, True), found[check]
    assert found[check]["why"]
    assert not [fault_in_it for one in found.values() if (fault_in_it := wrong_with(one["remedy"]))]
    if fault["fault"] not in FAR_REACHING:
        assert wrong(found) == {check}, "nothing is blamed that has nothing to do with it"


FAR_REACHING = ("project_missing", "api_disabled", "clock_skew", "http", "reset")
"""Faults of which more than one check can tell."""


def test_the_catalogue_above_is_the_whole_catalogue() -> None:
    seen = {entry[0]["fault"] for entry in SEEN}
    assert seen | ELSEWHERE.keys() | UNSEEN.keys() == EVERY_KEY.keys()
    assert not (seen | ELSEWHERE.keys()) & UNSEEN.keys()
    page = (Path(__file__).parents[3] / "docs" / "measured.md").read_text(encoding="utf-8")
    could = len(seen | ELSEWHERE.keys())
    assert f"{could} of {could}; the other {len(UNSEEN)} happen later" in page
    assert set(ELSEWHERE.values()) <= globals().keys() | vars(test_doctor_requests).keys()


def test_spot_machines_use_the_other_quota_or_are_missing_where_there_is_neither(
    clinic: Bench,
) -> None:
    no_spot = {"fault": "quota_limit", "metric": "PREEMPTIBLE_NVIDIA_L4_GPUS"}
    assert "use the on-demand quota" in look(clinic, no_spot)["quota.l4"]["why"]
    found = look(clinic, no_spot, {"fault": "quota_limit", "metric": "NVIDIA_L4_GPUS"})["quota.l4"]
    assert found["level"] == "fail"
    assert "--quota-id=PREEMPTIBLE-NVIDIA-L4-GPUS-per-project-region --dimensions=region=us-central1" in found["remedy"]


def test_a_closed_network_without_a_way_to_google_is_a_failure(clinic: Bench) -> None:
    found = look(clinic, {"fault": "no_nat"}, {"fault": "no_private_access"}, flags=CLOSED)
    assert found["network"]["level"] == "fail"
    assert "--enable-private-ip-google-access" in found["network"]["remedy"]
    assert look(clinic, {"fault": "no_private_access"}, flags=CLOSED)["network"]["level"] == "ok"


def test_in_good_weather_nothing_is_wrong_and_the_page_takes_less_than_five_seconds(clinic: Bench) -> None:
    begun = time.process_time()  # what it takes of a machine that runs other things too
    found = look(clinic)
    assert time.process_time() - begun < 5
    assert wrong(found) == set()
    assert {check["level"] for name, check in found.items() if name != "prices"} == {"ok"}
    assert clinic("doctor", "--gpu", "l4", *ACCOUNT).code == 0


def test_from_nothing_with_the_cloud_to_be_started_it_takes_less_than_five_seconds(bench: Bench) -> None:
    begun = time.process_time()
    document = bench("doctor", "--json").document
    assert time.process_time() - begun < 5
    assert document["counts"]["fail"] == 0
    assert {"quota.l4", "quota.t4", "quota.a100", "quota.h100", "quota.cpu"} <= {c["name"] for c in document["checks"]}


@pytest.mark.parametrize(
    ("fault", "code"),
    [({"fault": "billing_off"}, 6), ({"fault": "bucket_missing"}, 10), ({"fault": "no_nat"}, 0)],
)
def test_the_exit_code_is_of_the_class_of_what_failed_first(clinic: Bench, fault: dict[str, Any], code: int) -> None:
    clinic.control("/control/weather", {"faults": [fault]})
    assert clinic("doctor", "--gpu", "l4", *ACCOUNT, "--json", code=code).document["exit_code"] == code


def test_what_hangs_on_a_failed_check_is_skipped_and_says_so(clinic: Bench) -> None:
    found = look(clinic, {"fault": "project_missing"})
    assert found["apis"]["level"] == "skipped"
    assert found["quota.l4"]["why"] == "not checked, because this failed: project", "it names the first that failed"
    out = clinic("doctor", "--gpu", "l4", *ACCOUNT, code=6).out
    assert "not checked, because this failed: project (billing, APIs, permissions" in " ".join(out.split())


def test_the_page_fits_on_a_screen_and_leads_from_a_fault_to_a_command(clinic: Bench) -> None:
    clinic.control("/control/weather", {"faults": [{"fault": "billing_off"}, {"fault": "bucket_missing"}]})
    out = clinic("doctor", "--gpu", "l4", *ACCOUNT, code=6, width=110).out
    assert len(out.splitlines()) <= 50
    assert out.index("no billing account pays") < out.index("how to fix it") < out.index("gcloud billing projects link")
    assert "2 fail" in out


def test_fix_does_what_is_safe_after_asking_and_looks_again(clinic: Bench) -> None:
    faults = [{"fault": "bucket_missing"}, {"fault": "api_disabled", "api": "iam.googleapis.com"}]
    clinic.control("/control/weather", {"faults": faults})
    refused = clinic("doctor", "--gpu", "l4", *ACCOUNT, "--fix", code=10)  # nobody answers: nothing is done
    assert "make the bucket gs://bench-embedded" in refused.out
    assert "done:" not in refused.out
    assert "nothing was done; --yes does it without asking" in refused.out
    mended = clinic("doctor", "--gpu", "l4", *ACCOUNT, "--fix", "--yes")
    assert "done: make the bucket" in mended.out
    assert "done: enable iam.googleapis.com" in mended.out
    assert "0 fail" in mended.out


def test_a_script_that_does_not_agree_gets_nothing_mended(clinic: Bench) -> None:
    clinic.control("/control/weather", {"faults": [{"fault": "bucket_missing"}]})
    checks = clinic("doctor", "--gpu", "l4", *ACCOUNT, "--fix", "--json", code=10).document["checks"]
    assert [check["fixable"] for check in checks if check["name"] == "bucket"] == [True]
    assert clinic("doctor", "--gpu", "l4", *ACCOUNT, "--fix", "--yes", "--json").document["exit_code"] == 0


def test_a_fix_that_cannot_be_made_says_why(clinic: Bench) -> None:
    forbidden = {"fault": "permission_missing", "permission": "storage.buckets.create"}
    clinic.control("/control/weather", {"faults": [{"fault": "bucket_missing"}, forbidden]})
    out = clinic("doctor", "--gpu", "l4", *ACCOUNT, "--fix", "--yes", code=10).out
    assert "not done: cannot make the bucket" in out
