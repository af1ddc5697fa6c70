"""Reads what the pages of many runs are made from; changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from orchestrator.core.errors import BenchError, CredentialsMissing, Unavailable
from orchestrator.core.names import CaseId
from orchestrator.core.naming import artifacts_prefix, cases_prefix, index_object
from orchestrator.core.run.fold import Run
from orchestrator.core.run.status import Material, StatusLine, decode_status, iso_time, status_body, status_line
from orchestrator.ports import Blob, Bucket
from orchestrator.store.index import IndexLine

AT_ONCE: Final = 25
"""How many runs' objects are read at the same time."""
UNREADABLE: Final = "unreadable"


def is_over(line: IndexLine) -> bool:
    """Whether the index says that a run is over and will not change."""
    status_line = decode_status(line.run_id, line.status)
    return status_line is not None and status_line.over


def site_materials(
    bucket: Bucket, lines: Sequence[IndexLine], look: Callable[[str], Run], now: Callable[[], datetime]
) -> Iterator[Material]:
    """What the bucket has of each run, in order. Of finished runs the index knows everything; what open ones say is
    read from their events (`look`). A run that cannot be read comes with its reason. Raises `CredentialsMissing`,
    `Unavailable`."""
    for begin in range(0, len(lines), AT_ONCE):
        page = lines[begin : begin + AT_ONCE]
        bodies = bucket.read_many([index_object(one.run_id) for one in page])
        states = [_state(one, bodies, look, now) for one in page]
        cases = {one.line.run_id: _case_ids(one.body) for one in states}
        names = [f"{cases_prefix(run)}{case}.csv" for run, found in cases.items() for case in found]
        for run in cases:
            names += [f"{artifacts_prefix(run)}{name}.json" for name in ("environment", "build")]
        blobs = bucket.read_many(names)
        for one in states:
            run = one.line.run_id
            yield Material(
                one.line,
                one.body,
                _data(blobs, f"{artifacts_prefix(run)}environment.json"),
                _data(blobs, f"{artifacts_prefix(run)}build.json"),
                {
                    case: blob.data
                    for case in cases[run]
                    if (blob := blobs.get(f"{cases_prefix(run)}{case}.csv")) is not None
                },
                one.problem,
            )


def _state(
    entry: IndexLine, bodies: Mapping[str, Blob], look: Callable[[str], Run], now: Callable[[], datetime]
) -> Material:
    line = decode_status(entry.run_id, entry.status)
    body = _data(bodies, index_object(entry.run_id))
    if line is not None and line.over:
        return Material(line, body)
    try:
        run = look(entry.run_id)
    except (CredentialsMissing, Unavailable):
        raise
    except BenchError as exc:
        return Material(line or unreadable_line(entry.run_id), body, problem=f"This run cannot be read: {exc}.")
    return Material(status_line(run, now()), status_body(run, now()))


def unreadable_line(run_id: str) -> StatusLine:
    """The index line of a run of which only the name is known."""
    try:
        began = datetime.strptime(run_id[:15], "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        began = datetime(1970, 1, 1, tzinfo=UTC)
    return StatusLine(run_id, UNREADABLE, created_at=iso_time(began), updated_at=iso_time(began))


def _case_ids(body: bytes) -> tuple[CaseId, ...]:
    """The cases that were stored, by the state of the run; what is no name of a case is left out."""
    try:
        case_list = json.loads(body)["cases"] if body else []
        names = dict.fromkeys(str(one["case_id"]) for one in case_list)
        return tuple(CaseId(name) for name in names if CaseId.fits(name))
    except (ValueError, LookupError, TypeError, RecursionError):
        return ()


def _data(blobs: Mapping[str, Blob], name: str) -> bytes:
    blob = blobs.get(name)
    return b"" if blob is None else blob.data
