"""The index of runs: one small object for each run, whose custom metadata is its status line. So one listing shows all
runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from orchestrator.core.errors import ConfigError
from orchestrator.core.naming import INDEX_PREFIX, artifacts_prefix, cases_prefix, index_object, is_run_id
from orchestrator.ports import Bucket, ObjectEntry

METADATA_BYTES: Final = 8192
"""The most bytes that Cloud Storage allows for all custom metadata of an object, keys and values together."""
PAGE: Final = 1000
"""As many runs as one request lists."""
RECENT: Final = 200
"""As many runs are looked at for what earlier runs show, at least."""
WINDOWS_DAYS: Final = (16, 64, 256, 1024)


@dataclass(frozen=True, slots=True)
class IndexLine:
    """One run in the index. The index is a cache that may lag behind the run's events; the events are authoritative."""

    run_id: str
    status: Mapping[str, str]
    updated: datetime | None
    generation: int


class RunIndex:
    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def write(self, run_id: str, status: Mapping[str, str], body: bytes = b"{}") -> None:
        """Replaces the run's entry, whoever wrote it, as every writer computes it from the same events. Raises
        `ConfigError` when the status line is too long."""
        size = sum(len(key.encode()) + len(value.encode()) for key, value in status.items())
        if size > METADATA_BYTES:
            raise ConfigError(
                f"the status line of {run_id} has {size} bytes; an object's metadata holds {METADATA_BYTES}",
                hint="keep long texts in the body, not in the status line",
            )
        self._bucket.replace(index_object(run_id), body, generation=None, metadata=status)

    def read(self, run_id: str) -> bytes | None:
        """The body of a run's entry; None where there is no entry."""
        blob = self._bucket.read(index_object(run_id))
        return None if blob is None else blob.data

    def list_runs(self) -> tuple[IndexLine, ...]:
        """Every run, newest last; one request per thousand runs in the bucket."""
        return _lines(self._bucket.list(INDEX_PREFIX))

    def list_recent(self, now: datetime, least: int = RECENT) -> tuple[tuple[IndexLine, ...], bool]:
        """The newest runs, newest last, and whether they are all: all where one request lists them, else at least
        `least`, in a number of requests that does not grow with the bucket."""
        first = self._bucket.list(INDEX_PREFIX, most=PAGE)
        if len(first) < PAGE:
            return _lines(first), True
        for days in WINDOWS_DAYS:
            after = f"{INDEX_PREFIX}{now - timedelta(days=days):%Y%m%d}"
            lines = _lines(self._bucket.list(INDEX_PREFIX, after=after))
            if len(lines) >= least:
                return lines, lines[0].run_id <= _lines(first)[0].run_id
        return self.list_runs(), True

    def find(self, run_ids: Iterable[str]) -> tuple[IndexLine, ...]:
        """The lines of these runs, as far as they have one; one request for each."""
        return tuple(line for run_id in run_ids for line in _lines(self._bucket.list(index_object(run_id))))


def _lines(entries: Sequence[ObjectEntry]) -> tuple[IndexLine, ...]:
    return tuple(
        IndexLine(run_id, entry.metadata, entry.updated, entry.generation)
        for entry in entries
        if is_run_id(run_id := entry.name.removeprefix(INDEX_PREFIX).removesuffix(".json"))
    )


# Reads from the bucket what many runs measured for one case, a page of runs at a time.


RUNS_AT_ONCE: Final = 50
"""How many runs are read at once."""


@dataclass(frozen=True, slots=True)
class CaseFiles:
    """One run's rows of a case as CSV, and its environment as JSON; None for a file that the run has not stored."""

    run_id: str
    measured: bytes | None
    environment: bytes | None


def case_files(bucket: Bucket, runs: Sequence[str], case: str) -> Iterator[CaseFiles]:
    """The files of each run, in the order of `runs`. A page is read only when its first run is needed."""
    for begin in range(0, len(runs), RUNS_AT_ONCE):
        page = {
            run: (f"{cases_prefix(run)}{case}.csv", f"{artifacts_prefix(run)}environment.json")
            for run in runs[begin : begin + RUNS_AT_ONCE]
        }
        measured = bucket.read_many([rows for rows, _ in page.values()])
        environments = bucket.read_many([environment for _, environment in page.values()])
        for run, (rows, environment) in page.items():
            rows_blob, environment_blob = measured.get(rows), environments.get(environment)
            yield CaseFiles(
                run, rows_blob.data if rows_blob else None, environment_blob.data if environment_blob else None
            )
