"""Copies to the bucket what the children of a fleet keep on a cluster, many files in one archive."""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from orchestrator.core.spool import Spooled, sort
from orchestrator.core.text import words
from orchestrator.ports import Bucket
from orchestrator.store.copies import Copies

WRITERS: Final = 16


def wanted(copies: Copies, stored: Mapping[str, Sequence[Any]]) -> tuple[dict[str, Spooled], list[str]]:
    """What is left to copy, by its path below all spools; and each file that a child offers although it may not store
    it, with the reason. `stored` has the files of each child."""
    left: dict[str, Spooled] = {}
    odd: list[str] = []
    for child, files in stored.items():
        runs = Counter(str(one[0]).split("/")[1] for one in files if str(one[0]).startswith("runs/"))
        for run_id in runs:
            if run_id.rpartition("-")[2] != f"{int(child):04x}":
                odd.append(f"child {words(str(child), 20)} has stored objects of {words(run_id, 60)}")
                continue
            judged = sort(run_id, [one for one in files if str(one[0]).startswith(f"runs/{run_id}/")])
            odd += judged.refused
            left |= {f"{child}/{one.name}": one for one in judged.taken if not copies.has(one)}
    return left, odd


def unpack(copies: Copies, bucket: Bucket, archive: bytes, left: Mapping[str, Spooled]) -> list[str]:
    """Stores the files of an archive, events last. Returns the paths of those that must be packed again."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar, ThreadPoolExecutor(WRITERS) as pool:
        found = [(entry.name, file.read()) for entry in tar if entry.isfile() and (file := tar.extractfile(entry))]
        again: list[str] = []
        for events in (False, True):
            part = [(name, body) for name, body in found if ("/events/" in name) is events and name in left]
            done = pool.map(lambda file: copies.store(bucket, left[file[0]], file[1]), part)
            again += [name for (name, _), stored in zip(part, done, strict=True) if not stored]
    return again
