"""`bench fleet sql`: queries the raw rows of a fleet in SQL."""

from __future__ import annotations

import json as jsons
import math
from collections.abc import Iterable, Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from orchestrator.cli.completing import LOCAL
from orchestrator.cli.fleet_desk import Desk, FleetName, find_fleet
from orchestrator.cli.fleet_results import fetch_fleet
from orchestrator.cli.options import Json, emit_json, options
from orchestrator.cli.screen import Columns, screen
from orchestrator.core.errors import NotFound
from orchestrator.core.foreign import words
from orchestrator.fleets.rows import TEXTS
from orchestrator.wiring import answered_in_sql, sql_ready

MOST_ROWS: Final = 1000
"How many rows of a table a terminal shows."
NUMBERS: Final = ("INT", "DOUBLE", "FLOAT", "DECIMAL")


def sql(
    ctx: typer.Context,
    fleet: FleetName,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="SQL over the tables rows and children.")],
    into: Annotated[Path, typer.Option("--into", help="Where `fetch` puts fleets.")] = LOCAL,
    json: Json = False,
) -> None:
    """Query a fleet's raw rows in SQL (with DuckDB). Files that are here already are not downloaded again."""
    sql_ready()
    wiring = options(ctx).wiring()
    wiring.say = lambda text: typer.echo(text, err=True)
    desk = Desk.of(wiring, find_fleet(wiring, fleet))
    found = fetch_fleet(desk, into)
    for name, why in found.left_out.items():
        wiring.say(f"{words(name)}: {words(why)}")
    if not found.tables:
        raise NotFound(f"fleet {found.fleet} has measured nothing yet", hint="`bench fleet status` shows its progress")
    tables = {"rows": found.tables, "children": (found.folder / "children.csv",)}
    with answered_in_sql(tables, TEXTS, query) as answer:
        if json:
            heads = [{"name": words(name), "type": words(kind)} for name, kind in answer.columns]
            rows = [[value_of(cell) for cell in row] for row in answer.rows]
            emit_json({"schema": 1, **found.document(), "columns": heads, "answer": rows})
        elif screen().is_terminal:
            _show(answer.columns, answer.rows)
        else:
            for line in lines(answer.columns, answer.rows):
                typer.echo(line)


def _show(columns: Iterable[tuple[str, str]], rows: Iterator[tuple[Any, ...]]) -> None:
    screen().print(table(columns, islice(rows, MOST_ROWS)))
    if next(rows, None) is not None:
        typer.echo(f"only the first {MOST_ROWS} rows are shown; a pipe or --json gets all", err=True)


def table(columns: Iterable[tuple[str, str]], rows: Iterable[tuple[Any, ...]]) -> Columns:
    """The result as a table; numbers are aligned to the right."""
    made = Columns()
    for name, kind in columns:
        number = kind.endswith(NUMBERS) or kind.startswith(NUMBERS)
        made.add_column(Text(words(name)), justify="right" if number else "left", no_wrap=True)
    for row in rows:
        made.add_row(*(Text(text_of(cell)) for cell in row))
    return made


def lines(columns: Iterable[tuple[str, str]], rows: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    """An answer as lines with a tab between two cells, heads first; an empty cell is NULL or empty text."""
    yield "\t".join(words(name) for name, _ in columns)
    for row in rows:
        yield "\t".join(text_of(cell) for cell in row)


def text_of(cell: Any) -> str:
    """A cell on one line, without control characters."""
    plain = value_of(cell, numbers=False)
    if plain is None:
        return ""
    return words(plain if isinstance(plain, str) else jsons.dumps(plain, ensure_ascii=False))


def value_of(cell: Any, *, numbers: bool = True) -> Any:
    """A cell as a JSON value. NaN and infinities become null, or their names if `numbers` is false."""
    match cell:
        case None | bool() | int() | str():
            return cell
        case float():
            return cell if math.isfinite(cell) else None if numbers else str(cell)
        case Decimal():
            return value_of(float(cell), numbers=numbers)
        case bytes():
            return cell.hex()
        case datetime() | date() | time():
            return cell.isoformat()
        case timedelta():
            return cell.total_seconds()
        case dict():
            return {str(key): value_of(one, numbers=numbers) for key, one in cell.items()}
        case list() | tuple():
            return [value_of(one, numbers=numbers) for one in cell]
        case _:
            return str(cell)
