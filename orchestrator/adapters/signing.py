"""Who signs requests: whoever was named, the embedded cloud's token, nobody, or the application-default credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestrator.adapters.web import Nobody, Signer, Token

if TYPE_CHECKING:
    from google.auth.credentials import Credentials


def signer_of(credentials: Credentials | Signer | None, endpoint: str | None = None) -> Signer:
    """Nobody for an endpoint of our own, unless somebody was named. What knows Google's logins is loaded where one is
    used. Raises `CredentialsMissing`."""
    if isinstance(credentials, Token | Nobody):
        return credentials
    if credentials is None and endpoint:
        return Nobody()
    from google.auth.credentials import Credentials

    from orchestrator.adapters.google_auth import GoogleSigner, default_credentials

    if credentials is None:
        credentials = default_credentials()
    return GoogleSigner(credentials) if isinstance(credentials, Credentials) else credentials
