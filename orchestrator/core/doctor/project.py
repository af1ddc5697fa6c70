"""The checks of the project: the login, whether the project exists and has billing, its APIs, the login's
permissions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, ValidationError

from orchestrator.core.bounds import LenientModel, Moment, Name
from orchestrator.core.doctor.verdicts import (
    LOGIN,
    CheckVerdict,
    Identity,
    NetworkRoute,
    Subject,
    error_verdict,
    fail_verdict,
    pass_verdict,
    warn_verdict,
)
from orchestrator.core.market.skus import continent_of, regions_near
from orchestrator.core.permissions import BATCH, BUCKET, BUCKET_READER, LAUNCHER, LOOKER, OBJECT_USER, permission_names
from orchestrator.core.rest import Api, RestRequest, list_all_pages, list_entries
from orchestrator.core.setup.calls import enabled_request
from orchestrator.core.setup.plan import APIS, FLEET_APIS, RUN_APIS, bucket_steps
from orchestrator.core.setup.steps import EnableApis, MakeBucket, describe_step
from orchestrator.core.text import clean_line

# The bucket: its location, its settings, and whether this account can use it.


STORAGE = "storage.googleapis.com"


def check_bucket(api: Api, subject: Subject) -> CheckVerdict:
    """Checks that the bucket exists, is near the machines, and has the settings that bench needs."""
    name = subject.bucket
    if not name:
        remedy = f"bench init --project {subject.project}"
        return fail_verdict("no bucket is set; bench stores runs, results and the ledger in one", remedy)
    answer = api.ask(RestRequest("storage", "GET", f"/storage/v1/b/{name}", {"projection": "noAcl"}))
    if answer.status == 404:
        step = MakeBucket(subject.project, name, subject.regions[0])
        return fail_verdict(f"there is no bucket gs://{name}", "", step)
    if not answer.good:
        return error_verdict(answer, subject.project, STORAGE, _grant(subject, BUCKET_READER))
    if harm := harmful_setting(name, answer.document):
        return fail_verdict(*harm)
    location = str(answer.document.get("location", ""))
    near_regions = regions_near(location, subject.every_zone)
    if not near_regions:
        far = f"gs://{name} is in {location}, but machines are requested in other regions"
        if continent_of(location) not in {continent_of(region) for region in subject.regions}:
            far += " on another continent"
        other = f"{name}-{subject.regions[0]}"
        command = f"bench init --project {subject.project} --bucket {other} --location {subject.regions[0]}"
        return warn_verdict(f"{far}; Google charges for the traffic of every case that is uploaded", command)
    steps = bucket_steps(subject.project, name, location.lower(), answer.document)
    if steps:
        return warn_verdict(f"gs://{name} in {location} needs other settings: {describe_step(steps[0])}", "", *steps)
    return pass_verdict(f"gs://{name} in {location}, with uniform access, no public access, and old payloads deleted")


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


def check_object_rights(api: Api, subject: Subject) -> CheckVerdict:
    """Checks this account's permissions on the bucket's objects."""
    path = f"/storage/v1/b/{subject.bucket}/iam/testPermissions"
    wanted = permission_names(BUCKET)
    answer = api.ask(RestRequest("storage", "GET", path, {"permissions": list(wanted)}))
    grant = _grant(subject, OBJECT_USER)
    if not answer.good:
        return error_verdict(answer, subject.project, STORAGE, grant)
    missing = [name for name in wanted if name not in answer.document.get("permissions", ())]
    if missing:
        return fail_verdict(f"this account lacks {', '.join(missing)} on gs://{subject.bucket}", grant)
    return pass_verdict("this account can store, read, list and replace objects")


def _grant(subject: Subject, role: str) -> str:
    where = f"gs://{subject.bucket} --member={subject.member} --role={role}"
    return f"gcloud storage buckets add-iam-policy-binding {where}"


SKEW_WARN_S = 5.0
SKEW_FAIL_S = 60.0
"""Google refuses tokens if the clock is wrong by about five minutes. A smaller error already charges the wrong day."""


def check_connection(route: NetworkRoute) -> CheckVerdict:
    """Says how requests of every client leave this machine."""
    way = f"through the proxy {route.proxy}" if route.proxy else "directly"
    trust = f"{route.variable} ({route.authorities})" if route.variable else "the list of certifi"
    return pass_verdict(
        f"{way}; certificate authorities: {trust}{'; with a client certificate' if route.certificate else ''}"
    )


def check_credentials(found: Identity | None, trouble: str) -> CheckVerdict:
    """Checks the credentials. `found` is None if there are none or Google refuses them; `trouble` then says why."""
    if found is None:
        return fail_verdict(trouble, LOGIN)
    return pass_verdict(f"{found.kind}{f' of {found.member}' if found.member else ''}")


def check_project(api: Api, subject: Subject) -> CheckVerdict:
    name = subject.project
    answer = api.ask(RestRequest("cloudresourcemanager", "GET", f"/v3/projects/{name}"))
    if answer.good:
        state = answer.document.get("state", "ACTIVE")
        if state != "ACTIVE":
            return fail_verdict(f"{name} is being deleted", f"gcloud projects undelete {name}")
        return pass_verdict(f"{name} exists")
    if answer.status not in (403, 404):
        return error_verdict(answer, name, "cloudresourcemanager.googleapis.com", subject.set_up)
    # The project may exist although that API does not show it to this account.
    second = api.ask(RestRequest("compute", "GET", f"/compute/v1/projects/{name}", {"fields": "name"}))
    if second.good:
        return error_verdict(answer, name, "cloudresourcemanager.googleapis.com", subject.set_up)
    if answer.api_off or second.api_off:
        return warn_verdict(f"{name} cannot be checked while its APIs are off", "", EnableApis(name, APIS))
    return fail_verdict(
        f"{name} does not exist, or this account may not see it: {answer.message}", "gcloud projects list"
    )


def check_billing(api: Api, subject: Subject) -> CheckVerdict:
    answer = api.ask(RestRequest("cloudbilling", "GET", f"/v1/projects/{subject.project}/billingInfo"))
    if not answer.good:
        return error_verdict(answer, subject.project, "cloudbilling.googleapis.com", subject.set_up)
    if not answer.document.get("billingEnabled"):
        link = f"gcloud billing projects link {subject.project} --billing-account=ACCOUNT"
        return fail_verdict("no billing account pays for the project", f"gcloud billing accounts list && {link}")
    return pass_verdict("a billing account pays for it")


def check_apis(api: Api, subject: Subject) -> CheckVerdict:
    answer = api.ask(enabled_request(subject.project, APIS))
    if not answer.good:
        return error_verdict(answer, subject.project, "serviceusage.googleapis.com", subject.set_up)
    states = {
        str(entry.get("name", "")).rpartition("/")[2]: entry.get("state")
        for entry in list_entries(answer.document, "services")
    }
    off = tuple(api for api in APIS if states.get(api) != "ENABLED")
    if not off:
        return pass_verdict(f"{', '.join(api.partition('.')[0] for api in APIS)} are on")
    step = EnableApis(subject.project, off)
    if set(off) & set(RUN_APIS):
        return fail_verdict(f"not enabled: {', '.join(off)}", "", step)
    affected = "fleets on Batch do not" if set(off) <= set(FLEET_APIS) else "`bench doctor` and `bench init` do not"
    return warn_verdict(f"not enabled: {', '.join(off)}; launches work, {affected}", "", step)


ADVICE: Final = ("compute.advice.capacity", "compute.advice.capacityHistory")


def check_roles(api: Api, subject: Subject) -> CheckVerdict:
    unneeded = set() if subject.external_ip else {"compute.subnetworks.useExternalIp"}
    launching = [name for name in permission_names(LAUNCHER) if name not in unneeded]
    path = f"/v3/projects/{subject.project}:testIamPermissions"
    body = {"permissions": [*launching, *permission_names(LOOKER, BATCH)]}
    answer = api.ask(RestRequest("cloudresourcemanager", "POST", path, body=body))
    if not answer.good:
        return error_verdict(answer, subject.project, "cloudresourcemanager.googleapis.com", subject.set_up)
    held = set(answer.document.get("permissions", ()))
    missing = [name for name in launching if name not in held]
    if missing:
        return fail_verdict(
            f"missing {len(missing)} of {len(launching)} permissions: {', '.join(missing)}", subject.set_up
        )
    unseen = [name for name in permission_names(LOOKER) if name not in held]
    if unseen:
        consequence = "; zones are ranked without Google's capacity advice" if set(unseen) & set(ADVICE) else ""
        return warn_verdict(
            f"enough to launch; missing to look things up: {', '.join(unseen)}{consequence}", subject.set_up
        )
    missing_of_batch = [name for name in permission_names(BATCH) if name not in held]
    if missing_of_batch:
        return warn_verdict(
            f"enough to launch; missing for fleets on Batch: {', '.join(missing_of_batch)}", subject.set_up
        )
    return pass_verdict(f"all {len(body['permissions'])} permissions on the project")


def check_clock(api: Api, subject: Subject) -> CheckVerdict:
    """Compares this machine's clock with the server's. Every answer has the server's time, even a refusal."""
    answer = api.ask(RestRequest("compute", "GET", f"/compute/v1/projects/{subject.project}", {"fields": "name"}))
    skew = answer.skew_s
    if skew is None:
        return warn_verdict(f"no server told the time, so this clock cannot be checked: {answer.message}")
    if abs(skew) <= SKEW_WARN_S:
        return pass_verdict("agrees with Google's" if not subject.embedded else "agrees with the server's")
    where = f"this machine's clock is {abs(skew):.0f} s {'behind' if skew > 0 else 'ahead'}"
    remedy = "sudo timedatectl set-ntp true"
    return fail_verdict(where, remedy) if abs(skew) > SKEW_FAIL_S else warn_verdict(where, remedy)


