"""Google's exceptions, and those of the libraries below its clients, as errors of bench: by status, reasons and
message, whichever client they come from."""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import google.api_core.exceptions as api
import google.auth.exceptions as auth
import requests
import urllib3.exceptions

from orchestrator.core.errors import (
    BenchError,
    CredentialsMissing,
    LocalError,
    NotFound,
    PermissionDenied,
    ProviderError,
    QuotaExceeded,
    Unavailable,
)
from orchestrator.core.text import clean_line
from orchestrator.ports import Clock

T = TypeVar("T")


class Garbled(Exception):
    """An answer that the service does not give, so that nothing is known of what it did."""


BROKEN_CONNECTION: Final = (
    requests.ConnectionError,
    requests.Timeout,
    requests.exceptions.ChunkedEncodingError,
    requests.exceptions.ContentDecodingError,
    requests.exceptions.JSONDecodeError,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    ConnectionError,
    Garbled,
)
"""The libraries let these through from below as they are."""
FOREIGN: Final = (api.GoogleAPIError, auth.GoogleAuthError, requests.RequestException, *BROKEN_CONNECTION)
"""Every exception that a call into Google's libraries can raise for a reason outside this process."""

TRANSIENT_STATUS: Final = frozenset({408, 429, 500, 502, 503, 504})
REMEDY: Final = (
    "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a key file, "
    "or configure no project, to use the embedded cloud; `bench doctor` checks the rest"
)
BILLING_PAGE: Final = "https://console.cloud.google.com/billing/linkedaccount"
AGAIN: Final = "run the same command again in a minute; a run that has started continues without this computer"
FULL: Final = (
    "free some space there, or set BENCH_HOME to another folder; a run that has started waits for it, up to its "
    "deadline"
)
_NAME: Final = r"[a-z]+\.[a-zA-Z]+\.[a-zA-Z]+"
_PERMISSION = re.compile(rf"\b({_NAME})\b['\"]? (?:permission|access)|[pP]ermission '({_NAME})' denied")
_REMEDIES: Final = {
    "has been suspended": "the project is suspended: only Google's support can lift that",
    "vpcServiceControls": "VPC Service Controls forbid it: the organisation's administrator can admit this computer",
    "compute-system.iam.gserviceaccount.com": (
        "Google's own service agent of the project lacks this right, not you: grant it to the agent in the message"
    ),
    "actAs|iam.serviceAccountUser": (
        "grant roles/iam.serviceAccountUser on the machines' service account to the account in use"
    ),
}
"""By what the message says, where the reason is the general one."""
RATE_REASONS: Final = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED"})
QUOTA_REASONS: Final = frozenset({"quotaExceeded", "dailyLimitExceeded", "QUOTA_EXCEEDED"})
DISABLED_REASONS: Final = frozenset({"accessNotConfigured", "SERVICE_DISABLED"})
BILLING_REASONS: Final = frozenset({"BILLING_DISABLED", "accountDisabled"})
RETENTION: Final = "(?i)retention policy|object retention|event-based hold|temporary hold"
RETENTION_REMEDY: Final = (
    "the bucket forbids to replace objects, and a ledger must be replaced: `bench doctor` names the setting and the "
    "command that lifts it"
)
QUOTA_REMEDY: Final = (
    "`bench doctor` shows where quota is left; request more at https://console.cloud.google.com/iam-admin/quotas"
)
DISABLED_REMEDY: Final = (
    "`bench doctor --fix` enables what is off (or: `gcloud services enable compute.googleapis.com"
    " storage.googleapis.com`); then wait a minute"
)
BILLING_REMEDY: Final = f"link a billing account that is open to the project: {BILLING_PAGE}"
_FORBIDDEN: Final[Sequence[tuple[frozenset[str], str, type[BenchError], str, str]]] = (
    (RATE_REASONS, "", Unavailable, "too many requests ({})", AGAIN),
    (QUOTA_REASONS, "", QuotaExceeded, "{}", QUOTA_REMEDY),
    (DISABLED_REASONS, "", PermissionDenied, "the API is not enabled ({})", DISABLED_REMEDY),
    (BILLING_REASONS, "(?i)billing", PermissionDenied, "{}", BILLING_REMEDY),
    (frozenset(), RETENTION, ProviderError, "{}", RETENTION_REMEDY),
)
"""What a 403 means: its reasons, or what its message says; our error, its text, and the remedy. The first counts."""
TRUST_REMEDY: Final = (
    "name the certificate authority of your network: `export REQUESTS_CA_BUNDLE=/path/to/ca.pem`; `bench doctor` shows "
    "the proxy and the authorities in use"
)
PASSWORD_REMEDY: Final = "`export HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT`: the proxy wants a name and a password"
ADMIT_REMEDY: Final = "ask whoever runs the proxy to admit *.googleapis.com, or name another one in HTTPS_PROXY"
ADDRESS_REMEDY: Final = "correct HTTPS_PROXY or ALL_PROXY: http://HOST:PORT"
_UNTRUSTED: Final = r"CERTIFICATE_VERIFY_FAILED\] certificate verify failed: ([^(]+)"
_ADDRESS: Final = r"(Failed to parse: \S+|Please check proxy URL.*|Proxy URL had no scheme.*)"
_FAULTS: Final = (
    (_UNTRUSTED, "the certificate is not trusted: {}", TRUST_REMEDY),
    (r"Tunnel connection failed: (407[^'\")]*)", "the proxy refuses: {}", PASSWORD_REMEDY),
    (r"Tunnel connection failed: (4\d\d[^'\")]*)", "the proxy refuses: {}", ADMIT_REMEDY),
    (r"(Missing dependencies for SOCKS support)", "a SOCKS proxy is set: {}", "pip install pysocks"),
    (_ADDRESS, "a proxy's address cannot be read: {}", ADDRESS_REMEDY),
)
"""What is wrong for good between here and the server: in the exception's text, in our words, and the remedy."""
_FOREIGN_PAGE: Final = re.compile(r"unknown error|<html|<!doctype", re.IGNORECASE)
"""In the message of an error that is not in the form of Google's: HTML, or nothing."""


