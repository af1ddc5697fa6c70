"""Who is at the other end of a connection on loopback, as far as the kernel tells."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
MAPPED = "0000000000000000FFFF0000"


def owner_of(peer: tuple[str, int], here: tuple[str, int]) -> int | None:
    """The uid that holds the client's end of a TCP connection; both addresses are IPv4.

    None where the platform has no such table, and where nobody holds that end any more.
    """
    wanted = {(_cell(peer), _cell(here)), (MAPPED + _cell(peer), MAPPED + _cell(here))}
    for table in TABLES:
        try:
            lines = table.read_text("ascii").splitlines()[1:]
        except (OSError, ValueError):
            continue
        for line in lines:
            cells = line.split()
            if (cells[1], cells[2]) in wanted:
                # What waits in the kernel after its process has closed it has no inode, and says uid 0.
                return int(cells[7]) if cells[9] != "0" else None
    return None


def tells() -> bool:
    """Whether this platform says who holds a connection."""
    return TABLES[0].exists()


def _cell(address: tuple[str, int]) -> str:
    """`0100007F:1F90` of 127.0.0.1:8080, in the byte order of the machine, as the kernel prints it."""
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"
