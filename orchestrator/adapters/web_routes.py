"""How to reach a server: directly or through a proxy, and which certificates are trusted."""

from __future__ import annotations

import base64
import http.client
import os
import ssl
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
BUNDLES: Final = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
"""Who names certificates of its own, as behind a proxy that reads along, names them in one of these."""


@dataclass(frozen=True, slots=True)
class Route:
    """A server, and the proxy on the way to it (`http://[user:password@]host:port`; empty for none)."""

    scheme: str
    host: str
    port: int
    proxy: str = ""

    @property
    def netloc(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """One that is not open yet."""
        proxy = urlsplit(self.proxy)
        host, port = (proxy.hostname or "", proxy.port or 80) if self.proxy else (self.host, self.port)
        if self.scheme != "https":
            return http.client.HTTPConnection(host, port, timeout=timeout_s)
        connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=_context())
        if self.proxy:
            connection.set_tunnel(self.host, self.port, _password(proxy.username, proxy.password))
        return connection

    def target(self, path: str) -> tuple[str, dict[str, str]]:
        """What is asked for `path`, and the headers for a proxy that reads the request: one without encryption."""
        if self.scheme == "https" or not self.proxy:
            return path, {}
        proxy = urlsplit(self.proxy)
        return f"http://{self.netloc}{path}", _password(proxy.username, proxy.password)


@cache
def route_to(scheme: str, host: str, port: int | None) -> Route:
    """The way to a server, by this process's environment."""
    direct = Route(scheme, host, port or (443 if scheme == "https" else 80))
    if host in LOOPBACK:
        return direct
    from urllib.request import getproxies, proxy_bypass

    proxy = getproxies().get(scheme, "")
    if not proxy or proxy_bypass(host):
        return direct
    return Route(scheme, host, direct.port, proxy if "://" in proxy else f"http://{proxy}")


@cache
def _context() -> ssl.SSLContext:
    bundle = next((named for key in BUNDLES if (named := os.environ.get(key))), "")
    if bundle and Path(bundle).is_dir():
        return ssl.create_default_context(capath=bundle)
    if not bundle:
        import certifi

        bundle = certifi.where()
    return ssl.create_default_context(cafile=bundle)


def _password(user: str | None, password: str | None) -> dict[str, str]:
    if not user:
        return {}
    pair = f"{unquote(user)}:{unquote(password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair).decode()}"}
