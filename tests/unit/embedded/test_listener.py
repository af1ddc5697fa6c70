"""HTTP on loopback: errors of ours are said and logged, and closing cuts what is open."""

from __future__ import annotations

import socket
import threading

import pytest
import requests

from orchestrator.embedded.guard import Guard
from orchestrator.embedded.listener import HttpRequest, Listener, Reply, Reset
from tests.support.patience import PATIENCE_S, await_truth


def test_a_handler_that_fails_answers_500_and_leaves_its_trace_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def fail(request: HttpRequest) -> Reply:
        raise RuntimeError("on purpose")

    listener = Listener("test", fail, Guard())
    try:
        answer = requests.get(listener.url + "/x", timeout=600)
    finally:
        listener.close()
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, 500)
    assert "on purpose" in caplog.text


def test_a_handler_that_fails_after_its_server_was_closed_leaves_no_trace(caplog: pytest.LogCaptureFixture) -> None:
    failed: list[str] = []
    earlier = set(threading.enumerate())

    def fail(request: HttpRequest) -> Reply:
        listener.close()
        failed.append(request.path)
        raise RuntimeError("what it answers from is closed")

    listener = Listener("test", fail, Guard())
    with pytest.raises(requests.ConnectionError):
        requests.get(listener.url + "/x", timeout=PATIENCE_S)
    await_truth(lambda: set(threading.enumerate()) <= earlier)
    assert failed == ["/x"]
    assert caplog.text == ""


def test_a_request_is_seen_whole_and_a_head_gets_no_body() -> None:
    seen: list[HttpRequest] = []

    def echo(request: HttpRequest) -> Reply:
        seen.append(request)
        return Reply(200, request.body or b"body", {"X-Mine": "yes"})

    listener = Listener("test", echo, Guard())
    try:
        with requests.Session() as session:
            assert (
                session.post(listener.url + "/a%2Fb?c=d&e=", data=(b"x" for _ in range(3)), timeout=600).content
                == b"xxx"
            )
            assert session.head(listener.url + "/a", timeout=600).headers["Content-Length"] == "4"
    finally:
        listener.close()
    request = seen[0]
    assert (request.method, request.path, request.target) == ("POST", "/a%2Fb", "/a%2Fb?c=d&e=")
    assert request.query == {"c": "d", "e": ""}
    assert request.headers["transfer-encoding"] == "chunked"
    assert seen[1].target == "/a"


def test_a_reset_breaks_a_connection_and_a_closed_listener_cuts_open_ones() -> None:
    def cut(request: HttpRequest) -> Reply:
        if request.path == "/cut":
            raise Reset
        return Reply(200)

    listener = Listener("test", cut, Guard())
    with requests.Session() as session:
        assert session.get(listener.url, timeout=600).status_code == 200
        with pytest.raises(requests.ConnectionError):
            session.get(listener.url + "/cut", timeout=600)
        assert session.get(listener.url, timeout=600).status_code == 200
        listener.close()
        with pytest.raises(requests.ConnectionError):
            session.get(listener.url, timeout=600)


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("body", [b"zz\r\nabc\r\n0\r\n\r\n", b"-1\r\nabc\r\n0\r\n\r\n", b"1\r\na\r\nq\r\n"])
def test_a_malformed_chunked_body_is_refused_and_nothing_after_it_is_answered(body: bytes, reads: bool) -> None:
    listener = Listener("test", lambda request: Reply(200, request.body if reads else b""), Guard())
    host, port = listener.url.removeprefix("http://").split(":")
    head = f"POST / HTTP/1.1\r\nHost: {host}:{port}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    try:
        with socket.create_connection((host, int(port)), timeout=600) as connection:
            connection.sendall(head + body + b"GET /smuggled HTTP/1.1\r\n\r\n")
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
    finally:
        listener.close()
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"chunk" in answer
