"""Google's REST APIs, asked through google-auth's session: what `core.rest` only describes, sent.

The heavy client libraries have no part in this: a page of checks must not wait seconds for an import.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeVar
from urllib.parse import quote

from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession
from requests import RequestException

from orchestrator.core.rest import Answer, Conversation, Pause, Request

T = TypeVar("T")
TIMEOUT_S: Final = 8.0
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
    """Sends requests; thread-safe: each thread has a session of its own.

    endpoints: base URLs by service, over Google's own. changes: whether anything but looking is allowed.
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
        self._credentials = credentials
        self._endpoints = {**GOOGLE, **(endpoints or {})}
        self._changes = changes
        self._remembers = remembers
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._mine = threading.local()
        self._sessions: list[Any] = []
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._answers: dict[str, Answer] = {}

    def close(self) -> None:
        """Ends every thread's session."""
        with self._guard:
            for session in self._sessions:
                session.close()
            self._sessions.clear()

    def hold(self, conversation: Conversation[T]) -> T:
        """Leads a conversation to its end."""
        try:
            said = next(conversation)
            while True:
                if isinstance(said, Pause):
                    self._sleep(said.seconds)
                    said = conversation.send(Answer(0))
                else:
                    said = conversation.send(self.ask(said))
        except StopIteration as end:
            found: T = end.value
            return found

    def ask(self, request: Request) -> Answer:
        """One request; a lost answer to a question that only looks is asked for once more. Raises nothing."""
        if not self._changes and not request.reads:
            raise OnlyLooking(f"{request.method} {request.path}")
        if not (self._remembers and request.reads):
            return self._send(request)
        whole = [request.service, request.method, request.path, dict(request.query), request.body]
        key = json.dumps(whole, default=dict)
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:  # two checks that want to know the same thing ask once
            if key in self._answers:
                return self._answers[key]
            answer = self._send(request)
            if answer.good:
                self._answers[key] = answer
            return answer

    def _send(self, request: Request) -> Answer:
        answer = Answer(0)
        for _ in range(TRIES if request.reads else 1):
            answer = self._once(request)
            if answer.status not in (0, 500, 502, 503, 504):
                break
        return answer

    def _once(self, request: Request) -> Answer:
        url = self._endpoints[request.service].rstrip("/") + quote(request.path, safe="/:@")
        begun = datetime.now(UTC)
        try:
            reply = self._session().request(
                request.method,
                url,
                params=dict(request.query),
                json=dict(request.body) if request.body is not None else None,
                timeout=self._timeout_s,
            )
        except GoogleAuthError as exc:
            return Answer(401 if not getattr(exc, "retryable", False) else 0, trouble=_first_line(exc))
        except (RequestException, OSError) as exc:
            return Answer(0, trouble=type(exc).__name__)
        try:
            document = reply.json()
        except ValueError:
            document = {}
        skew = _skew(reply.headers.get("Date", ""), begun, datetime.now(UTC))
        payer = str(getattr(self._credentials, "quota_project_id", None) or "")
        return Answer(reply.status_code, document if isinstance(document, dict) else {}, skew_s=skew, billed_to=payer)

    def _session(self) -> Any:
        session = getattr(self._mine, "session", None)
        if session is None:
            # Nobody has no other token to ask with, and a refusal is an answer.
            anonymous: dict[str, Any] = {"refresh_status_codes": ()} if _is_nobody(self._credentials) else {}
            session = self._mine.session = AuthorizedSession(self._credentials, **anonymous)  # type: ignore[no-untyped-call]
            with self._guard:
                self._sessions.append(session)
        return session


def _is_nobody(credentials: Credentials) -> bool:
    return isinstance(credentials, AnonymousCredentials)


def _skew(date: str, begun: datetime, ended: datetime) -> float | None:
    """Seconds by which the server is ahead: its whole seconds against the middle of the exchange."""
    try:
        served = parsedate_to_datetime(date)
    except (TypeError, ValueError):
        return None
    if served.tzinfo is None:
        return None
    return (served - begun).total_seconds() / 2 + (served - ended).total_seconds() / 2 + 0.5


def _first_line(exc: BaseException) -> str:
    return (str(exc).strip().splitlines() or [type(exc).__name__])[0]
