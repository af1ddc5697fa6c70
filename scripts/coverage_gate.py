"""Checks coverage: of the lines of all code, agents in processes of their own included. Prints what each file lacks."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import coverage

FOLDERS = ("orchestrator", "spotbench", "startup")
LEAST = 95
"""Per cent of the lines of the three together, without exceptions."""


def files_of(data: coverage.Coverage) -> dict[str, Mapping[str, Any]]:
    """The coverage summary of each file, by its path. Reading all of them takes seconds."""
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "coverage.json"
        data.json_report(outfile=str(made))
        files = json.loads(made.read_text())["files"]
    return {Path(path).as_posix(): file["summary"] for path, file in files.items()}


def per_cent(files: Iterable[Mapping[str, Any]], covered: str, countable: str) -> float:
    """What was covered of what could be, in per cent; 0 where there is nothing."""
    files = list(files)
    return 100 * sum(file[covered] for file in files) / max(1, sum(file[countable] for file in files))


def describe(files: Iterable[Mapping[str, Any]]) -> str:
    files = list(files)
    lines = per_cent(files, "covered_lines", "num_statements")
    return f"{lines:.1f}% of lines, {per_cent(files, 'covered_branches', 'num_branches'):.1f}% of branches"


def main() -> int:
    data = coverage.Coverage()
    data.load()
    files = files_of(data)
    for path, file in sorted(files.items()):
        if file["missing_lines"] or file["missing_branches"]:
            print(f"{path}: {file['missing_lines']} lines and {file['missing_branches']} branches are not covered")
    for folder in FOLDERS:
        print(f"{folder}: {describe(file for path, file in files.items() if path.startswith(f'{folder}/'))}")
    print(f"all: {describe(files.values())} (at least {LEAST}% of lines)")
    return int(per_cent(files.values(), "covered_lines", "num_statements") < LEAST)


if __name__ == "__main__":
    sys.exit(main())
