"""The checks of the project: the login, whether the project exists and has billing, its APIs, the login's
permissions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orchestrator.core.doctor.subject import Identity, Subject
from orchestrator.core.doctor.verdicts import LOGIN, Verdict, bad, doubt, fine, refused
from orchestrator.core.market.skus import continent, near
from orchestrator.core.permissions import BATCH, BUCKET, BUCKET_READER, LAUNCHER, LOOKER, OBJECT_USER, names
from orchestrator.core.rest import Api, Request
from orchestrator.core.setup.calls import enabled
from orchestrator.core.setup.plan import APIS, FLEET_APIS, RUN_APIS, bucket_steps
from orchestrator.core.setup.steps import EnableApis, MakeBucket, describe

# The bucket: its location, its settings, and whether this account can use it.


STORAGE = "storage.googleapis.com"


def bucket(api: Api, subject: Subject) -> Verdict:
    """Checks that the bucket exists, is near the machines, and has the settings that bench needs."""
    name = subject.bucket
    if not name:
        remedy = f"bench init --project {subject.project}"
        return bad("no bucket is set; bench stores runs, results and the ledger in one", remedy)
    answer = api.ask(Request("storage", "GET", f"/storage/v1/b/{name}", {"projection": "noAcl"}))
    if answer.status == 404:
        step = MakeBucket(subject.project, name, subject.regions[0])
        return bad(f"there is no bucket gs://{name}", "", step)
    if not answer.good:
        return refused(answer, subject.project, STORAGE, _grant(subject, BUCKET_READER))
    if harm := harmful_setting(name, answer.document):
        return bad(*harm)
    location = str(answer.document.get("location", ""))
    near_regions = near(location, subject.every_zone)
    if not near_regions:
        far = f"gs://{name} is in {location}, but machines are requested in other regions"
        if continent(location) not in {continent(region) for region in subject.regions}:
            far += " on another continent"
        other = f"{name}-{subject.regions[0]}"
        command = f"bench init --project {subject.project} --bucket {other} --location {subject.regions[0]}"
        return doubt(f"{far}; Google charges for the traffic of every case that is uploaded", command)
    steps = bucket_steps(subject.project, name, location.lower(), answer.document)
    if steps:
        return doubt(f"gs://{name} in {location} needs other settings: {describe(steps[0])}", "", *steps)
    return fine(f"gs://{name} in {location}, with uniform access, no public access, and old payloads deleted")


def harmful_setting(name: str, document: Mapping[str, Any]) -> tuple[str, str] | None:
    """What the bucket's own settings would do to runs or the ledger, which is replaced at each hold, and the command
    that mends it; None if nothing."""
    update = f"gcloud storage buckets update gs://{name}"
    retention = document.get("retentionPolicy")
    if isinstance(retention, Mapping):
        seconds = retention.get("retentionPeriod", "?")
        why = f"gs://{name} has a retention policy of {seconds} s: no ledger can be replaced"
        if retention.get("isLocked"):
            return f"{why}, and the policy is locked", f"bench init --bucket {name}-bench"
        return why, f"{update} --clear-retention-period"
    if document.get("defaultEventBasedHold"):
        return (
            f"gs://{name} puts a hold on each object: no ledger can be replaced",
            f"{update} --no-default-event-based-hold",
        )
    billing = document.get("billing")
    if isinstance(billing, Mapping) and billing.get("requesterPays"):
        return f"gs://{name} charges whoever asks: bench's requests name no payer", f"{update} --no-requester-pays"
    lifecycle = document.get("lifecycle")
    rules = lifecycle.get("rule", ()) if isinstance(lifecycle, Mapping) else ()
    for rule in rules:
        action, condition = rule.get("action", {}).get("type"), rule.get("condition", {})
        prefixes = condition.get("matchesPrefix") or [""]
        kept = any(folder.startswith(prefix) or prefix.startswith(folder) for prefix in prefixes for folder in KEPT)
        newest = condition.get("isLive", True) and "daysSinceNoncurrentTime" not in condition
        if action == "Delete" and kept and newest and "numNewerVersions" not in condition:
            why = f"a lifecycle rule of gs://{name} deletes runs or the ledger (age {condition.get('age', 'unknown')})"
            return why, f"{update} --clear-lifecycle"
    return None


KEPT = ("runs/", "ledger/", "hosts/", "fleets/", "baselines/", "images/")
"""Folders of a bucket whose objects are kept until somebody removes them."""


def rights(api: Api, subject: Subject) -> Verdict:
    """Checks this account's permissions on the bucket's objects."""
    path = f"/storage/v1/b/{subject.bucket}/iam/testPermissions"
    wanted = names(BUCKET)
    answer = api.ask(Request("storage", "GET", path, {"permissions": list(wanted)}))
    grant = _grant(subject, OBJECT_USER)
    if not answer.good:
        return refused(answer, subject.project, STORAGE, grant)
    missing = [name for name in wanted if name not in answer.document.get("permissions", ())]
    if missing:
        return bad(f"this account lacks {', '.join(missing)} on gs://{subject.bucket}", grant)
    return fine("this account can store, read, list and replace objects")


def _grant(subject: Subject, role: str) -> str:
    where = f"gs://{subject.bucket} --member={subject.member} --role={role}"
    return f"gcloud storage buckets add-iam-policy-binding {where}"


SKEW_WARN_S = 5.0
SKEW_FAIL_S = 60.0
"""Google refuses tokens if the clock is wrong by about five minutes. A smaller error already charges the wrong day."""


def credentials(found: Identity | None, trouble: str) -> Verdict:
    """Checks the credentials. `found` is None if there are none or Google refuses them; `trouble` then says why."""
    if found is None:
        return bad(trouble, LOGIN)
    return fine(f"{found.kind}{f' of {found.member}' if found.member else ''}")


def project(api: Api, subject: Subject) -> Verdict:
    name = subject.project
    answer = api.ask(Request("cloudresourcemanager", "GET", f"/v3/projects/{name}"))
    if answer.good:
        state = answer.document.get("state", "ACTIVE")
        if state != "ACTIVE":
            return bad(f"{name} is being deleted", f"gcloud projects undelete {name}")
        return fine(f"{name} exists")
    if answer.status not in (403, 404):
        return refused(answer, name, "cloudresourcemanager.googleapis.com", subject.set_up)
    # The project may exist although that API does not show it to this account.
    second = api.ask(Request("compute", "GET", f"/compute/v1/projects/{name}", {"fields": "name"}))
    if second.good:
        return refused(answer, name, "cloudresourcemanager.googleapis.com", subject.set_up)
    if answer.api_off or second.api_off:
        return doubt(f"{name} cannot be checked while its APIs are off", "", EnableApis(name, APIS))
    return bad(f"{name} does not exist, or this account may not see it: {answer.message}", "gcloud projects list")


def billing(api: Api, subject: Subject) -> Verdict:
    answer = api.ask(Request("cloudbilling", "GET", f"/v1/projects/{subject.project}/billingInfo"))
    if not answer.good:
        return refused(answer, subject.project, "cloudbilling.googleapis.com", subject.set_up)
    if not answer.document.get("billingEnabled"):
        link = f"gcloud billing projects link {subject.project} --billing-account=ACCOUNT"
        return bad("no billing account pays for the project", f"gcloud billing accounts list && {link}")
    return fine("a billing account pays for it")


def apis(api: Api, subject: Subject) -> Verdict:
    answer = api.ask(enabled(subject.project, APIS))
    if not answer.good:
        return refused(answer, subject.project, "serviceusage.googleapis.com", subject.set_up)
    states = {str(entry.get("name", "")).rpartition("/")[2]: entry.get("state") for entry in _services(answer.document)}
    off = tuple(api for api in APIS if states.get(api) != "ENABLED")
    if not off:
        return fine(f"{', '.join(api.partition('.')[0] for api in APIS)} are on")
    step = EnableApis(subject.project, off)
    if set(off) & set(RUN_APIS):
        return bad(f"not enabled: {', '.join(off)}", "", step)
    affected = "fleets on Batch do not" if set(off) <= set(FLEET_APIS) else "`bench doctor` and `bench init` do not"
    return doubt(f"not enabled: {', '.join(off)}; launches work, {affected}", "", step)


def _services(document: Mapping[str, object]) -> list[Mapping[str, object]]:
    found = document.get("services")
    return [entry for entry in found if isinstance(entry, Mapping)] if isinstance(found, list) else []


ADVICE: Final = ("compute.advice.capacity", "compute.advice.capacityHistory")


def roles(api: Api, subject: Subject) -> Verdict:
    unneeded = set() if subject.external_ip else {"compute.subnetworks.useExternalIp"}
    launching = [name for name in names(LAUNCHER) if name not in unneeded]
    path = f"/v3/projects/{subject.project}:testIamPermissions"
    body = {"permissions": [*launching, *names(LOOKER, BATCH)]}
    answer = api.ask(Request("cloudresourcemanager", "POST", path, body=body))
    if not answer.good:
        return refused(answer, subject.project, "cloudresourcemanager.googleapis.com", subject.set_up)
    held = set(answer.document.get("permissions", ()))
    missing = [name for name in launching if name not in held]
    if missing:
        return bad(f"missing {len(missing)} of {len(launching)} permissions: {', '.join(missing)}", subject.set_up)
    unseen = [name for name in names(LOOKER) if name not in held]
    if unseen:
        consequence = "; zones are ranked without Google's capacity advice" if set(unseen) & set(ADVICE) else ""
        return doubt(f"enough to launch; missing to look things up: {', '.join(unseen)}{consequence}", subject.set_up)
    missing_of_batch = [name for name in names(BATCH) if name not in held]
    if missing_of_batch:
        return doubt(f"enough to launch; missing for fleets on Batch: {', '.join(missing_of_batch)}", subject.set_up)
    return fine(f"all {len(body['permissions'])} permissions on the project")


def clock(api: Api, subject: Subject) -> Verdict:
    """Compares this machine's clock with the server's. Every answer has the server's time, even a refusal."""
    answer = api.ask(Request("compute", "GET", f"/compute/v1/projects/{subject.project}", {"fields": "name"}))
    skew = answer.skew_s
    if skew is None:
        return doubt(f"no server told the time, so this clock cannot be checked: {answer.message}")
    if abs(skew) <= SKEW_WARN_S:
        return fine("agrees with Google's" if not subject.embedded else "agrees with the server's")
    where = f"this machine's clock is {abs(skew):.0f} s {'behind' if skew > 0 else 'ahead'}"
    remedy = "sudo timedatectl set-ntp true"
    return bad(where, remedy) if abs(skew) > SKEW_FAIL_S else doubt(where, remedy)
