"""Checks branch coverage: nearly all of the core, and most of the other code. Prints what each file lacks."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import coverage

GATES = (
    ("orchestrator/core/*", 98),
    ("orchestrator/*", 92),
    ("startup/agent/*", 88),
)


def files_of(data: coverage.Coverage) -> dict[str, Mapping[str, Any]]:
    """The coverage summary of each file, by its path. Reading all of them takes seconds."""
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "coverage.json"
        data.json_report(outfile=str(made))
        files = json.loads(made.read_text())["files"]
    return {Path(path).as_posix(): file["summary"] for path, file in files.items()}


def per_cent(files: Iterable[Mapping[str, Any]]) -> float:
    """The coverage of lines and branches together, in per cent; 0 where there are none."""
    files = list(files)
    covered = sum(file["covered_lines"] + file["covered_branches"] for file in files)
    return 100 * covered / max(1, sum(file["num_statements"] + file["num_branches"] for file in files))


def main() -> int:
    data = coverage.Coverage()
    data.load()
    files = files_of(data)
    for path, file in sorted(files.items()):
        if file["missing_lines"] or file["missing_branches"]:
            lacks = f"{file['missing_lines']} lines and {file['missing_branches']} branches are not covered"
            print(f"{per_cent([file]):5.1f}%  {path}: {lacks}")
    failed = 0
    for pattern, least in GATES:
        total = per_cent(file for path, file in files.items() if fnmatch(path, pattern))
        print(f"coverage {pattern}: {total:.1f}% (at least {least}%)")
        failed |= total < least
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
