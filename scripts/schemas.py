"""Writes docs/schema/: a JSON Schema of what each command prints, from the shapes that tests hold output against."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.cli.documents import SHAPES, schema_of

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "schema"


def write_schemas() -> dict[str, str]:
    """The content of each file by its name. Commands that print the same document refer to the first of them."""
    firsts: dict[int, str] = {}
    texts = {}
    for name, shape in SHAPES.items():
        file, schema = f"{name.replace(' ', '-')}.json", schema_of(name)
        first = firsts.setdefault(id(shape), file)
        if first != file:
            schema = {"$schema": schema["$schema"], "$ref": first, "title": schema["title"]}
        texts[file] = json.dumps(schema, indent=1) + "\n"
    return texts


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in write_schemas().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    print(f"{len(write_schemas())} schemas in docs/schema")
