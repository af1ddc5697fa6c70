"""Serves a folder of pages on loopback, and tells an open page when it has changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from orchestrator.adapters.files import crc32c, safe_path
from orchestrator.core.errors import LocalError
from orchestrator.ports import Bucket

KINDS: Final = {".html": "text/html; charset=utf-8", ".json": "application/json"}
LOOK_S: Final = 0.3
"""How often an open page's file is looked at."""
BEAT_S: Final = 15.0
"""How often a browser is told that nothing has changed, so that a lost connection is noticed."""
CHANGES: Final = "/-/changes"
HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


OwnConnection = Callable[[tuple[str, int], tuple[str, int]], bool]
"""Whether the client's end of a connection, from its address and the server's, belongs to the user who serves."""


class SiteServer:
    """Listens on 127.0.0.1 only, and answers only its own user; port 0 takes a free one. Raises `LocalError` if the
    port is in use."""

    def __init__(self, folder: Path, port: int = 0, *, is_own: OwnConnection) -> None:
        try:
            self._server = _Server(folder, port, is_own)
        except OSError as exc:
            raise LocalError(
                f"cannot listen on 127.0.0.1:{port}: {exc.strerror or exc}", hint="--port 0 takes a free one"
            ) from exc
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> SiteServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, folder: Path, port: int, is_own: OwnConnection) -> None:
        self.folder, self.is_own = folder, is_own
        self.closing = Event()
        super().__init__(("127.0.0.1", port), _Handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Closes a connection of another user without reading from it."""
        try:
            return self.is_own(client_address, request.getsockname())
        except OSError:
            return False  # the connection is closed already

    def handle_error(self, *_: Any) -> None:
        """A browser that went away in the middle is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "bench"
    sys_version = ""
    timeout = 60

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        # A page elsewhere that gives its own name our address may read nothing here.
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host not in ("127.0.0.1", "localhost"):
            return self._answer(421, b"this is served to this machine only\n", "text/plain")
        if asked.path == CHANGES:
            return self._changes(parse_qs(asked.query))
        file = self._file(asked.path)
        if file is None:
            return self._answer(404, b"there is no such page\n", "text/plain")
        version, data = _version(file), file.read_bytes()
        if file.suffix == ".html":
            data = data.replace(b'<html lang="en">', b'<html lang="en" data-live="%s">' % version.encode(), 1)
        return self._answer(200, data, KINDS[file.suffix])

    def do_HEAD(self) -> None:
        self.do_GET()

    def _file(self, path: str) -> Path | None:
        relative = unquote(path).lstrip("/")
        if not relative or relative.endswith("/"):
            relative += "index.html"
        try:
            file = safe_path(self.server.folder, relative)
        except LocalError:
            return None
        return file if file.suffix in KINDS and file.is_file() else None

    def _answer(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _changes(self, query: dict[str, list[str]]) -> None:
        """An event as soon as the page is another than the one that the browser has."""
        file = self._file(query.get("page", [""])[0])
        if file is None or self.command == "HEAD":
            return self._answer(404, b"there is no such page\n", "text/plain")
        self.close_connection = True
        self.send_response(200)
        for name, value in {**HEADERS, "Content-Type": "text/event-stream"}.items():
            self.send_header(name, value)
        self.end_headers()
        has, beat = query.get("version", [""])[0], time.monotonic()
        try:
            while not self.server.closing.wait(LOOK_S):
                if _version(file) != has:
                    self.wfile.write(b"event: changed\ndata: now\n\n")
                    return None
                if time.monotonic() - beat > BEAT_S:
                    beat = time.monotonic()
                    self.wfile.write(b": still the same\n\n")
        except OSError:
            return None  # the page was closed
        return None

    def log_message(self, *_: Any) -> None:
        """Whoever serves pages to themselves needs no log of it."""


def _version(file: Path) -> str:
    try:
        seen = file.stat()
    except OSError:
        return "gone"
    return f"{seen.st_mtime_ns:x}-{seen.st_size:x}"


# A site as files: published under a prefix of the bucket, or served to this machine.


def publish_files(bucket: Bucket, folder: Path, paths: Iterable[str], prefix: str) -> int:
    """Stores the files `paths` of `folder` under `prefix`; returns how many were new or other. Nothing is deleted."""
    from orchestrator.adapters.google.storage import THREADS

    there = {entry.name: entry.crc32c for entry in bucket.list(f"{prefix}/")}

    def store(path: str) -> bool:
        data, name = (folder / path).read_bytes(), f"{prefix}/{path}"
        if there.get(name) == crc32c(data):
            return False
        bucket.replace(name, data, generation=None, content_type=KINDS[Path(path).suffix])
        return True

    with ThreadPoolExecutor(THREADS, thread_name_prefix="publish") as pool:
        return sum(pool.map(store, paths))
