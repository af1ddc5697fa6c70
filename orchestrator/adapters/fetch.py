"""Downloads a run's results into a folder and checks them; never downloads twice, and says if they are not complete."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from orchestrator.adapters.files import crc32c, safe_path, write_atomically
from orchestrator.adapters.run_folder import read_lines
from orchestrator.core.errors import DocumentUnreadable, LocalError
from orchestrator.core.host_answers import CASE_BYTES, RUN_FILES
from orchestrator.core.naming import artifacts_prefix, cases_prefix, plan_object
from orchestrator.core.results import assemble_rows, case_file_fault
from orchestrator.core.run.fold import Run
from orchestrator.core.run.status import iso_time, paid_time_document
from orchestrator.core.text import clean_line, parse_document
from orchestrator.ports import Bucket, ObjectEntry

OWN_NAMES: Final = frozenset(
    {
        "cases", "machines", "measurements.csv", "measurements.csv.gz", "children.csv", "summary.csv", "verdicts.csv",
        "manifest.json", "report.json",
    }
)  # fmt: skip
OWN_KINDS: Final = frozenset({".yaml", ".yml", ".html", ".md", ".svg", ".png", ".pdf"})
"""Names, and kinds of configurations, pages and figures, that bench itself writes into the top of a folder of results:
no artifact may have such a name there."""
ARTIFACT_BYTES: Final = 1024**3
RUN_BYTES: Final = 4 * 1024**3
"""Limits on what is downloaded: anybody who may write below runs/ decides what is there, and the user pays for it."""

Wanted = tuple[ObjectEntry, Path, str]
"""An object, the folder that it belongs into, and its name there."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of a download."""

    run_id: str
    state: str
    folder: Path
    complete: bool
    """Whether the run is over and every case that it planned is here."""
    cases: int
    cases_total: int
    downloaded: int
    already_there: int
    device: str
    left_out: Mapping[str, str] = field(default_factory=dict)
    """The reason, in words for the user, of each object that was not downloaded."""

    def document(self) -> dict[str, Any]:
        return {"schema": 1, **asdict(self), "folder": str(self.folder)}


def fetch_run(bucket: Bucket, run: Run, into: Path) -> Fetched:
    """Brings everything that `run` has stored under `into/<run-id>`.

    What is there already and has the right checksum is not fetched again, so a broken fetch goes on where it stopped.
    An object whose name is no place in the folder, and a case's file that is not whole or not this run's, is left out
    and named. Raises `LocalError` for a folder that cannot be written."""
    folder = into / run.run_id
    _writable(folder)
    left_out: dict[str, str] = {}
    entries = _places(_wanted(bucket, run, folder), left_out)
    fresh = 0
    for entry, path in entries:
        fresh += download_object(bucket, entry, path)
    case_entries = {path.stem: (entry, path) for entry, path in entries if path.parent == folder / "cases"}
    cases = {}
    for case, (entry, path) in case_entries.items():
        if why := _fault(run, path):
            left_out[entry.name] = f"{clean_line(entry.name, 300)} is left out: {why}"
        else:
            cases[case] = path
    total = run.cases_total
    over = run.closed is not None or run.kept is not None
    complete = over and total > 0 and len(cases) >= total
    assembled = assemble_rows({name: partial(read_lines, path) for name, path in cases.items()})
    write_atomically(folder / "measurements.csv", (line.encode() for line in assembled))
    settings = _plan_settings(bucket, run)
    repeat = _repeat(settings)
    if repeat:
        write_atomically(folder / "repeat.yaml", repeat)
    manifest = _manifest(run, entries, folder, complete=complete, settings=settings)
    write_atomically(folder / "manifest.json", manifest)
    return Fetched(
        run_id=run.run_id,
        state=run.phase.value,
        folder=folder,
        complete=complete,
        cases=len(cases),
        cases_total=total,
        downloaded=fresh,
        already_there=len(entries) - fresh,
        device=run.environment.device if run.environment else "",
        left_out=left_out,
    )


def _fault(run: Run, path: Path) -> str:
    """What is wrong with the file of a case; empty when nothing is."""
    machine_names = {vm.name for vm in run.vms} | ({run.taken.vm} if run.taken is not None else set())
    with path.open(encoding="utf-8", newline="") as file:
        return case_file_fault(file, path.stem, run.run_id, machine_names.__contains__)


