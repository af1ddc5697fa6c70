"""The bucket: its location, its settings, and whether this account can use it."""

from __future__ import annotations

from orchestrator.core.doctor.subject import Subject
from orchestrator.core.doctor.verdicts import Verdict, bad, doubt, fine, refused
from orchestrator.core.market.places import continent, near
from orchestrator.core.permissions import BUCKET, BUCKET_READER, OBJECT_USER, names
from orchestrator.core.rest import Api, Request
from orchestrator.core.setup.plan import bucket_steps
from orchestrator.core.setup.steps import MakeBucket, describe

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
