"""The server of Cloud Storage: it passes requests to the object store, and applies the weather to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from orchestrator.embedded.asking import Ask, Download
from orchestrator.embedded.guard import CLIENT, Guard
from orchestrator.embedded.listener import VERBS, Handler, Now, Reply, Server, json_reply
from orchestrator.embedded.requests import fault_document
from orchestrator.embedded.storage import Storage
from orchestrator.embedded.timeline import Timeline
from orchestrator.embedded.weather import Weather, hits_request

DRAINED_BYTES = 64 << 20
"""The most bytes of an unread body that are read and dropped, so that the connection can be used again."""


class Gateway:
    """The server. It listens from the start, and answers requests once `storage` is set."""

    def __init__(
        self, weather: Weather, timeline: Timeline, touched: Callable[[], None], guard: Guard, now: Now
    ) -> None:
        gateway = self
        self.weather = weather
        self.timeline = timeline
        self.touched = touched
        self.storage: Storage | None = None

        class Serving(Exchange):
            def setup(self) -> None:
                super().setup()
                self.gateway = gateway

        for verb in VERBS:
            setattr(Serving, f"do_{verb}", Exchange.exchange)
        self.server = Server(Serving, guard, now)
        self.server.start("storage")
        self.url = self.server.url

    def close(self) -> None:
        self.server.stop()


class Exchange(Handler):
    """One client's connection."""

    gateway: Gateway

    def exchange(self) -> None:
        """Answers one request."""
        gateway = self.gateway
        gateway.touched()
        if gateway.storage is None:
            self.cut()
            return
        body = self.pieces()
        fault = gateway.weather.take(self.path, lambda fault: hits_request(fault, "storage", self.command, self.path))
        kind = fault.kind if fault is not None else ""
        late = fault is not None and fault.params.get("after", "request") == "response"
        if fault is not None and kind == "stall":
            gateway.timeline.sleep(float(fault.params["seconds"]))
        answer: Reply | Download | None = None
        if kind not in ("http", "reset") or late:
            try:
                answer = gateway.storage.answer(self._ask(body))
            except (OSError, ValueError):
                self.cut()  # the client is gone, or what it sent is not HTTP
                return
        if fault is not None and kind in ("http", "reset") and isinstance(answer, Download):
            answer.file.close()
        if not self._drained(body) or kind == "reset":
            self.cut()
        elif fault is not None and kind == "http":
            self.reply(json_reply(*fault_document(fault.params)))
        elif isinstance(answer, Download):
            self._send(answer)
        elif answer is not None:
            self.reply(answer)

    def _ask(self, body: Iterator[bytes]) -> Ask:
        length = None if self.chunked else int(self.headers.get("Content-Length") or 0)
        headers = {key.lower(): value for key, value in self.headers.items()}
        client = self.server.guard.caller(headers.get("authorization", "")) == CLIENT
        return Ask(self.command, self.path, headers, body, length, client)

    def _drained(self, body: Iterator[bytes]) -> bool:
        """Reads the rest of the body. Returns whether its end was reached, so that the next request can follow."""
        left = DRAINED_BYTES
        try:
            for piece in body:
                left -= len(piece)
                if left < 0:
                    return False
        except (OSError, ValueError):
            return False
        return True

    def _send(self, download: Download) -> None:
        with download.file:
            self.send_response(download.status)
            for name, value in download.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(download.length))
            self.end_headers()
            if self.command != "HEAD":
                for piece in download.pieces():
                    self.wfile.write(piece)
            self.wfile.flush()
