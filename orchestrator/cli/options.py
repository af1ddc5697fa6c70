"""What every command takes, and how each finds the world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from orchestrator.wiring import Wiring


@dataclass(frozen=True, slots=True)
class Options:
    """The options before the command's name."""

    project: str = ""
    bucket: str = ""

    def wiring(self) -> Wiring:
        from orchestrator.wiring import wire

        return wire(project=self.project, bucket=self.bucket)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]


def options(ctx: typer.Context) -> Options:
    found = ctx.find_root().obj
    return found if isinstance(found, Options) else Options()


def emit_json(document: Any) -> None:
    """One JSON document on standard output, and nothing else there."""
    import json

    typer.echo(json.dumps(document, indent=2, default=str))
