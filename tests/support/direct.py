"""An embedded cloud in this process, asked without a connection: the real clients send the same requests, and get the
same answers, in half of the time. That the two ways agree is a test (test_direct_answers.py). An answer that takes time
as people know it comes over a connection, because only there a client can be tired of waiting."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPResponse

from orchestrator.adapters.google.network import ADAPTERS
from orchestrator.embedded.listener import Listener, Reply, Reset, refusal_reply
from orchestrator.embedded.server import EmbeddedCloud

LISTENERS: dict[str, tuple[EmbeddedCloud, Listener]] = {}
"""Those that are asked directly, by host and port."""


@contextmanager
def asked_directly(cloud: EmbeddedCloud) -> Iterator[None]:
    """Within it the clients and the scripted machines of this process need no connection to the cloud."""
    listeners = {urlsplit(listener.url).netloc: (cloud, listener) for listener in cloud.listeners}
    adapters = {f"{listener.url}/": DirectAdapter() for listener in cloud.listeners}
    LISTENERS.update(listeners)
    ADAPTERS.update(adapters)
    try:
        yield
    finally:
        for netloc in listeners:
            del LISTENERS[netloc]
        for beginning in adapters:
            del ADAPTERS[beginning]


def listener_at(netloc: str) -> Listener | None:
    """The listener to ask directly there, if there is one now."""
    cloud, listener = LISTENERS.get(netloc, (None, None))
    stalls = cloud and not cloud.timeline.simulated and any(fault.kind == "stall" for fault in cloud.weather.ahead)
    return None if stalls else listener


def answer(listener: Listener, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Reply:
    """What a listener answers to a request. Raises `Reset` and `OSError`."""
    lower = {"host": urlsplit(listener.url).netloc} | {name.lower(): value for name, value in headers.items()}
    refused = listener.guard.refusal(method, target, lower, int(listener.server_address[1]))
    if refused is not None:
        return refusal_reply(refused)
    return listener.reply_to(method, target, lower, iter((body,)), len(body))


class DirectAdapter(HTTPAdapter):
    """Stands for the connections of a session of `requests`."""

    def send(self, request: requests.PreparedRequest, *arguments: Any, **options: Any) -> requests.Response:
        parts = urlsplit(str(request.url))
        listener = listener_at(parts.netloc)
        if listener is None:
            return super().send(request, *arguments, **options)
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        headers = {name: _text(value) for name, value in request.headers.items()}
        method = str(request.method)
        try:
            reply = answer(listener, method, target, headers, _bytes(request.body))
            content = b"".join(reply.pieces()) if method != "HEAD" else b""
        except (Reset, OSError) as exc:
            raise requests.ConnectionError("the connection was cut", request=request) from exc
        sent = {"Date": listener.date(target), "Content-Length": str(reply.length if reply.file else len(reply.body))}
        headers = {**sent, **reply.headers}
        raw = HTTPResponse(
            io.BytesIO(content), headers, reply.status, preload_content=False, request_method=method, version=11
        )
        return self.build_response(request, raw)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")


def _bytes(body: Any) -> bytes:
    """The body of a request, whose pieces may be an iterator's."""
    if body is None or isinstance(body, str | bytes | bytearray):
        return body.encode() if isinstance(body, str) else bytes(body or b"")
    return body.read() if hasattr(body, "read") else b"".join(bytes(piece) for piece in body)
