"""The laws that the tests state, by name: all of them, or how they changed since a commit.

python scripts/laws.py            the number of laws in each folder
python scripts/laws.py REVISION   the laws that existed at REVISION and are gone now, and the new ones
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_names(path: str, source: str) -> set[tuple[str, str]]:
    """The names of the tests in a file, with the folder that it is in."""
    folder = path.rpartition("/")[0]
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    return {(node.name, folder) for node in functions if node.name.startswith("test_")}


def names_now() -> set[tuple[str, str]]:
    names: set[tuple[str, str]] = set()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        names |= test_names(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    return names


def names_at(revision: str) -> set[tuple[str, str]]:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True).stdout

    listed = git("ls-tree", "-r", "--name-only", revision, "tests").splitlines()
    names: set[tuple[str, str]] = set()
    for path in listed:
        if path.rpartition("/")[2].startswith("test_") and path.endswith(".py"):
            names |= test_names(path, git("show", f"{revision}:{path}"))
    return names


def main(arguments: list[str]) -> int:
    """0; 1 where a law is gone. A law that moved to another file or folder is not gone."""
    if not arguments:
        for folder, number in sorted(Counter(folder for _, folder in names_now()).items()):
            print(f"{number:5}  {folder}")
        return 0
    before, after = {name for name, _ in names_at(arguments[0])}, {name for name, _ in names_now()}
    for sign, names in (("-", before - after), ("+", after - before)):
        for name in sorted(names):
            print(sign, name.removeprefix("test_").replace("_", " "))
    print(f"{len(before)} laws at {arguments[0]}, {len(after)} now")
    return 1 if before - after else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
