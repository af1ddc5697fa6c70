"""A `python3` at the front of PATH that is this interpreter and has nothing installed.

What tests start on a machine of theirs is to find what they put there, and nothing of what is installed beside this
machine's own Python, `.pth` files included. Nor is it to go by way of a manager of versions, which takes ten times
as long.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

MARK = "TEST_BARE_PYTHON"
"""Set in the environment of the process that made the folder, and of its children: the program's path."""


def program() -> Path:
    """The interpreter with nothing installed; where none could be made, the one below this environment."""
    return Path(os.environ.get(MARK) or getattr(sys, "_base_executable", sys.executable)).resolve()


def install(folder: Path) -> None:
    """Puts it in front, for this process and its children, unless somebody above has done so; it lies in `folder`."""
    library = Path(sysconfig.get_path("stdlib"))
    if MARK in os.environ or not sys.platform.startswith("linux") or not (library / "os.py").is_file():
        return
    made, beside = folder / "bin" / "python3", folder / sys.platlibdir / library.name
    for parent in (made.parent, beside / "site-packages"):
        parent.mkdir(parents=True)
    shutil.copy(program(), made)
    for path in library.iterdir():
        if path.name not in ("site-packages", "dist-packages"):
            (beside / path.name).symlink_to(path)
    if config := os.environ.get("COVERAGE_PROCESS_CONFIG"):
        measure_coverage(beside / "site-packages", config)
    os.environ.update({MARK: str(made), "PATH": f"{made.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"})


def measure_coverage(packages: Path, config: str) -> None:
    """Has each start measured as this process is, whatever its environment: a machine's agent is given little of it."""
    import coverage

    (packages / "coverage").symlink_to(Path(coverage.__file__).parent)
    start = f"os.environ.setdefault('COVERAGE_PROCESS_CONFIG', {config!r}); coverage.process_startup()"
    (packages / "coverage.pth").write_text(f"import coverage, os; {start}\n")
