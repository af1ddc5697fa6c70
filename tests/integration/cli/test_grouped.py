"""Options that travel together are declared once, and look on the command line as if each command declared them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from orchestrator.cli.options import group_options


@dataclass(frozen=True, slots=True)
class Ship:
    name: Annotated[str, typer.Argument()]
    masts: Annotated[int, typer.Option("--masts", help="How many.")] = 3
    ports: Annotated[list[str] | None, typer.Option("--port", help="Where to.")] = None


@group_options
def sail(ctx: typer.Context, ship: Ship, *, fast: Annotated[bool, typer.Option("--fast")] = False) -> None:
    typer.echo(f"{ctx.info_name} {ship} {fast}")


app = typer.Typer(add_completion=False, rich_markup_mode=None)
app.command("sail")(sail)


def test_a_command_is_called_with_what_was_given_and_the_defaults_of_the_rest() -> None:
    given = CliRunner().invoke(app, ["Ada", "--port", "Turku", "--fast"])
    assert given.stdout == f"sail {Ship('Ada', 3, ['Turku'])} True\n"


def test_help_lists_the_options_where_the_group_stands() -> None:
    text = CliRunner().invoke(app, ["--help"]).stdout
    places = [text.index(word) for word in ("name <str>", "--masts", "--port", "--fast")]
    assert places == sorted(places)
    assert "How many.  [default: 3]" in text


def test_what_a_group_demands_is_demanded() -> None:
    assert CliRunner().invoke(app, []).exit_code == 2
