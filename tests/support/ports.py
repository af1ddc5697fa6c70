"""Ports of loopback for programs that must be told theirs: no other program gets one by chance, and no other test."""

from __future__ import annotations

import functools
import itertools
import socket
from pathlib import Path

LEAST = 10_000
HELD: list[socket.socket] = []
"""Held for as long as this process lives: a program that a test starts again finds its port free."""


def own_port() -> int:
    """A port that is free and stays so until its program listens there. The system gives away ports of its own range
    alone, to whoever connects or asks for any; this one lies beside that range, and a socket with its name tells the
    other processes of the tests that it is taken."""
    limits = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    for port in itertools.chain(range(LEAST, int(limits[0])), range(int(limits[1]) + 1, 1 << 16)):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0spotbench-tests-port-{port}")  # gone with its process, whatever ends that
            with socket.create_server(("127.0.0.1", port)):
                HELD.append(claim)
            return port
        except OSError:
            claim.close()
    raise AssertionError("no port is free")


@functools.cache
def deaf_port() -> int:
    """A port where nothing listens, and nothing will: whoever connects is refused."""
    held = socket.socket()
    held.bind(("127.0.0.1", 0))
    HELD.append(held)
    return int(held.getsockname()[1])
