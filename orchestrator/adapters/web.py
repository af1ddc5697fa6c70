"""Requests to Google's APIs and to what speaks like them, over the standard library alone.

The client libraries answer the same questions and take a quarter of a second to import, more than `bench status` needs
for everything else. Connections are kept, and shared by threads.
"""

from __future__ import annotations

import http.client
import json
import select
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from threading import Lock
from typing import Any, Final, Protocol
from urllib.parse import urlencode, urlsplit

from orchestrator.adapters.clock import Offset, SystemClock
from orchestrator.adapters.web_answer import GRACE_S, LARGEST, Oversized, Unending, all_of, unpacked, within
from orchestrator.adapters.web_routes import Route, route_to
from orchestrator.ports import Clock

CONNECT_S: Final = 3.0
TEXT: Final = 300
"""Characters of a server's message that a person is shown."""
AGENT: Final = "spotbench (gzip)"
"""Google compresses its answers for clients that say so here as well."""
Body = bytes | Callable[[], Iterable[bytes]]
"""What is sent; where it is made piece by piece, made anew for each try, and its length is among the headers."""


class NoResponse(Exception):
    """No answer came, or not all of one: whether the server did what it was asked is not known."""


class ReplyTooLarge(NoResponse):
    """An answer has more bytes than the caller has room for. The next one will too."""


class NotSigned(Exception):
    """The credentials gave no token. `passing`: whether the next try may get one."""

    def __init__(self, words: str, *, passing: bool = False) -> None:
        super().__init__(words)
        self.passing = passing


@dataclass(frozen=True)
class WebReply:
    """A server's answer, whatever its status. Names of headers are in lower case; `data` is uncompressed unless it is
    stored so."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def document(self) -> Mapping[str, Any]:
        """The JSON object that it is; empty where it is something else."""
        return self._object or {}

    @property
    def is_document(self) -> bool:
        return self._object is not None

    @cached_property
    def _object(self) -> dict[str, Any] | None:
        try:
            document = json.loads(self.data)
        except (ValueError, RecursionError):
            return None
        return document if isinstance(document, dict) else None

    @property
    def reasons(self) -> frozenset[str]:
        """The machine-readable reasons of a refusal: `errors[].reason`, and `reason` of the details."""
        error = self._error
        lists = [entries for key in ("errors", "details") if isinstance(entries := error.get(key), list)]
        reason_words = {str(one.get("reason", "")) for entries in lists for one in entries if isinstance(one, dict)}
        return frozenset(reason_words - {""})

    @property
    def words(self) -> str:
        """What the server says went wrong, in one line."""
        message = self._error.get("message")
        if isinstance(message, str) and message.strip():
            return message.strip().splitlines()[0][:TEXT]
        plain = self.headers.get("content-type", "").startswith("text/plain")
        lines = self.data.decode("utf-8", "replace").strip().splitlines() if plain else []
        return lines[0][:TEXT] if lines else f"HTTP {self.status}"

    @property
    def _error(self) -> Mapping[str, Any]:
        error = self.document.get("error")
        return error if isinstance(error, dict) else {}


class HttpRefused(Exception):
    """An answer that is no success."""

    def __init__(self, reply: WebReply) -> None:
        super().__init__(reply.words)
        self.reply = reply


class Signer(Protocol):
    """Who asks."""

    def sign(self, method: str, url: str, headers: dict[str, str]) -> None:
        """Adds what proves it to the headers. Raises `NotSigned`."""

    def renew(self) -> bool:
        """After a 401: whether there is another token to ask with. Raises `NotSigned`."""

    @property
    def billed_to(self) -> str:
        """The project that requests are counted against; empty where none is named."""


@dataclass(frozen=True, slots=True)
class Nobody:
    """Implements `Signer`: no credentials at all."""

    billed_to: str = ""

    def sign(self, method: str, url: str, headers: dict[str, str]) -> None:
        pass

    def renew(self) -> bool:
        return False


@dataclass(frozen=True)
class Token:
    """Implements `Signer`: one fixed token, as the embedded cloud's."""

    token: str
    billed_to: str = ""

    def sign(self, method: str, url: str, headers: dict[str, str]) -> None:  # noqa: ARG002 - as the protocol has it
        headers["Authorization"] = f"Bearer {self.token}"

    def renew(self) -> bool:
        raise NotSigned("the embedded cloud refused this token, because it was restarted: run the same command again")


