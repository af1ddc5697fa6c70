"""The properties of buckets: location, lifecycle and policy.

The object store knows which buckets exist and what is in them. This module stores everything else.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from orchestrator.embedded.commons import BodyPart, Commons
from orchestrator.embedded.documents import google_stamp
from orchestrator.embedded.errors import ApiError, Document, invalid_field, not_found
from orchestrator.embedded.filters import parse_filter
from orchestrator.embedded.inventory import numeric_id
from orchestrator.embedded.links import self_link
from orchestrator.embedded.listener import Reply, json_reply
from orchestrator.embedded.objects import Objects, no_bucket
from orchestrator.embedded.permissions import Policies, check_permission, held_permissions

# The common parts of Compute Engine's list methods: filter, order, pages, and lists over all zones.


MOST = 500


def page_items(items: list[Document], query: Mapping[str, str]) -> tuple[list[Document], str]:
    """(items of the requested page, token of the next page). The token is empty on the last page. Raises `ApiError`
    (400) for invalid parameters."""
    passes = parse_filter(query.get("filter", ""))
    chosen = order_items([item for item in items if passes(item)], query.get("orderBy", ""))
    try:
        size = int(query.get("maxResults", MOST))
        start = int(base64.urlsafe_b64decode(query.get("pageToken", "") or "MA==").decode())
    except ValueError as exc:
        raise ApiError(400, "Invalid value for maxResults or pageToken.") from exc
    if not 0 <= size <= MOST:
        raise invalid_field("maxResults", size, f"Must be between 0 and {MOST}")
    end = start + (size or MOST)
    token = base64.urlsafe_b64encode(str(end).encode()).decode() if end < len(chosen) else ""
    return chosen[start:end], token


def find_named(items: list[Document], path: str) -> Document:
    """The item whose name is at the end of the path. Raises the API's 404 if there is none."""
    for item in items:
        if item["name"] == path.rpartition("/")[2]:
            return item
    raise not_found(path)


def order_items(items: list[Document], order: str) -> list[Document]:
    """The items sorted by name, or by creation, newest first. Raises `ApiError` (400) for another order."""
    if order in ("", "name"):
        return sorted(items, key=lambda item: str(item["name"]))
    if order == "creationTimestamp desc":
        moments = lambda item: str(item.get("creationTimestamp", item.get("insertTime", "")))  # noqa: E731
        return sorted(items, key=moments, reverse=True)
    raise invalid_field("orderBy", order, "Only name and creationTimestamp desc are supported")


def list_response(kind: str, path: str, items: list[Document], query: Mapping[str, str]) -> Document:
    """A list response. `kind` is such as `compute#instanceList`."""
    chosen, token = page_items(items, query)
    answer: Document = {"kind": kind, "id": path, "selfLink": self_link(path)}
    if chosen:
        answer["items"] = chosen
    if token:
        answer["nextPageToken"] = token
    return answer


def aggregated_response(
    kind: str,
    path: str,
    key: str,
    scopes: Mapping[str, list[Document]],
    query: Mapping[str, str],
    *,
    level: str = "zones",
) -> Document:
    """A list response over zones or regions. A zone or region without items has a warning instead."""
    places = {id(item): zone for zone, items in scopes.items() for item in items}
    everything = [item for items in scopes.values() for item in items]
    chosen, token = page_items(everything, query)
    by_scope: dict[str, Document] = {}
    for zone in scopes:
        of_zone = [item for item in chosen if places[id(item)] == zone]
        if of_zone:
            by_scope[f"{level}/{zone}"] = {key: of_zone}
        else:
            by_scope[f"{level}/{zone}"] = {
                "warning": {
                    "code": "NO_RESULTS_ON_PAGE",
                    "message": f"There are no results for scope '{level}/{zone}' on this page.",
                    "data": [{"key": "scope", "value": f"{level}/{zone}"}],
                }
            }
    answer: Document = {"kind": kind, "id": path, "selfLink": self_link(path), "items": by_scope}
    if token:
        answer["nextPageToken"] = token
    return answer


ROOT = "/storage/v1/"
ANY = re.compile(r"/(?:(?:upload|download|resumable)/)*storage/v1/b(?:/(?P<bucket>[^/]+))?(?P<rest>/.*)?")
ONE = re.compile(r"/storage/v1/b/(?P<bucket>[^/]+)(?P<part>/iam|/iam/testPermissions|/storageLayout)?")
NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{1,61})[a-z0-9]")
KEPT = ("location", "storageClass", "lifecycle", "iamConfiguration", "labels", "softDeletePolicy", "versioning")
MULTI = ("US", "EU", "ASIA")


