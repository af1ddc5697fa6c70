"""Application-default credentials, found or reported missing within seconds."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

import google.auth
import google.auth.exceptions
import google.auth.transport
from google.auth import compute_engine
from google.auth.credentials import AnonymousCredentials, Credentials, CredentialsWithQuotaProject

from orchestrator.adapters.refusals import REMEDY
from orchestrator.adapters.web import Nobody, NoResponse, NotSigned, Web, WebReply
from orchestrator.core.doctor.subject import Identity
from orchestrator.core.errors import CredentialsMissing

SCOPES: Final = ("https://www.googleapis.com/auth/cloud-platform",)
METADATA_TIMEOUT_S: Final = 1.0
TOKEN_TIMEOUT_S: Final = 120.0

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

    @property
    def expired(self) -> bool:
        return False

    @property
    def valid(self) -> bool:
        return True

    def refresh(self, request: Any) -> None:  # noqa: ARG002 - the base class has it
        """There is no other token: the cloud that gave this one is gone. Raises `RefreshError`."""
        raise google.auth.exceptions.RefreshError(  # type: ignore[no-untyped-call]
            "the embedded cloud refused this token, because it was restarted: run the same command again"
        )


class TokenRequests(google.auth.transport.Request):
    """What asks for tokens, and asks a metadata server: google-auth's own way to do so loads another HTTP library."""

    def __init__(self) -> None:
        self._web = Web(Nobody())

    def __deepcopy__(self, _memo: Any) -> TokenRequests:
        return TokenRequests()  # google-auth copies it for a thread of its own

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **_kwargs: Any,
    ) -> WebReply:
        """Raises `TransportError`."""
        data = body.encode() if isinstance(body, str) else body
        try:
            return self._web.ask(method, url, body=data, headers=headers, timeout_s=timeout or TOKEN_TIMEOUT_S)
        except NoResponse as exc:
            raise google.auth.exceptions.TransportError(str(exc)) from exc  # type: ignore[no-untyped-call]


class GoogleSigner:
    """Implements `adapters.web.Signer` for google-auth's credentials, whichever they are."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._requests = TokenRequests()

    @property
    def billed_to(self) -> str:
        return str(getattr(self._credentials, "quota_project_id", None) or "")

    def sign(self, method: str, url: str, headers: dict[str, str]) -> None:
        with _named():
            self._credentials.before_request(self._requests, method, url, headers)  # type: ignore[no-untyped-call]

    def renew(self) -> bool:
        if isinstance(self._credentials, AnonymousCredentials):
            return False  # nobody has no other token, and a refusal is an answer
        with _named():
            self._credentials.refresh(self._requests)  # type: ignore[no-untyped-call]
        return True


@contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except google.auth.exceptions.GoogleAuthError as exc:
        passing = isinstance(exc, google.auth.exceptions.TransportError) or getattr(exc, "retryable", False) is True
        raise NotSigned(_first_line(exc), passing=passing) from exc


def default_credentials() -> Credentials:
    """The application-default credentials, with the cloud-platform scope. Raises `CredentialsMissing`.

    Off Google's machines the library asks a metadata server that is not there, three times with pauses, up to 12 s.
    Here it is asked once.
    """
    probe: Any = MetadataProbe()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on quota projects, which matter to other APIs
            found, _project = google.auth.default(scopes=SCOPES, request=probe)
    except (google.auth.exceptions.GoogleAuthError, OSError, ValueError) as exc:
        raise CredentialsMissing(f"no usable Google credentials: {_first_line(exc)}", hint=REMEDY) from exc
    if isinstance(found, compute_engine.Credentials) and not probe.answered:
        raise CredentialsMissing("no Google credentials, and no metadata server answers here", hint=REMEDY)
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
            found.refresh(TokenRequests())  # type: ignore[no-untyped-call]
        except (google.auth.exceptions.GoogleAuthError, OSError) as exc:
            raise CredentialsMissing(
                f"no token can be got with the credentials: {_first_line(exc)}", hint=REMEDY
            ) from exc
    return credential_identity(found)


class Silence:
    """What a metadata server that is not there answers."""

    status = 404
    headers: Mapping[str, str] = MappingProxyType({})
    data = b""


class MetadataProbe:
    """A transport for `google.auth.default` that asks an absent metadata server once, briefly, and then gives up."""

    def __init__(self) -> None:
        self.answered = False
        """Whether something spoke that calls itself Google's metadata server."""
        self._silent = False
        self._request = TokenRequests()

    def __call__(self, url: str, *, timeout: float | None = None, **request: Any) -> Any:
        if "metadata-flavor" not in {key.lower() for key in request.get("headers") or {}}:
            return self._request(url, timeout=timeout, **request)
        if self._silent:
            return Silence()
        try:
            answer = self._request(url, timeout=min(timeout or TOKEN_TIMEOUT_S, METADATA_TIMEOUT_S), **request)
        except google.auth.exceptions.TransportError:
            # An error would be retried with pauses; an answer that is not Google's is taken at its word.
            self._silent = True
            return Silence()
        self.answered |= "metadata-flavor" in {key.lower() for key in answer.headers}
        return answer


def _first_line(exc: BaseException) -> str:
    return (str(exc).strip().splitlines() or [type(exc).__name__])[0]
