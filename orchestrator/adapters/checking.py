"""The session through which the checks of the doctor reach a cloud; it is made when the first check needs it."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from google.auth.credentials import Credentials

from orchestrator.adapters.google_auth import credentials_for, proven
from orchestrator.adapters.rest import Rest
from orchestrator.core.doctor.subject import Identity


class CheckingSession:
    """Only looks: it refuses to send a request that changes something."""

    def __init__(self, credentials: Callable[[], Credentials], endpoints: Callable[[], dict[str, str] | None]) -> None:
        self._credentials = credentials
        self._endpoints = endpoints
        self._rest: Rest | None = None
        self._nobody: Rest | None = None
        self._guard = Lock()

    def prove(self) -> Identity:
        """Who is asking, once there is a token for them. Raises `CredentialsMissing` and what `endpoints` raises."""
        self._endpoints()
        return proven(self._credentials())

    def api(self) -> Rest:
        with self._guard:
            if self._rest is None:
                self._rest = Rest(self._credentials(), self._endpoints(), remembers=True)
            return self._rest

    def nobody(self) -> Rest:
        """Without credentials: a refusal is an answer too, and has a date."""
        with self._guard:
            if self._nobody is None:
                self._nobody = Rest(credentials_for("nobody"), self._endpoints())
            return self._nobody

    def close(self) -> None:
        with self._guard:
            for rest in (self._rest, self._nobody):
                if rest is not None:
                    rest.close()
