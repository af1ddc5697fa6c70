"""The one place where Google's exceptions, and those of the libraries below it, become ours."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

import google.api_core.exceptions as api
import google.auth.exceptions as auth
import requests
import urllib3.exceptions
from google.protobuf import json_format

from orchestrator.adapters.asking import WRONG_FORM
from orchestrator.adapters.refusals import RATE_REASONS, lost, no_token, not_accepted, passes, refusal
from orchestrator.core.errors import BenchError
from orchestrator.core.text import clean_line


class Garbled(Exception):
    """An answer that the service does not give, so that nothing is known of what it did."""


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
    *BROKEN_CONNECTION,
    Garbled,
)
"""Every exception that a call into Google's libraries can raise for a reason outside this process."""


_FOREIGN_PAGE: Final = re.compile(r"unknown error|<html|<!doctype", re.IGNORECASE)
"""In the message of an error that is not in the form of Google's: HTML, or nothing."""


@contextmanager
def translate_google_errors(doing: str) -> Iterator[None]:
    """Raises ours for theirs. `doing` completes "cannot …"."""
    try:
        yield
    except FOREIGN as exc:
        raise translate_error(exc, doing) from exc


UNREADABLE: Final = (json_format.Error, RecursionError, *WRONG_FORM)
"""What the libraries raise, from anywhere inside, for an answer of the wrong form. They expect none."""


@contextmanager
def parse_guard() -> Iterator[None]:
    """Raises `Garbled` where Google's library cannot read an answer, or was given an error of the wrong form. Nothing
    but a request and the reading of its answer belongs in here: a mistake of our own would be taken for the server's.
    """
    try:
        yield
    except api.GoogleAPICallError as exc:
        if not _well_formed(exc):
            raise Garbled(f"the refusal has a form that the service does not use ({brief_message(exc)})") from exc
        raise
    except FOREIGN:
        raise
    except UNREADABLE as exc:
        message = " ".join(str(exc).split())
        raise Garbled(f"the answer is not one that the service gives ({type(exc).__name__}: {message})") from exc


def _well_formed(exc: api.GoogleAPICallError) -> bool:
    """Whether the parts of an HTTP error have their types; the library takes them as they come."""
    try:
        iter(exc.errors)
    except TypeError:
        return False
    return isinstance(exc.reason, str | None) and isinstance(exc.metadata, Mapping | None)


def translate_error(exc: Exception, doing: str) -> BenchError:
    """Our error for one of `FOREIGN`."""
    if isinstance(exc, api.RetryError) and isinstance(exc.cause, FOREIGN):
        exc = exc.cause
    if isinstance(exc, auth.TransportError) or getattr(exc, "retryable", False) is True:
        return no_token(doing, brief_message(exc))
    if isinstance(exc, auth.GoogleAuthError):
        return not_accepted(doing, brief_message(exc))
    if isinstance(exc, api.GoogleAPICallError):
        return refusal(
            doing, int(exc.code or 0), brief_message(exc), error_reasons(exc) if exc.code == 403 else frozenset()
        )
    if isinstance(exc, api.RetryError) or is_transient(exc):
        return lost(doing, brief_message(exc))
    return refusal(doing, 0, brief_message(exc), frozenset())


def is_transient(exc: BaseException) -> bool:
    """Whether the same request, sent again, may succeed."""
    if isinstance(exc, api.GoogleAPICallError):
        return passes(int(exc.code or 0), error_reasons(exc) if exc.code == 403 else frozenset())
    if isinstance(exc, auth.GoogleAuthError):
        return isinstance(exc, auth.TransportError) or getattr(exc, "retryable", False) is True
    return isinstance(exc, (*BROKEN_CONNECTION, Garbled))


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
    if isinstance(exc, requests.ConnectionError) and exc.request is not None:
        cause = re.search(r"\[Errno -?\d+\] ([^'\")]+)", str(exc))
        return f"{urlsplit(exc.request.url or '').netloc} does not answer{f': {cause[1]}' if cause else ''}"
    if isinstance(exc, api.GoogleAPICallError) and not exc.errors and _FOREIGN_PAGE.search(str(exc.message)):
        return f"HTTP {int(exc.code or 0)}, and not in Google's form: a proxy between here and Google may have answered"
    line = (str(getattr(exc, "message", exc)).strip().splitlines() or [""])[0]
    line = re.sub(r"^(?:GET|POST|PUT|PATCH|DELETE) \S+: ", "", line)
    return clean_line(line[:300]) or type(exc).__name__
