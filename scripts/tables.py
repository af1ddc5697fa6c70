"""Writes what docs/ lists of the code: the tables between `<!-- begin: NAME -->` and `<!-- end: NAME -->`, and
docs/schema/, a JSON Schema of what each command prints."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable
from pathlib import Path

from orchestrator.cli.app import COMMANDS, commands_by_group
from orchestrator.cli.documents import SHAPES, schema_of
from orchestrator.core.errors import exit_codes
from orchestrator.core.permissions import ACCOUNT, BATCH, BUCKET, BUCKET_LOOKER, LAUNCHER, LOOKER, MACHINE
from tests.unit.test_architecture import MAY_IMPORT, ROOT

DOCS = ROOT / "docs"
NEEDS = {
    "launcher": (*LAUNCHER, *LOOKER),
    "batch": BATCH,
    "bucket": (*BUCKET, *BUCKET_LOOKER),
    "account": ACCOUNT,
    "machine": MACHINE,
}
"""The permissions of each table."""


def table(*rows: Iterable[object], number: bool = False) -> str:
    """A table of Markdown; the first row is its head. With `number` the first column holds numbers."""
    lines = [f"| {' | '.join(map(str, row))} |\n".replace("|  |", "| |") for row in rows]
    columns = len(list(rows[0]))
    return "".join([lines[0], f"|{'--:' if number else '---'}|{'---|' * (columns - 1)}\n", *lines[1:]])


def about_part(part: str) -> str:
    source = ROOT / "orchestrator" / part
    text = (source / "__init__.py" if source.is_dir() else source.with_suffix(".py")).read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]


def floor(part: str) -> int:
    """How many parts stand on each other below this one, at most."""
    return 1 + max(map(floor, MAY_IMPORT[part]), default=-1)


def floors() -> str:
    parts: dict[int, list[str]] = {}
    for part in sorted(MAY_IMPORT):
        parts.setdefault(floor(part), []).append(part)
    return (
        "```\n"
        + "".join(f"{number}  {'   '.join(parts[number])}\n" for number in sorted(parts, reverse=True))
        + "```\n"
    )


def tables() -> dict[str, str]:
    """Each table by its name."""
    imports = [
        (f"`{part}`", about_part(part), ", ".join(sorted(below)) or "nothing") for part, below in MAY_IMPORT.items()
    ]
    commands = [
        (group, f"`bench {name}`", COMMANDS[name]) for group, names in commands_by_group().items() for name in names
    ]
    permissions = {
        name: table(
            ("permission", "to", "used by"), *((f"`{need.permission}`", need.why, f"`{need.code}`") for need in needs)
        )
        for name, needs in NEEDS.items()
    }
    return permissions | {
        "parts": table(("part of `orchestrator/`", "what it is", "may import"), *imports),
        "floors": floors(),
        "commands": table(("", "command", "does"), *commands),
        "exit codes": table(("code", "meaning"), *exit_codes().items(), number=True),
    }


def schemas() -> dict[Path, str]:
    """Each schema by its file. Commands that print the same document refer to the first of them."""
    firsts: dict[int, str] = {}
    texts = {}
    for name, shape in SHAPES.items():
        file, schema = f"{name.replace(' ', '-')}.json", schema_of(name)
        first = firsts.setdefault(id(shape), file)
        if first != file:
            schema = {"$schema": schema["$schema"], "$ref": first, "title": schema["title"]}
        texts[DOCS / "schema" / file] = json.dumps(schema, indent=1) + "\n"
    return texts


def generated() -> dict[Path, str]:
    """What every page with a table, and every schema, should be. Raises KeyError for a table of another name."""
    content = tables()

    def filled(mark: re.Match[str]) -> str:
        return f"{mark[1]}{content[mark[2]]}{mark[3]}"

    pages = {path: path.read_text(encoding="utf-8") for path in DOCS.glob("*.md")}
    marked = re.compile(r"(<!-- begin: ([\w ]+) -->\n).*?(<!-- end: \2 -->)", re.DOTALL)
    return {path: marked.sub(filled, text) for path, text in pages.items() if marked.search(text)} | schemas()


def differing() -> list[Path]:
    """The files that are not what the code says, and schemas of commands that are no more."""
    wanted = generated()
    old = set((DOCS / "schema").glob("*.json")) - set(wanted)
    return sorted(old) + [
        path for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


if __name__ == "__main__":
    for path in differing():
        path.write_text(generated()[path], encoding="utf-8") if path in generated() else path.unlink()
        print(f"wrote {path.relative_to(ROOT)}")
