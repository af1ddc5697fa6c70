"""`settings.yaml` in BENCH_HOME: read as plain text values, and changed key by key, so that comments stay."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from orchestrator.adapters.files import write_atomically
from orchestrator.core import text as handwritten
from orchestrator.core import yamltext
from orchestrator.core.errors import ConfigError


def read(path: Path) -> Mapping[str, str]:
    """Every key and its value as text. Raises `ConfigError` for what is no mapping."""
    try:
        with path.open("rb") as file:
            document = yamltext.read(handwritten.text(file))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as exc:
        raise ConfigError(f"cannot read {path}: {handwritten.why(exc)}", hint="correct it, or move it away") from exc
    for line, key, what in document.problems:
        raise ConfigError(f"{path}:{line}: {key + ': ' if key else ''}{what}", hint="correct it, or move it away")
    found = document.data or {}
    if not isinstance(found, dict):
        raise ConfigError(f"{path} has no keys", hint="correct it, or move it away")
    return {str(key): "" if value is None else str(value) for key, value in found.items()}


def change(path: Path, values: Mapping[str, str]) -> None:
    """Sets these keys; the other lines stay as they are. Nobody else can read the file then: an API key or the secret
    address of a webhook may stand in it. Raises `LocalError`."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for key, value in values.items():
        line = f"{key}: {json.dumps(value)}"
        place = next((i for i, text in enumerate(lines) if re.match(rf"{re.escape(key)}\s*:", text)), None)
        if place is None:
            lines.append(line)
        else:
            lines[place] = line
    write_atomically(path, ("\n".join(lines) + "\n").encode(), durable=True, private=True)
