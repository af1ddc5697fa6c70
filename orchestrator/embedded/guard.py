"""Who may speak to the embedded cloud: its ports lie open to every program and every web page on this machine.

A request must come from a process of the user who runs the cloud (or of root), where the platform tells; be addressed
to loopback by name, so that no page reaches us by pointing a name of its own here; come from no web page; carry the
bearer token that stands in a file only that user can read, or the one that a VM has of its metadata server; and say
that its body is JSON where it takes JSON. What is refused has no effect, and uses up no weather.
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
"""Headers that browsers send, and the clients of a cloud do not."""
UNKNOWN = "Request had invalid authentication credentials. The token is in the file `token` beside cloud.json."
CATALOGUE = "/v1/services"
"""The one resource that an API key opens at Google; the token serves as the key."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a request is not heard."""

    status: int
    message: str
    reason: str = "forbidden"


def new_token() -> str:
    """One that nobody guesses."""
    return "embedded-" + secrets.token_urlsafe(32)


def write_token(home: Path, token: str) -> None:
    """Put it where only the owner of `home` can read it."""
    write_private(home / TOKEN_FILE, token)


@dataclass(frozen=True, slots=True)
class Guard:
    """Judges a request by its head alone. `vm_of` knows the tokens of the VMs; it gives a VM's name or None.

    token: of those who come from outside; empty where none is asked for, as at a metadata server, and then who asks
    must be known. json: whether bodies must be JSON.
    """

    token: str = ""
    vm_of: Callable[[str], object | None] = lambda _token: None
    json: bool = False
    uids: frozenset[int] = field(default_factory=lambda: frozenset({0, os.geteuid()}))

    def caller(self, authorization: str) -> object | None:
        """`CLIENT`, whatever `vm_of` gives for a VM's token, or None for nobody that we know."""
        given = authorization.removeprefix(PREFIX) if authorization.startswith(PREFIX) else ""
        if not given:
            return None
        if hmac.compare_digest(given.encode(), self.token.encode()):
            return CLIENT
        return self.vm_of(given)

    def stranger(self, peer: tuple[str, int], here: tuple[str, int]) -> Refused | None:
        """Whether the process at the other end is somebody else's; asked once for each connection."""
        uid = peers.owner_of(peer, here)
        if uid is None and (self.token or not peers.tells()):
            return None  # gone already, or not to be known: the token must do
        if uid in self.uids:
            return None
        return Refused(403, "This cloud serves the user who runs it.")

    def refusal(self, method: str, target: str, headers: Mapping[str, str], port: int) -> Refused | None:
        """Header names are in lower case."""
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
