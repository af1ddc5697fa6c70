"""Reads and writes small documents: YAML is read, JSON is written. A file is always replaced in one step."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

# The C loader is ten times faster, and a cloud must start quickly. Some builds of PyYAML do not have it.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_yaml(path: Path) -> Any:
    """The document in a YAML (or JSON) file."""
    return yaml.load(path.read_text("utf-8"), Loader=LOADER)


@functools.cache
def load_bundled(path: Path) -> Any:
    """The same of a file that ships with the tool, read once in a process. Nobody changes the document."""
    return load_yaml(path)


def write_json(path: Path, document: Any) -> None:
    """Replaces a file by a JSON document in one step."""
    write_private(path, json.dumps(document, indent=2) + "\n")


def write_private(path: Path, text: str) -> None:
    """Replaces a file in one step by one that only its owner can read, whatever the umask is."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    partial.replace(path)


def private_file(path: Path) -> None:
    """Makes sure that a file exists and that only its owner can read it."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    path.chmod(0o600)


def private_folder(path: Path) -> None:
    """Makes sure that a folder exists and that only its owner can enter it."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o700)


def utc_stamp(moment: datetime) -> str:
    """A time in UTC with microseconds and a Z, as in our documents."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def google_stamp(moment: datetime) -> str:
    """A time in RFC 3339 format with milliseconds and an offset, as Compute Engine writes it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}+00:00"


def parse_stamp(text: str) -> datetime:
    """The time in the text of `stamp` or `google_stamp`."""
    return datetime.fromisoformat(text)


# The URLs and fingerprints of resources, in Compute Engine's form.


API = "https://www.googleapis.com/compute/v1/"


def self_link(*parts: str) -> str:
    """The selfLink of a path. It has Google's own address, because clients expect that."""
    return API + "/".join(parts)


def last_name(url: str) -> str:
    """The name at the end of a full or partial URL."""
    return url.rpartition("/")[2]


def document_fingerprint(document: Any) -> str:
    """Eight bytes of a hash of the document, in base64."""
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).digest()
    return base64.b64encode(digest[:8]).decode()
