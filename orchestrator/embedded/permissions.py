"""Which permission a request needs, and the refusals of requests if an API is off or a permission is missing.

Every client owns the project; only the weather takes permissions away. Requests with a VM's token are not checked here.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from orchestrator.embedded.errors import ApiError, Document, not_found
from orchestrator.embedded.store import Store
from orchestrator.embedded.weather import Weather

# The IAM policies of the project, its service accounts and its buckets.


KINDS = ("user:", "serviceAccount:", "group:", "domain:", "principal:", "principalSet:", "projectOwner:",
         "projectEditor:", "projectViewer:", "allUsers", "allAuthenticatedUsers")  # fmt: skip


class Policies:
    """The policies. Thread-safe. A policy that was never set is empty. Every change gives a new etag."""

    def __init__(self, project: str, store: Store) -> None:
        self.project = project
        self.store = store
        self.lock = threading.Lock()

    def get(self, resource: str) -> Document:
        policy: Document | None = self.store.get("policy", resource)
        return policy or {"version": 1, "etag": policy_etag(0), "bindings": []}

    def set(self, resource: str, policy: Any) -> Document:
        """Stores a policy and returns it as stored. Raises `ApiError`: 409 if it was changed since it was read, and 400
        if it is invalid or names a role or an account that does not exist."""
        if not isinstance(policy, dict) or not isinstance(policy.get("bindings", []), list):
            raise ApiError(400, "Invalid JSON payload received. The policy has no list of bindings.")
        bindings = [self._binding(binding) for binding in policy.get("bindings", [])]
        conditional = any("condition" in binding for binding in bindings)
        if conditional and policy.get("version") != 3:
            raise ApiError(400, "Policies with conditions must have version 3.")
        with self.lock:
            before = self.get(resource)
            etag_given = policy.get("etag") or before["etag"]  # a policy without one takes the place of any
            if etag_given != before["etag"]:
                raise ApiError(
                    409,
                    "There were concurrent policy changes. Please retry the whole read-modify-write with exponential"
                    " backoff.",
                    "aborted",
                )
            number = int.from_bytes(base64.b64decode(before["etag"]), "big") + 1
            stored = {"version": 3 if conditional else 1, "etag": policy_etag(number), "bindings": bindings}
            self.store.put("policy", resource, stored)
        return stored

    def _binding(self, binding: Any) -> Document:
        role, members = str(binding.get("role", "")), binding.get("members", [])
        if not role.startswith(("roles/", "projects/")):
            raise ApiError(400, f"Role {role} is not supported for this resource.")
        if role.startswith("projects/") and self.store.get("role", role) is None:
            raise ApiError(400, f"Role {role} does not exist in the resource's hierarchy.")
        for member in members:
            if not str(member).startswith(KINDS):
                raise ApiError(400, f"The member {member} is of an unknown type.")
            name = str(member).partition(":")[2]
            is_own_account = member.startswith("serviceAccount:") and name.endswith(
                f"@{self.project}.iam.gserviceaccount.com"
            )
            if is_own_account and self.store.get("service_account", name) is None:
                raise ApiError(400, f"Service account {name} does not exist.")
        kept = {"role": role, "members": sorted(map(str, members))}
        return kept | ({"condition": binding["condition"]} if "condition" in binding else {})


def policy_etag(number: int) -> str:
    """The etag of a policy's version number, as opaque text like Google's."""
    return base64.b64encode(number.to_bytes(8, "big")).decode()


TITLES = {
    "compute": "Compute Engine API",
    "storage": "Cloud Storage JSON API",
    "serviceusage": "Service Usage API",
    "cloudresourcemanager": "Cloud Resource Manager API",
    "iam": "Identity and Access Management (IAM) API",
    "cloudbilling": "Cloud Billing API",
    "batch": "Batch API",
}
APIS = {service: f"{service}.googleapis.com" for service in TITLES}
TESTABLE = (
    "compute.disks.create",
    "compute.globalOperations.get",
    "compute.instances.simulateMaintenanceEvent",
    "compute.disks.useReadOnly",
    "compute.images.setLabels",
    "compute.images.useReadOnly",
    "compute.instances.setServiceAccount",
    "compute.subnetworks.use",
    "compute.subnetworks.useExternalIp",
    "iam.serviceAccounts.actAs",
    "serviceusage.services.get",
    "storage.buckets.delete",
    "storage.multipartUploads.abort",
    "storage.multipartUploads.create",
    "storage.multipartUploads.list",
    "storage.multipartUploads.listParts",
    "storage.objects.update",
)
"""The permissions that a role may have, in addition to those that a request may need."""


def check_permission(weather: Weather, project: str, service: str, permission: str, victim: str, now: datetime) -> None:
    """Returns if a request of a service that needs a permission (empty: none) is allowed, and raises Google's
    `ApiError` (403) if not."""
    api = APIS[service]
    settling = weather.holds(victim, "api_settling", api=api)
    if settling is not None and now < datetime.fromisoformat(settling.params["until"]):
        raise disabled_error(api, TITLES[service], project)
    if weather.holds(victim, "api_disabled", api=api):
        raise disabled_error(api, TITLES[service], project)
    if permission and weather.holds(victim, "permission_missing", permission=permission):
        raise ApiError(403, f"Required '{permission}' permission for 'projects/{project}'", "forbidden")


def admit_insert(weather: Weather, project: str, body: Any) -> None:
    """Returns if an instance may be requested. Raises Google's `ApiError` if billing is off, or if a network or a
    service account is missing."""
    if weather.holds("insert", "billing_off"):
        raise ApiError(
            403, f"This API method requires billing to be enabled on project {project}.", "billingNotEnabled"
        )
    for interface in body.get("networkInterfaces", []):
        network = str(interface.get("network", "default")).rpartition("/")[2]
        if weather.holds("insert", "network_missing", network=network):
            raise not_found(f"projects/{project}/global/networks/{network}")
    for account in body.get("serviceAccounts", []):
        email = str(account.get("email", "default"))
        for kind in ("service_account_missing", "service_account_disabled"):
            if weather.holds("insert", kind, email=email):
                raise ApiError(
                    400, f"The resource 'projects/{project}/serviceAccounts/{email}' was not found or is disabled."
                )


def held_permissions(weather: Weather, permissions: Iterable[str], victim: str) -> Document:
    """The answer to `testIamPermissions`: those of `permissions` that the caller has; empty if it has none."""
    kept = [name for name in permissions if not weather.holds(victim, "permission_missing", permission=name)]
    return {"permissions": kept} if kept else {}


def disabled_error(api: str, title: str, project: str) -> ApiError:
    """The 403 error of an API that is not enabled."""
    page = f"https://console.developers.google.com/apis/api/{api}/overview?project={project}"
    return ApiError(
        403,
        f"{title} has not been used in project {project} before or it is disabled. Enable it by visiting {page} then"
        " retry.",
        "accessNotConfigured",
        details=[
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "SERVICE_DISABLED",
                "domain": "googleapis.com",
                "metadata": {"service": api, "consumer": f"projects/{project}"},
            }
        ],
    )