# What a rehearsal found about our assumptions about Google, and what `bench doctor` says about it. `make live` writes
# one object, `rehearsal-<time>.json`, at the top of the bucket, where none of our machines may write.


PREFIX: Final = "rehearsal-"
ASSUMPTIONS: Final[Mapping[str, str]] = {
    "deadline": "the server deletes a machine at maxRunDuration, within 30 s",
    "deadline-begins": "maxRunDuration counts from when the machine starts to run",
    "request-id": "the same request twice makes one machine",
    "done-with-error": "an operation that is DONE may contain an error",
    "self-delete": "a machine may delete itself, but no other machine",
    "prefixes": "a machine may write below runs/, but not to the ledger",
    "date": "Cloud Storage's Date is right to a second or two",
    "generation": "if several writers send the same precondition, one succeeds",
    "preemption": "a preempted machine leaves an operation that says so",
    "billing": "machines are billed by the second, for at least a minute",
    "spot-quota": "spot machines use the ordinary quota if no spot quota was granted",
    "image": "the image families of the catalog exist",
    "driver": "the driver answers at the first boot",
    "api-settles": "an API that was just enabled is refused for some minutes",
}
"""Each assumption, by the name that docs/assumptions.md uses."""
STATES: Final = ("verified", "refuted", "not seen")


