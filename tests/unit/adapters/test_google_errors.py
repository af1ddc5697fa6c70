"""The exceptions that no wire test reaches easily: those of tokens, of the libraries' own retries, of broken bodies."""

from __future__ import annotations

import http.client
import subprocess
import sys

import google.api_core.exceptions as api
import google.auth.exceptions as auth
import pytest
import requests
import urllib3.exceptions

from orchestrator.adapters.google.errors import (
    brief_message,
    error_reasons,
    is_transient,
    translate_error,
    translate_google_errors,
)
from orchestrator.core.errors import BenchError, CredentialsMissing, ProviderError, Unavailable


@pytest.mark.parametrize(
    ("exc", "error", "transient"),
    [
        (auth.RefreshError("Reauthentication is needed"), CredentialsMissing, False),
        (auth.RefreshError("busy", retryable=True), Unavailable, True),
        (auth.TransportError("oauth2.googleapis.com: timed out"), Unavailable, True),
        (auth.DefaultCredentialsError("none"), CredentialsMissing, False),
        (api.RetryError("Timeout of 10.0s exceeded", cause=api.ServiceUnavailable("x")), Unavailable, False),
        (api.RetryError("Timeout of 10.0s exceeded", cause=ValueError("x")), Unavailable, False),
        (requests.Timeout("read timed out"), Unavailable, True),
        (requests.exceptions.ChunkedEncodingError("cut"), Unavailable, True),
        (urllib3.exceptions.ProtocolError("cut"), Unavailable, True),
        (http.client.IncompleteRead(b""), Unavailable, True),
        (ConnectionResetError("reset"), Unavailable, True),
        (requests.exceptions.InvalidURL("no host"), ProviderError, False),
        (api.BadRequest("invalid"), ProviderError, False),
        (api.from_http_status(408, "slow"), Unavailable, True),
    ],
)
def test_each_foreign_exception_has_a_word_of_ours(exc: Exception, error: type[BenchError], transient: bool) -> None:
    assert is_transient(exc) is transient
    ours = translate_error(exc, "do it")
    assert type(ours) is error
    assert str(ours).startswith("cannot do it")
    assert ours.hint


def test_the_foreign_exception_is_kept_as_the_cause() -> None:
    cause = api.ServiceUnavailable("later")
    with pytest.raises(Unavailable) as raised, translate_google_errors("do it"):
        raise cause
    assert raised.value.__cause__ is cause


def test_a_mistake_of_our_own_is_not_dressed_up_as_the_clouds() -> None:
    with pytest.raises(ZeroDivisionError), translate_google_errors("do it"):
        raise ZeroDivisionError


def test_reasons_are_found_where_the_library_left_them() -> None:
    assert error_reasons(api.Forbidden("x", errors=[{"reason": "forbidden"}, "odd"])) == {"forbidden"}
    assert error_reasons(api.Forbidden("x")) == frozenset()


@pytest.mark.parametrize(
    ("exc", "text"),
    [
        (api.Forbidden("GET http://h/b/o?alt=media: no access\nsecond line"), "no access"),
        (api.Forbidden(""), "Forbidden"),
        (
            requests.ConnectionError("x", request=requests.Request("GET", "http://h:1/p").prepare()),
            "h:1 does not answer",
        ),
        (ValueError("x" * 1000), "x" * 300),
    ],
)
def test_messages_are_cut_to_what_a_person_reads(exc: Exception, text: str) -> None:
    assert brief_message(exc) == text


def test_a_python_that_grows_old_is_told_to_nobody_in_the_midst_of_a_command() -> None:
    """From a date on, Google's libraries warn whoever imports them: every test would have failed on that day."""
    code = (
        "import datetime, orchestrator.adapters, google.api_core as core\n"
        "core.check_python_version('any', datetime.date(2045, 1, 1))\n"
    )
    ran = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
