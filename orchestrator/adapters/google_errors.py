"""The one place where Google's exceptions, and those of the libraries below it, become ours."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import google.api_core.exceptions as api
import google.auth.exceptions as auth
import requests
import urllib3.exceptions
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse

from orchestrator.adapters.google_auth import REMEDY
from orchestrator.core.errors import (
    BenchError,
    CredentialsMissing,
    NotFound,
    PermissionDenied,
    ProviderError,
    QuotaExceeded,
    Unavailable,
)

RATE_REASONS: Final = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED"})
QUOTA_REASONS: Final = frozenset({"quotaExceeded", "dailyLimitExceeded", "QUOTA_EXCEEDED"})
DISABLED_REASONS: Final = frozenset({"accessNotConfigured", "SERVICE_DISABLED"})
TRANSIENT_STATUS: Final = frozenset({408, 429, 500, 502, 503, 504})

BROKEN_CONNECTION: Final = (
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
    requests.exceptions.ContentDecodingError,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    ConnectionError,
)
"""The libraries let these through from below as they are."""

FOREIGN: Final = (
    api.GoogleAPIError,
    auth.GoogleAuthError,
    requests.RequestException,
    InvalidResponse,
    DataCorruption,
    *BROKEN_CONNECTION,
)
"""Every exception that a call into Google's libraries can raise for a reason outside this process."""

_PERMISSION = re.compile(r"\b([a-z]+\.[a-zA-Z]+\.[a-zA-Z]+)\b['\"]? (?:permission|access)")
_AGAIN = "try again in a minute; a run that is on its way goes on without this machine"


@contextmanager
def translated(doing: str, *, missing: str = "") -> Iterator[None]:
    """Raises ours for theirs. `doing` completes "cannot …"; `missing` is the hint when it turns out not to exist."""
    try:
        yield
    except FOREIGN as exc:
        raise translate(exc, doing, missing=missing) from exc


def translate(exc: Exception, doing: str, *, missing: str = "") -> BenchError:
    """Our error for one of `FOREIGN`."""
    if isinstance(exc, api.RetryError) and isinstance(exc.cause, FOREIGN):
        exc = exc.cause
    if isinstance(exc, InvalidResponse):
        exc = api.from_http_response(exc.response)  # type: ignore[no-untyped-call]
    if isinstance(exc, auth.TransportError) or getattr(exc, "retryable", False) is True:
        return Unavailable(f"cannot {doing}: Google's token service does not answer ({brief(exc)})", hint=_AGAIN)
    if isinstance(exc, (auth.GoogleAuthError, api.Unauthorized)):
        return CredentialsMissing(f"cannot {doing}: the credentials were not accepted ({brief(exc)})", hint=REMEDY)
    if isinstance(exc, api.Forbidden):
        return _forbidden(exc, doing)
    if isinstance(exc, api.NotFound):
        return NotFound(f"cannot {doing}: {brief(exc)}", hint=missing or "check the names in the configuration")
    if isinstance(exc, (api.RetryError, DataCorruption)) or is_transient(exc):
        return Unavailable(f"cannot {doing}: {brief(exc)}", hint=_AGAIN)
    return ProviderError(
        f"cannot {doing}: {brief(exc)}", hint="the request itself is at fault: check the configuration"
    )


def _forbidden(exc: api.Forbidden, doing: str) -> BenchError:
    why = reasons(exc)
    if why & RATE_REASONS:
        return Unavailable(f"cannot {doing}: too many requests ({brief(exc)})", hint=_AGAIN)
    if why & QUOTA_REASONS:
        return QuotaExceeded(
            f"cannot {doing}: {brief(exc)}",
            hint="`bench doctor` shows what is left where; ask for more on the console's quotas page",
        )
    if why & DISABLED_REASONS:
        return PermissionDenied(
            f"cannot {doing}: the API is not enabled ({brief(exc)})",
            hint="`bench doctor --fix` enables what is off (or: `gcloud services enable compute.googleapis.com"
            " storage.googleapis.com`); then wait a minute",
        )
    needed = _PERMISSION.search(str(exc))
    return PermissionDenied(
        f"cannot {doing}: {brief(exc)}",
        hint=(
            f"grant `{needed[1]}` to the account in use" if needed else "docs/gce.md lists the rights that are needed"
        )
        + "; `bench doctor` lists all that are missing",
    )


def is_transient(exc: BaseException) -> bool:
    """Whether the same request, sent again, may succeed."""
    if isinstance(exc, InvalidResponse):
        exc = api.from_http_response(exc.response)  # type: ignore[no-untyped-call]
    if isinstance(exc, api.Forbidden):
        return bool(reasons(exc) & RATE_REASONS)
    if isinstance(exc, api.GoogleAPICallError):
        return exc.code in TRANSIENT_STATUS
    if isinstance(exc, auth.GoogleAuthError):
        return isinstance(exc, auth.TransportError) or getattr(exc, "retryable", False) is True
    return isinstance(exc, BROKEN_CONNECTION)


def reasons(exc: api.GoogleAPICallError) -> frozenset[str]:
    """The machine-readable reasons in an HTTP error: `errors[].reason`, and `ErrorInfo.reason` of the details."""
    entries = [error for error in exc.errors if isinstance(error, dict)] or _entries(exc.response)
    return frozenset(({str(error.get("reason", "")) for error in entries} | {exc.reason or ""}) - {""})


def _entries(response: object) -> list[dict[str, Any]]:
    """`error.errors` of a response that the library did not read: those to uploads and downloads."""
    if not isinstance(response, requests.Response):
        return []
    try:
        return [entry for entry in response.json()["error"]["errors"] if isinstance(entry, dict)]
    except (ValueError, KeyError, TypeError):
        return []


def brief(exc: BaseException) -> str:
    """The first line of a foreign message, without the method and URL that the storage library puts before it."""
    if isinstance(exc, requests.ConnectionError) and exc.request is not None:
        cause = re.search(r"\[Errno -?\d+\] ([^'\")]+)", str(exc))
        return f"{urlsplit(exc.request.url or '').netloc} does not answer{f': {cause[1]}' if cause else ''}"
    text = str(getattr(exc, "message", exc))
    embedded = re.search(r'"message": ?"((?:[^"\\]|\\.)*)"', text)
    if embedded:  # an upload's error is the whole JSON document
        text = embedded[1]
    line = (text.strip().splitlines() or [""])[0]
    line = re.sub(r"^(?:GET|POST|PUT|PATCH|DELETE) \S+: ", "", line)
    return line[:300] or type(exc).__name__