@contextmanager
def translate_google_errors(doing: str, *, missing: str = "") -> Iterator[None]:
    """Raises ours for theirs. `doing` completes "cannot …"; `missing` is the hint for what does not exist."""
    try:
        yield
    except FOREIGN as exc:
        raise translate_error(exc, doing, missing) from exc


def translate_error(exc: Exception, doing: str, missing: str = "") -> BenchError:
    """Our error for one of `FOREIGN`."""
    if isinstance(exc, api.RetryError) and is_transient(exc.cause):
        exc = exc.cause
    if fault := network_fault(exc):
        return LocalError(f"cannot {doing}: {fault[0]}", hint=fault[1])
    if isinstance(exc, auth.GoogleAuthError):
        if is_transient(exc):
            return lost_answer(doing, f"Google's token service does not answer ({brief_message(exc)})")
        return not_accepted(doing, brief_message(exc))
    exc = _inner(exc)
    if isinstance(exc, api.GoogleAPICallError):
        return refusal(doing, int(exc.code or 0), brief_message(exc), error_reasons(exc), missing)
    if isinstance(exc, api.RetryError) or is_transient(exc):
        return lost_answer(doing, brief_message(exc))
    return refusal(doing, 0, brief_message(exc), frozenset())


def never_left(exc: BaseException) -> bool:
    """Whether a request was certainly not sent: there was no way to the server, or no token for it."""
    lost = isinstance(_inner(exc), requests.RequestException) and any(re.search(row[0], str(exc)) for row in _FAULTS)
    return lost or isinstance(exc, auth.GoogleAuthError | LocalError)


def network_fault(exc: BaseException) -> tuple[str, str] | None:
    """What is wrong for good between this machine and the server, and its remedy; None for what may pass."""
    exc = _inner(exc)
    text = str(exc)
    for pattern, words, remedy in _FAULTS:
        if isinstance(exc, requests.RequestException) and (match := re.search(pattern, text)):
            return f"{_server(exc)}{words.format(match[1].strip())}", remedy
    if isinstance(exc, requests.exceptions.SSLError) and not re.search("EOF|timed out|reset", text):
        cause = re.search(r"\[SSL[^\]]*\] ([^(]+)", text)
        return f"{_server(exc)}TLS fails: {cause[1].strip() if cause else text[:200]}", TRUST_REMEDY
    return None


def _inner(exc: Any) -> Any:
    """What a library has wrapped: the one for credentials an error of the connection, the one for storage a refusal of
    its own kind, without reasons."""
    if isinstance(exc, auth.TransportError):
        return exc.args[0] if exc.args and isinstance(exc.args[0], Exception) else exc
    response = getattr(exc, "response", None)
    if isinstance(response, requests.Response) and not response.ok and not getattr(exc, "errors", ()):
        return api.from_http_response(response)  # type: ignore[no-untyped-call]
    return exc


def _server(exc: requests.RequestException) -> str:
    return f"{urlsplit(exc.request.url or '').netloc}: " if exc.request is not None else ""


def is_transient(exc: BaseException) -> bool:
    """Whether the same request, sent again, may succeed."""
    refused = _inner(exc)
    if isinstance(refused, api.GoogleAPICallError):
        code = int(refused.code or 0)
        return code in TRANSIENT_STATUS or (code == 403 and is_rate_limit(refused))
    if isinstance(exc, auth.GoogleAuthError) and not isinstance(exc, auth.TransportError):
        return getattr(exc, "retryable", False) is True
    return isinstance(exc, (auth.TransportError, *BROKEN_CONNECTION)) and network_fault(exc) is None


def is_rate_limit(exc: BaseException) -> bool:
    """Whether too many requests were sent."""
    return isinstance(exc, api.GoogleAPICallError) and (exc.code == 429 or bool(error_reasons(exc) & RATE_REASONS))