class Web:
    """Sends requests, from any thread. `calls` counts them; `offset` is what their answers tell of the server's clock,
    compared with `clock`. `grace_s`: how long a short answer may take as a whole."""

    def __init__(self, signer: Signer, clock: Clock | None = None, *, grace_s: float = GRACE_S) -> None:
        self.signer = signer
        self.calls = 0
        self.offset = Offset()
        self._clock = clock or SystemClock()
        self._idle: dict[Route, list[http.client.HTTPConnection]] = {}
        self._lock = Lock()
        self._grace_s = grace_s
        weakref.finalize(self, _close, self._idle)

    def close(self) -> None:
        """Ends the connections that are kept; the next request opens another."""
        with self._lock:
            _close(self._idle)

    def ask(
        self,
        method: str,
        url: str,
        query: Mapping[str, Any] | None = None,
        *,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        largest: int = LARGEST,
    ) -> WebReply:
        """The answer to one request, of any status; a token that is refused is renewed once. `timeout_s` is how long a
        silence may last, `largest` how many bytes the answer may have, packed or not. Raises `Lost`, `NotSigned`."""
        full_url = url + "?" + urlencode(query, doseq=True) if query else url
        reply = self._once(method, full_url, body, headers or {}, timeout_s, largest)
        if reply.status == 401 and self.signer.renew():
            reply = self._once(method, full_url, body, headers or {}, timeout_s, largest)
        return reply

    def _once(
        self, method: str, url: str, body: Body | None, headers: Mapping[str, str], timeout_s: float, largest: int
    ) -> WebReply:
        sent = {"Accept": "*/*", "Accept-Encoding": "gzip", "User-Agent": AGENT, **headers}
        self.signer.sign(method, url, sent)
        parts = urlsplit(url)
        route = route_to(parts.scheme, parts.hostname or "", parts.port)
        with self._lock:
            self.calls += 1
        at = self._clock.now()
        connection = self._connection(route, timeout_s)
        try:
            target, more = route.target((parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
            connection.response_class = within(self._grace_s, largest)
            connection.request(method, target, body() if callable(body) else body, {**sent, **more})
            answer = connection.getresponse()
            if (answer.length or 0) > largest:
                raise Oversized(f"its answer has more than {largest} bytes: {answer.length}")
            reply = WebReply(answer.status, _headers(answer), all_of(answer))
        except Oversized as exc:
            connection.close()
            raise ReplyTooLarge(_why(parts.netloc, exc)) from exc
        except (OSError, http.client.HTTPException) as exc:
            connection.close()
            raise NoResponse(_why(parts.netloc, exc)) from exc
        except BaseException:
            connection.close()
            raise
        self._keep(route, connection, answer)
        self._learn(reply, at)
        return _plain(reply, parts.netloc, largest)

    def _connection(self, route: Route, timeout_s: float) -> http.client.HTTPConnection:
        """One that was kept and still stands, or a new one."""
        while True:
            with self._lock:
                kept = self._idle.get(route)
                connection = kept.pop() if kept else None
            if connection is None:
                break
            if connection.sock is not None and not _readable(connection.sock):
                connection.sock.settimeout(timeout_s)
                return connection
            connection.close()
        connection = route.connection(min(CONNECT_S, timeout_s))
        connection.response_class = within(self._grace_s)
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as exc:
            connection.close()
            raise NoResponse(_why(route.netloc, exc)) from exc
        connection.sock.settimeout(timeout_s)
        return connection

    def _keep(self, route: Route, connection: http.client.HTTPConnection, answer: http.client.HTTPResponse) -> None:
        if answer.will_close or connection.sock is None:
            connection.close()
            return
        with self._lock:
            self._idle.setdefault(route, []).append(connection)

    def _learn(self, reply: WebReply, sent: datetime) -> None:
        if "date" in reply.headers and "age" not in reply.headers:  # a cache tells the time of long ago
            self.offset.learn(reply.headers["date"], sent, self._clock.now())


def _close(idle: dict[Route, list[http.client.HTTPConnection]]) -> None:
    for connections in idle.values():
        for connection in connections:
            connection.close()
    idle.clear()


def _readable(sock: Any) -> bool:
    """Whether a connection that nobody asked anything of has something to say: it does when the server has ended it."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _headers(answer: http.client.HTTPResponse) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in answer.getheaders():
        key = name.lower()
        found[key] = f"{found[key]}, {value}" if key in found else value
    return found


def _plain(reply: WebReply, where: str, largest: int) -> WebReply:
    """As it was before it was compressed for the way; an object that is stored compressed stays as it is stored."""
    headers = reply.headers
    if headers.get("content-encoding") != "gzip" or headers.get("x-goog-stored-content-encoding") == "gzip":
        return reply
    try:
        return WebReply(reply.status, headers, unpacked(reply.data, largest))
    except zlib.error as exc:
        raise NoResponse(f"{where} sent an answer that is incomplete or damaged") from exc
    except Oversized as exc:
        raise ReplyTooLarge(_why(where, exc)) from exc


def _why(where: str, exc: BaseException) -> str:
    if isinstance(exc, TimeoutError) and not isinstance(exc, Unending):
        return f"{where} does not answer: the time limit passed"
    reason = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc) or type(exc).__name__
    return f"{where} does not answer: {reason}"
