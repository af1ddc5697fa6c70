"""Copies what waits in a host's spool to the bucket, with the client's rights: only what the run may store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.core.errors import Unavailable
from orchestrator.core.spool import Spooled, sort
from orchestrator.ports import Bucket, RemoteShell
from orchestrator.store.copies import Copies
from orchestrator.store.swap import ATTEMPTS


def bring_home(bucket: Bucket, shell: RemoteShell, run_id: str, answer: Mapping[str, Any], copies: Copies) -> list[str]:
    """Copies what is new in the spool of a run: cases before the events that mention them. Returns what was refused,
    each with the reason, in words for the user. Raises `Unavailable` when an object could not be copied."""
    files = answer.get("files")
    found = sort(run_id, files if isinstance(files, list) else ())
    refused = list(found.refused)
    for one in found.taken:
        if copies.has(one):
            continue
        path = f"{answer.get('spool', '')}/{one.name}"
        data = shell.get(path, limit=one.limit)
        if data is None:
            continue
        if len(data) > one.limit:
            refused.append(f"{one.name}: more than {one.limit} bytes came")
            continue
        _store_newest(bucket, shell, path, one, data, copies)
    return refused


def _store_newest(bucket: Bucket, shell: RemoteShell, path: str, one: Spooled, data: bytes, copies: Copies) -> None:
    """Stores an object; fetches it again as often as another client has stored it meanwhile."""
    for _ in range(ATTEMPTS):
        if copies.store(bucket, one, data):
            return
        newer = shell.get(path, limit=one.limit)
        if newer is None or len(newer) > one.limit:
            copies.note(one)  # another client has copied it, and the host has deleted it
            return
        data = newer
    raise Unavailable(
        f"gs://{bucket.name}/{one.name} changed {ATTEMPTS} times while it was stored",
        hint="many clients copy it at the same time: run the same command again",
    )
