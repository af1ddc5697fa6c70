"""HTTP/1.1 on a loopback port: keep-alive, a thread a connection, and connections that can be cut on purpose."""

from __future__ import annotations

import json
import logging
import socket
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

LOOPBACK = "127.0.0.1"
log = logging.getLogger(__name__)
VERBS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `path` is without the query and still %-quoted; header names are in lower case."""

    method: str
    path: str
    raw_query: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def target(self) -> str:
        """Path and query, as sent."""
        return f"{self.path}?{self.raw_query}" if self.raw_query else self.path


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class Reset(Exception):
    """Raised by a handler to cut the connection without an answer."""


def json_reply(status: int, document: Any) -> Reply:
    return Reply(status, json.dumps(document).encode(), {"Content-Type": "application/json; charset=UTF-8"})


class Server(ThreadingHTTPServer):
    """Knows its open connections, so that closing it leaves none behind."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    allow_reuse_address = False

    def __init__(self, handler: type[BaseHTTPRequestHandler], port: int = 0) -> None:
        self.connections: set[socket.socket] = set()
        self.guard = threading.Lock()
        super().__init__((LOOPBACK, port), handler)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.server_address[1]}"

    def start(self, name: str) -> None:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, name=name, daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self.guard:
            self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self.guard:
            self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, *_: Any) -> None:
        """A client that hangs up is no error of ours; anything else is."""
        if not isinstance(sys.exception(), (OSError, ValueError)):
            log.exception("a request failed")

    def stop(self) -> None:
        """Stop listening and cut what is open."""
        ending = threading.Thread(target=self.shutdown)
        ending.start()
        try:
            # Or it would notice only when next it looks.
            socket.create_connection((LOOPBACK, self.server_address[1]), timeout=1).close()
        except OSError:
            pass
        ending.join()
        self.server_close()
        with self.guard:
            for connection in self.connections:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # the client was faster


class Handler(BaseHTTPRequestHandler):
    """What all our handlers share: buffered answers, no log lines, and a way to reset the connection."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class named it
        """Quiet: the clients report what concerns them."""

    def cut(self) -> None:
        """Close with a TCP reset, so that the client sees a broken connection and not an empty answer."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def read_body(self) -> bytes:
        """The whole body, with a length or in chunks."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            return b"".join(self.chunks())
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def chunks(self) -> list[bytes]:
        """A chunked body."""
        parts: list[bytes] = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers
        return parts

    def reply(self, reply: Reply) -> None:
        if "Date" in reply.headers:
            self.send_response_only(reply.status)
        else:
            self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)
        self.wfile.flush()


class Listener:
    """Serves `answer(request) -> Reply` on a free loopback port."""

    def __init__(self, name: str, answer: Callable[[Request], Reply], port: int = 0) -> None:
        class Answering(Handler):
            def handle_any(self) -> None:
                body = self.read_body()
                split = urlsplit(self.path)
                request = Request(
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
                except OSError:
                    raise  # the client hung up
                except Exception:
                    log.exception("%s %s failed", self.command, self.path)
                    message = "the embedded cloud failed at this request; its log says why"
                    self.reply(json_reply(500, {"error": {"code": 500, "message": message, "errors": []}}))

        for verb in VERBS:
            setattr(Answering, f"do_{verb}", Answering.handle_any)

        self.server = Server(Answering, port)
        self.server.start(name)
        self.url = self.server.url

    def close(self) -> None:
        self.server.stop()
