"""A group of commands whose modules are loaded when they are called, and help in plain words with an example."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from orchestrator.cli.examples import example_lines
from orchestrator.core.errors import ConfigError

PLAIN = {
    "str": "TEXT",
    "list[str]": "TEXT",
    "int": "N",
    "int range": "N",
    "float": "NUMBER",
    "float range": "NUMBER",
    "path": "PATH",
}
"""What the help calls a value of each Python type."""


def describe_parameter(record: tuple[str, str], *, argument: bool) -> tuple[str, str]:
    """A line of help without Python's words: `--limit N`, not `--limit <int range>`."""
    name = re.sub(r" <[^>]*>$", "", record[0]) if argument else record[0]
    name = re.sub(r"<([^>]*)>", lambda found: PLAIN.get(found[1], found[1]), name)
    about = re.sub(r"(\S+?)<=x<=([^\s;\]]+)", r"\1 to \2", record[1])
    return name, re.sub(r"x>=([^\s;\]]+)", r"\1 or more", about)


class _PlainHelp:
    """How the options and examples of a command are shown."""

    def format_options(self: Any, ctx: Any, formatter: Any) -> None:
        rows: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                kind = param.param_type_name
                rows[kind].append(describe_parameter(record, argument=kind == "argument"))
        for kind, title in (("argument", "Arguments"), ("option", "Options")):
            if rows[kind]:
                with formatter.section(title):
                    formatter.write_dl(rows[kind])
        if hasattr(self, "format_commands"):
            self.format_commands(ctx, formatter)

    def format_epilog(self: Any, ctx: Any, formatter: Any) -> None:
        lines = example_lines(ctx.command_path.partition(" ")[2])
        if lines:
            with formatter.section("Examples" if len(lines) > 1 else "Example"):
                for line in lines:
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class PlainCommand(_PlainHelp, TyperCommand):
    """A command whose options that take one value are refused when they are given twice, or are empty."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            try:
                given, _, order = self.make_parser(ctx).parse_args(args=list(args))
            except TyperException as exc:
                exc.ctx = getattr(exc, "ctx", None) or ctx  # type: ignore[attr-defined] # the hint names this command
                raise
            _refuse_repeated(order)
            refuse_empty(given, order)
        return super().parse_args(ctx, args)


def _refuse_repeated(order: list[Any]) -> None:
    """Raises `ConfigError` for an option of one value that was given twice: the last one would silently win."""
    for option, times in Counter(order).items():
        many = any(getattr(option, kind, False) for kind in ("multiple", "is_flag", "count"))
        if option.param_type_name != "option" or many or times < 2:
            continue
        name = max(option.opts, key=len)
        several = "use one command for each, or one sweep over several: `bench fleet --help`"
        hint = several if name == "--gpu" else f"give {name} once"
        raise ConfigError(f"{name} was given {times} times, but takes one value", hint=hint)


UNSET = "a shell variable may be unset; leave the option out, or give it a value"
FREE = ("note",)
"""Options whose text may be empty."""


def refuse_empty(given: Mapping[str, Any], order: list[Any]) -> None:
    """Raises `ConfigError` for an empty value, for example from a shell variable that is not set: it would mean the
    current folder, every name, or nothing. Lists of arguments are checked by their commands."""
    for one in order:
        value = given.get(one.name)
        texts = [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
        if all(text.strip() for text in texts) or one.nargs == -1 or one.name in FREE:
            continue
        name = max(one.opts, key=len) if one.param_type_name == "option" else str(one.metavar or one.name).strip("[]")
        raise ConfigError(f"{name} is empty", hint=UNSET)


class PlainGroup(_PlainHelp, TyperGroup):
    """Commands below a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.parent is not None and not ctx.resilient_parsing:  # the first of all sees to its own
            given, _, order = self.make_parser(ctx).parse_args(args=list(args))
            refuse_empty(given, order)
        return super().parse_args(ctx, args)


class LazyGroup(PlainGroup):
    """Lists `table` (command -> one line of help) and finds the command `name` in the module `orchestrator.cli.name`:
    its function `name`, or, for a command with commands of its own, its `app`."""

    table: Mapping[str, str] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name, help=text) for name, text in self.table.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, arguments = super().resolve_command(ctx, args)
        return name, load(name) if name else command, arguments


PACKAGES = {"fleet": "fleet.commands", "watch": "sessions"}
"""The modules of commands that have other names than their commands."""


@cache
def load(name: str) -> Any:
    """The command `name`, its module imported."""
    module = import_module(f"orchestrator.cli.{PACKAGES.get(name, name)}")
    around = typer.Typer(add_completion=False, rich_markup_mode=None)
    if hasattr(module, "app"):
        for one in module.app.registered_commands:
            one.cls = PlainCommand
        around.add_typer(module.app, name=name, cls=PlainGroup)
    else:
        around.command(name, cls=PlainCommand)(getattr(module, name))
    return typer.main.get_group(around).commands[name]
