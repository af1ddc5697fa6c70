"""Tests talk to loopback only, and what holds them to it stays out of the way of threads."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import conftest
from tests.support.ports import deaf_port, own_port

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = ("192.0.2.1", 9)


def by_ssl() -> None:
    with socket.socket() as plain, ssl.create_default_context().wrap_socket(plain, server_hostname="a") as one:
        one.connect(OUTSIDE)


def by_connect_ex() -> None:
    with socket.socket() as one:
        one.connect_ex(OUTSIDE)


@pytest.mark.parametrize(
    "reach",
    [
        lambda: socket.create_connection(OUTSIDE, timeout=1),
        by_ssl,
        by_connect_ex,
        lambda: urllib.request.build_opener(urllib.request.ProxyHandler({})).open("http://192.0.2.1:9/", timeout=1),
    ],
    ids=["create_connection", "ssl", "connect_ex", "urllib"],
)
def test_an_address_outside_loopback_is_refused_before_anything_is_sent(reach: Callable[[], object]) -> None:
    before = list(conftest.REACHED)
    try:
        with pytest.raises(OSError, match="loopback only"):
            reach()
        assert conftest.REACHED[len(before) :] == ["192.0.2.1:9"]
    finally:
        conftest.REACHED[:] = before


def test_no_audit_hook_lets_threads_take_turns_while_a_trace_function_is_installed() -> None:
    """CPython 3.11 ends the thread whose turn it is then, before it has begun, and whoever waits for it waits for
    ever."""
    word = "addaudit" + "hook"
    assert [str(path) for place in ("tests", "orchestrator", "startup", "kernels", "scripts")
            for path in (ROOT / place).rglob("*.py") if word in path.read_text(encoding="utf-8")] == []  # fmt: skip


# A port that a test tells a program is that program's, whatever else runs.


def test_a_port_is_given_once_to_whichever_process_asks_and_to_nobody_by_chance() -> None:
    mine = [own_port() for _ in range(3)]
    code = "from tests.support.ports import own_port; print(own_port())"
    asked = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert len({*mine, int(asked.stdout)}) == 4
    low, high = (int(one) for one in Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not any(low <= port <= high for port in mine)
    with socket.create_server(("127.0.0.1", mine[0])):
        assert own_port() not in mine


def test_nobody_comes_to_listen_where_nobody_listens() -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", deaf_port()))
    with pytest.raises(OSError, match="in use"), socket.create_server(("127.0.0.1", deaf_port())):
        pass
