"""The properties of buckets: location, lifecycle and policy.

The object store knows which buckets exist and what is in them. This module stores everything else.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qs

from orchestrator.embedded.commons import BodyPart, Commons
from orchestrator.embedded.documents import google_stamp
from orchestrator.embedded.errors import ApiError, Document
from orchestrator.embedded.inventory import numeric_id
from orchestrator.embedded.listener import HttpRequest
from orchestrator.embedded.objects import Objects, no_bucket
from orchestrator.embedded.permissions import Policies, held_permissions
from orchestrator.embedded.routes import Route, make_routes

ONE = "/{bucket*}"
NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{1,61})[a-z0-9]")
KEPT = ("location", "storageClass", "lifecycle", "iamConfiguration", "labels", "softDeletePolicy", "versioning")
MULTI = ("US", "EU", "ASIA")


class Buckets(BodyPart):
    """Answers requests about buckets. Thread-safe. The object store decides which buckets exist."""

    def __init__(self, commons: Commons, policies: Policies, objects: Objects) -> None:
        super().__init__(commons)
        self.objects = objects
        self.policies = policies

    def routes(self) -> list[Route]:
        return make_routes(
            "storage",
            "/storage/v1/b",
            ("GET", "", self.list),
            ("POST", "", self.create, "storage.buckets.create"),
            ("GET", ONE, self.get, "storage.buckets.get"),
            ("PATCH", ONE, self.patch, "storage.buckets.update"),
            ("DELETE", ONE, self.delete),
            ("GET", ONE + "/iam", self.get_policy, "storage.buckets.getIamPolicy"),
            ("PUT", ONE + "/iam", self.set_policy, "storage.buckets.setIamPolicy"),
            ("GET", ONE + "/iam/testPermissions", self.test_permissions),
            ("GET", ONE + "/storageLayout", self.layout),
        )

    def know(self, name: str) -> None:
        """Gives the bucket that every embedded cloud has its settings, unless it has some: those that `bench init`
        sets."""
        if self.store.get("bucket", name) is None:
            self._put(name, CAREFUL)

    def check_bucket(self, _route: Route, parts: dict[str, str], request: HttpRequest) -> None:
        """Raises `ApiError` (404) if the weather took the bucket of a path away."""
        bucket = parts.get("bucket", "")
        if bucket and self.weather.holds(request.target, "bucket_missing", bucket=bucket):
            raise no_bucket()

    def list(self, request: HttpRequest) -> Document:
        items = [self.get(request, name) for name in self.objects.bucket_names()]
        return {"kind": "storage#buckets", **({"items": items} if items else {})}

    def get(self, request: HttpRequest, bucket: str) -> Document:
        stored: Document | None = self.store.get("bucket", bucket)
        if not self.objects.has_bucket(bucket):
            raise no_bucket()
        document = stored or self._put(bucket, {})
        elsewhere = self.weather.holds(request.target, "bucket_elsewhere", bucket=bucket)
        return document | ({"location": str(elsewhere.params["location"]).upper()} if elsewhere else {})

    def patch(self, request: HttpRequest, bucket: str) -> Document:
        before, body = self.get(request, bucket), request.document()
        return self._put(bucket, before | {key: body[key] for key in KEPT if key in body}, before)

    def delete(self, _request: HttpRequest, bucket: str) -> None:
        self.objects.drop_bucket(bucket)
        self.store.drop("bucket", bucket)

    def get_policy(self, _request: HttpRequest, bucket: str) -> Document:
        policy = self.policies.get(f"bucket {bucket}")
        return {"kind": "storage#policy", "resourceId": f"projects/_/buckets/{bucket}", **policy}

    def set_policy(self, request: HttpRequest, bucket: str) -> Document:
        try:
            self.policies.set(f"bucket {bucket}", request.document())
        except ApiError as error:
            # If the policy has changed in between, Cloud Storage answers that a precondition was not met.
            raise (ApiError(412, error.message) if error.status == 409 else error) from None
        return self.get_policy(request, bucket)

    def test_permissions(self, request: HttpRequest, bucket: str) -> Document:  # noqa: ARG002
        wanted = parse_qs(request.raw_query).get("permissions", [])
        held = held_permissions(self.weather, wanted, request.target)
        return {"kind": "storage#testIamPermissionsResponse", **held}

    def layout(self, request: HttpRequest, bucket: str) -> Document:
        document = self.get(request, bucket)
        layout = {"bucket": bucket, "location": document["location"], "locationType": document["locationType"]}
        return {"kind": "storage#storageLayout", **layout, "hierarchicalNamespace": {"enabled": False}}

    def create(self, request: HttpRequest) -> Document:
        body = request.document()
        name = str(body.get("name", ""))
        if not NAME.fullmatch(name):
            raise ApiError(400, f"Invalid bucket name: '{name}'", "invalid")
        if not self.objects.make_bucket(name) and not self.weather.holds(name, "bucket_missing", bucket=name):
            raise ApiError(
                409, "Your previous request to create the named bucket succeeded and you already own it.", "conflict"
            )
        self.weather.end("bucket_missing", bucket=name)
        self.weather.end("bucket_elsewhere", bucket=name)
        return self._put(name, {key: body[key] for key in KEPT if key in body})

    def _put(self, name: str, settings: Document, before: Document | None = None) -> Document:
        now = google_stamp(self.timeline.now())
        location = str(settings.get("location", "US")).upper()
        given: Document = settings.get("iamConfiguration", {})
        uniform = bool(given.get("uniformBucketLevelAccess", {}).get("enabled"))
        document: Document = {
            "kind": "storage#bucket",
            "id": name,
            "name": name,
            "selfLink": f"https://www.googleapis.com/storage/v1/b/{name}",
            "projectNumber": numeric_id(self.project)[:12],
            "timeCreated": before["timeCreated"] if before else now,
            "updated": now,
            "metageneration": str(int(before["metageneration"]) + 1 if before else 1),
            "etag": f"CA{'EF'[bool(before)]}=",
            "location": location,
            "locationType": "multi-region" if location in MULTI else "region",
            "storageClass": str(settings.get("storageClass", "STANDARD")),
            "iamConfiguration": {
                "uniformBucketLevelAccess": {"enabled": uniform},
                "publicAccessPrevention": str(given.get("publicAccessPrevention", "inherited")),
            },
            "softDeletePolicy": settings.get("softDeletePolicy", {"retentionDurationSeconds": "604800"}),
        }
        document |= {key: settings[key] for key in KEPT_SETTINGS if key in settings}
        self.store.put("bucket", name, document)
        return document


KEPT_SETTINGS = (
    *("lifecycle", "labels", "versioning", "retentionPolicy", "defaultEventBasedHold", "billing", "encryption"),
    *("autoclass", "hierarchicalNamespace", "website", "cors", "logging", "objectRetention"),
)
"""What a bucket's document shows as it was given."""

CAREFUL: Document = {
    "location": "US-CENTRAL1",
    "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "enforced"},
    "lifecycle": {
        "rule": [
            {"action": {"type": "Delete"}, "condition": {"age": 180, "matchesPrefix": ["payloads/"]}},
            {"action": {"type": "AbortIncompleteMultipartUpload"}, "condition": {"age": 7}},
        ]
    },
}
