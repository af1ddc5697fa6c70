"""An object store and plain HTTP requests to it."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pytest

from tests.unit.embedded.builders import Stage

B = "/storage/v1/b/bench-embedded/o"
UP = "/upload/storage/v1/b/bench-embedded/o"


class Wire:
    """Requests by hand, on one connection."""

    def __init__(self, stage: Stage) -> None:
        self.host = stage.cloud.storage_url.removeprefix("http://")
        self.token = stage.cloud.token

    def __call__(
        self, method: str, target: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes, dict[str, str]]:
        connection = http.client.HTTPConnection(self.host, timeout=600)
        try:
            connection.request(method, target, body, {"Authorization": f"Bearer {self.token}"} | (headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.getheaders())
        finally:
            connection.close()

    def begin(self, name: str, described: Any = None, **headers: str) -> str:
        """The target of a new resumable upload."""
        told = json.dumps(described or {})
        status, said, found = self("POST", f"{UP}?uploadType=resumable&name={name}", told, headers)
        assert status == 200, said
        location = found["Location"]
        assert location.startswith(f"http://{self.host}/"), "it would leave this cloud, and its weather"
        return location.removeprefix(f"http://{self.host}")

    def put(self, target: str, data: bytes, span: str) -> tuple[int, bytes, dict[str, str]]:
        return self("PUT", target, data, {"Content-Range": f"bytes {span}"})


@pytest.fixture
def wire(stage: Stage) -> Wire:
    return Wire(stage)


def multipart(name: str, data: bytes, **told: Any) -> tuple[bytes, dict[str, str]]:
    head = json.dumps({"name": name, **told}).encode()
    body = b"--bb\r\nContent-Type: application/json\r\n\r\n" + head + b"\r\n--bb\r\nContent-Type: a/b\r\n\r\n" + data
    return body + b"\r\n--bb--\r\n", {"Content-Type": "multipart/related; boundary=bb"}
