"""The REST methods for a project's APIs, billing, service accounts, roles and policies.

Service Usage v1, Cloud Resource Manager v3, IAM v1, Cloud Billing v1 and Batch v1 have no path in common, so one port
answers for all of them.
"""

from __future__ import annotations

import re
from datetime import timedelta
from functools import cached_property
from urllib.parse import parse_qs

from orchestrator.embedded.commons import BodyPart, Commons
from orchestrator.embedded.documents import utc_stamp
from orchestrator.embedded.errors import ApiError, Document
from orchestrator.embedded.inventory import numeric_id
from orchestrator.embedded.listener import HttpRequest
from orchestrator.embedded.permissions import APIS, TESTABLE, TITLES, Policies, held_permissions
from orchestrator.embedded.routes import Route, body_of, make_routes
from orchestrator.embedded.skus import EmbeddedCatalogue

ACCOUNT = "/serviceAccounts/{email}"
ACCOUNT_ID = re.compile(r"[a-z](?:[-a-z0-9]{4,28}[a-z0-9])")
ROLE_ID = re.compile(r"[a-zA-Z0-9_.]{3,64}")


class Management(BodyPart):
    """Answers requests; raises `ApiError`. Thread-safe."""

    def __init__(self, commons: Commons, policies: Policies) -> None:
        super().__init__(commons)
        self.number = numeric_id(self.project)[:12]
        self.policies = policies

    @cached_property
    def catalogue(self) -> EmbeddedCatalogue:
        """The price catalogue. Seldom asked for, and made of thousands of parts."""
        return EmbeddedCatalogue(self.inventory)

    def check_project(self, parts: dict[str, str], request: HttpRequest) -> None:
        """Checks the project in a path, and removes it. Raises `ApiError` (403)."""
        if "project" not in parts:
            return
        name = parts.pop("project")
        gone = self.weather.holds(request.target, "project_missing")
        if gone or name not in (self.project, self.number, "-"):
            # Google does not say whether a project exists that the caller may not see.
            raise ApiError(403, f"The caller does not have permission or project '{name}' does not exist.")

    def routes(self) -> list[Route]:
        return [
            *make_routes(
                "serviceusage",
                "/v1/",
                ("GET", "projects/{project}/services:batchGet", self.get_services, "serviceusage.services.list"),
                (
                    "POST",
                    "projects/{project}/services:batchEnable",
                    self.enable_services,
                    "serviceusage.services.enable",
                ),
                ("GET", "operations/{name}", self.get_operation),
            ),
            *(route for version in ("v3", "v1") for route in self._project_routes(version)),
            *make_routes("iam", "/v1/", ("POST", "permissions:queryTestablePermissions", self.testable_permissions)),
            *make_routes(
                "iam",
                "/v1/projects/{project}",
                ("POST", "/serviceAccounts", self.create_account, "iam.serviceAccounts.create"),
                ("GET", ACCOUNT, lambda asked, email: self._account(email, asked.target), "iam.serviceAccounts.get"),
                ("POST", f"{ACCOUNT}:testIamPermissions", self.test_permissions),
                ("POST", f"{ACCOUNT}:getIamPolicy", self.get_policy, "iam.serviceAccounts.getIamPolicy"),
                ("POST", f"{ACCOUNT}:setIamPolicy", self.set_policy, "iam.serviceAccounts.setIamPolicy"),
                ("POST", "/roles", self.create_role, "iam.roles.create"),
                ("GET", "/roles/{role}", self.get_role, "iam.roles.get"),
                ("PATCH", "/roles/{role}", self.change_role, "iam.roles.update"),
            ),
            *make_routes(
                "cloudbilling",
                "/v1/",
                ("GET", "projects/{project}/billingInfo", self.billing, "resourcemanager.projects.get"),
                ("GET", "services", lambda request: self.catalogue.services(request.query)),
                ("GET", "services/{service}/skus", self.list_skus),
            ),
        ]

    def _project_routes(self, version: str) -> list[Route]:
        return make_routes(
            "cloudresourcemanager",
            f"/{version}/projects/{{project}}",
            ("GET", "", self.get_project if version == "v3" else self.get_project_v1, "resourcemanager.projects.get"),
            ("POST", ":testIamPermissions", self.test_permissions),
            ("POST", ":getIamPolicy", self.get_policy, "resourcemanager.projects.getIamPolicy"),
            ("POST", ":setIamPolicy", self.set_policy, "resourcemanager.projects.setIamPolicy"),
        )

    # Service Usage

    def _service(self, api: str, victim: str) -> Document:
        off = self.weather.holds(victim, "api_disabled", api=api) is not None
        is_known = api in APIS.values() or self.store.get("api", api) is not None
        name = f"projects/{self.number}/services/{api}"
        return {
            "name": name,
            "parent": f"projects/{self.number}",
            "config": {"name": api, "title": next((TITLES[key] for key, value in APIS.items() if value == api), api)},
            "state": "ENABLED" if is_known and not off else "DISABLED",
        }

    def get_services(self, request: HttpRequest) -> Document:
        names = parse_qs(request.raw_query).get("names", [])
        if not 1 <= len(names) <= 30:
            raise ApiError(400, "names: between 1 and 30 services can be asked for at once")
        return {"services": [self._service(name.rpartition("/")[2], request.target) for name in names]}

    def enable_services(self, request: HttpRequest) -> Document:
        wanted = [str(api) for api in body_of(request).get("serviceIds", [])]
        if not 1 <= len(wanted) <= 20:
            raise ApiError(400, "serviceIds: between 1 and 20 services can be enabled at once")
        for api in wanted:
            was_off = self._service(api, request.target)["state"] == "DISABLED"
            self.store.put("api", api, {"api": api})
            self.weather.end("api_disabled", api=api)
            slow = self.weather.holds(request.target, "api_propagation", api=api) if was_off else None
            if slow is not None:
                # The API is shown as enabled, but refuses requests for a while.
                until = self.timeline.now() + timedelta(minutes=float(slow.params["minutes"]))
                self.weather.add({"fault": "api_settling", "api": api, "until": utc_stamp(until)})
        operation = {
            "name": f"operations/acat.{numeric_id(utc_stamp(self.timeline.now()))}",
            "done": True,
            "response": {
                "@type": "type.googleapis.com/google.api.serviceusage.v1.BatchEnableServicesResponse",
                "services": [self._service(api, request.target) for api in wanted],
            },
        }
        self.store.put("service_operation", str(operation["name"]).rpartition("/")[2], operation)
        # As at Google, a second request is needed to see that it is done.
        return {"name": operation["name"]}

    def get_operation(self, _request: HttpRequest, name: str) -> Document:
        operation: Document | None = self.store.get("service_operation", name)
        if operation is None:
            raise ApiError(404, f"Operation operations/{name} not found.")
        return operation

    # Cloud Resource Manager

    def get_project(self, _request: HttpRequest) -> Document:
        return {
            "name": f"projects/{self.number}",
            "projectId": self.project,
            "state": "ACTIVE",
            "displayName": self.project,
            "createTime": "2024-01-01T08:00:00Z",
            "etag": "W/embedded",
        }

    def _resource(self, email: str, victim: str) -> str:
        """The name of the project's policies, or of those of an account. Raises `ApiError` (404) if there is none."""
        return f"account {self._account(email, victim)['email']}" if email else "project"

    def test_permissions(self, request: HttpRequest, email: str = "") -> Document:
        self._resource(email, request.target)
        return held_permissions(self.weather, body_of(request).get("permissions", []), request.target)

    def get_policy(self, request: HttpRequest, email: str = "") -> Document:
        return self.policies.get(self._resource(email, request.target))

    def set_policy(self, request: HttpRequest, email: str = "") -> Document:
        return self.policies.set(self._resource(email, request.target), body_of(request).get("policy"))

    def get_project_v1(self, _request: HttpRequest) -> Document:
        return {
            "projectNumber": self.number,
            "projectId": self.project,
            "lifecycleState": "ACTIVE",
            "name": self.project,
            "createTime": "2024-01-01T08:00:00Z",
        }

    # IAM

    def testable_permissions(self, request: HttpRequest) -> Document:
        """A page of the permissions that a role may have. Raises `ApiError` (400) for a resource that is not the
        project, and for an invalid page."""
        body = body_of(request)
        resource = str(body.get("fullResourceName", ""))
        if resource.rpartition("/projects/")[2] not in (self.project, self.number):
            raise ApiError(400, f"Invalid resource name {resource}.")
        try:
            size, start = int(body.get("pageSize") or 100), int(body.get("pageToken") or 0)
        except ValueError as exc:
            raise ApiError(400, "Request contains an invalid argument.") from exc
        if not 1 <= size <= 1000 or start < 0:
            raise ApiError(400, "Request contains an invalid argument.")
        every = [*sorted(self.permissions), *TESTABLE]
        names = every[start : start + size]
        page_token = {"nextPageToken": str(start + size)} if start + size < len(every) else {}
        return {"permissions": [{"name": name, "stage": "GA"} for name in names], **page_token}

    def _account(self, email: str, victim: str) -> Document:
        account: Document | None = self.store.get("service_account", email)
        if account is None or self.weather.holds(victim, "service_account_missing", email=email):
            raise ApiError(404, f"Unknown service account: {email}")
        disabled = self.weather.holds(victim, "service_account_disabled", email=email)
        return account | ({"disabled": True} if disabled else {})

    def create_account(self, request: HttpRequest) -> Document:
        body = body_of(request)
        account = str(body.get("accountId", ""))
        if not ACCOUNT_ID.fullmatch(account):
            raise ApiError(400, f'The account ID "{account}" does not have a length between 6 and 30, or is malformed.')
        email = f"{account}@{self.project}.iam.gserviceaccount.com"
        if self.store.get("service_account", email) is not None:
            raise ApiError(409, f"Service account {account} already exists within project projects/{self.project}.")
        given = body.get("serviceAccount", {})
        document = {
            "name": f"projects/{self.project}/serviceAccounts/{email}",
            "projectId": self.project,
            "uniqueId": numeric_id(email),
            "email": email,
            "displayName": str(given.get("displayName", "")),
            "description": str(given.get("description", "")),
            "etag": "MDEwMjE5MjA=",
            "oauth2ClientId": numeric_id(email),
        }
        self.store.put("service_account", email, document)
        return document

    def create_role(self, request: HttpRequest) -> Document:
        body = body_of(request)
        role = str(body.get("roleId", ""))
        if not ROLE_ID.fullmatch(role):
            raise ApiError(400, f"The role ID {role} must be 3 to 64 letters, digits, underscores or periods.")
        name = f"projects/{self.project}/roles/{role}"
        if self.store.get("role", name) is not None:
            raise ApiError(409, f"A role named {role} in projects/{self.project} already exists.")
        return self._put_role(name, body.get("role", {}))

    def get_role(self, _request: HttpRequest, role: str) -> Document:
        role_document: Document | None = self.store.get("role", f"projects/{self.project}/roles/{role}")
        if role_document is None:
            raise ApiError(404, f"The role named projects/{self.project}/roles/{role} was not found.")
        return role_document

    def change_role(self, request: HttpRequest, role: str) -> Document:
        role_document, changes = self.get_role(request, role), body_of(request)
        mask = [part for part in request.query.get("updateMask", "").split(",") if part]
        return self._put_role(role_document["name"], role_document | {key: changes[key] for key in mask or changes})

    def _put_role(self, name: str, given: Document) -> Document:
        document = {
            "name": name,
            "title": str(given.get("title", "")),
            "description": str(given.get("description", "")),
            "includedPermissions": sorted(map(str, given.get("includedPermissions", []))),
            "stage": str(given.get("stage", "GA")),
            "etag": "BwVdEFuMQnA=",
        }
        self.store.put("role", name, document)
        return document

    # Cloud Billing

    def billing(self, request: HttpRequest) -> Document:
        on = self.weather.holds(request.target, "billing_off") is None
        return {
            "name": f"projects/{self.project}/billingInfo",
            "projectId": self.project,
            "billingAccountName": "billingAccounts/0X0X0X-0X0X0X-0X0X0X" if on else "",
            "billingEnabled": on,
        }

    def list_skus(self, request: HttpRequest, service: str) -> Document:
        return self.catalogue.service_skus(service, request.query)
