"""Google's REST APIs that have no client worth its size: sends what `core.rest` only describes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Final
from urllib.parse import quote

from google.auth.api_key import Credentials as ApiKey
from google.auth.credentials import Credentials
from google.auth.exceptions import GoogleAuthError

from orchestrator.adapters.google.errors import FOREIGN, Garbled, brief_message, is_transient, network_fault
from orchestrator.adapters.google.network import Session, json_object
from orchestrator.core.errors import (
    BenchError,
    CredentialsMissing,
    LocalError,
    PermissionDenied,
    ProviderError,
    Unavailable,
)
from orchestrator.core.market.skus import SkuCatalogue, list_skus
from orchestrator.core.rest import RestAnswer, RestRequest

TIMEOUT_S: Final = 8.0
CHANGE_S: Final = 60.0
"""For what is sent once only."""
API: Final = "cloudbilling.googleapis.com"
PAGE_TIMEOUT_S: Final = 60.0
"""A page of 5,000 SKUs is some megabytes."""
SERVICES: Final = ("compute", "storage", "serviceusage", "cloudresourcemanager", "iam", "cloudbilling")


def endpoints(compute: str, storage: str) -> Mapping[str, str]:
    """Base URLs of every service for a cloud that answers for all of them at one address, but for storage."""
    return {**dict.fromkeys(SERVICES, compute), "storage": storage}


class OnlyLooking(RuntimeError):
    """A request that might change something was about to be sent by someone who only looks: a bug, not a refusal."""


class Rest:
    """Sends requests, from any thread; implements `core.rest.Api`.

    endpoints: base URLs by service; None for Google's own. changes: whether anything but looking is allowed.
    remembers: whether a question that was answered well is not sent a second time.
    """

    def __init__(
        self,
        credentials: Credentials,
        endpoints: Mapping[str, str] | None = None,
        *,
        changes: bool = False,
        remembers: bool = False,
        timeout_s: float = TIMEOUT_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.session = Session(credentials, next(iter((endpoints or {}).values()), None))
        self._endpoints = endpoints or {}
        self._changes = changes
        self._remembers = remembers
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._answers: dict[str, RestAnswer] = {}

    def close(self) -> None:
        """Ends the connections that are kept."""
        self.session.close()  # type: ignore[no-untyped-call]

    def pause(self, seconds: float) -> None:
        self._sleep(seconds)

    def ask(self, request: RestRequest) -> RestAnswer:
        """One request; a lost answer to a question that only looks is asked for once more. Raises nothing."""
        if not self._changes and not request.reads:
            raise OnlyLooking(f"{request.method} {request.path}")
        if not (self._remembers and request.reads):
            return self._send(request)
        key = json.dumps(
            [request.service, request.method, request.path, dict(request.query), request.body], default=dict
        )
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:  # two checks that want to know the same thing ask once
            if key in self._answers:
                return self._answers[key]
            answer = self._send(request)
            if answer.good:
                self._answers[key] = answer
            return answer

    def _send(self, request: RestRequest) -> RestAnswer:
        answer = self._once(request)
        again = request.reads and answer.status in (0, 500, 502, 503, 504)
        return self._once(request) if again else answer

    def _once(self, request: RestRequest) -> RestAnswer:
        base = self._endpoints.get(request.service) or self.session.base_url(request.service)
        url, body = base.rstrip("/") + quote(request.path, safe="/:@"), request.body and dict(request.body)
        limit_s = self._timeout_s if request.reads else CHANGE_S
        try:
            response = self.session.request(request.method, url, params=request.query, json=body, timeout=limit_s)  # type: ignore[no-untyped-call]
            document = json_object(response)
        except Garbled as exc:
            if response.ok:
                return RestAnswer(0, trouble=f"{request.service}: {exc}")
            document = {}
        except (*FOREIGN, LocalError) as exc:
            fault = network_fault(exc)
            refused = isinstance(exc, GoogleAuthError) and not fault and not is_transient(exc)
            return RestAnswer(401 if refused else 0, trouble=fault[0] if fault else brief_message(exc))
        offset = self.session.offset
        skew_s = offset.value.total_seconds() if offset.known else None
        billed_to = str(getattr(self.session.credentials, "quota_project_id", None) or "")
        return RestAnswer(response.status_code, document, skew_s=skew_s, billed_to=billed_to)


# The Cloud Billing Catalog, read whole.


def key_credentials(key: str) -> Credentials:
    """An API key as credentials: it is sent as a header, so that it stands in no address and in no log."""
    return ApiKey(key)  # type: ignore[no-untyped-call]


def catalogue_for(
    login: Callable[[], Credentials], endpoints: Mapping[str, str] | None, key: str, project: str
) -> tuple[SkuCatalogue, str]:
    """Google's catalogue, or that of the cloud at `endpoints`, and whose it is. `key` is an API key, for Google's only,
    in the place of a login. Raises as `read_catalogue`."""
    if endpoints is not None:
        return read_catalogue(login(), endpoints, project), "the embedded cloud's catalogue, simulated prices"
    return read_catalogue(key_credentials(key) if key else login(), None, project), "Cloud Billing Catalog"


def read_catalogue(credentials: Credentials, endpoints: Mapping[str, str] | None, project: str) -> SkuCatalogue:
    """Every SKU of Compute Engine. Raises `Unavailable`, `PermissionDenied`, `CredentialsMissing`, `ProviderError`."""
    with closing(Rest(credentials, endpoints, timeout_s=PAGE_TIMEOUT_S)) as api:
        answer = list_skus(api)
    if isinstance(answer, RestAnswer):
        raise catalogue_failure(answer, project)
    return answer


def catalogue_failure(answer: RestAnswer, project: str) -> BenchError:
    text, login = f"cannot read the price catalogue: {answer.message}", "gcloud auth application-default login"
    if answer.api_off:
        return PermissionDenied(text, hint=f"gcloud services enable {API} --project={answer.consumer or project}")
    if answer.status == 401 or (answer.status == 400 and "API key" in answer.message):
        return CredentialsMissing(text, hint=login)
    if answer.status == 403:
        return PermissionDenied(text, hint=login)
    passing = answer.status in (0, 200, 429) or answer.status >= 500
    return (Unavailable if passing else ProviderError)(text, hint="bench prices --refresh")
