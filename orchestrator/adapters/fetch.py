"""A run's results as a folder: downloaded and checked, never twice, whole or said to be partial."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.adapters.files import safe_path, write_atomically
from orchestrator.adapters.gcs import crc32c
from orchestrator.core.errors import LocalError
from orchestrator.core.leases import SharedGrid
from orchestrator.core.naming import artifacts_prefix, cases_prefix, grid_object
from orchestrator.core.results import Summary, assemble, read_rows, summarize, summary_csv
from orchestrator.core.run import Run
from orchestrator.core.status import iso
from orchestrator.ports import Bucket, Entry


@dataclass(frozen=True, slots=True)
class Fetched:
    """What `bench fetch` brought."""

    run_id: str
    state: str
    folder: Path
    complete: bool
    """Whether the run is over and every case that it planned is here."""
    cases: int
    cases_total: int
    measurements: int
    downloaded: int
    already_there: int
    summaries: tuple[Summary, ...]
    device: str

    def document(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "run_id": self.run_id,
            "state": self.state,
            "folder": str(self.folder),
            "complete": self.complete,
            "cases": self.cases,
            "cases_total": self.cases_total,
            "measurements": self.measurements,
            "downloaded": self.downloaded,
            "already_there": self.already_there,
            "device": self.device,
        }


def grid_of(bucket: Bucket, run: Run) -> SharedGrid | None:
    """The grid that a run is the first of several to measure; None for one that measures alone."""
    if run.plan is None or run.plan.grid != run.run_id:
        return None
    blob = bucket.read(grid_object(run.run_id))
    return SharedGrid.parse(blob.data) if blob is not None else None


def fetch_run(bucket: Bucket, run: Run, into: Path) -> Fetched:
    """Brings everything that `run` has stored under `into/<run-id>`; of a shared grid, each case from the run that
    measured it, and what the other machines say of themselves under `machines/<run-id>/`.

    What is there already and has the right checksum is not fetched again, so a broken fetch goes on where it stopped.
    Raises `LocalError` for a folder that cannot be written and for an object whose name would leave it."""
    folder = into / run.run_id
    _writable(folder)
    grid = grid_of(bucket, run)
    entries = _wanted(bucket, run, folder) if grid is None else _shared(bucket, run, grid, folder)
    fresh = 0
    for entry, path in entries:
        if not _same(path, entry):
            bucket.download(entry, path)
            fresh += 1
    cases = {path.stem: path for entry, path in entries if path.parent == folder / "cases"}
    summaries = summarize(row for name in sorted(cases) for row in read_rows(_lines(cases[name])))
    total = run.cases_total if grid is None else len(grid.cases)
    over = (run.closed is not None or run.kept is not None) if grid is None else grid.over
    complete = over and total > 0 and len(cases) >= total
    assembled = assemble({name: partial(_lines, path) for name, path in cases.items()})
    write_atomically(folder / "measurements.csv", (line.encode() for line in assembled))
    write_atomically(folder / "summary.csv", summary_csv(summaries).encode())
    write_atomically(folder / "manifest.json", _manifest(run, entries, folder, grid, complete=complete))
    return Fetched(
        run_id=run.run_id,
        state=run.phase.value,
        folder=folder,
        complete=complete,
        cases=len(cases),
        cases_total=total,
        measurements=sum(summary.count for summary in summaries),
        downloaded=fresh,
        already_there=len(entries) - fresh,
        summaries=summaries,
        device=run.environment.device if run.environment else "",
    )


def _lines(path: Path) -> Iterator[str]:
    """A file's lines, so that no more than one of them has to be in memory."""
    with path.open(encoding="utf-8", newline="") as file:
        yield from file


def _writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise LocalError(f"cannot make {folder}: {exc.strerror}", hint="--into names another folder") from exc
    if not os.access(folder, os.W_OK | os.X_OK):
        raise LocalError(f"{folder} cannot be written", hint="--into names another folder")


def _wanted(bucket: Bucket, run: Run, folder: Path) -> list[tuple[Entry, Path]]:
    """Cases go to `cases/`, artifacts to the top. All names are judged before the first byte is written."""
    cases, artifacts = cases_prefix(run.run_id), artifacts_prefix(run.run_id)
    found = [(entry, safe_path(folder / "cases", entry.name.removeprefix(cases))) for entry in bucket.list(cases)]
    found += [(entry, safe_path(folder, entry.name.removeprefix(artifacts))) for entry in bucket.list(artifacts)]
    return found


def _shared(bucket: Bucket, run: Run, grid: SharedGrid, folder: Path) -> list[tuple[Entry, Path]]:
    """The same for a grid that several runs have measured. A case that was measured once more by a machine that had
    been taken for dead stays where it is."""
    first = next((member for member in (run.run_id, *grid.members) if grid.done_by(member)), run.run_id)
    found = []
    for member in grid.members:
        cases, artifacts = cases_prefix(member), artifacts_prefix(member)
        own = {f"{cases}{case}.csv" for case in grid.done_by(member)}
        found += [
            (entry, safe_path(folder / "cases", entry.name.removeprefix(cases)))
            for entry in bucket.list(cases)
            if entry.name in own
        ]
        place = folder if member == first else folder / "machines" / member
        found += [(entry, safe_path(place, entry.name.removeprefix(artifacts))) for entry in bucket.list(artifacts)]
    return found


def _same(path: Path, entry: Entry) -> bool:
    try:
        return path.stat().st_size == entry.size and crc32c(path.read_bytes()) == entry.crc32c
    except OSError:
        return False


def _manifest(
    run: Run, entries: list[tuple[Entry, Path]], folder: Path, grid: SharedGrid | None, *, complete: bool
) -> bytes:
    members = grid.members.items() if grid is not None else ()
    document = {
        "schema": 1,
        "run_id": run.run_id,
        "state": run.phase.value,
        "complete": complete,
        "gpu": run.plan.gpu if run.plan else "",
        "mode": run.plan.mode if run.plan else "",
        "image": run.plan.image if run.plan else "",
        "payload_sha256": run.payload.sha256 if run.payload else "",
        "device": run.environment.device if run.environment else "",
        "cost_usd": str(run.settled.cost_usd) if run.settled else None,
        "started_at": iso(run.created_at),
        "vms": [
            {"name": vm.name, "zone": vm.zone, "machine_type": vm.machine_type} for vm in run.vms if vm.instance_id
        ],
        "machines": [
            {"run_id": member, "target": target, "cases": list(grid.done_by(member))}
            for member, target in members
            if grid is not None
        ],
        "files": [
            {
                "path": path.relative_to(folder).as_posix(),
                "object": entry.name,
                "size": entry.size,
                "crc32c": entry.crc32c,
                "generation": str(entry.generation),
            }
            for entry, path in entries
        ],
    }
    return json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"
