"""Reads from the bucket what many runs measured for one case, a page of runs at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from orchestrator.core.naming import artifacts_prefix, cases_prefix
from orchestrator.ports import Bucket

PAGE: Final = 50
"""How many runs are read at once."""


@dataclass(frozen=True, slots=True)
class CaseFiles:
    """One run's rows of a case as CSV, and its environment as JSON; None for a file that the run has not stored."""

    run_id: str
    measured: bytes | None
    environment: bytes | None


def case_files(bucket: Bucket, runs: Sequence[str], case: str) -> Iterator[CaseFiles]:
    """The files of each run, in the order of `runs`. A page is read only when its first run is needed."""
    for begin in range(0, len(runs), PAGE):
        page = {
            run: (f"{cases_prefix(run)}{case}.csv", f"{artifacts_prefix(run)}environment.json")
            for run in runs[begin : begin + PAGE]
        }
        measured = bucket.read_many([rows for rows, _ in page.values()])
        environments = bucket.read_many([environment for _, environment in page.values()])
        for run, (rows, environment) in page.items():
            rows_blob, environment_blob = measured.get(rows), environments.get(environment)
            yield CaseFiles(
                run, rows_blob.data if rows_blob else None, environment_blob.data if environment_blob else None
            )
