"""Writes docs/schema/: a JSON Schema of what each command prints, from the shapes that tests hold output against."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.cli.shapes import SHAPES, schema_of

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "schema"


def written() -> dict[str, str]:
    """Name of each file and what it holds."""
    return {f"{name.replace(' ', '-')}.json": json.dumps(schema_of(name), indent=1) + "\n" for name in SHAPES}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in written().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    print(f"{len(written())} schemas in docs/schema")