def retry_after_s(exc: BaseException) -> float:
    """The seconds that the answer asks to wait; 0 where it asks for none."""
    headers = getattr(getattr(exc, "response", None), "headers", None) or {}
    try:
        return max(0.0, float(headers.get("Retry-After", 0)))
    except (TypeError, ValueError):
        return 0.0


def error_reasons(exc: api.GoogleAPICallError) -> frozenset[str]:
    """The machine-readable reasons in an HTTP error: `errors[].reason`, and `ErrorInfo.reason` of the details."""
    entries = [error for error in exc.errors if isinstance(error, dict)]
    return frozenset(({str(error.get("reason", "")) for error in entries} | {exc.reason or ""}) - {""})


def brief_message(exc: BaseException) -> str:
    """The first line of a foreign message, without the method and URL that the library puts before it."""
    exc = _inner(exc)
    if isinstance(exc, requests.ConnectionError | requests.Timeout) and exc.request is not None:
        cause = re.search(r"\[Errno -?\d+\] ([^'\")]+)", str(exc))
        reason = cause[1] if cause else "the time limit passed" if "timed out" in str(exc) else ""
        proxy = isinstance(exc, requests.exceptions.ProxyError)
        where = "the proxy on the way to " if proxy else ""
        return f"{where}{urlsplit(exc.request.url or '').netloc} does not answer{f': {reason}' if reason else ''}"
    if isinstance(exc, api.GoogleAPICallError) and not exc.errors and _FOREIGN_PAGE.search(str(exc.message)):
        return f"HTTP {int(exc.code or 0)}, and not in Google's form: a proxy between here and Google may have answered"
    line = (str(getattr(exc, "message", exc)).strip().splitlines() or [""])[0]
    line = re.sub(r"^(?:GET|POST|PUT|PATCH|DELETE) \S+: ", "", line)
    return clean_line(line[:300]) or type(exc).__name__


# A refusal in our words.


def refusal(doing: str, status: int, words: str, reasons: frozenset[str], missing: str = "") -> BenchError:
    """The error that an answer stands for. `doing` completes "cannot …"; `missing` is the hint for a 404."""
    if status == 401:
        return not_accepted(doing, words)
    if status == 403:
        return _forbidden(doing, words, reasons)
    kind, hint = _BY_STATUS.get(status, (ProviderError, "Google refuses the request itself: check the configuration"))
    return kind(f"cannot {doing}: {words}", hint=missing if status == 404 and missing else hint)


_BY_STATUS: Final[Mapping[int, tuple[type[BenchError], str]]] = {
    404: (NotFound, "check the names in the configuration"),
    507: (LocalError, FULL),
    **dict.fromkeys(TRANSIENT_STATUS, (Unavailable, AGAIN)),
}


def lost_answer(doing: str, words: str) -> Unavailable:
    return Unavailable(f"cannot {doing}: {words}", hint=AGAIN)


def not_accepted(doing: str, words: str) -> CredentialsMissing:
    return CredentialsMissing(f"cannot {doing}: the credentials were not accepted ({words})", hint=REMEDY)


def remedy_for(words: str) -> str:
    """What to do about a refusal with this message; empty where its words are not known."""
    return next((remedy for pattern, remedy in _REMEDIES.items() if re.search(pattern, words)), "")


def _forbidden(doing: str, words: str, reasons: frozenset[str]) -> BenchError:
    for known_reasons, pattern, kind, text, hint in _FORBIDDEN:
        if reasons & known_reasons or (pattern and re.search(pattern, words)):
            page = re.search(r"https://console\S+billing\S*", words)
            return kind(
                f"cannot {doing}: {text.format(words)}", hint=hint.replace(BILLING_PAGE, page[0]) if page else hint
            )
    needed = _PERMISSION.search(words)
    grant = "`bench docs gce` lists the permissions that are needed"
    if needed:
        grant = f"grant `{needed[1] or needed[2]}` to the account in use"
    hint = remedy_for(words) or f"{grant}; `bench doctor` lists all that are missing"
    return PermissionDenied(f"cannot {doing}: {words}", hint=hint)


# Repeating what may be repeated: a request that carries its own name has the same effect however often it arrives.


PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0)


def never(_exc: Exception) -> bool:
    return False


def patiently(
    clock: Clock,
    call: Callable[[], T],
    pauses_s: Sequence[float] = PAUSES_S,
    *,
    passing: Callable[[Exception], bool],
    final: Callable[[Exception], bool] = never,
    pause_for: Callable[[Exception, float], float] = lambda _exc, pause: pause,
) -> T:
    """What `call` gives, after a few more tries while it fails in a way that is `passing` and not `final` by
    the caller's word. `pause_for` may lengthen a pause. Raises what the last one did, as it is."""
    for planned in pauses_s:
        pause = planned
        try:
            return call()
        except Exception as exc:
            if final(exc) or not passing(exc):
                raise
            pause = pause_for(exc, planned)
        clock.sleep(pause)
    return call()
