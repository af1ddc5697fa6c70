"""The network between this machine and Google, decided once for every client: proxy, certificate authorities, client
certificate, universe, time limits, and the server's time. The environment's variables are those of `requests` and of
OpenSSL."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from google.api_core.exceptions import from_http_response
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import MutualTLSChannelError
from google.auth.transport import DEFAULT_REFRESH_STATUS_CODES
from google.auth.transport.requests import AuthorizedSession, Request
from requests.adapters import BaseAdapter, HTTPAdapter

from orchestrator.adapters.clock import Offset, SystemClock
from orchestrator.adapters.google.errors import Garbled
from orchestrator.core.doctor.verdicts import NetworkRoute
from orchestrator.core.errors import LocalError
from orchestrator.ports import Clock

CONNECT_TIMEOUT_S: Final = 10.0
"""For TCP, a proxy's CONNECT and TLS, each; and for a silence while a body is sent."""
GRACE_S: Final = 60.0
BYTES_PER_S: Final = 10_000
"""The slowest line that a transfer is waited for on."""
PIECE_BYTES: Final = 1 << 16
CONNECTIONS: Final = 32
AGENT: Final = "spotbench (gzip)"
"""Google compresses its answers for clients that have `gzip` here as well."""
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
ADAPTERS: Final[dict[str, BaseAdapter]] = {}
"""What answers in this process, without a connection, in the place of servers: by the beginnings of their URLs."""
AUTHORITIES: Final = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""Variables that name certificate authorities: the first that is set counts."""


def transfer_limit_s(size: int) -> float:
    """How long a transfer of `size` bytes may take as a whole."""
    return GRACE_S + size / BYTES_PER_S


def authorities() -> tuple[str, str]:
    """The variable that names the trusted certificate authorities, and its file or directory; both empty for the list
    of `certifi`. Raises `LocalError` if the path does not exist."""
    variable = next((name for name in AUTHORITIES if os.environ.get(name)), "")
    value = os.environ.get(variable, "")
    paths = value.split(os.pathsep) if variable == "SSL_CERT_DIR" else [value]
    path = next((path for path in paths if Path(path).exists()), "") if variable else ""
    if variable and not path:
        raise LocalError(
            f"{variable} is set to {value}, which does not exist",
            hint=f"unset {variable}, or set it to a file with certificate authorities",
        )
    return variable, path


class PlainSession(requests.Session):
    """A session without credentials: reaches loopback directly, and trusts whom the environment names. A redirection
    is an error, and `.netrc` is not read: it would replace the credentials."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.max_redirects = 0
        self.auth = lambda request: request
        for scheme in ("https://", "http://"):
            self.mount(scheme, HTTPAdapter(pool_maxsize=CONNECTIONS))
        for beginning, adapter in ADAPTERS.items():
            self.mount(beginning, adapter)

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        parts = urlsplit(url)
        trusted = authorities()[1] if parts.scheme == "https" else ""
        if parts.hostname in LOOPBACK:
            return {"proxies": {}, "stream": bool(stream), "verify": trusted or True, "cert": cert}
        settings = super().merge_environment_settings(url, proxies, stream, verify, cert)
        return {**settings, "verify": trusted or settings["verify"]}


def send_pieces(body: bytes) -> Iterator[memoryview]:
    """A body, piece by piece, so that the socket's time limit is one for silence. Raises `requests.Timeout` if it takes
    too long as a whole."""
    end = time.monotonic() + transfer_limit_s(len(body))
    for start in range(0, len(body), PIECE_BYTES):
        if time.monotonic() > end:
            raise requests.Timeout(f"{len(body)} bytes could not be sent in time")
        yield memoryview(body)[start : start + PIECE_BYTES]


