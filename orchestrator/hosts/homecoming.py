"""Bringing home what waits in a host's spool: into the bucket, with the client's rights, and only what is due."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orchestrator.core.spool import sort
from orchestrator.ports import Bucket, RemoteShell

CONTENT_TYPES: Final = {".csv": "text/csv", ".json": "application/json", ".txt": "text/plain"}

Home = dict[str, tuple[int, int]]
"""What of each object is in the bucket already, by our own doing: size and time of change on the host."""


def bring_home(bucket: Bucket, shell: RemoteShell, run_id: str, answer: Mapping[str, Any], home: Home) -> list[str]:
    """Copies what is new in the spool of a run: cases before the events that tell of them. Gives in words what of it
    was refused, and why."""
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
