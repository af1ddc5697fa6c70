"""A fleet's results on this machine: every child as a run's folder, all rows in one file, one report of all GPUs."""

from __future__ import annotations

import csv
import io
import json
import json as jsons
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text as RichText

from orchestrator.analysis.axes import Along, Measured, axis_views
from orchestrator.analysis.devices import Column, side_by_side
from orchestrator.api.finding import LOCAL
from orchestrator.api.results import read_report
from orchestrator.cli.fleet.context import Desk, find_fleet
from orchestrator.cli.options import FleetName, Json, options
from orchestrator.cli.screen import Columns, screen
from orchestrator.cli.terminal import documents, emit_json
from orchestrator.core.errors import NotFound
from orchestrator.core.fleet.state import MEASURED, FleetState
from orchestrator.core.fleet.sweep import GPU, WORKLOAD, Child, Sweep, SweepCell, text_of
from orchestrator.core.naming import run_of
from orchestrator.core.results import plain_cell
from orchestrator.core.run.fold import replay
from orchestrator.core.text import clean_line, count
from orchestrator.report import axes, devices
from orchestrator.report.page import Page, Section, Text, write_page
from orchestrator.runs.fleet.results import TEXTS, Fetching
from orchestrator.wiring import answered_in_sql, download_object, fetch_run, sql_ready, write_atomically

READERS = 8
CHILDREN = (
    "child", "run_id", "gpu", "configuration", "pass", "state", "device", "machine", "usd", "seconds", "reason",
)  # fmt: skip
"""The columns of children.csv."""


@dataclass(frozen=True, slots=True)
class FetchedFleet:
    fleet: str
    folder: Path
    children: int
    rows: int
    downloaded: int
    already_there: int
    left_out: Mapping[str, str]
    tables: tuple[Path, ...]
    """Files of all rows; each has columns of its own."""

    def document(self) -> documents.FleetFetched:
        return documents.FleetFetched.of(self, schema=1, folder=str(self.folder))


def fetch_fleet(desk: Desk, into: Path, runs: Sequence[Child] | None = ()) -> FetchedFleet:
    """All rows of a fleet in `into/<fleet>/measurements.csv.gz`, and `children.csv`; of `runs` (None: of every measured
    child) its run's folder below `runs/`. What is here and right is not fetched again. Raises `LocalError`."""
    folder, bucket, fleet = into / desk.record.fleet, desk.wiring.bucket, desk.record.fleet
    state = desk.store.state(desk.children)
    measured_children = [child for child in state.children if state.line(child).state in MEASURED]
    table = Fetching(bucket, fleet, folder, partial(download_object, bucket)).fetched(measured_children)
    measured = {child.index for child in measured_children}
    wanted = measured_children if runs is None else [child for child in runs if child.index in measured]

    def one(child: Child) -> Any:
        run = replay(desk.wiring.log(child.run_id(fleet)).read())
        return fetch_run(bucket, run, folder / "runs") if run is not None else None

    with ThreadPoolExecutor(READERS) as pool:
        fetched = [answer for answer in pool.map(one, wanted) if answer]
    write_atomically(folder / "children.csv", _children_csv(desk, state).encode())
    return FetchedFleet(
        fleet=fleet,
        folder=folder,
        children=len(measured_children),
        rows=table.rows,
        downloaded=sum(table.files.values()) + sum(answer.downloaded for answer in fetched),
        already_there=sum(not now for now in table.files.values()) + sum(answer.already_there for answer in fetched),
        left_out={**table.left_out, **{name: why for answer in fetched for name, why in answer.left_out.items()}},
        tables=tuple(table.files),
    )


def _children_csv(desk: Desk, state: FleetState) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CHILDREN)
    for child in state.children:
        line = state.line(child)
        writer.writerow(
            [
                child.index, child.run_id(desk.record.fleet), child.cell.gpu,
                plain_cell(child.cell.title), child.repeat, line.state, plain_cell(line.device),
                plain_cell(line.machine), line.usd,
                line.seconds, plain_cell(line.reason),
            ]
        )  # fmt: skip
    return text.getvalue()


def report_fleet(desk: Desk, into: Path) -> tuple[tuple[Path, ...], dict[str, Any]]:
    """One report of all GPUs for each configuration; what it needs is fetched first. Files, and the same as data.
    Raises `NotFound`."""
    state = desk.store.state(desk.children)
    asked: dict[str, dict[str, list[Child]]] = {}
    for child in state.children:
        if state.line(child).state in MEASURED:
            asked.setdefault(f"{child.cell.question}/{child.chunk}", {}).setdefault(child.cell.gpu, []).append(child)
    if not asked:
        raise NotFound(
            (f"fleet {desk.record.fleet} has measured nothing yet"), hint="`bench fleet status` shows its progress"
        )
    folder = fetch_fleet(desk, into, [children[0] for by_gpu in asked.values() for children in by_gpu.values()]).folder
    lines = [f"# {desk.record.fleet}", ""]
    sections: list[Section] = []
    data: list[dict[str, Any]] = []
    measured: list[Measured] = []
    for by_gpu in asked.values():
        title = next(iter(by_gpu.values()))[0].cell.title
        columns = [_column(desk, state, folder, gpu, children) for gpu, children in by_gpu.items()]
        measured += [
            Measured(gpu, _at(children[0].cell), column.times)
            for (gpu, children), column in zip(by_gpu.items(), columns, strict=True)
        ]
        comparison = side_by_side(columns)
        lines += [f"## {title}", "", devices.devices_markdown(comparison), ""]
        sections += [
            replace(section, title=f"{title}: {section.title}") for section in devices.device_sections(comparison)
        ]
        data.append({"configuration": title, **devices.devices_document(comparison)})
    views = _along(desk.sweep, measured)
    sections = [*axes.axis_sections(views), *sections]
    document = {"schema": 1, "fleet": desk.record.fleet, "configurations": data, "axes": axes.axes_document(views)}
    lost = [child for child in state.children if state.line(child).state == "given_up"]
    if lost:
        lines += ["## Not measured", "", *(f"- {c.cell.gpu}, {c.cell.title}: {state.line(c).reason}" for c in lost), ""]
    kinds = count(len(desk.record.usd_per_hour), "kind")
    head = [Text(f"{count(len(asked), 'configuration')} on {kinds} of machine, engine "
                 f"{desk.record.engine}; the times are those of each configuration's first pass.")]  # fmt: skip
    texts = {
        "report.md": "\n".join(lines),
        "report.html": write_page(Page(desk.record.fleet, desk.record.fleet, head, tuple(sections))),
        "report.json": json.dumps(document, indent=1) + "\n",
    }
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return tuple(folder / name for name in texts), document


