"""A group of commands whose modules are loaded when they are called, not when their names are listed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


class LazyGroup(TyperGroup):
    """Lists `table` (command -> one line of help) and finds the command `name` in the module `orchestrator.cli.name`:
    its function `name`, or, for a command with commands of its own, its `app`."""

    table: Mapping[str, str] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name, help=text) for name, text in self.table.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, found, rest = super().resolve_command(ctx, args)
        return name, load(name) if name else found, rest


def load(name: str) -> Any:
    """The command `name`, its module imported."""
    module = import_module(f"orchestrator.cli.{name}")
    around = typer.Typer(add_completion=False, rich_markup_mode=None)
    if hasattr(module, "app"):
        around.add_typer(module.app, name=name)
    else:
        around.command(name)(getattr(module, name))
    return typer.main.get_group(around).commands[name]
