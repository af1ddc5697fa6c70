"""Plants defects that would break a promise, one at a time, and runs the tests that must notice: `make mutants`.

Each is a patch of text in `scripts/mutants.yaml`, applied to a copy of the tree. Exits 1 when a defect survives its
tests. Exits 2 when a patch does not apply or its tests cannot be run, so that nothing is known of it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Final, Literal

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDERS: Final = ("orchestrator", "spotbench", "kernels", "startup", "tests", "configs", "scripts", "docs", ".ci")
"""The folders that tests need; results and environments are not copied."""
LIMIT_S: Final = 900
"""The limit for one run of tests, in seconds, so that a defect that makes them hang is noticed too."""
Verdict = Literal["killed", "SURVIVED", "ERROR"]


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    promise: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    searched: bool = False
    """Whether the searcher is asked for it: one of the twenty defects of money and machines."""

    def planted(self, text: str) -> str:
        """The file with the defect in it. Raises `ValueError` where the patch no longer applies."""
        if self.old == self.new or text.count(self.old) != 1:
            raise ValueError(f"{self.file} has {text.count(self.old)} places of which one was meant")
        return text.replace(self.old, self.new)


def list_mutants() -> list[Mutant]:
    listed = yaml.safe_load((ROOT / "scripts" / "mutants.yaml").read_text(encoding="utf-8"))
    return [Mutant(**{**one, "tests": tuple(one["tests"])}) for one in listed]


def copy_of_the_tree(into: Path) -> Path:
    leave_out = shutil.ignore_patterns("__pycache__", "*.pyc", "*_cache")
    for name in FOLDERS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, into / name, ignore=leave_out)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy2(path, into / path.name)
    return into


def run_tests(tree: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Runs tests in a copy of the tree, whose modules come before those that are installed. Returns the
    exit code and the last words; 1 where they never ended."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        ran = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return 1, f"still running after {LIMIT_S} s"
    return ran.returncode, "\n".join((ran.stdout + ran.stderr).splitlines()[-12:])


def search(tree: Path, scenarios: int) -> tuple[int, str]:
    """Plays scenarios of the searcher in a copy of the tree. Returns 1 if one broke a promise, and the last words."""
    command = [sys.executable, "scripts/chaos.py", "--runs", str(scenarios), "--first"]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    found = next((line for line in ran.stdout.splitlines() if line.startswith("BROKEN")), "")
    return ran.returncode, found or "\n".join((ran.stdout + ran.stderr).splitlines()[-12:])


def try_mutant(mutant: Mutant, scenarios: int = 0) -> tuple[Verdict, str]:
    with tempfile.TemporaryDirectory(prefix="bench-mutant-") as folder:
        tree = copy_of_the_tree(Path(folder))
        path = tree / mutant.file
        try:
            path.write_text(mutant.planted(path.read_text(encoding="utf-8")), encoding="utf-8")
        except (ValueError, OSError) as error:
            return "ERROR", str(error)
        code, output = search(tree, scenarios) if scenarios else run_tests(tree, mutant.tests)
    match code:
        case 0:
            return "SURVIVED", f"{scenarios} scenarios" if scenarios else " ".join(mutant.tests)
        case 1:
            return "killed", output if scenarios else ""
        case _:
            return "ERROR", output


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="those whose name contains this")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--scenarios", type=int, default=0, help="let the searcher alone find the twenty, in so many")
    asked = parser.parse_args()
    chosen = [one for one in list_mutants() if asked.only in one.name and (one.searched or not asked.scenarios)]
    counts: dict[str, int] = {"killed": 0, "SURVIVED": 0, "ERROR": 0}
    with ThreadPoolExecutor(max(asked.processes, 1)) as pool:
        for mutant, (verdict, words) in zip(chosen, pool.map(try_mutant, chosen, repeat(asked.scenarios)), strict=True):
            counts[verdict] += 1
            print(f"{verdict:<9} {mutant.name}" + (f"\n          {words}" if words else ""), flush=True)
    print(", ".join(f"{count} {verdict.lower()}" for verdict, count in counts.items()))
    return 2 if counts["ERROR"] or not chosen else 1 if counts["SURVIVED"] else 0


if __name__ == "__main__":
    sys.exit(main())
