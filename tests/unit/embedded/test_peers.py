"""Who is at the other end of a connection: the kernel is found in two ways, and they agree."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from orchestrator.embedded import guard

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who holds a connection")
Ends = tuple[socket.socket, tuple[str, int], tuple[str, int]]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A client's socket, its address, and the server's."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        client = stack.enter_context(socket.create_connection(server.getsockname()))
        there, peer = server.accept()
        stack.enter_context(there)
        yield client, peer, there.getsockname()


def test_a_connection_is_its_users(ends: Ends) -> None:
    _, peer, here = ends
    assert guard.owner_of(peer, here) == os.getuid()


def test_a_question_and_the_list_of_all_connections_agree(ends: Ends) -> None:
    client, peer, here = ends
    found = guard._from_sock_diag(peer, here)
    assert found is None or found.uid == guard._from_proc(peer, here) == os.getuid()
    client.close()
    found = guard._from_sock_diag(peer, here)
    assert found is None or found.uid is None
    assert guard._from_proc(peer, here) is None


def test_a_connection_that_nobody_has_is_nobodys(ends: Ends) -> None:
    _, peer, (host, _) = ends
    assert guard.owner_of(peer, (host, 1)) is None
