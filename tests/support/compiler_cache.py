"""A `g++` at the front of PATH that compiles the CPU kernel once for all machines of a test session.

Each machine asks its compiler as a rented one does, and each has an empty cache of kernels. Only the compiler's work,
some seconds of it, is kept: what the same source, flags and compiler gave is copied, a failure is never kept.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

MARK = "TEST_COMPILER_CACHE"
"""Set in the environment of the process that made the folder, and of its children."""
SCRIPT = """#!/bin/sh
real={real}
kept={folder}/kept
case "$*" in
*-shared*/attention.cpp) ;;
*) exec "$real" "$@" ;;
esac
output= previous= flags=
for argument; do
  case $previous in -o) output=$argument ;; *) flags="$flags ${{argument##*/}}" ;; esac
  previous=$argument source=$argument
done
key=$({{ "$real" --version; echo "$flags"; cat "${{source%/*}}"/*.cpp "${{source%/*}}"/*.h; }} | sha256sum | cut -c1-40)
exec 9>"$kept/$key.lock"
flock 9
if [ ! -e "$kept/$key" ]; then
  "$real" "$@" 9>&- || exit
  cp "$output" "$kept/$key.part" && mv "$kept/$key.part" "$kept/$key"
  exit
fi
cp "$kept/$key" "$output"
"""


def install() -> Path | None:
    """Puts the compiler in front, for this process and its children. Returns the folder to remove at the end; None
    where somebody above has done so, or where there is no `g++` or no `flock`."""
    real = shutil.which("g++")
    if MARK in os.environ or real is None or shutil.which("flock") is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="test-compiler-"))
    (folder / "kept").mkdir()
    program = folder / "bin" / "g++"
    program.parent.mkdir()
    program.write_text(SCRIPT.format(real=real, folder=folder))
    program.chmod(0o755)
    os.environ[MARK] = str(folder)
    os.environ["PATH"] = f"{program.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return folder


def hasty(folder: Path) -> Path:
    """A `g++` in `folder` that optimizes nothing, whatever it is told, for what runs for less time than it compiles; it
    collects no garbage below 2 GB either."""
    made = folder / "g++"
    made.write_text('#!/bin/sh\nexec g++ "$@" -O0 --param ggc-min-expand=1000 --param ggc-min-heapsize=2000000\n')
    made.chmod(0o755)
    return made
