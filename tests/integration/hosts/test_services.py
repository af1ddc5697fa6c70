"""What a run finds around it on loopback: for its own user alone, and nothing that arrived in part."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from startup.agent.clock import AgentClock, Patience
from startup.agent.metadata import Metadata
from startup.agent.spec import PhaseTiming
from startup.agent.storage import AgentStorage
from startup.host.services import ServedMachine, ServicesServer, owns_peer
from startup.host.spool import Spool
from tests.support.patience import PATIENCE_S

VM = "bench-20261121-040000-host-0001-1"


@contextmanager
def served(machine: ServedMachine) -> Iterator[ServicesServer]:
    server = ServicesServer(machine)
    try:
        yield server
    finally:
        server.server_close()


def test_only_the_owner_of_the_run_is_served(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as peer:
        place, server = peer.getsockname(), listener.getsockname()
        assert owns_peer(place, server)
        table = tmp_path / "tcp"
        mine, ours = f"0100007F:{place[1]:04X}", f"0100007F:{server[1]:04X}"
        for uid, inode, served in (
            (os.getuid(), 7, True), (0, 7, True), (os.getuid() + 4711, 7, False), (0, 0, False), (os.getuid(), 0, False)
        ):  # fmt: skip
            table.write_text(f"  sl  local rem st\n   0: {mine} {ours} 01 0:0 0:0 0 {uid} 0 {inode} 1\n")
            assert owns_peer(place, server, table) is served
        elsewhere = f"   0: {mine} 0100007F:0001 01 0:0 0:0 0 {os.getuid()} 0 7 1\n"
        for text in ("", elsewhere):  # a port may be one end of several connections
            table.write_text("  sl  local rem st\n" + text)
            assert not owns_peer(place, server, table)
        assert not owns_peer(place, server, tmp_path / "missing")


def test_who_lets_go_of_a_connection_before_it_is_looked_at_is_not_taken_for_root(tmp_path: Path) -> None:
    machine = ServedMachine({"vm": VM}, Spool(tmp_path))
    with served(machine) as server:
        with socket.create_connection(server.server_address) as asking:
            place = asking.getsockname()
            asking.sendall(f"DELETE /compute/v1/instances/{VM} HTTP/1.0\r\n\r\n".encode())
            asking.shutdown(socket.SHUT_WR)
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        ends = [f"0100007F:{port:04X}" for port in (place[1], server.server_address[1])]
        left = [row for row in rows if row[1:3] == ends]  # the port may lead elsewhere, too
        assert [row[9] for row in left] == ["0"], "the kernel names nobody"
        server.handle_request()
        assert not machine.deleted.wait(0.2)


def test_the_hosts_clock_may_be_off_and_the_services_tell_the_clients_time(tmp_path: Path) -> None:
    machine = ServedMachine({"vm": VM}, Spool(tmp_path), now=lambda: 86400.0)
    with served(machine) as server, socket.create_connection(server.server_address) as asking:
        asking.sendall(b"GET /nothing HTTP/1.0\r\n\r\n")
        server.handle_request()
        assert b"404" in (answer := asking.recv(4096))
        assert b"Date: Fri, 02 Jan 1970 00:00:00 GMT" in answer


def test_what_arrives_in_part_is_not_stored(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    name = "runs/r/artifacts/log.txt"
    spool.put(name, b"the whole log")
    with served(ServedMachine({"vm": VM}, spool)) as server:
        for length, stored in ((500, b"the whole log"), (5, b"short")):
            with socket.create_connection(server.server_address) as asking:
                asking.sendall(
                    f"POST /upload/storage/v1/b/b/o?uploadType=media&name={name} HTTP/1.0\r\n"
                    f"Content-Length: {length}\r\n\r\nshort".encode()
                )
                asking.shutdown(socket.SHUT_WR)
                server.handle_request()
                answer = asking.makefile("rb").read()  # to its end: then the request is done with
            assert (spool.path(name).read_bytes(), bool(answer)) == (stored, stored == b"short")


def test_an_attempt_replaces_what_it_stored_itself_and_what_an_earlier_one_left(tmp_path: Path) -> None:
    name, spool = "runs/r/artifacts/log.txt", Spool(tmp_path / "spool")
    run = {"vm": VM, "id": "1", "zone": "here", "metadata": {"bench-payload": '{"object": "payloads/x"}'}}
    with served(ServedMachine(run, spool)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            for attempt in ("first", "second"):
                storage = AgentStorage(
                    server.url, "b", Metadata(server.url.removeprefix("http://"), AgentClock()), PhaseTiming()
                )
                for text in (attempt, f"{attempt}, longer"):
                    storage.replace(name, text.encode(), "text/plain", Patience(AgentClock(), PATIENCE_S))
                    assert spool.path(name).read_text() == text
        finally:
            server.shutdown()
            thread.join()
