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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.embedded import peers
from orchestrator.embedded.documents import write_private

TOKEN_FILE = "token"
CLIENT = "client"
PREFIX = "Bearer "
PAGES = ("origin", "sec-fetch-site", "sec-fetch-mode")
"""Headers that browsers send and the clients of a cloud do not."""
UNKNOWN = "Request had invalid authentication credentials. The token is in the file `token` beside cloud.json."
CATALOGUE = "/v1/services"
"""The only resource that Google serves for an API key. Here the token is accepted as the key."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a request is refused."""

    status: int
    message: str
    reason: str = "forbidden"


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

    def stranger(self, peer: tuple[str, int], here: tuple[str, int]) -> Refused | None:
        """The refusal of a connection from another user's process; None if it is allowed. This is called once for each
        connection."""
        uid = peers.owner_of(peer, here)
        if uid is None and (self.token or not peers.tells()):
            return None  # the process is gone or cannot be known: the token decides
        if uid in self.uids:
            return None
        return Refused(403, "This cloud serves the user who runs it.")

    def refusal(self, method: str, target: str, headers: Mapping[str, str], port: int) -> Refused | None:
        """The refusal of a request; None if it is allowed. Header names are in lower case."""
        if headers.get("host", "").lower() not in (f"127.0.0.1:{port}", f"localhost:{port}"):
            return Refused(403, "Requests must be addressed to 127.0.0.1.")
        if any(name in headers for name in PAGES):
            return Refused(403, "Web pages are not served.")
        if self.token and not self._known(target, headers):
            return Refused(401, UNKNOWN, "authError")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        if self.json and has_body and method != "GET" and kind != "application/json":
            return Refused(415, f"The body must be application/json, not {kind or 'untold'}.", "invalid")
        return None

    def _known(self, target: str, headers: Mapping[str, str]) -> bool:
        if self.caller(headers.get("authorization", "")) is not None:
            return True
        path, _, query = target.partition("?")
        if path != CATALOGUE and not path.startswith(CATALOGUE + "/"):
            return False
        keys = [headers.get("x-goog-api-key", ""), *(part[4:] for part in query.split("&") if part.startswith("key="))]
        return any(hmac.compare_digest(key.encode(), self.token.encode()) for key in keys)
