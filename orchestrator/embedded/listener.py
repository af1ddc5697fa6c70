"""An HTTP/1.1 server on a loopback port, with keep-alive and a thread for each connection. It can cut connections."""

from __future__ import annotations

import json
import logging
import re
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import formatdate
from functools import cached_property
from http.client import HTTPMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO, Any
from urllib.parse import parse_qsl

from orchestrator.embedded.errors import STATUSES, ApiError, Document, error_document
from orchestrator.embedded.guard import CLIENT, Guard

LOOPBACK = "127.0.0.1"
log = logging.getLogger(__name__)
VERBS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
MOST_BYTES = 8 << 20
"""The most bytes of a request body that is read as a whole."""
REFUSED_BYTES = 1 << 16
"""The most bytes that are read of the body of a request that is refused by its headers."""
DRAINED_BYTES = 64 << 20
"""The most bytes of an unread body that are read and dropped, so that the connection can be used again."""
PIECE_BYTES = 1 << 16
MOST_CHUNK_HEAD_BYTES = 1024
CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,16}")

Now = Callable[[str], datetime]
"""Returns the time in the Date header of an answer to a target (path and query)."""


@dataclass
class HttpRequest:
    """One request. `path` has no query and is still percent-encoded. Header names are in lower case. The body comes in
    `pieces`, which can be read only once; `length` is its bytes, None if it comes in chunks, -1 if that is invalid.
    `vm` is the VM that sent it; None if a client did."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    pieces: Iterator[bytes] = field(default_factory=lambda: iter(()))
    length: int | None = 0
    vm: Any = None

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def raw_query(self) -> str:
        return self.target.partition("?")[2]

    @cached_property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(self.raw_query, keep_blank_values=True))

    @cached_property
    def body(self) -> bytes:
        """The whole body. Raises `ApiError` (413) if it is too large."""
        body = bytearray()
        too_large = ApiError(413, "The request body is too large.", "uploadTooLarge")
        if not 0 <= (self.length or 0) <= MOST_BYTES:
            raise too_large
        for piece in self.pieces:
            body += piece
            if len(body) > MOST_BYTES:
                raise too_large
        return bytes(body)

    def document(self) -> Document:
        """The body as a JSON object; empty if there is no body. Raises `ApiError` (400) if it is not an object."""
        try:
            document = json.loads(self.body or b"{}")
        except ValueError as exc:
            raise ApiError(400, "Parse Error", "parseError") from exc
        if not isinstance(document, dict):
            raise ApiError(400, "Parse Error", "parseError")
        return document


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. If it has a file, its body is the `length` bytes of the file from `start` on."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    file: IO[bytes] | None = None
    start: int = 0
    length: int = 0

    def pieces(self) -> Iterator[bytes]:
        """The body. Closes the file."""
        if self.file is None:
            yield self.body
            return
        with self.file:
            yield from read_region(self.file, self.start, self.start + self.length)

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


class Reset(Exception):
    """Raised by a handler to cut the connection without an answer."""


def read_region(file: IO[bytes], start: int, end: int) -> Iterator[bytes]:
    file.seek(start)
    while start < end and (piece := file.read(min(PIECE_BYTES, end - start))):
        start += len(piece)
        yield piece


def json_reply(status: int, document: Any) -> Reply:
    return Reply(status, json.dumps(document).encode(), {"Content-Type": "application/json; charset=UTF-8"})


def refusal_reply(refused: ApiError) -> Reply:
    """The answer to a request that the guard refuses."""
    document = refused.document()
    if refused.status in STATUSES:
        document["error"]["status"] = STATUSES[refused.status]
    reply = json_reply(refused.status, document)
    if refused.status != 401:
        return reply
    return Reply(401, reply.body, {**reply.headers, "WWW-Authenticate": 'Bearer realm="embedded cloud"'})


class Listener(ThreadingHTTPServer):
    """A server on a free loopback port. It answers with `answer(request) -> Reply` the requests that `guard` allows."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    allow_reuse_address = False

    def __init__(self, name: str, answer: Callable[[HttpRequest], Reply], guard: Guard, now: Now | None = None) -> None:
        self.answer = answer
        self.guard = guard
        self.now = now
        self.connections: set[socket.socket] = set()
        self.lock = threading.Lock()
        super().__init__((LOOPBACK, 0), Exchange)
        self.url = f"http://{LOOPBACK}:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, name=name, daemon=True).start()

    def reply_to(
        self, method: str, target: str, headers: Mapping[str, str], pieces: Iterator[bytes], length: int | None
    ) -> Reply:
        """The answer to a request that the guard allows. Raises `Reset`, and `OSError` if the client is gone, or if
        what it sent is not HTTP."""
        caller = self.guard.caller(headers.get("authorization", ""))
        request = HttpRequest(method, target, headers, pieces, length, None if caller == CLIENT else caller)
        try:
            return self.answer(request)
        except (Reset, OSError):
            raise
        except ApiError as error:
            return json_reply(error.status, error.document())
        except Exception:
            if self.socket.fileno() < 0:  # closed meanwhile, and then what it answers from
                raise Reset from None
            log.exception("%s %s failed", method, target)
            message = "the embedded cloud failed at this request; its log says why"
            return json_reply(500, error_document(500, message, "backendError"))

    def date(self, target: str) -> str:
        """The Date header of an answer, from the cloud's clock, which the weather may have changed."""
        return formatdate(None if self.now is None else self.now(target).timestamp(), usegmt=True)

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

    def close(self) -> None:
        """Stops listening and cuts all open connections."""
        ending = threading.Thread(target=self.shutdown)
        ending.start()
        with suppress(OSError):
            # A connection wakes the server's thread; otherwise it would notice the end only at its next poll.
            socket.create_connection((LOOPBACK, self.server_address[1]), timeout=1).close()
        ending.join()
        self.server_close()
        with self.lock:
            for connection in self.connections:
                with suppress(OSError):  # the client closed it first
                    connection.shutdown(socket.SHUT_RDWR)


