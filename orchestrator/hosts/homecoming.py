"""Copies what waits in a host's spool to the bucket, with the client's rights: only what the run may store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orchestrator.core.spool import sort
from orchestrator.ports import Bucket, RemoteShell

CONTENT_TYPES: Final = {".csv": "text/csv", ".json": "application/json", ".txt": "text/plain"}

Home = dict[str, tuple[int, int]]
"""The objects that this client has copied to the bucket: each one's size and time of change on the host."""


def bring_home(bucket: Bucket, shell: RemoteShell, run_id: str, answer: Mapping[str, Any], home: Home) -> list[str]:
    """Copies what is new in the spool of a run: cases before the events that mention them. Returns what was refused,
    each with the reason, in words for the user."""
    files = answer.get("files")
    found = sort(run_id, files if isinstance(files, list) else ())
    refused = list(found.refused)
    for one in found.taken:
        if home.get(one.name) == (one.size, one.changed):
            continue
        data = shell.get(f"{answer.get('spool', '')}/{one.name}", limit=one.limit)
        if data is None:
            continue
        if len(data) > one.limit:
            refused.append(f"{one.name}: more than {one.limit} bytes came")
            continue
        content_type = CONTENT_TYPES.get(one.name[one.name.rfind(".") :], "application/octet-stream")
        if one.grows:
            bucket.replace(one.name, data, generation=None, content_type=content_type)
        else:
            bucket.create(one.name, data, content_type=content_type)
        home[one.name] = (one.size, one.changed)
    return refused
