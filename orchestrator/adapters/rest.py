"""Google's REST APIs, asked by plain requests: what `core.rest` only describes, sent.

The heavy client libraries have no part in this: a page of checks must not wait seconds for an import.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from orchestrator.adapters.signing import signer_of
from orchestrator.adapters.web import NoResponse, NotSigned, Signer, Web, WebReply
from orchestrator.core.rest import RestAnswer, RestRequest
from orchestrator.core.rest_form import misshapen

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

TIMEOUT_S: Final = 8.0
CHANGE_S: Final = 60.0
"""For what is sent once only."""
TRIES: Final = 2
GOOGLE: Final[Mapping[str, str]] = {
    "compute": "https://compute.googleapis.com",
    "storage": "https://storage.googleapis.com",
    "serviceusage": "https://serviceusage.googleapis.com",
    "cloudresourcemanager": "https://cloudresourcemanager.googleapis.com",
    "iam": "https://iam.googleapis.com",
    "cloudbilling": "https://cloudbilling.googleapis.com",
}


def endpoints(compute: str, storage: str) -> Mapping[str, str]:
    """Base URLs of every service for a cloud that answers for all of them at one address, but for storage."""
    services = ("compute", "serviceusage", "cloudresourcemanager", "iam", "cloudbilling")
    return {**dict.fromkeys(services, compute), "storage": storage}


class OnlyLooking(RuntimeError):
    """A request that might change something was about to be sent by someone who only looks: a bug, not a refusal."""


class Rest:
    """Sends requests, from any thread; implements `core.rest.Api`.

    endpoints: base URLs by service, over Google's own. changes: whether anything but looking is allowed.
    remembers: whether a question that was answered well is not sent a second time.
    """

    def __init__(
        self,
        credentials: Credentials | Signer,
        endpoints: Mapping[str, str] | None = None,
        *,
        changes: bool = False,
        remembers: bool = False,
        timeout_s: float = TIMEOUT_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._web = Web(signer_of(credentials))
        self._endpoints = {**GOOGLE, **(endpoints or {})}
        self._changes = changes
        self._remembers = remembers
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._answers: dict[str, RestAnswer] = {}

    def close(self) -> None:
        """Ends the connections that are kept."""
        self._web.close()

    def pause(self, seconds: float) -> None:
        self._sleep(seconds)

    def ask(self, request: RestRequest) -> RestAnswer:
        """One request; a lost answer to a question that only looks is asked for once more. Raises nothing."""
        if not self._changes and not request.reads:
            raise OnlyLooking(f"{request.method} {request.path}")
        if not (self._remembers and request.reads):
            return self._send(request)
        request_key = [request.service, request.method, request.path, dict(request.query), request.body]
        key = json.dumps(request_key, default=dict)
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
        answer = RestAnswer(0)
        for _ in range(TRIES if request.reads else 1):
            answer = self._once(request)
            if answer.status not in (0, 500, 502, 503, 504):
                break
        return answer

    def _once(self, request: RestRequest) -> RestAnswer:
        url = self._endpoints[request.service].rstrip("/") + quote(request.path, safe="/:@")
        begun = datetime.now(UTC)
        body = json.dumps(dict(request.body)).encode() if request.body is not None else None
        kind = {"Content-Type": "application/json"} if body is not None else {}
        patience = self._timeout_s if request.reads else CHANGE_S
        try:
            reply = self._web.ask(request.method, url, request.query, body=body, headers=kind, timeout_s=patience)
        except NotSigned as exc:
            return RestAnswer(0 if exc.passing else 401, trouble=str(exc))
        except NoResponse as exc:
            return RestAnswer(0, trouble=str(exc))
        if reply.status == 200 and (odd := _odd(reply)):
            return RestAnswer(0, trouble=f"{request.service} {odd}")
        skew = _skew(reply.headers.get("date", ""), begun, datetime.now(UTC))
        return RestAnswer(reply.status, reply.document, skew_s=skew, billed_to=self._web.signer.billed_to)


def _odd(reply: WebReply) -> str:
    """What is wrong with an answer that is said to be good; empty where nothing is."""
    if not reply.is_document:
        return "did not answer with a JSON object: is there a proxy in between?"
    key = misshapen(reply.document)
    return f"answered in a form that is not Google's ({key}): is there a proxy in between?" if key else ""


def _skew(date: str, begun: datetime, ended: datetime) -> float | None:
    """Seconds by which the server is ahead: its whole seconds against the middle of the exchange."""
    try:
        served = parsedate_to_datetime(date)
    except (TypeError, ValueError):
        return None
    if served.tzinfo is None:
        return None
    return (served - begun).total_seconds() / 2 + (served - ended).total_seconds() / 2 + 0.5