def _places(wanted: Iterable[Wanted], left_out: dict[str, str]) -> list[tuple[ObjectEntry, Path]]:
    """Where each object goes. All names and sizes are checked before the first byte is downloaded; cases come first."""
    entries_by_path: dict[Path, ObjectEntry] = {}
    room = RUN_BYTES
    for entry, root, relative in wanted:
        try:
            path = safe_path(root, relative)
            most = min(CASE_BYTES if root.name == "cases" else ARTIFACT_BYTES, room)
            if entry.size > most or len(entries_by_path) >= RUN_FILES:
                raise LocalError(
                    f"{clean_line(entry.name, 300)} has {entry.size} bytes: more than any run of bench stores"
                )
            if root.name != "cases" and _is_own_name(path.relative_to(root)):
                raise LocalError(f"{clean_line(entry.name, 300)} has the name of a file that bench writes itself")
            clash = next((one for one in (path, *path.parents) if one in entries_by_path and one != path), None)
            if path in entries_by_path or clash is not None or any(path in one.parents for one in entries_by_path):
                raise LocalError(f"{clean_line(entry.name, 300)} has a name that collides with that of another object")
            entries_by_path[path] = entry
            room -= entry.size
        except LocalError as exc:
            left_out[entry.name] = f"left out: {exc}"
    return [(entry, path) for path, entry in entries_by_path.items()]


def _is_own_name(relative: Path) -> bool:
    """Whether bench itself may write a file of this name into a folder of results. Case counts on no file system."""
    first = relative.parts[0].casefold()
    return first in OWN_NAMES or (len(relative.parts) == 1 and relative.suffix.casefold() in OWN_KINDS)


def _writable(folder: Path) -> None:
    hint = "choose another folder with --into FOLDER"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise LocalError(f"cannot make {folder}: {exc.strerror}", hint=hint) from exc
    if not os.access(folder, os.W_OK | os.X_OK):
        raise LocalError(f"{folder} cannot be written", hint=hint)


def _wanted(bucket: Bucket, run: Run, folder: Path) -> list[Wanted]:
    """Cases go to `cases/`, artifacts to the top."""
    cases, artifacts, most = cases_prefix(run.run_id), artifacts_prefix(run.run_id), RUN_FILES + 100
    case_files = [(entry, folder / "cases", entry.name.removeprefix(cases)) for entry in bucket.list(cases, most=most)]
    return case_files + [
        (entry, folder, entry.name.removeprefix(artifacts)) for entry in bucket.list(artifacts, most=most)
    ]


REPEATED = ("gpu", "measure", "correctness")
"""What is taken from a plan that lies in a bucket: what was measured, and nothing that runs or spends by itself."""


def _plan_settings(bucket: Bucket, run: Run) -> Mapping[str, Any]:
    """The settings in the run's plan; empty if the plan cannot be read."""
    try:
        blob = bucket.read(plan_object(run.run_id))
        settings = parse_document(blob.data)["settings"] if blob is not None else {}
    except (DocumentUnreadable, ValueError, KeyError, TypeError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _repeat(settings: Mapping[str, Any]) -> bytes:
    """A configuration that measures the same grid; empty where the plan cannot be read. JSON is YAML."""
    # A workload of the user's own is a path on a machine, which no bucket may choose, and no grid of ours.
    kept = {} if settings.get("workload") else {key: settings[key] for key in REPEATED if settings.get(key)}
    return json.dumps(kept, indent=1, sort_keys=True).encode() + b"\n" if kept else b""


def download_object(bucket: Bucket, entry: ObjectEntry, path: Path) -> bool:
    """Downloads an object to a file, unless it is there already, byte for byte; whether it did."""
    if _same(path, entry):
        return False
    bucket.download(entry, path)
    return True


def _same(path: Path, entry: ObjectEntry) -> bool:
    try:
        return path.stat().st_size == entry.size and crc32c(path.read_bytes()) == entry.crc32c
    except OSError:
        return False


def _manifest(
    run: Run,
    entries: list[tuple[ObjectEntry, Path]],
    folder: Path,
    *,
    complete: bool,
    settings: Mapping[str, Any],
) -> bytes:
    workload = settings.get("workload")
    # The embedded cloud's machines are this computer: what was asked for was never there.
    embedded = run.simulated
    document = {
        "schema": 1,
        "run_id": run.run_id,
        "state": run.phase.value,
        "complete": complete,
        "cases_total": run.cases_total,
        "repeat": bool(_repeat(settings)),
        "workload": clean_line(str(workload.get("name") or ""), 100) if isinstance(workload, dict) else "",
        "gpu": run.plan.gpu if run.plan else "",
        "mode": run.plan.mode if run.plan else "",
        "image": run.image if not embedded else "",
        "payload_sha256": run.payload.sha256 if run.payload else "",
        "device": run.environment.device if run.environment else "",
        "cost_usd": str(run.settled.cost_usd) if run.settled else None,
        "started_at": iso_time(run.created_at),
        "time": paid_time_document(run, run.updated_at),
        "vms": [
            {"name": vm.name, "zone": vm.zone, "machine_type": "embedded" if embedded else vm.machine_type}
            for vm in run.vms
            if vm.instance_id
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