class Head(HTTPMessage):
    """The head of a request. The parser would take the head of an upload in parts for a message with parts, and compile
    a pattern for its boundary."""

    def get_content_maintype(self) -> str:
        return "text"


class Exchange(BaseHTTPRequestHandler):
    """One client's connection. It buffers answers, logs nothing, and can reset the connection."""

    protocol_version = "HTTP/1.1"
    MessageClass = Head
    wbufsize = -1
    disable_nagle_algorithm = True
    server: Listener
    stranger: ApiError | None = None

    def setup(self) -> None:
        super().setup()
        here = (LOOPBACK, int(self.server.server_address[1]))
        self.stranger = self.server.guard.stranger(self.client_address, here)

    def parse_request(self) -> bool:
        """Reads the head of a request, and asks the guard. A refused request is answered here. Returns whether the
        request goes on."""
        if not super().parse_request():
            return False
        self.lower = {key.lower(): value for key, value in self.headers.items()}
        guard, port = self.server.guard, int(self.server.server_address[1])
        refused = self.stranger or guard.refusal(self.command, self.path, self.lower, port)
        if refused is None:
            return True
        self.close_connection = True
        # An unread body would cause a reset, and the answer would be lost. This may happen for a longer body.
        self.rfile.read(min(max(self.body_length or 0, 0), REFUSED_BYTES))
        self.send(refusal_reply(refused))
        return False

    def date_time_string(self, timestamp: float | None = None) -> str:  # noqa: ARG002 - the answer's, and no other
        return self.server.date(getattr(self, "path", ""))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class named it
        """Logs nothing: clients report their own errors."""

    def cut(self) -> None:
        """Closes the connection with a TCP reset, so that the client sees a broken connection and not an empty
        answer."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    @property
    def body_length(self) -> int | None:
        """The bytes of the body; None if it comes in chunks, and -1 if the header is invalid."""
        if self.lower.get("transfer-encoding", "").lower() == "chunked":
            return None
        text = self.lower.get("content-length") or "0"
        return int(text) if text.isdecimal() else -1

    def exchange(self) -> None:
        """Answers one request."""
        pieces, length = self.pieces(), self.body_length
        try:
            reply = self.server.reply_to(self.command, self.path, self.lower, pieces, length)
        except (Reset, OSError):
            self.cut()
            return
        try:
            if reply.status == 413:
                self.close_connection = True
            elif not self._drained(pieces, length):
                reply.close()
                self.cut()
                return
        except ApiError as malformed:
            reply.close()
            reply = json_reply(malformed.status, malformed.document())
        self.send(reply)

    def _drained(self, pieces: Iterator[bytes], length: int | None) -> bool:
        """Reads the rest of the body. Returns whether its end was reached, so that the next request can follow. Raises
        as `pieces`, but no `OSError`."""
        bytes_left = DRAINED_BYTES
        if (length or 0) > bytes_left:
            return next(pieces, None) is None
        try:
            for piece in pieces:
                bytes_left -= len(piece)
                if bytes_left < 0:
                    return False
        except OSError:
            return False
        return True

    def pieces(self) -> Iterator[bytes]:
        """The body, piece by piece. Raises `OSError` if it breaks off, `ApiError` (400) if its encoding is invalid."""
        length = self.body_length
        if length is not None:
            yield from self._exactly(length)
            return
        while size := self._chunk_size():
            yield from self._exactly(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers

    def _chunk_size(self) -> int:
        text = self.rfile.readline(MOST_CHUNK_HEAD_BYTES).partition(b";")[0].strip()
        if not CHUNK_SIZE.fullmatch(text):
            self.close_connection = True  # where the next request begins is not known
            raise ApiError(400, "The size of a chunk of the request body is not a number.", "badRequest")
        return int(text, 16)

    def _exactly(self, left: int) -> Iterator[bytes]:
        while left > 0:
            piece = self.rfile.read(min(left, PIECE_BYTES))
            if not piece:
                raise ConnectionResetError("the client hung up within a body")
            left -= len(piece)
            yield piece

    def send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            if name.lower() not in ("date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(reply.length if reply.file else len(reply.body)))
        self.end_headers()
        try:
            for piece in reply.pieces() if self.command != "HEAD" else ():
                self.wfile.write(piece)
        finally:
            reply.close()
        self.wfile.flush()


for _verb in VERBS:
    setattr(Exchange, f"do_{_verb}", Exchange.exchange)
