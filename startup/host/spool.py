"""A bucket's objects as files below one folder, until a client takes them home."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

from startup.host.paths import keep_names

SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*(/[A-Za-z0-9][A-Za-z0-9._+-]*)*\Z")


class BadName(ValueError):
    """An object's name that is no path below the spool."""


class Spool:
    """Objects by name. `known` are names that the bucket has already: to the machine they exist, here they do not.
    `fresh` is where an object is written before it has its name: on the same file system, and no other process's."""

    def __init__(self, folder: Path, known: frozenset[str] = frozenset(), fresh: Path | None = None) -> None:
        self.folder = folder
        self.known = known
        self.lock = threading.Lock()
        self.generations: dict[str, int] = {}
        self.fresh = fresh or folder.parent / "unfinished"

    def path(self, name: str) -> Path:
        """Where an object is kept. Raises BadName."""
        if not SAFE.match(name):
            raise BadName(f"{name!r} is not the name of an object")
        return self.folder / name

    def put(self, name: str, body: bytes, over: int | None = None) -> int:
        """Stores an object whole or not at all, and returns its new generation. With `over` it replaces only that
        generation (0: there must be none), and returns 0 when there is another. Raises OSError for a full disk."""
        path = self.path(name)
        with self.lock:
            there = self.generation(name)
            if over not in (None, there):
                return 0
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with self.fresh.open("wb") as file:
                    file.write(body)
                    file.flush()
                    os.fsync(file.fileno())
                if over != 0:
                    self.fresh.replace(path)
                elif not self.give_name(path):
                    return 0
                keep_names(path.parent)
                self.generations[name] = there + 1
                return there + 1
            finally:
                self.fresh.unlink(missing_ok=True)

    def generation(self, name: str) -> int:
        """Counts the times that this process has stored an object; 0 where there is none. What was there before it, or
        is in the bucket only, counts as stored once."""
        there = name in self.known or self.path(name).exists()
        return self.generations.get(name, 1) if there else 0

    def give_name(self, path: Path) -> bool:
        """Gives a new object its name unless another process did: of two that store it, on whichever machines of a
        shared folder, one does. Where a file system has no links, the last moment decides."""
        try:
            os.link(self.fresh, path)
        except FileExistsError:
            return False
        except OSError:
            if path.exists():
                return False
            self.fresh.replace(path)
        return True

    def names(self, prefix: str) -> list[str]:
        here = (path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file())
        return sorted(name for name in {*here, *self.known} if name.startswith(prefix))

    def read(self, name: str) -> tuple[bytes, int] | None:
        """An object and its generation; None when it is not here."""
        try:
            with self.lock:
                return self.path(name).read_bytes(), self.generation(name)
        except (OSError, BadName):
            return None
