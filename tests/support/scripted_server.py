"""A small HTTP server on loopback that says what a test tells it to, and remembers what it was asked."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str]
    body: bytes
    headers: Mapping[str, str]
    target: str = ""
    """Path and query as they were sent."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str:
        """Whichever case it was sent in; empty without it."""
        return next((value for key, value in self.headers.items() if key.lower() == name.lower()), "")


@dataclass(frozen=True, slots=True)
class Reply:
    status: int = 200
    json: Any = None
    data: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Drop:
    """The connection breaks, without an answer."""


class Stall:
    """No answer, until the test is over."""


Answer = Reply | Drop | Stall
Handle = Callable[[Request], Answer]


@dataclass
class ScriptedServer:
    url: str = ""
    requests: list[Request] = field(default_factory=list)

    def sent(self, method: str, path_end: str = "") -> list[Request]:
        return [one for one in self.requests if one.method == method and one.path.endswith(path_end)]


@contextmanager
def scripted_server(handle: Handle, now: Callable[[], float] = time.time) -> Iterator[ScriptedServer]:
    """Answers each request with `handle(request)`; `now` is the server's clock."""
    script = ScriptedServer()
    over = Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # an answer's head and body leave at once

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(now() if timestamp is None else timestamp, usegmt=True)

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()}
            request = Request(self.command, unquote(parts.path), query, body, dict(self.headers.items()), self.path)
            script.requests.append(request)
            answer = handle(request)
            if isinstance(answer, Stall):
                over.wait(600)
            if not isinstance(answer, Reply):
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            data = answer.data if answer.data is not None else json.dumps(answer.json or {}).encode()
            self.send_response(answer.status)
            kind = "application/octet-stream" if answer.data is not None else "application/json"
            for key, value in {"Content-Type": kind, "Content-Length": str(len(data)), **answer.headers}.items():
                self.send_header(key, value)
            try:
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                self.close_connection = True  # whoever asked is gone

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _serve  # noqa: N815

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    script.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield script
    finally:
        over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def google_error(status: int, message: str, reason: str = "", details: list[dict[str, Any]] | None = None) -> Reply:
    """An HTTP error in the shape of Google's JSON APIs."""
    error: dict[str, Any] = {
        "code": status,
        "message": message,
        "errors": [{"message": message, "domain": "global", "reason": reason}],
    }
    if details:
        error["details"] = details
    return Reply(status, {"error": error})


def in_turn(*answers: Answer) -> Handle:
    """Each answer once, in order; the last for ever."""
    left = list(answers)

    def handle(_request: Request) -> Answer:
        return left.pop(0) if len(left) > 1 else left[0]

    return handle
