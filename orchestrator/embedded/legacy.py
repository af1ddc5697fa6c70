"""Objects that an older embedded cloud kept as files named after them, taken into the store once."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.embedded.errors import ApiError
from orchestrator.embedded.objects import Objects, Stored, check_name, fields_of, stamp
from orchestrator.embedded.uploads import received, region

MARK = ".bucketMetadata"
ATTRIBUTE = "user.metadata"


def take_over(folder: Path, store: Objects) -> int:
    """How many objects were there, of every bucket `folder/NAME` that has `NAME.bucketMetadata` beside it."""
    taken = 0
    for mark in sorted(folder.glob(f"*{MARK}")):
        bucket = folder / mark.name.removesuffix(MARK)
        if bucket.is_symlink() or not bucket.is_dir():
            continue
        store.make_bucket(bucket.name)
        for path in sorted(bucket.rglob("*")):
            if path.is_file() and not path.is_symlink():
                taken += _take(bucket, path, store)
        mark.unlink()
    return taken


def _take(bucket: Path, path: Path, store: Objects) -> int:
    name = str(path.relative_to(bucket))
    try:
        check_name(name)
    except ApiError:
        return 0
    told = _told(path)
    with path.open("rb") as file:
        data = received(store, region(file, 0, path.stat().st_size))
    data.file.close()
    written = stamp(store.now())
    metadata = told.get("Metadata") or {}
    store.adopt(
        Stored(
            bucket=bucket.name,
            name=name,
            generation=int(told.get("Generation") or 1),
            metageneration=1,
            size=data.size,
            crc32c=data.crc32c,
            md5=data.md5_hash,
            content_type=str(told.get("ContentType") or "application/octet-stream"),
            created=str(told.get("Created") or written),
            updated=str(told.get("Updated") or written),
            blob=secrets.token_hex(16),
            fields=fields_of({"metadata": {key: str(value) for key, value in metadata.items()}} if metadata else {}),
        ),
        data.path,
    )
    path.unlink()
    return 1


def _told(path: Path) -> Mapping[str, Any]:
    """What was said of the object, where the file system has kept it."""
    try:
        found = json.loads(os.getxattr(path, ATTRIBUTE))
        return found if isinstance(found, dict) else {}
    except (AttributeError, OSError, ValueError):  # no extended attributes on this platform or file system
        return {}