def _at(cell: SweepCell) -> dict[str, str]:
    """Where a cell is on the axes of its sweep, but for its GPU."""
    return {**({WORKLOAD: cell.workload} if cell.workload else {}), **dict(cell.settings)}


def _along(sweep: Sweep, measured: Sequence[Measured]) -> tuple[Along, ...]:
    """The views along each axis. Chunks of one configuration are one point."""
    measured_by_key: dict[tuple[str, tuple[tuple[str, str], ...]], Measured] = {}
    for one in measured:
        key = (one.device, tuple(sorted(one.at.items())))
        known_text = measured_by_key.get(key)
        measured_by_key[key] = one if known_text is None else replace(known_text, times=(*known_text.times, *one.times))
    names = {
        name: [str(value) if name == WORKLOAD else text_of(value) for value in values]
        for name, values in sweep.axes.items()
        if name != GPU
    }
    return axis_views(names, list(measured_by_key.values()))


def _column(desk: Desk, state: FleetState, folder: Path, gpu: str, children: Sequence[Child]) -> Column:
    """A GPU's column: the times of its first repeat, and what all its repeats cost."""
    first = children[0]
    run_id = first.run_id(desk.record.fleet)
    price = desk.record.usd_per_hour.get(gpu)
    child_report = read_report(folder / "runs" / run_id)
    # The embedded cloud's machines are this one, whatever was asked for.
    name = f"{gpu}: {child_report.study.device}" if desk.record.mode == "embedded" else gpu
    column = devices.column_of(child_report, name=name, usd_per_hour=float(price) if price else None)
    spent = sum((state.line(child).usd for child in children), Decimal(0))
    return replace(column, cost_usd=float(spent))


def costs_document(desk: Desk) -> documents.FleetCosts:
    """What children have cost by GPU, and what the ledger holds for the fleet and its runs."""
    state = desk.store.state(desk.children)
    usd: dict[str, Decimal] = {}
    seconds: Counter[str] = Counter()
    children: Counter[str] = Counter()
    for child in state.children:
        line = state.line(child)
        children[child.cell.gpu] += 1
        seconds[child.cell.gpu] += line.seconds
        usd[child.cell.gpu] = usd.get(child.cell.gpu, Decimal(0)) + line.usd
    ours = {child.run_id(desk.record.fleet) for child in state.children}
    ledger = desk.wiring.ledger.read()
    held = sum(
        (entry.held for key, entry in ledger.runs.items() if run_of(key) == desk.record.fleet or run_of(key) in ours),
        Decimal(0),
    )
    return documents.FleetCosts(
        schema=1,
        fleet=desk.record.fleet,
        gpus=[
            documents.GpuCost(gpu=gpu, children=count, hours=round(seconds[gpu] / 3600, 3), usd=str(usd[gpu]))
            for gpu, count in children.items()
        ],
        cost_usd=str(state.usd),
        held_usd=str(held),
        prices_simulated=desk.record.mode == "embedded",
    )


# `bench fleet sql`: queries the raw rows of a fleet in SQL.


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
    fetched = fetch_fleet(desk, into)
    for name, why in fetched.left_out.items():
        wiring.say(f"{clean_line(name)}: {clean_line(why)}")
    if not fetched.tables:
        raise NotFound(
            f"fleet {fetched.fleet} has measured nothing yet", hint="`bench fleet status` shows its progress"
        )
    tables = {"rows": fetched.tables, "children": (fetched.folder / "children.csv",)}
    with answered_in_sql(tables, TEXTS, query) as answer:
        if json:
            heads = [{"name": clean_line(name), "type": clean_line(kind)} for name, kind in answer.columns]
            rows = [[value_of(cell) for cell in row] for row in answer.rows]
            emit_json(
                documents.FleetAsked.of(fetched, schema=1, folder=str(fetched.folder), columns=heads, answer=rows)
            )
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
        made.add_column(RichText(clean_line(name)), justify="right" if number else "left", no_wrap=True)
    for row in rows:
        made.add_row(*(RichText(cell_text(cell)) for cell in row))
    return made


def lines(columns: Iterable[tuple[str, str]], rows: Iterable[tuple[Any, ...]]) -> Iterator[str]:
    """An answer as lines with a tab between two cells, heads first; an empty cell is NULL or empty text."""
    yield "\t".join(clean_line(name) for name, _ in columns)
    for row in rows:
        yield "\t".join(cell_text(cell) for cell in row)


def cell_text(cell: Any) -> str:
    """A cell on one line, without control characters."""
    plain = value_of(cell, numbers=False)
    if plain is None:
        return ""
    return clean_line(plain if isinstance(plain, str) else jsons.dumps(plain, ensure_ascii=False))


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
