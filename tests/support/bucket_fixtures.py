from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.adapters.gcs import GoogleBucket
from orchestrator.ports import Bucket
from tests.support.memory_bucket import MemoryBucket
from tests.support.storage_server import storage_server


@pytest.fixture(scope="session")
def storage_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with storage_server(tmp_path_factory.mktemp("storage")) as url:
        yield url


@pytest.fixture(params=["memory", "google"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bucket]:
    """An empty bucket, of each implementation."""
    if request.param == "memory":
        yield MemoryBucket()
        return
    with storage_server(tmp_path / "storage", "bench") as url:
        google = GoogleBucket("bench", endpoint=url, patience_s=5)
        yield google
        google.close()


@pytest.fixture(params=["memory", "google"])
def missing_bucket(request: pytest.FixtureRequest, storage_url: str) -> Iterator[Bucket]:
    """A bucket that was never made."""
    if request.param == "memory":
        yield MemoryBucket(exists=False)
        return
    google = GoogleBucket("never-made", endpoint=storage_url, patience_s=5)
    yield google
    google.close()
