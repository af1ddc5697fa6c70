"""Which machines of ours exist, asked of the API itself by one plain request.

`compute_v1` answers the same question, and takes seconds to import; a listing of finished runs must not wait for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from google.auth.credentials import Credentials
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession
from requests import RequestException

from orchestrator.adapters.gce_json import instance
from orchestrator.adapters.google_auth import REMEDY, credentials_for
from orchestrator.core.errors import CredentialsMissing, PermissionDenied, ProviderError, Unavailable
from orchestrator.core.market.machines import Instance
from orchestrator.core.naming import TOOL, TOOL_LABEL

GOOGLE: Final = "https://compute.googleapis.com"
TIMEOUT_S: Final = 10.0
TRIES: Final = 3


def alive(project: str, endpoint: str | None = None, credentials: Credentials | None = None) -> tuple[Instance, ...]:
    """Every VM of `project` that carries our tool label, in all zones.

    Raises `PermissionDenied`, `Unavailable`, `CredentialsMissing`."""
    with AuthorizedSession(credentials or credentials_for(endpoint)) as session:  # type: ignore[no-untyped-call]
        pages = _pages(session, f"{endpoint or GOOGLE}/compute/v1/projects/{project}/aggregated/instances", project)
        return tuple(instance(found) for page in pages for found in _listed(page))


def _pages(session: Any, url: str, project: str) -> Iterator[Mapping[str, Any]]:
    query = {"filter": f"labels.{TOOL_LABEL}={TOOL}", "maxResults": "500"}
    while True:
        page = _get(session, url, query, project)
        yield page
        if not page.get("nextPageToken"):
            return
        query["pageToken"] = page["nextPageToken"]


def _get(session: Any, url: str, query: Mapping[str, str], project: str) -> Mapping[str, Any]:
    doing = f"list the VMs of {project}"
    failure = ""
    for _ in range(TRIES):
        try:
            answer = session.get(url, params=query, timeout=TIMEOUT_S)
        except (RequestException, OSError) as exc:
            failure = type(exc).__name__
            continue
        except GoogleAuthError as exc:  # expired, revoked, or refused by the server
            raise CredentialsMissing(f"cannot {doing}: {str(exc).splitlines()[0]}", hint=REMEDY) from exc
        if answer.status_code == 200:
            try:
                found: Mapping[str, Any] = answer.json()
            except ValueError:
                failure = "an answer that is not JSON"
                continue
            return found
        failure = f"HTTP {answer.status_code}"
        if answer.status_code == 403:
            raise PermissionDenied(
                f"cannot {doing}: {_words(answer)}",
                hint="it takes compute.instances.list; `bench doctor` lists all that is missing",
            )
        if answer.status_code < 500 and answer.status_code != 429:
            raise ProviderError(f"cannot {doing}: {_words(answer)}")
    raise Unavailable(f"cannot {doing}: {failure}", hint="try again in a minute")


def _words(answer: Any) -> str:
    try:
        return str(json.loads(answer.text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {answer.status_code}"


def _listed(page: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for scope in page.get("items", {}).values():
        yield from scope.get("instances", ())