class Session(PlainSession, AuthorizedSession):
    """Sends the requests of every client, from any thread. `endpoint` is the base URL of another server that speaks
    Google's protocols. `calls` counts the requests; `offset` is what their answers tell of the server's clock, compared
    with `clock`. Raises `LocalError` for a client certificate that cannot be used."""

    def __init__(self, credentials: Credentials, endpoint: str | None = None, clock: Clock | None = None) -> None:
        anonymous = isinstance(credentials, AnonymousCredentials)  # has no other token: a refusal is an answer
        super().__init__(
            credentials,
            refresh_status_codes=() if anonymous else DEFAULT_REFRESH_STATUS_CODES,
            auth_request=Request(PlainSession()),
        )
        self.endpoint = (endpoint or "").rstrip("/")
        self.calls = 0
        self.offset = Offset()
        self._clock = clock or SystemClock()
        self._counting = Lock()
        if not endpoint:
            try:
                self.configure_mtls_channel()  # type: ignore[no-untyped-call]
            except MutualTLSChannelError as exc:
                raise LocalError(
                    f"the client certificate cannot be used: {exc}",
                    hint="export GOOGLE_API_USE_CLIENT_CERTIFICATE=false",
                ) from exc

    def base_url(self, service: str) -> str:
        """Where a service answers, such as `storage`: with a client certificate, or in another universe, elsewhere."""
        if self.endpoint:
            return self.endpoint
        when = os.environ.get("GOOGLE_API_USE_MTLS_ENDPOINT", "auto")
        mutual = when == "always" or (when != "never" and self.is_mtls)
        return f"https://{service}.{'mtls.' if mutual else ''}{self.credentials.universe_domain}"

    def client_options(self, service: str) -> dict[str, str]:
        """The options of a client of Google's for `service`."""
        return {"api_endpoint": self.base_url(service), "universe_domain": self.credentials.universe_domain}

    def client(self, kind: Any, service: str = "compute") -> Any:
        """A client of Google's generated libraries that sends through this session: their transports make their own
        session and take no other (google-cloud-compute 1.50 and later, google-cloud-batch 0.22 and later)."""
        ours = self

        class Transport(kind.get_transport_class("rest")):  # type: ignore[misc]
            @property
            def _session(self) -> Session:
                return ours

            @_session.setter
            def _session(self, theirs: AuthorizedSession) -> None:
                theirs.close()  # type: ignore[no-untyped-call]

        return kind(credentials=self.credentials, transport=Transport, client_options=self.client_options(service))

    def send(self, request: Any, **options: Any) -> requests.Response:
        if isinstance(request.body, bytes) and len(request.body) > PIECE_BYTES:
            request.body = send_pieces(request.body)
        request.headers["User-Agent"] = AGENT
        limit = options.get("timeout")
        if isinstance(limit, int | float):
            options["timeout"] = (min(CONNECT_TIMEOUT_S, limit), limit)
        with self._counting:
            self.calls += 1
        sent = self._clock.now()
        response = super().send(request, **options)
        if "Date" in response.headers and "Age" not in response.headers:  # a cache tells the time of long ago
            self.offset.learn(response.headers["Date"], sent, self._clock.now())
        return response

    def ask(
        self,
        method: str,
        url: str,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float,
    ) -> Mapping[str, Any]:
        """The JSON object that answers one request. Raises `errors.FOREIGN`."""
        response = self.request(method, url, params=query, json=body, timeout=timeout_s)  # type: ignore[no-untyped-call]
        if not response.ok:
            raise from_http_response(response)  # type: ignore[no-untyped-call]
        return json_object(response)

    def route(self) -> NetworkRoute:
        """How requests leave this machine. Raises `LocalError`."""
        settings = self.merge_environment_settings(self.base_url("storage"), {}, None, None, None)
        proxy = urlsplit(requests.utils.select_proxy(self.base_url("storage"), settings["proxies"]) or "")
        host = f"{proxy.hostname or ''}{f':{proxy.port}' if proxy.port else ''}"
        return NetworkRoute(f"{proxy.scheme}://{host}" if host else "", *authorities(), self.is_mtls)


def json_object(response: requests.Response) -> Mapping[str, Any]:
    """The JSON object that an answer is. Raises `Garbled` for anything else, which must not count as an empty list."""
    try:
        document = response.json()
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise Garbled("the answer is not a JSON object, so it is not from the service: is there a proxy in between?")
    return document