class Buckets(BodyPart):
    """Answers requests about buckets. Thread-safe. The object store decides which buckets exist."""

    def __init__(self, commons: Commons, policies: Policies, objects: Objects, observer: Any) -> None:
        super().__init__(commons)
        self.objects = objects
        self.policies = policies
        self.observer = observer

    def know(self, name: str) -> None:
        """Gives the bucket that every embedded cloud has its settings, unless it has some: those that `bench init`
        sets."""
        if self.store.get("bucket", name) is None:
            self._put(name, CAREFUL)

    # Before a request is answered

    def refusal(self, verb: str, target: str, client: bool) -> Reply | None:
        """The refusal of a request to Cloud Storage, because of the API, a permission or a missing bucket; None if
        there is no reason to refuse it."""
        path = urlsplit(target).path
        match = ANY.fullmatch(path)
        if match is None:
            return None
        bucket = unquote(match["bucket"] or "")
        try:
            if client:
                below = path.replace("storage/v1/", "", 1).lstrip("/")
                check_permission(self.weather, self.project, "storage", verb, below, self.timeline.now())
            if bucket and self.weather.holds(target, "bucket_missing", bucket=bucket):
                raise no_bucket()
        except ApiError as error:
            self._observe(verb, target, None, error.status, error.document())
            return json_reply(error.status, error.document())
        return None

    def serves(self, verb: str, target: str) -> bool:
        """Whether a request is about a bucket and not about its objects."""
        path = urlsplit(target).path
        return (verb in ("GET", "POST") and path == f"{ROOT}b") or ONE.fullmatch(path) is not None

    def answer(self, verb: str, target: str, body: bytes) -> Reply:
        try:
            document = json.loads(body) if body else None
            status, answer = 200, self._answer(verb, target, document)
        except ValueError:
            error = ApiError(400, "Parse Error", "parseError")
            document, status, answer = None, error.status, error.document()
        except ApiError as error:
            status, answer = error.status, error.document()
        self._observe(verb, target, document, status, answer)
        return Reply(204) if answer is None else json_reply(status, answer)

    def _observe(self, verb: str, target: str, body: Any, status: int, answer: Any) -> None:
        if self.observer is not None and self.serves(verb, target):
            split = urlsplit(target)
            query = {key: values[-1] for key, values in parse_qs(split.query).items()}
            self.observer(verb, split.path, query, body, status, answer)

    def _answer(self, verb: str, target: str, body: Any) -> Document | None:
        split = urlsplit(target)
        if split.path == f"{ROOT}b":
            return self._make(body or {}) if verb == "POST" else self._list(target)
        match = ONE.fullmatch(split.path)
        assert match is not None
        name = unquote(match["bucket"])
        match verb, match["part"]:
            case "GET", None:
                return self._get(name, target)
            case "PATCH", None:
                before = self._get(name, target)
                return self._put(name, before | {key: body[key] for key in KEPT if key in body}, before)
            case "DELETE", None:
                self.objects.drop_bucket(name)
                self.store.drop("bucket", name)
                return None
            case "GET", "/iam":
                return self._policy(self.policies.get(f"bucket {name}"), name)
            case "PUT", "/iam":
                return self._policy(self._changed(f"bucket {name}", body), name)
            case "GET", "/iam/testPermissions":
                wanted = parse_qs(split.query).get("permissions", [])
                return {"kind": "storage#testIamPermissionsResponse", **held_permissions(self.weather, wanted, target)}
            case "GET", "/storageLayout":
                found_ = self._get(name, target)
                layout = {"bucket": name, "location": found_["location"], "locationType": found_["locationType"]}
                return {"kind": "storage#storageLayout", **layout, "hierarchicalNamespace": {"enabled": False}}
        raise ApiError(501, f"{verb} {split.path} is not something this cloud can do.")

    def _list(self, target: str) -> Document:
        items = [self._get(name, target) for name in self.objects.bucket_names()]
        return {"kind": "storage#buckets", **({"items": items} if items else {})}

    def _make(self, body: Document) -> Document:
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

    def _get(self, name: str, target: str) -> Document:
        stored: Document | None = self.store.get("bucket", name)
        if not self.objects.has_bucket(name):
            raise no_bucket()
        document = stored or self._put(name, {})
        elsewhere = self.weather.holds(target, "bucket_elsewhere", bucket=name)
        return document | ({"location": str(elsewhere.params["location"]).upper()} if elsewhere else {})

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

    def _changed(self, resource: str, policy: Any) -> Document:
        try:
            return self.policies.set(resource, policy)
        except ApiError as error:
            # If the policy has changed in between, Cloud Storage answers that a precondition was not met.
            raise (ApiError(412, error.message) if error.status == 409 else error) from None

    def _policy(self, policy: Document, name: str) -> Document:
        return {"kind": "storage#policy", "resourceId": f"projects/_/buckets/{name}", **policy}


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
