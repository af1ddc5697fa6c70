"""A `python3` at the front of PATH that is this interpreter and has nothing installed.

What tests start on a machine of theirs is to find what they put there, and nothing of what is installed beside this
machine's own Python: a package, or a `.pth` file, which every start of Python reads. Nor is it to go by way of a
manager of versions, which takes ten times as long as Python to find it.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

MARK = "TEST_BARE_PYTHON"
"""Set in the environment of the process that made the folder, and of its children: the program's path."""


def program() -> Path:
    """The interpreter with nothing installed; where none could be made, the one below this environment."""
    return Path(os.environ.get(MARK) or getattr(sys, "_base_executable", sys.executable)).resolve()


def install() -> Path | None:
    """Puts it in front, for this process and its children. Returns the folder to remove at the end; None where somebody
    above has done so, or where Python does not find what belongs to it beside its program."""
    library = Path(sysconfig.get_path("stdlib"))
    real = program()
    if MARK in os.environ or not sys.platform.startswith("linux") or not (library / "os.py").is_file():
        return None
    folder = Path(tempfile.mkdtemp(prefix="test-python-"))
    made = folder / "bin" / "python3"
    made.parent.mkdir()
    shutil.copy(real, made)
    beside = folder / sys.platlibdir / library.name
    (beside / "site-packages").mkdir(parents=True)
    for path in library.iterdir():
        if path.name not in ("site-packages", "dist-packages"):
            (beside / path.name).symlink_to(path)
    os.environ[MARK] = str(made)
    os.environ["PATH"] = f"{made.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return folder