class RehearsalFinding(LenientModel):
    """What a rehearsal saw of one assumption. `detail` has the figures."""

    name: Name
    state: Name
    detail: Annotated[str, AfterValidator(lambda text: clean_line(text, 300))]


def _known(findings: tuple[RehearsalFinding, ...]) -> tuple[RehearsalFinding, ...]:
    counted = tuple(one for one in findings if one.name in ASSUMPTIONS and one.state in STATES)
    if len({one.name for one in counted}) < len(counted):
        raise ValueError("an assumption is there twice")
    return counted


class Rehearsal(LenientModel):
    schema_: Literal[1] = Field(default=1, alias="schema")
    project: Name
    at: Moment
    findings: Annotated[tuple[RehearsalFinding, ...], AfterValidator(_known)]
    usd_at_most: Name = "0"

    def of(self, state: str) -> tuple[RehearsalFinding, ...]:
        return tuple(finding for finding in self.findings if finding.state == state)

    @property
    def object(self) -> str:
        return f"{PREFIX}{self.at.astimezone(UTC):%Y%m%dT%H%M%SZ}.json"


def read_rehearsal(found: Mapping[str, Any]) -> Rehearsal | None:
    """The rehearsal in a document, or None if the document is not valid: anybody who may write to the bucket may have
    written it."""
    try:
        return Rehearsal.model_validate(found)
    except ValidationError:
        return None


def rehearsal_command(project: str) -> str:
    return f"make live PROJECT={project} CAP=0.50"


def check_rehearsal(api: Api, subject: Subject) -> CheckVerdict:
    """The verdict on the newest rehearsal in the bucket."""
    if subject.embedded:
        return pass_verdict("not needed: the embedded cloud is not Google")
    base = f"/storage/v1/b/{subject.bucket}/o"
    listed = list_all_pages(
        api, RestRequest("storage", "GET", base, {"prefix": PREFIX, "fields": "items(name),nextPageToken"})
    )
    grant = (
        f"gcloud storage buckets add-iam-policy-binding gs://{subject.bucket} --member={subject.member}"
        f" --role={OBJECT_USER}"
    )
    if not listed.good:
        return error_verdict(listed, subject.project, "storage.googleapis.com", grant)
    names = sorted(str(entry["name"]) for entry in listed.document["items"] if isinstance(entry, Mapping))
    if not names:
        return _never(subject)
    answer = api.ask(RestRequest("storage", "GET", f"{base}/{names[-1]}", {"alt": "media"}))
    if not answer.good:
        return error_verdict(answer, subject.project, "storage.googleapis.com", grant)
    newest_rehearsal = read_rehearsal(answer.document)
    if newest_rehearsal is None or newest_rehearsal.project != subject.project:
        return _never(subject)
    return judge_rehearsal(newest_rehearsal)


def _never(subject: Subject) -> CheckVerdict:
    return warn_verdict(
        "bench's assumptions about Google were never verified in this project", rehearsal_command(subject.project)
    )


def judge_rehearsal(found: Rehearsal) -> CheckVerdict:
    """The verdict on a rehearsal."""
    on, wrong, unseen = f"{found.at:%Y-%m-%d}", found.of("refuted"), found.of("not seen")
    if wrong:
        details = "; ".join(f"{ASSUMPTIONS[one.name]}: {one.detail}" for one in wrong)
        return fail_verdict(
            f"on {on} an assumption about Google was wrong: {details}", rehearsal_command(found.project)
        )
    unseen_text = f"; not seen: {_listed(unseen)}" if unseen else ""
    return pass_verdict(f"verified on {on}: {len(found.of('verified'))} of {len(ASSUMPTIONS)} assumptions{unseen_text}")


def _listed(findings: Sequence[RehearsalFinding]) -> str:
    return ", ".join(finding.name for finding in findings)
