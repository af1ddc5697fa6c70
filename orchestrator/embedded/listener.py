"""An HTTP/1.1 server on a loopback port, with keep-alive and a thread for each connection. It can cut connections."""

from __future__ import annotations

import json
import logging
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from orchestrator.embedded.errors import STATUSES, error_document, no_room
from orchestrator.embedded.guard import Guard, RequestRefused

LOOPBACK = "127.0.0.1"
log = logging.getLogger(__name__)
VERBS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
MOST_BYTES = 8 << 20
"""The most bytes of a request body that is read as a whole."""
DRAINED_BYTES = 1 << 16
"""The most bytes that are read of the body of a request that is refused by its headers."""
PIECE_BYTES = 1 << 16
Now = Callable[[str], datetime]
"""Returns the time in the Date header of an answer to a target (path and query)."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request. `path` has no query and is still percent-encoded. Header names are in lower case."""

    method: str
    path: str
    raw_query: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def target(self) -> str:
        """Path and query as they were sent."""
        return f"{self.path}?{self.raw_query}" if self.raw_query else self.path


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class TooLarge(ValueError):
    """A body is longer than the limit, or its length is invalid."""


class Reset(Exception):
    """Raised by a handler to cut the connection without an answer."""


def json_reply(status: int, document: Any) -> Reply:
    return Reply(status, json.dumps(document).encode(), {"Content-Type": "application/json; charset=UTF-8"})


def refusal_reply(refused: RequestRefused) -> Reply:
    """The answer to a request that the guard refuses."""
    document = error_document(refused.status, refused.message, refused.reason)
    if refused.status in STATUSES:
        document["error"]["status"] = STATUSES[refused.status]
    reply = json_reply(refused.status, document)
    if refused.status != 401:
        return reply
    return Reply(401, reply.body, {**reply.headers, "WWW-Authenticate": 'Bearer realm="embedded cloud"'})


class ListenerServer(ThreadingHTTPServer):
    """A server that knows its open connections, so that it can close all of them."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    allow_reuse_address = False

    def __init__(self, handler: type[BaseHTTPRequestHandler], guard: Guard, now: Now | None = None) -> None:
        self.guard = guard
        self.now = now
        self.connections: set[socket.socket] = set()
        self.lock = threading.Lock()
        super().__init__((LOOPBACK, 0), handler)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.server_address[1]}"

    def start(self, name: str) -> None:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, name=name, daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self.lock:
            self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self.lock:
            self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, *_: Any) -> None:
        """Logs an error, unless the client closed the connection."""
        if not isinstance(sys.exception(), (OSError, ValueError)):
            log.exception("a request failed")

    def stop(self) -> None:
        """Stops listening and cuts all open connections."""
        ending = threading.Thread(target=self.shutdown)
        ending.start()
        try:
            # A connection wakes the server's thread; otherwise it would notice the end only at its next poll.
            socket.create_connection((LOOPBACK, self.server_address[1]), timeout=1).close()
        except OSError:
            pass
        ending.join()
        self.server_close()
        with self.lock:
            for connection in self.connections:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # the client closed it first


class ListenerHandler(BaseHTTPRequestHandler):
    """The base of all our handlers: it buffers answers, logs nothing, and can reset the connection."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    server: ListenerServer
    most_bytes = MOST_BYTES
    stranger: RequestRefused | None = None

    def setup(self) -> None:
        super().setup()
        here = (LOOPBACK, int(self.server.server_address[1]))
        self.stranger = self.server.guard.stranger(self.client_address, here)

    def parse_request(self) -> bool:
        """Reads the head of a request, and asks the guard. A refused request is answered here. Returns whether the
        request goes on."""
        if not super().parse_request():
            return False
        headers = {key.lower(): value for key, value in self.headers.items()}
        guard, port = self.server.guard, int(self.server.server_address[1])
        refused = self.stranger or guard.refusal(self.command, self.path, headers, port)
        if refused is None:
            return True
        self.close_connection = True
        length = str(self.headers.get("Content-Length") or "0")
        # An unread body would cause a reset, and the answer would be lost. This may happen for a longer body.
        self.rfile.read(min(int(length) if length.isdigit() else 0, DRAINED_BYTES))
        self.reply(refusal_reply(refused))
        return False

    def date_time_string(self, timestamp: float | None = None) -> str:
        """The Date header, from the cloud's clock, which the weather may have changed."""
        if timestamp is None and self.server.now is not None:
            return formatdate(self.server.now(getattr(self, "path", "")).timestamp(), usegmt=True)
        return super().date_time_string(timestamp)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class named it
        """Logs nothing: clients report their own errors."""

    def cut(self) -> None:
        """Closes the connection with a TCP reset, so that the client sees a broken connection and not an empty
        answer."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    @property
    def chunked(self) -> bool:
        return str(self.headers.get("Transfer-Encoding", "")).lower() == "chunked"

    def read_body(self) -> bytes:
        """The whole body. Raises `TooLarge`, and the errors of `pieces`."""
        if not self.chunked and not 0 <= int(self.headers.get("Content-Length") or 0) <= self.most_bytes:
            raise TooLarge
        body = bytearray()
        for piece in self.pieces():
            body += piece
            if len(body) > self.most_bytes:
                raise TooLarge
        return bytes(body)

    def pieces(self) -> Iterator[bytes]:
        """The body, piece by piece. Raises `OSError` if it breaks off, and `ValueError` if its encoding is invalid."""
        if not self.chunked:
            yield from self._exactly(int(self.headers.get("Content-Length") or 0))
            return
        while size := int(self.rfile.readline().split(b";")[0], 16):
            if size < 0:
                raise TooLarge
            yield from self._exactly(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers

    def _exactly(self, left: int) -> Iterator[bytes]:
        while left > 0:
            piece = self.rfile.read(min(left, PIECE_BYTES))
            if not piece:
                raise ConnectionResetError("the client hung up within a body")
            left -= len(piece)
            yield piece

    def reply(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            if name.lower() not in ("date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)
        self.wfile.flush()


class Listener:
    """A server on a free loopback port. It answers with `answer(request) -> Reply` the requests that `guard` allows."""

    def __init__(self, name: str, answer: Callable[[HttpRequest], Reply], guard: Guard, now: Now | None = None) -> None:
        class Answering(ListenerHandler):
            def handle_any(self) -> None:
                try:
                    body = self.read_body()
                except ValueError:
                    self.close_connection = True
                    self.reply(refusal_reply(RequestRefused(413, "The request body is too large.", "uploadTooLarge")))
                    return
                split = urlsplit(self.path)
                request = HttpRequest(
                    self.command,
                    split.path,
                    split.query,
                    dict(parse_qsl(split.query, keep_blank_values=True)),
                    {key.lower(): value for key, value in self.headers.items()},
                    body,
                )
                try:
                    self.reply(answer(request))
                except Reset:
                    self.cut()
                except Exception as error:
                    full = no_room(error)
                    if full is not None:
                        self.reply(json_reply(full.status, full.document()))
                        return
                    if isinstance(error, OSError):
                        raise  # the client hung up
                    log.exception("%s %s failed", self.command, self.path)
                    message = "the embedded cloud failed at this request; its log says why"
                    self.reply(json_reply(500, error_document(500, message, "backendError")))

        for verb in VERBS:
            setattr(Answering, f"do_{verb}", Answering.handle_any)

        self.server = ListenerServer(Answering, guard, now)
        self.server.start(name)
        self.url = self.server.url

    def close(self) -> None:
        self.server.stop()
