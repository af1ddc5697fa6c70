"""Stands before the object store: injects faults, watches events come in, and keeps promises that the store does not.

The store behind it ignores generation preconditions on all but multipart and resumable uploads; Cloud Storage heeds
them, and programs rely on it. Bodies stream through both ways, except for the small uploads that must be looked at.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from orchestrator.embedded.buckets import Buckets
from orchestrator.embedded.compute import TOKEN, fault_document
from orchestrator.embedded.errors import error_document
from orchestrator.embedded.listener import VERBS, Handler, Reply, Server, json_reply
from orchestrator.embedded.timeline import Timeline
from orchestrator.embedded.weather import Weather, hits_request

HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "host", "expect", "te", "upgrade"})
OBJECT = re.compile(r"/(?:download/)?storage/v1/b/([^/]+)/o/([^/]+)")
UPLOAD = re.compile(r"/upload/storage/v1/b/([^/]+)/o")
EVENT = re.compile(r"runs/[^/]+/events/[^/]+\.json")
LOOKED_AT_BYTES = 1 << 20
PIECE_BYTES = 1 << 16

Witness = Callable[[str, str, str, dict[str, Any]], None]
"""Told the run id, writer, kind and data of every event that is stored."""


class Proxy:
    """Serves at `url` from the start; forwards once `upstream` is set (host, port)."""

    def __init__(
        self, weather: Weather, timeline: Timeline, witness: Witness, touched: Callable[[], None], buckets: Buckets
    ) -> None:
        proxy = self
        self.buckets = buckets
        self.weather = weather
        self.timeline = timeline
        self.witness = witness
        self.touched = touched
        self.upstream: tuple[str, int] | None = None
        # Read and compare, then act: one at a time, or two could both find the generation they wait for.
        self.conditional = threading.Lock()

        class Forwarding(Exchange):
            def setup(self) -> None:
                super().setup()
                self.proxy = proxy
                self.upstream = http.client.HTTPConnection(*(proxy.upstream or ("127.0.0.1", 0)), timeout=300)

        for verb in VERBS:
            setattr(Forwarding, f"do_{verb}", Exchange.exchange)
        self.server = Server(Forwarding)
        self.server.start("storage-proxy")
        self.url = self.server.url

    def close(self) -> None:
        self.server.stop()


class Exchange(Handler):
    """One client's connection, and one to the store behind."""

    proxy: Proxy
    upstream: http.client.HTTPConnection

    def finish(self) -> None:
        self.upstream.close()
        super().finish()

    def exchange(self) -> None:
        """One request and its answer."""
        self.proxy.touched()
        target = self.path
        fault = self.proxy.weather.take(target, lambda fault: hits_request(fault, "storage", self.command, self.path))
        if fault is not None and fault.kind == "stall":
            self.proxy.timeline.sleep(float(fault.params["seconds"]))
        if fault is not None and fault.kind == "http":
            self.read_body()
            self.reply(json_reply(*fault_document(fault.params)))
            return
        if fault is not None and fault.kind == "reset":
            if fault.params.get("after", "request") == "request":
                self.read_body()
            else:
                self._forward(silent=True)
            self.cut()
            return
        try:
            refusal = self.proxy.buckets.refusal(self.command, self.path, self._is_client())
            if refusal is not None:
                self.read_body()
                self.reply(refusal)
            elif not self.proxy.buckets.serves(self.command, self.path):
                self._forward(silent=False)
            else:
                body = self.read_body()
                self.reply(self.proxy.buckets.answer(self.command, self.path, body, self._bucket_request))
        except (http.client.HTTPException, OSError):
            self.cut()  # the store is gone, and so is what we might say

    def _is_client(self) -> bool:
        return not str(self.headers.get("Authorization", "")).removeprefix("Bearer ").startswith(TOKEN)

    def _bucket_request(self, body: bytes) -> int:
        """The store's status for this request about a bucket."""
        response = self._ask(self.path, iter([body] if body else []), {"Content-Length": str(len(body))})
        response.read()
        return response.status

    def _forward(self, *, silent: bool) -> None:
        split = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(split.query).items()}
        upload = UPLOAD.fullmatch(split.path)
        length = int(self.headers.get("Content-Length") or 0)
        kind = query.get("uploadType", "")
        if upload and kind == "media" and "ifGenerationMatch" in query:
            body, headers, target = as_multipart(self.read_body(), self._content_type(), query, self.path)
            self._store(target, body, headers, silent=silent)
        elif upload and kind in ("media", "multipart") and length <= LOOKED_AT_BYTES:
            self._store(self.path, self.read_body(), {}, silent=silent)
        elif OBJECT.fullmatch(split.path) and any(name.startswith("if") for name in query):
            body = self.read_body()
            with self.proxy.conditional:
                refusal = self._unmet(split.path, query)
                if refusal is None:
                    self._pass_on(self.path, iter([body] if body else []), {}, silent=silent)
                elif not silent:
                    self.reply(refusal)
        else:
            self._pass_on(self.path, self._pieces(), {}, silent=silent)

    def _content_type(self) -> str:
        return str(self.headers.get("Content-Type") or "application/octet-stream")

    def _store(self, target: str, body: bytes, headers: Mapping[str, str], *, silent: bool) -> None:
        """A small upload: when it is stored and is an event, the cloud is told before the client is."""
        response = self._ask(target, iter([body]), {"Content-Length": str(len(body)), **headers})
        data = response.read()
        if response.status == 200:
            content_type = headers.get("Content-Type", self._content_type())
            event = event_in(unquote(target), content_type, body)
            if event is not None:
                self.proxy.witness(event["run_id"], event["writer"], event["kind"], event.get("data", {}))
        if not silent:
            kept = {name: value for name, value in response.getheaders() if name.lower() not in DROPPED}
            self.reply(Reply(response.status, data, kept))

    def _pass_on(self, target: str, pieces: Iterator[bytes], headers: Mapping[str, str], *, silent: bool) -> None:
        response = self._ask(target, pieces, headers)
        if silent:
            response.read()
            return
        self.send_response_only(response.status)
        length = response.getheader("Content-Length")
        for name, value in response.getheaders():
            if name.lower() not in DROPPED:
                self.send_header(name, value)
        bodiless = self.command == "HEAD" or response.status in (204, 304, 308)
        if length is not None or bodiless:
            self.send_header("Content-Length", length or "0")
        else:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while piece := response.read(PIECE_BYTES):
            self.wfile.write(piece if length is not None else b"%x\r\n%s\r\n" % (len(piece), piece))
        if length is None and not bodiless:
            self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _ask(self, target: str, pieces: Iterator[bytes], headers: Mapping[str, str]) -> http.client.HTTPResponse:
        changed = {name.lower() for name in headers}
        self.upstream.putrequest(self.command, target, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in HOP_BY_HOP | changed:
                self.upstream.putheader(name, value)
        for name, value in headers.items():
            self.upstream.putheader(name, value)
        chunked = self._chunked() and "content-length" not in changed
        if chunked:
            self.upstream.putheader("Transfer-Encoding", "chunked")
        self.upstream.endheaders()
        for piece in pieces:
            self.upstream.send(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
        if chunked:
            self.upstream.send(b"0\r\n\r\n")
        return self.upstream.getresponse()

    def _chunked(self) -> bool:
        return str(self.headers.get("Transfer-Encoding", "")).lower() == "chunked"

    def _pieces(self) -> Iterator[bytes]:
        if self._chunked():
            yield from self.chunks()
            return
        left = int(self.headers.get("Content-Length") or 0)
        while left > 0 and (piece := self.rfile.read(min(left, PIECE_BYTES))):
            left -= len(piece)
            yield piece

    def _unmet(self, path: str, query: Mapping[str, str]) -> Reply | None:
        """412 when the object is not as the request wants it; None when it is, or when that is the store's affair."""
        found = OBJECT.fullmatch(path)
        assert found is not None
        connection = http.client.HTTPConnection(*(self.proxy.upstream or ("127.0.0.1", 0)), timeout=60)
        try:
            connection.request("GET", f"/storage/v1/b/{found[1]}/o/{found[2]}")
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status != 200:
            return None
        state = json.loads(body)
        for name, key in (("Generation", "generation"), ("Metageneration", "metageneration")):
            wanted, unwanted = query.get(f"if{name}Match"), query.get(f"if{name}NotMatch")
            if wanted not in (None, str(state[key])):
                return precondition_failed()
            if unwanted == str(state[key]):
                return Reply(304) if self.command == "GET" else precondition_failed()
        return None


DROPPED = HOP_BY_HOP | {"content-length"}


def precondition_failed() -> Reply:
    message = "At least one of the pre-conditions you specified did not hold."
    return json_reply(412, error_document(412, message, "conditionNotMet"))


def as_multipart(
    body: bytes, content_type: str, query: Mapping[str, str], target: str
) -> tuple[bytes, dict[str, str], str]:
    """A media upload as the multipart one that means the same: the store heeds preconditions on the latter only."""
    boundary = "embedded-cloud-boundary"
    while boundary.encode() in body:
        boundary += "-"
    head = json.dumps({"name": query.get("name", ""), "contentType": content_type})
    opening = f"--{boundary}\r\nContent-Type: application/json\r\n\r\n{head}\r\n--{boundary}\r\n"
    text = f"{opening}Content-Type: {content_type}\r\n\r\n".encode() + body + f"\r\n--{boundary}--\r\n".encode()
    headers = {"Content-Length": str(len(text)), "Content-Type": f"multipart/related; boundary={boundary}"}
    return text, headers, target.replace("uploadType=media", "uploadType=multipart")


def event_in(target: str, content_type: str, body: bytes) -> dict[str, Any] | None:
    """The event of ours that an upload holds, or None."""
    if "multipart" in content_type:
        boundary = content_type.partition("boundary=")[2].strip("\"'")
        parts = [part.partition(b"\r\n\r\n")[2] for part in body.split(f"--{boundary}".encode())]
        if len(parts) < 3:
            return None
        head, body = parts[1], parts[2]
    else:
        head = target.encode()
    if not EVENT.search(head.decode("utf-8", "replace")):
        return None
    try:
        event = json.loads(body)
        return event if {"run_id", "writer", "kind"} <= set(event) else None
    except (ValueError, TypeError):
        return None
