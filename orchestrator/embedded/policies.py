"""The IAM policies of the project, its service accounts and its buckets."""

from __future__ import annotations

import base64
import threading
from typing import Any

from orchestrator.embedded.errors import ApiError, Document
from orchestrator.embedded.store import Store

KINDS = ("user:", "serviceAccount:", "group:", "domain:", "principal:", "principalSet:", "projectOwner:",
         "projectEditor:", "projectViewer:", "allUsers", "allAuthenticatedUsers")  # fmt: skip


class Policies:
    """The policies. Thread-safe. A policy that was never set is empty. Every change gives a new etag."""

    def __init__(self, project: str, store: Store) -> None:
        self.project = project
        self.store = store
        self.lock = threading.Lock()

    def get(self, resource: str) -> Document:
        found: Document | None = self.store.get("policy", resource)
        return found or {"version": 1, "etag": etag(0), "bindings": []}

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
            known = policy.get("etag") or before["etag"]  # a policy without one takes the place of any
            if known != before["etag"]:
                raise ApiError(
                    409,
                    "There were concurrent policy changes. Please retry the whole read-modify-write with exponential"
                    " backoff.",
                    "aborted",
                )
            number = int.from_bytes(base64.b64decode(before["etag"]), "big") + 1
            stored = {"version": 3 if conditional else 1, "etag": etag(number), "bindings": bindings}
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


def etag(number: int) -> str:
    """The etag of a policy's version number, as opaque text like Google's."""
    return base64.b64encode(number.to_bytes(8, "big")).decode()
