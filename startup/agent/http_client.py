"""One HTTP request, and how often to repeat it."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from email.message import Message
from typing import NamedTuple

from startup.agent.clock import Patience

TRANSIENT = frozenset({408, 429, 500, 502, 503, 504, 507})

# A VM reaches its metadata server and Google's APIs directly; a proxy in the environment would see the token.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class HttpResponse(NamedTuple):
    """An HTTP response, whatever its status. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Unreachable(Exception):
    """There was no usable answer. The message names the request and the result of the last try."""


def send_request(
    method: str, url: str, headers: Mapping[str, str], body: bytes | None = None, timeout_s: float = 20.0
) -> HttpResponse:
    """One request. Raises Unreachable when there is no complete HTTP answer to it."""
    request = urllib.request.Request(url, data=body, headers=dict(headers), method=method)
    try:
        with OPENER.open(request, timeout=timeout_s) as response:
            return HttpResponse(response.status, lower_names(response.headers), response.read())
    except urllib.error.HTTPError as error:
        with error:
            return HttpResponse(error.code, lower_names(error.headers), error.read())
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(f"{method} {url.split('?')[0]}: {error or type(error).__name__}") from error


def lower_names(headers: Message[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def repeat_request(
    attempt: Callable[[], HttpResponse], patience: Patience, first_s: float, most_s: float
) -> HttpResponse:
    """Repeats a request, with pauses that double, while it fails in a way that may pass.

    Raises Unreachable when the patience is used up. The first try is always made.
    """
    pause = first_s
    while True:
        try:
            answer = attempt()
            if answer.status not in TRANSIENT:
                return answer
            reason = f"HTTP {answer.status} {answer.body[:200].decode('utf-8', 'replace')}".strip()
        except Unreachable as error:
            reason = str(error)
        if not patience.pause(pause):
            raise Unreachable(reason)
        pause = min(pause * 2, most_s)
