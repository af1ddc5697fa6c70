"""A port that a test tells a program is that program's, whatever else runs."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ports import deaf_port, own_port

ROOT = Path(__file__).resolve().parents[2]


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
