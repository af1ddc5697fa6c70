from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from google.auth.credentials import Credentials

from orchestrator.adapters.google.credentials import Bearer
from orchestrator.adapters.google.storage import GoogleBucket
from orchestrator.embedded.server import EmbeddedCloud
from orchestrator.ports import Bucket
from tests.support.memory_bucket import MemoryBucket
from tests.support.patience import PATIENCE_S
from tests.support.storage_server import storage_server


@pytest.fixture(scope="session")
def storage_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with storage_server(tmp_path_factory.mktemp("storage")) as url:
        yield url


@pytest.fixture(params=["memory", "google", "embedded"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bucket]:
    """An empty bucket, of each implementation."""
    if request.param == "memory":
        yield MemoryBucket()
        return
    with bucket_server(request.param, tmp_path) as (name, url, credentials):
        google = GoogleBucket(name, endpoint=url, credentials=credentials, patience_s=PATIENCE_S)
        yield google
        google.close()


@contextmanager
def bucket_server(kind: str, folder: Path) -> Iterator[tuple[str, str, Credentials | None]]:
    """The name of an empty bucket, and where it is: on the bare server, or behind the embedded cloud's proxy."""
    if kind == "google":
        with storage_server(folder / "storage", "bench") as url:
            yield "bench", url, None
    else:
        with EmbeddedCloud(home=folder / "cloud") as cloud:
            yield cloud.bucket, cloud.storage_url, Bearer(cloud.token)


@pytest.fixture(params=["memory", "google"])
def missing_bucket(request: pytest.FixtureRequest, storage_url: str) -> Iterator[Bucket]:
    """A bucket that was never made."""
    if request.param == "memory":
        yield MemoryBucket(exists=False)
        return
    google = GoogleBucket("never-made", endpoint=storage_url, patience_s=PATIENCE_S)
    yield google
    google.close()
