"""A run's results on disk, read whatever state they are in."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.core.errors import LocalError, NotFound
from orchestrator.core.text import DOCUMENT_BYTES, clean_line, parse_document

LONGEST = 1 << 20
"""Characters of one line; a longer one comes in parts, of which none is a row."""
WHOLE = ("measurements.csv", "measurements.csv.gz")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """What `bench fetch` left in a folder, or anybody else. Documents that are missing or broken are empty."""

    path: Path
    csvs: tuple[Path, ...]
    environment: dict[str, Any]
    build: dict[str, Any]
    manifest: dict[str, Any]
    notes: tuple[str, ...]
    """What could not be read."""
    spec: dict[str, Any] = field(default_factory=dict)
    """What was asked for."""
    clocks: tuple[Path, ...] = ()
    """What CUPTI said."""


def open_folder(path: Path) -> RunFolder:
    """The folder, or a CSV alone. Raises `NotFound` where there are no measurements at all."""
    if path.is_file():
        return RunFolder(path.parent, (path,), {}, {}, {}, ())
    measurements_file = next((one for name in WHOLE if (one := path / name).is_file()), None)
    cases = tuple(sorted((path / "cases").glob("*.csv"))) if (path / "cases").is_dir() else ()
    csvs = (measurements_file,) if measurements_file is not None else cases
    if not csvs:
        raise NotFound(f"{path} has no measurements.csv", hint="`bench fetch RUN` makes such a folder")
    documents = [_document(path / f"{name}.json") for name in ("environment", "build", "manifest", "spec")]
    notes = tuple(note for _, note in documents if note)
    environment, build, manifest, spec = (document for document, _ in documents)
    clocks = tuple(one for one in (path / "cupti.csv",) if one.is_file())
    return RunFolder(path, csvs, environment, build, manifest, notes, spec, clocks)


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a CSV, packed or not, one at a time. Raises `LocalError`; what is no UTF-8 comes as a mark in
    its place."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(
            path, "rt", encoding="utf-8", errors="replace", newline=""
        ) as file:
            while line := file.readline(LONGEST):
                yield line if line.isascii() and line[:-1].isprintable() else _harmless(line)
    except EOFError:
        # Cut off in the middle: a line that is no row makes the reader say where.
        yield "the packed file was cut off here\n"
    except (OSError, zlib.error) as exc:
        raise LocalError(f"cannot read {path}: {getattr(exc, 'strerror', None) or exc}") from exc


def _harmless(line: str) -> str:
    """A line of a CSV in which nothing steers a terminal; its end stays as it is."""
    body = line.rstrip("\r\n")
    return clean_line(body.replace("\0", ""), len(body) * 10 + 1) + line[len(body) :]


def _document(path: Path) -> tuple[dict[str, Any], str]:
    try:
        with path.open("rb") as file:
            return parse_document(file.read(DOCUMENT_BYTES + 1)), ""
    except FileNotFoundError:
        return {}, ""
    except (OSError, ValueError) as exc:
        return {}, f"{path.name} cannot be read ({exc})."
