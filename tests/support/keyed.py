"""`requests` with a key: the token of each embedded cloud that this process has made known, by where it listens.

Import it in the place of `requests`; whoever makes a cloud calls `know(cloud)`.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import requests
from requests import ConnectionError, Response  # noqa: A004 - requests named it

from orchestrator.embedded.server import EmbeddedCloud

__all__ = ["ConnectionError", "Response", "Session", "delete", "get", "head", "know", "patch", "post", "put", "request"]

TOKENS: dict[str, str] = {}


def know(cloud: EmbeddedCloud) -> None:
    """Send this cloud's token with every request to it."""
    for url in (cloud.compute_url, cloud.storage_url, cloud.control_url):
        TOKENS[urlsplit(url).netloc] = cloud.token


class Session(requests.Session):
    """Sends the token of the cloud that is asked."""

    def request(self, method: str | bytes, url: str | bytes, *args: Any, **options: Any) -> Response:
        token = TOKENS.get(urlsplit(str(url)).netloc)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        options["headers"] = headers | dict(options.get("headers") or {})
        return super().request(method, url, *args, **options)


def request(method: str, url: str, **options: Any) -> Response:
    """One request on a connection of its own."""
    with Session() as session:
        return session.request(method, url, **options)


def get(url: str, **options: Any) -> Response:
    return request("GET", url, **options)


def post(url: str, **options: Any) -> Response:
    return request("POST", url, **options)


def put(url: str, **options: Any) -> Response:
    return request("PUT", url, **options)


def delete(url: str, **options: Any) -> Response:
    return request("DELETE", url, **options)


def patch(url: str, **options: Any) -> Response:
    return request("PATCH", url, **options)


def head(url: str, **options: Any) -> Response:
    return request("HEAD", url, **options)
