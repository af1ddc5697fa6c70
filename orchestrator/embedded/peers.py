"""Who is at the other end of a connection on loopback, as far as the kernel tells."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from pathlib import Path

SOCK_DIAG = 4
BY_FAMILY = 20
ANY_STATE = 0xFFF
"""Sockets in any state."""
NO_COOKIE = b"\xff" * 8
ASKED = struct.Struct("=IHHII BBBxI")
"""A message's length, type, flags, number and sender; a family, a protocol, extensions and states."""
TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
MAPPED = "0000000000000000FFFF0000"


def owner_of(peer: tuple[str, int], here: tuple[str, int]) -> int | None:
    """The uid that holds the client's end of a TCP connection; both addresses are IPv4.

    None where the platform does not tell, and where nobody holds that end any more.
    """
    told = _asked(peer, here)
    return _looked_up(peer, here) if told is None else told.uid


@dataclass(frozen=True, slots=True)
class Told:
    """What the kernel says of a socket. One that its process has closed has no inode, and says uid 0."""

    owner: int
    inode: int

    @property
    def uid(self) -> int | None:
        return self.owner if self.inode else None


def _asked(peer: tuple[str, int], here: tuple[str, int]) -> Told | None:
    """One question to the kernel (sock_diag(7)), however many connections there are. None where it knows no such socket
    or does not take the question."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG) as kernel:
            kernel.settimeout(1.0)
            kernel.sendto(_question(peer, here), (0, 0))
            answer = kernel.recv(4096)
    except (OSError, AttributeError):
        return None
    if len(answer) < 88 or struct.unpack_from("=H", answer, 4)[0] != BY_FAMILY:
        return None
    return Told(*struct.unpack_from("=II", answer, 80))


def _question(peer: tuple[str, int], here: tuple[str, int]) -> bytes:
    """`inet_diag_req_v2`: the socket whose own address is `peer` and that is connected to `here`."""
    ends = struct.pack("!HH", peer[1], here[1])
    ends += b"".join(socket.inet_aton(host).ljust(16, b"\0") for host, _ in (peer, here))
    ends += struct.pack("=I", 0) + NO_COOKIE
    head = ASKED.pack(ASKED.size + len(ends), BY_FAMILY, 1, 1, 0, socket.AF_INET, socket.IPPROTO_TCP, 0, ANY_STATE)
    return head + ends


def _looked_up(peer: tuple[str, int], here: tuple[str, int]) -> int | None:
    """The same from the kernel's list of all connections."""
    wanted = {(_cell(peer), _cell(here)), (MAPPED + _cell(peer), MAPPED + _cell(here))}
    for table in TABLES:
        try:
            lines = table.read_text("ascii").splitlines()[1:]
        except (OSError, ValueError):
            continue
        for line in lines:
            cells = line.split()
            if (cells[1], cells[2]) in wanted:
                return Told(int(cells[7]), int(cells[9])).uid
    return None


def tells() -> bool:
    """Whether this platform says who holds a connection."""
    return TABLES[0].exists()


def _cell(address: tuple[str, int]) -> str:
    """`0100007F:1F90` of 127.0.0.1:8080, in the byte order of the machine, as the kernel prints it."""
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"
