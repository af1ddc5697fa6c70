"""Copies what waits in a host's spool to the bucket, with the client's rights: only what the run may store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from orchestrator.core.errors import Unavailable
from orchestrator.core.spool import Spooled, sort
from orchestrator.ports import Bucket, RemoteShell

CONTENT_TYPES: Final = {".csv": "text/csv", ".json": "application/json", ".txt": "text/plain"}
ATTEMPTS: Final = 12
"""How often an object that grows is fetched and stored again when other clients are faster."""


@dataclass(frozen=True, slots=True)
class Home:
    """What this client has copied to the bucket."""

    marks: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of each object that was copied: its size and time of change on the host."""
    generations: dict[str, int] = field(default_factory=dict)
    """Of each object that grows: its generation in the bucket, as far as it is known."""


def bring_home(bucket: Bucket, shell: RemoteShell, run_id: str, answer: Mapping[str, Any], home: Home) -> list[str]:
    """Copies what is new in the spool of a run: cases before the events that mention them. Returns what was refused,
    each with the reason, in words for the user. Raises `Unavailable` when an object could not be copied."""
    files = answer.get("files")
    found = sort(run_id, files if isinstance(files, list) else ())
    refused = list(found.refused)
    for one in found.taken:
        if home.marks.get(one.name) == (one.size, one.changed):
            continue

        def fetch(one: Spooled = one) -> bytes | None:
            return shell.get(f"{answer.get('spool', '')}/{one.name}", limit=one.limit)

        data = fetch()
        if data is None:
            continue
        if len(data) > one.limit:
            refused.append(f"{one.name}: more than {one.limit} bytes came")
            continue
        if one.grows:
            _store_newest(bucket, one, data, fetch, home.generations)
        else:
            bucket.create(one.name, data, content_type=_content_type(one.name))
        home.marks[one.name] = (one.size, one.changed)
    return refused


def _store_newest(
    bucket: Bucket, one: Spooled, data: bytes, fetch: Callable[[], bytes | None], generations: dict[str, int]
) -> None:
    """Stores an object that grows on the host. Another client may have copied a newer version of it while this one was
    fetched, and an upload that was given up may arrive after a newer one. So an upload replaces only the generation
    that was known before the object was fetched; if it is refused, the object is fetched again."""
    for _ in range(ATTEMPTS):
        known = generations.get(one.name, 0)
        new = bucket.replace(one.name, data, generation=known, content_type=_content_type(one.name))
        if new is not None:
            generations[one.name] = new
            return
        there = bucket.read(one.name)
        generations[one.name] = 0 if there is None else there.generation
        if there is not None and there.data == data:
            return
        newer = fetch()
        if newer is None or len(newer) > one.limit:
            return  # another client has copied it, and the host has deleted it
        data = newer
    raise Unavailable(
        f"gs://{bucket.name}/{one.name} changed {ATTEMPTS} times while it was stored",
        hint="many clients copy it at the same time: run the same command again",
    )


def _content_type(name: str) -> str:
    return CONTENT_TYPES.get(name[name.rfind(".") :], "application/octet-stream")
