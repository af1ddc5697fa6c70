"""Requests and answers of Google's REST APIs as data, so that making a request and reading its answer need no network.

Callers get an `Api`: that of `orchestrator.adapters.google.rest` sends the requests; that of a test answers itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol

Service = Literal["compute", "storage", "serviceusage", "cloudresourcemanager", "iam", "cloudbilling"]
Method = Literal["GET", "POST", "PUT", "PATCH"]
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
READING_POSTS: Final = (":testIamPermissions", ":getIamPolicy")
"""Methods that change nothing although they are sent as POST."""


@dataclass(frozen=True, slots=True)
class RestRequest:
    """One request. `path` begins with a slash and includes the API's version. The values of `query` may be lists."""

    service: Service
    method: Method
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None

    @property
    def reads(self) -> bool:
        """Whether the request changes nothing and costs nothing."""
        return self.method == "GET" or (self.method == "POST" and self.path.endswith(READING_POSTS))


@dataclass(frozen=True, slots=True)
class RestAnswer:
    """The answer to a request. `status` is the HTTP status; 0 if there was no answer, and `trouble` then says why."""

    status: int
    document: Mapping[str, Any] = field(default_factory=dict)
    trouble: str = ""
    skew_s: float | None = None
    """How many seconds the server's clock is ahead of this machine's; None if the server did not send its time."""
    billed_to: str = ""
    """The project to which the credentials bill requests; empty if they name none."""

    @property
    def good(self) -> bool:
        return self.status == 200

    @property
    def message(self) -> str:
        """What went wrong, in the words of the server or the network: one line."""
        message = self._error.get("message")
        text = message if isinstance(message, str) and message.strip() else self.trouble or f"HTTP {self.status}"
        return text.strip().splitlines()[0]

    @property
    def api_off(self) -> bool:
        """Whether the request was refused because the API is not enabled in the project."""
        reasons = {
            str(entry.get("reason")) for key in ("errors", "details") for entry in list_entries(self._error, key)
        }
        return self.status == 403 and bool(reasons & {"accessNotConfigured", "SERVICE_DISABLED"})

    @property
    def consumer(self) -> str:
        """The project that a refusal names, by id or number; empty if it names none. It is the project to which the
        credentials are billed, and not always the one in the request. Google often gives only a number, which a user
        does not recognise; then this is the project that the credentials name, if they name one."""
        details = (entry.get("metadata") for entry in list_entries(self._error, "details"))
        names = (str(one.get("consumer", "")) for one in details if isinstance(one, Mapping))
        project = next((name.removeprefix("projects/") for name in names if name), "")
        return self.billed_to if project.isdecimal() and self.billed_to else project

    @property
    def _error(self) -> Mapping[str, Any]:
        error = self.document.get("error")
        return error if isinstance(error, Mapping) else NOTHING


def list_entries(document: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The mappings in the list under a key; none if there is no list."""
    listed = document.get(key)
    return [entry for entry in listed if isinstance(entry, Mapping)] if isinstance(listed, list) else []


class Api(Protocol):
    """Answers requests. It raises nothing: a problem is returned as an answer too."""

    def ask(self, request: RestRequest) -> RestAnswer: ...
    def pause(self, seconds: float) -> None: ...


def list_all_pages(api: Api, request: RestRequest) -> RestAnswer:
    """All pages of a list as one answer, whose document has `items`. If a page fails, its answer is returned."""
    items: list[Any] = []
    scopes: dict[str, Any] = {}
    while True:
        answer = api.ask(request)
        if not answer.good:
            return answer
        page = answer.document.get("items", [])
        if isinstance(page, Mapping):
            scopes |= page
        else:
            items += page
        token = answer.document.get("nextPageToken")
        if not token:
            return RestAnswer(200, {"items": scopes or items}, skew_s=answer.skew_s)
        request = replace(request, query={**request.query, "pageToken": token})
