"""`bench schema COMMAND`: the JSON Schema of what a command prints with --json."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.documents import SHAPES, schema_of
from orchestrator.cli.options import Json, completing
from orchestrator.cli.terminal import emit_json, print_answer
from orchestrator.core.errors import ConfigError


def schema(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND]...",
            help="For example: status, or costs add; `error`.",
            autocompletion=completing(lambda: SHAPES),
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Print the JSON Schema of what a command prints with --json.

    Without a command, the names of all. The same files are in docs/schema/.
    """
    name = " ".join(command or ())
    if not name:
        print_answer({"title": "every command", "commands": list(SHAPES)}, *SHAPES, json=json)
        return
    if name not in SHAPES:
        raise ConfigError(f"schema not found: {name!r}", hint="`bench schema` lists them")
    emit_json(schema_of(name))
