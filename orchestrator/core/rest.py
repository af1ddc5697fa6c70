"""Requests and answers of Google's REST APIs as data, so that what is asked and what it means need no network.

Who asks is given an `Api`: `orchestrator.adapters.rest` sends what is asked; a test answers by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol

Service = Literal["compute", "storage", "serviceusage", "cloudresourcemanager", "iam", "cloudbilling"]
Method = Literal["GET", "POST", "PUT", "PATCH"]
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
MOST_PAGES: Final = 1000
"""Of one list: with a thousand entries each, more than there is of anything that is listed."""
READING_POSTS: Final = (":testIamPermissions", ":getIamPolicy")
"""Methods that only look and are sent as POST all the same."""


@dataclass(frozen=True, slots=True)
class Request:
    """`path` begins with a slash and has the API's version in it; `query` values may be lists."""

    service: Service
    method: Method
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None

    @property
    def reads(self) -> bool:
        """Whether it changes nothing and costs nothing, whatever the answer."""
        return self.method == "GET" or (self.method == "POST" and self.path.endswith(READING_POSTS))


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` is 0 when there was none, and `trouble` then says why."""

    status: int
    document: Mapping[str, Any] = field(default_factory=dict)
    trouble: str = ""
    skew_s: float | None = None
    """By how much the server's clock is ahead of this one's; None where it did not say."""
    billed_to: str = ""
    """The project that the credentials say requests count against; empty where they name none."""

    @property
    def good(self) -> bool:
        return self.status == 200

    @property
    def message(self) -> str:
        """What the server, or the network, says went wrong."""
        said = self._error.get("message")
        text = said if isinstance(said, str) and said.strip() else self.trouble or f"HTTP {self.status}"
        return text.strip().splitlines()[0]

    @property
    def api_off(self) -> bool:
        """Whether it was refused because the API is not enabled in the project."""
        reasons = {str(entry.get("reason")) for key in ("errors", "details") for entry in _entries(self._error, key)}
        return self.status == 403 and bool(reasons & {"accessNotConfigured", "SERVICE_DISABLED"})

    @property
    def consumer(self) -> str:
        """The project, by id or number, that a refusal speaks of: that which the credentials are billed to, and not
        always the one that was asked about. Empty where it names none. Google often says a number, which tells nobody
        whose it is: then it is what the credentials say."""
        found = (entry.get("metadata") for entry in _entries(self._error, "details"))
        named = (str(one.get("consumer", "")) for one in found if isinstance(one, Mapping))
        said = next((one.removeprefix("projects/") for one in named if one), "")
        return self.billed_to if said.isdecimal() and self.billed_to else said

    @property
    def _error(self) -> Mapping[str, Any]:
        found = self.document.get("error")
        return found if isinstance(found, Mapping) else NOTHING


def _entries(error: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = error.get(key)
    return [entry for entry in found if isinstance(entry, Mapping)] if isinstance(found, list) else []


class Api(Protocol):
    """Whoever answers requests. Raises nothing: what stands in the way is an answer too."""

    def ask(self, request: Request) -> Answer: ...
    def pause(self, seconds: float) -> None: ...


def unread(token: str, seen: set[str]) -> bool:
    """Whether a next page is none that was read, nor one too many; it is noted among those `seen`."""
    if token in seen or len(seen) >= MOST_PAGES:
        return False
    seen.add(token)
    return True


def everything(api: Api, request: Request) -> Answer:
    """All pages of a list as one answer; the first bad page is the answer, with status 0 for pages that do not end."""
    items: list[Any] = []
    scopes: dict[str, Any] = {}
    query = dict(request.query)
    seen: set[str] = set()
    while True:
        answer = api.ask(Request(request.service, request.method, request.path, query, request.body))
        if not answer.good:
            return answer
        found = answer.document.get("items", [])
        if isinstance(found, Mapping):
            scopes.update(found)
        else:
            items += found
        token = answer.document.get("nextPageToken")
        if not token:
            return Answer(200, {"items": scopes or items}, skew_s=answer.skew_s)
        if not unread(str(token), seen):
            return Answer(0, trouble="its list of pages does not end")
        query["pageToken"] = token
