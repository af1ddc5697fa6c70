"""What the checks of the doctor reach a cloud through: one session, made when the first of them needs it."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from google.auth.credentials import Credentials

from orchestrator.adapters.google_auth import credentials_for, proven
from orchestrator.adapters.rest import Rest
from orchestrator.core.doctor.verdicts import Verdict
from orchestrator.core.identity import Identity
from orchestrator.core.rest import Conversation


class CheckingSession:
    """Only looks: it refuses to send a request that changes something."""

    def __init__(self, credentials: Callable[[], Credentials], endpoints: Callable[[], dict[str, str] | None]) -> None:
        self._credentials = credentials
        self._endpoints = endpoints
        self._rest: Rest | None = None
        self._guard = Lock()

    def prove(self) -> Identity:
        """Who is asking, once there is a token for them. Raises `CredentialsMissing` and what `endpoints` raises."""
        self._endpoints()
        return proven(self._credentials())

    def look(self, conversation: Conversation[Verdict]) -> Verdict:
        with self._guard:
            if self._rest is None:
                self._rest = Rest(self._credentials(), self._endpoints(), remembers=True)
        return self._rest.hold(conversation)

    def look_as_nobody(self, conversation: Conversation[Verdict]) -> Verdict:
        """As `look`, without credentials: a refusal is an answer too, and has a date."""
        nobody = Rest(credentials_for("nobody"), self._endpoints())
        try:
            return nobody.hold(conversation)
        finally:
            nobody.close()

    def close(self) -> None:
        with self._guard:
            if self._rest is not None:
                self._rest.close()
