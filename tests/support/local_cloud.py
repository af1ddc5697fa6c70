"""An embedded cloud in the process of the test, which commands find in its home as they find a daemon."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.embedded.client import stop_cloud
from orchestrator.embedded.daemon import acquire_lock, published_cloud
from orchestrator.embedded.documents import private_folder
from orchestrator.embedded.resources import Zones
from orchestrator.embedded.server import EmbeddedCloud
from tests.support.direct import asked_directly

NO_PROCESS = 0
"""What clients are told to end if the cloud does not answer: not the process of the tests."""


def start_cloud(home: Path, advice: Zones | None = None) -> tuple[EmbeddedCloud, threading.Thread]:
    """Starts a cloud in `home` and returns once it answers. The thread ends when a command or `stop` stops it."""
    private_folder(home)
    ready = threading.Event()
    clouds: list[EmbeddedCloud] = []
    lock = acquire_lock(home)
    assert lock is not None, f"a cloud runs in {home}"

    def serve() -> None:
        try:
            with lock, published_cloud(home, NO_PROCESS) as cloud, asked_directly(cloud):
                cloud.compute.advised = advice
                clouds.append(cloud)
                ready.set()
                cloud.stop_requested.wait()
        finally:
            ready.set()

    thread = threading.Thread(target=serve, name="embedded cloud", daemon=True)
    thread.start()
    ready.wait()
    assert thread.is_alive(), f"no cloud came up in {home}"
    return clouds[0], thread


@contextmanager
def local_cloud(home: Path) -> Iterator[EmbeddedCloud]:
    """A cloud in `home`, stopped at the end with all its machines."""
    cloud, thread = start_cloud(home)
    try:
        yield cloud
    finally:
        stop_cloud(home)
        thread.join()
