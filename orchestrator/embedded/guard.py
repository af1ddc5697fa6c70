"""Decides who may send requests to the embedded cloud. Its ports are open to all programs and web pages on this
machine.

A request must meet five conditions. It comes from a process of the user who runs the cloud, or of root, if the platform
can tell. Its Host header names loopback, so that no web page reaches the cloud through a domain name of its own. It
does not come from a web page. It has the bearer token from a file that only that user can read, or a VM's token from
its metadata server. Its body is declared as JSON if the service expects JSON. A refused request has no effect, and uses
up no fault of the weather.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.embedded.documents import write_private
from orchestrator.embedded.errors import ApiError

# Finds the user at the other end of a connection on loopback, if the kernel tells.


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


def knows_peers() -> bool:
    """Whether this platform tells the user of a connection."""
    return TABLES[0].exists()


def is_own_connection(peer: tuple[str, int], here: tuple[str, int]) -> bool:
    """Whether the client's end of a connection belongs to this user or to root. True if this platform does not tell;
    False if it does and no process holds that end."""
    uid = owner_of(peer, here)
    return not knows_peers() if uid is None else uid in {0, os.geteuid()}


def _cell(address: tuple[str, int]) -> str:
    """An address as the kernel prints it, in the byte order of the machine: `0100007F:1F90` for 127.0.0.1:8080."""
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"


TOKEN_FILE = "token"
CLIENT = "client"
PREFIX = "Bearer "
PAGES = ("origin", "sec-fetch-site", "sec-fetch-mode")
"""Headers that browsers send and the clients of a cloud do not."""
UNKNOWN = "Request had invalid authentication credentials. The token is in the file `token` beside cloud.json."
CATALOGUE = "/v1/services"
"""The only resource that Google serves for an API key. Here the token is accepted as the key."""


def new_token() -> str:
    """A new token that cannot be guessed."""
    return "embedded-" + secrets.token_urlsafe(32)


def write_token(home: Path, token: str) -> None:
    """Writes the token to a file that only the owner of `home` can read."""
    write_private(home / TOKEN_FILE, token)


@dataclass(frozen=True, slots=True)
class Guard:
    """Judges a request by its headers alone. `vm_of` returns a VM's name for its token, or None.

    token: the token of clients. It is empty if no token is required, as at a metadata server; then the process that
    sends the request must be known. json: whether bodies must be JSON.
    """

    token: str = ""
    vm_of: Callable[[str], object | None] = lambda _token: None
    json: bool = False
    uids: frozenset[int] = field(default_factory=lambda: frozenset({0, os.geteuid()}))

    def caller(self, authorization: str) -> object | None:
        """The sender of a request: `CLIENT`, or the result of `vm_of` for a VM's token; None if it is not known."""
        given = authorization.removeprefix(PREFIX) if authorization.startswith(PREFIX) else ""
        if not given:
            return None
        if hmac.compare_digest(given.encode(), self.token.encode()):
            return CLIENT
        return self.vm_of(given)

    def stranger(self, peer: tuple[str, int], here: tuple[str, int]) -> ApiError | None:
        """The refusal of a connection from another user's process; None if it is allowed. This is called once for each
        connection."""
        uid = owner_of(peer, here)
        if uid is None and (self.token or not knows_peers()):
            return None  # the process is gone or cannot be known: the token decides
        if uid in self.uids:
            return None
        return ApiError(403, "This cloud serves the user who runs it.")

    def refusal(self, method: str, target: str, headers: Mapping[str, str], port: int) -> ApiError | None:
        """The refusal of a request; None if it is allowed. Header names are in lower case."""
        if headers.get("host", "").lower() not in (f"127.0.0.1:{port}", f"localhost:{port}"):
            return ApiError(403, "Requests must be addressed to 127.0.0.1.")
        if any(name in headers for name in PAGES):
            return ApiError(403, "Web pages are not served.")
        if self.token and not self._has_token(target, headers):
            return ApiError(401, UNKNOWN, "authError")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        if self.json and has_body and method != "GET" and kind != "application/json":
            return ApiError(415, f"The body must be application/json, not {kind or 'untold'}.", "invalid")
        return None

    def _has_token(self, target: str, headers: Mapping[str, str]) -> bool:
        if self.caller(headers.get("authorization", "")) is not None:
            return True
        path, _, query = target.partition("?")
        if path != CATALOGUE and not path.startswith(CATALOGUE + "/"):
            return False
        keys = [headers.get("x-goog-api-key", ""), *(part[4:] for part in query.split("&") if part.startswith("key="))]
        return any(hmac.compare_digest(key.encode(), self.token.encode()) for key in keys)
