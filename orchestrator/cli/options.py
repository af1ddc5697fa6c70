"""The options that every command takes, and how a command gets its wiring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Annotated

import typer

from orchestrator.cli.answers import answer, emit_json
from orchestrator.wiring import Wiring, wire

__all__ = ["Json", "Options", "answer", "emit_json", "options"]


@dataclass(frozen=True, slots=True)
class Options:
    """The options before the command's name."""

    project: str = ""
    bucket: str = ""
    wire: Callable[..., Wiring] = wire
    """Makes the world of a command; another than the user's own where commands are played on simulated time."""

    def wiring(self, *, needs_bucket: bool = True) -> Wiring:
        found = self.wire(project=self.project, bucket=self.bucket, needs_bucket=needs_bucket)
        found.fleets = partial(_look_after, found)
        return found


def _look_after(wiring: Wiring, fleet: str) -> None:
    """The code that drives fleets is loaded only when a fleet needs it."""
    import_module("orchestrator.cli.fleet_desk").look_after(wiring, fleet)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]


def options(ctx: typer.Context) -> Options:
    """The options before the command's name, as `cli.app.root` took them."""
    return Options(**(ctx.find_root().obj or {}))
