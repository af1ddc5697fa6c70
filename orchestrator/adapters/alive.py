"""Which machines of ours exist, asked of the API itself by one plain request.

`compute_v1` answers the same question, and takes seconds to import; a listing of finished runs must not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from orchestrator.adapters.gce_json import instance
from orchestrator.adapters.refusals import REMEDY
from orchestrator.adapters.signing import signer_of
from orchestrator.adapters.web import Lost, NotSigned, Signer, Web
from orchestrator.core.errors import CredentialsMissing, PermissionDenied, ProviderError, Unavailable
from orchestrator.core.market.machines import Instance
from orchestrator.core.naming import TOOL, TOOL_LABEL

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

GOOGLE: Final = "https://compute.googleapis.com"
TIMEOUT_S: Final = 10.0
TRIES: Final = 3


def alive(
    project: str, endpoint: str | None = None, credentials: Credentials | Signer | None = None
) -> tuple[Instance, ...]:
    """Every VM of `project` that carries our tool label, in all zones.

    Raises `PermissionDenied`, `Unavailable`, `CredentialsMissing`."""
    web = Web(signer_of(credentials, endpoint))
    try:
        pages = _pages(web, f"{endpoint or GOOGLE}/compute/v1/projects/{project}/aggregated/instances", project)
        return tuple(instance(found) for page in pages for found in _listed(page))
    finally:
        web.close()


def _pages(web: Web, url: str, project: str) -> Iterator[Mapping[str, Any]]:
    query = {"filter": f"labels.{TOOL_LABEL}={TOOL}", "maxResults": "500"}
    while True:
        page = _get(web, url, query, project)
        yield page
        if not page.get("nextPageToken"):
            return
        query["pageToken"] = page["nextPageToken"]


def _get(web: Web, url: str, query: Mapping[str, str], project: str) -> Mapping[str, Any]:
    doing = f"list the VMs of {project}"
    failure = ""
    for _ in range(TRIES):
        try:
            answer = web.ask("GET", url, query, timeout_s=TIMEOUT_S)
        except Lost as exc:
            failure = str(exc)
            continue
        except NotSigned as exc:  # expired, revoked, or refused by the server
            raise CredentialsMissing(f"cannot {doing}: {exc}", hint=REMEDY) from exc
        if answer.status == 200:
            if found := answer.document:
                return found
            failure = "an answer that is not JSON"
            continue
        failure = f"HTTP {answer.status}"
        if answer.status == 401:
            raise CredentialsMissing(f"cannot {doing}: {answer.words}", hint=REMEDY)
        if answer.status == 403:
            raise PermissionDenied(
                f"cannot {doing}: {answer.words}",
                hint="it takes compute.instances.list; `bench doctor` lists all that is missing",
            )
        if answer.status < 500 and answer.status != 429:
            raise ProviderError(f"cannot {doing}: {answer.words}")
    raise Unavailable(f"cannot {doing}: {failure}", hint="try again in a minute")


def _listed(page: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for scope in page.get("items", {}).values():
        yield from scope.get("instances", ())
