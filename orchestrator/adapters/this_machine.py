"""What this machine has: interpreter, libraries, folders, compiler, and the embedded cloud's traces on disk."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

DISTRIBUTION: Final = "spotbench"
COMPILERS: Final = ("g++", "c++", "clang++")


def requirements() -> Sequence[str]:
    """What this distribution needs, as it was installed; nothing where it runs from a bare checkout."""
    try:
        return tuple(importlib.metadata.requires(DISTRIBUTION) or ())
    except importlib.metadata.PackageNotFoundError:
        return ()


def installed(needed: Sequence[str]) -> Mapping[str, str]:
    """The version of each of the distributions that `needed` names and that is there."""
    found: dict[str, str] = {}
    for text in needed:
        name = re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0]
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def torch_version() -> str:
    """PyTorch's version without importing it, which takes seconds; empty where there is none."""
    if importlib.util.find_spec("torch") is None:
        return ""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def compiler() -> str:
    """The path of a C++ compiler, or nothing."""
    wished = os.environ.get("CXX", "")
    return next((path for name in (wished, *COMPILERS) if name and (path := shutil.which(name))), "")


def writable(folder: Path) -> tuple[str, int]:
    """Why nothing can be written to a folder (or its nearest parent, where it is not made yet), and the bytes free.
    The first is empty where all is well."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        if not there.is_dir():
            return "a file is in the way", 0
        with tempfile.TemporaryFile(dir=there):
            pass
        return "", shutil.disk_usage(there).free
    except OSError as exc:
        return exc.strerror or type(exc).__name__, 0


def newest_source(folder: Path) -> float:
    """When the last of the modules in a folder was written, in seconds since the epoch."""
    return max((path.stat().st_mtime for path in folder.glob("*.py")), default=0.0)
