"""Finds the user at the other end of a connection on loopback, if the kernel tells."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from pathlib import Path

SOCK_DIAG = 4
BY_FAMILY = 20
ANY_STATE = 0xFFF
"""The bits of all states of a socket."""
NO_COOKIE = b"\xff" * 8
REQUEST_HEAD = struct.Struct("=IHHII BBBxI")
"""The head of a request: the message's length, type, flags, number and sender, then family, protocol, extensions and
states of the sockets."""
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
MAPPED = "0000000000000000FFFF0000"


def owner_of(peer: tuple[str, int], here: tuple[str, int]) -> int | None:
    """The uid of the process at the client's end of a TCP connection. Both addresses are IPv4.

    None if the platform does not tell, or if no process holds that end any more.
    """
    client_socket = _from_sock_diag(peer, here)
    return _from_proc(peer, here) if client_socket is None else client_socket.uid


@dataclass(frozen=True, slots=True)
class Socket:
    """What the kernel reports about a socket. A socket that its process has closed has inode 0 and uid 0."""

    owner: int
    inode: int

    @property
    def uid(self) -> int | None:
        return self.owner if self.inode else None


def _from_sock_diag(peer: tuple[str, int], here: tuple[str, int]) -> Socket | None:
    """The socket from one request to the kernel (sock_diag(7)), whose cost does not grow with the number of
    connections. None if the kernel knows no such socket or does not accept the request."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG) as kernel:
            kernel.settimeout(1.0)
            kernel.sendto(_request(peer, here), (0, 0))
            answer = kernel.recv(4096)
    except (OSError, AttributeError):
        return None
    if len(answer) < 88 or struct.unpack_from("=H", answer, 4)[0] != BY_FAMILY:
        return None
    return Socket(*struct.unpack_from("=II", answer, 80))


def _request(peer: tuple[str, int], here: tuple[str, int]) -> bytes:
    """The request `inet_diag_req_v2` for the socket with the address `peer` that is connected to `here`."""
    ends = struct.pack("!HH", peer[1], here[1])
    ends += b"".join(socket.inet_aton(host).ljust(16, b"\0") for host, _ in (peer, here))
    ends += struct.pack("=I", 0) + NO_COOKIE
    head = REQUEST_HEAD.pack(
        REQUEST_HEAD.size + len(ends), BY_FAMILY, 1, 1, 0, socket.AF_INET, socket.IPPROTO_TCP, 0, ANY_STATE
    )
    return head + ends


def _from_proc(peer: tuple[str, int], here: tuple[str, int]) -> int | None:
    """The uid from the kernel's list of all connections; None if it is not there."""
    wanted = {(_cell(peer), _cell(here)), (MAPPED + _cell(peer), MAPPED + _cell(here))}
    for table in TABLES:
        try:
            lines = table.read_text("ascii").splitlines()[1:]
        except (OSError, ValueError):
            continue
        for line in lines:
            cells = line.split()
            if (cells[1], cells[2]) in wanted:
                return Socket(int(cells[7]), int(cells[9])).uid
    return None


def tells() -> bool:
    """Whether this platform tells the user of a connection."""
    return TABLES[0].exists()


def _cell(address: tuple[str, int]) -> str:
    """An address as the kernel prints it, in the byte order of the machine: `0100007F:1F90` for 127.0.0.1:8080."""
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"
