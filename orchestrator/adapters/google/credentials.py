"""Application-default credentials, found or reported missing within seconds."""

from __future__ import annotations

import logging
import os
import warnings
from functools import partial
from typing import Any, Final

import google.auth
import google.auth.exceptions

# Off Google's machines the library would ask a metadata server that is not there three times, for up to 12 s.
os.environ.setdefault("GCE_METADATA_TIMEOUT", "1")
os.environ.setdefault("GCE_METADATA_DETECT_RETRIES", "1")

from google.auth import compute_engine
from google.auth.credentials import AnonymousCredentials, Credentials, CredentialsWithQuotaProject
from google.auth.transport.requests import Request

from orchestrator.adapters.google.errors import REMEDY, brief_message, network_fault
from orchestrator.adapters.google.network import PlainSession
from orchestrator.core.doctor.verdicts import Identity
from orchestrator.core.errors import CredentialsMissing, LocalError

SCOPES: Final = ("https://www.googleapis.com/auth/cloud-platform",)
TOKEN_TIMEOUT_S: Final = 30.0

# What the library logs while it looks is said better by the error; without a handler Python prints it raw.
logging.getLogger("google").addHandler(logging.NullHandler())


def credentials_for(endpoint: str | None) -> Credentials:
    """Anonymous for an endpoint of our own, else the application-default credentials. Raises `CredentialsMissing`."""
    return AnonymousCredentials() if endpoint else default_credentials()  # type: ignore[no-untyped-call]


class Bearer(Credentials):
    """One fixed token: the embedded cloud's, which it writes down where only its user can read it."""

    def __init__(self, token: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.token = token

    def refresh(self, request: Any) -> None:  # noqa: ARG002 - the base class has it
        """There is no other token: the cloud that gave this one is gone. Raises `RefreshError`."""
        raise google.auth.exceptions.RefreshError(  # type: ignore[no-untyped-call]
            "the embedded cloud refused this token, because it was restarted: run the same command again"
        )


def default_credentials() -> Credentials:
    """The application-default credentials, with the cloud-platform scope. Raises `CredentialsMissing`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on quota projects, which matter to other APIs
            found, _project = google.auth.default(scopes=SCOPES, request=Request(PlainSession()))
    except (google.auth.exceptions.GoogleAuthError, OSError, ValueError) as exc:
        raise CredentialsMissing(f"no usable Google credentials: {brief_message(exc)}", hint=REMEDY) from exc
    return found


def billed_to(found: Credentials, project: str) -> Credentials:
    """The same credentials, whose requests count against `project`: not against another that a login remembers, where
    the same APIs may be off. What knows no such project stays as it is."""
    if project and isinstance(found, CredentialsWithQuotaProject):
        counted: Credentials = found.with_quota_project(project)  # type: ignore[no-untyped-call]
        return counted
    return found


def credential_identity(found: Credentials) -> Identity:
    """Whose credentials these are, as far as they tell. Sends nothing."""
    if isinstance(found, Bearer):
        return Identity("the embedded cloud's own token")
    if isinstance(found, AnonymousCredentials):
        return Identity("nobody's")
    email = str(getattr(found, "service_account_email", "") or "")
    if "@" in email:
        return Identity("a service account", f"serviceAccount:{email}")
    if isinstance(found, compute_engine.Credentials):
        return Identity("this machine's service account")
    account = str(getattr(found, "account", "") or "")
    return Identity("a login", f"user:{account}" if "@" in account else "")


def prove_identity(found: Credentials) -> Identity:
    """The same, once Google has given a token for them. Raises `CredentialsMissing`."""
    if not isinstance(found, AnonymousCredentials | Bearer):
        try:
            found.refresh(partial(Request(PlainSession()), timeout=TOKEN_TIMEOUT_S))  # type: ignore[no-untyped-call]
        except (google.auth.exceptions.GoogleAuthError, OSError) as exc:
            fault = network_fault(exc)
            kind, (why, hint) = (LocalError, fault) if fault else (CredentialsMissing, (brief_message(exc), REMEDY))
            raise kind(f"no token can be got with the credentials: {why}", hint=hint) from exc
    return credential_identity(found)
