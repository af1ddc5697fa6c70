"""A site as files: published under a prefix of the bucket, or served to this machine."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.ports import Bucket

if TYPE_CHECKING:
    from orchestrator.adapters.site_server import SiteServer

KINDS: Final = {".html": "text/html; charset=utf-8", ".json": "application/json"}


def publish(bucket: Bucket, folder: Path, paths: Iterable[str], prefix: str) -> int:
    """Stores the files `paths` of `folder` under `prefix`; returns how many were new or other. Nothing is deleted."""
    from orchestrator.adapters.gcs import THREADS, crc32c

    there = {entry.name: entry.crc32c for entry in bucket.list(f"{prefix}/")}

    def store(path: str) -> bool:
        data, name = (folder / path).read_bytes(), f"{prefix}/{path}"
        if there.get(name) == crc32c(data):
            return False
        bucket.replace(name, data, generation=None, content_type=KINDS[Path(path).suffix])
        return True

    with ThreadPoolExecutor(THREADS, thread_name_prefix="publish") as pool:
        return sum(pool.map(store, paths))


def serve(folder: Path, port: int) -> SiteServer:
    """A server of `folder` on loopback, to be entered; port 0 is any that is free. Raises `LocalError`."""
    from orchestrator.adapters.site_server import SiteServer

    return SiteServer(folder, port)
