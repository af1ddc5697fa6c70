"""Reading and writing small documents: YAML in, JSON out, and never half of one."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

# The C loader is ten times faster, and a cloud must start at once; some builds of PyYAML lack it.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_yaml(path: Path) -> Any:
    """The document in a YAML (or JSON) file."""
    return yaml.load(path.read_text("utf-8"), Loader=LOADER)


def write_json(path: Path, document: Any) -> None:
    """Replace a file by a JSON document in one step."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    partial.replace(path)


def stamp(moment: datetime) -> str:
    """UTC with microseconds and a Z, as in our own documents."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def google_stamp(moment: datetime) -> str:
    """RFC 3339 with milliseconds and an offset, as Compute Engine writes it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}+00:00"


def parse_stamp(text: str) -> datetime:
    """The moment either of the two wrote."""
    return datetime.fromisoformat(text)
