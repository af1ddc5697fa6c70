"""Prints output to a terminal of some width, or to a pipe. Nothing that carries meaning is cut in either."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from orchestrator.core.text import fold_lines

HANG = 8
"""How far a line is indented that goes on."""
ENDLESS = 10_000
"""The width of a pipe, which has no limit."""


def plain() -> bool:
    """Whether the user wants neither colours nor bold nor dim: https://no-color.org, or a terminal that has none."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def screen(file: IO[str] | None = None) -> Console:
    """A console on standard output, or on `file`: the only one that commands print with. A string is never read as
    markup, because parts of most strings come from machines; styles are given beside it, or as `Text`. In a pipe lines
    are as long as they are."""
    system: Any = None if plain() else "auto"
    console = Console(file=file or sys.stdout, highlight=False, color_system=system, markup=False, emoji=False)
    if not console.is_terminal:
        console.width, console.soft_wrap = ENDLESS, True
    return console


def wrap_text(console: Console, text: str) -> str:
    """Text in lines as wide as the terminal is, those indented in which one goes on: nothing that a machine says begins
    a line of the screen."""
    return fold_lines(text, console.width if console.is_terminal else None, HANG)


class Columns(Table):
    """Rows under heads. In a terminal they are aligned, and where it is too narrow the columns named in `droppable` go,
    in that order, before cells are folded; ids and numbers are folded last, so that they can be copied. In a pipe each
    row is a line with tabs between, for cut, awk and grep."""

    def __init__(
        self,
        *heads: str,
        rows: Iterable[Sequence[RenderableType]] = (),
        right: Sequence[str] = (),
        droppable: Sequence[str] = (),
        prose: Sequence[str] = (),
    ) -> None:
        """Adds a column for each head. Columns in `right` are aligned to the right, and only those in `prose` are
        wrapped."""
        super().__init__(box=None, padding=(0, 2, 0, 0), header_style="dim")
        self.droppable = droppable
        for head in heads:
            if head in prose:
                self.add_column(head, overflow="fold")
            else:
                self.add_column(head, justify="right" if head in right else "left", no_wrap=True)
        for row in rows:
            self.add_row(*row)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not options.is_terminal:
            for line in self.lines():
                yield Segment(f"{line}\n")
            return
        dropped = [column for column in self.columns if column.header in self.droppable]
        dropped.sort(key=lambda column: list(self.droppable).index(str(column.header)))
        free = options.update(max_width=ENDLESS)
        everything = list(self.columns)
        while dropped and Measurement.get(console, free, self).maximum > options.max_width:
            gone = dropped.pop(0)
            self.columns = [column for column in self.columns if column is not gone]
        if Measurement.get(console, free, self).maximum > options.max_width:
            prose = [column for column in self.columns if any(" " in _told(cell) for cell in column.cells)]
            _fold(prose)
            if Measurement.get(console, free, self).minimum > options.max_width:
                _fold(self.columns)
        yield from super().__rich_console__(console, options)
        self.columns = everything

    def lines(self) -> list[str]:
        """Heads and rows, with a tab between two cells."""
        cells = [[column.header, *column.cells] for column in self.columns]
        rows = zip(*cells, strict=True)
        return ["\t".join(_told(cell) for cell in row).rstrip("\t") for row in rows]


def _fold(columns: Sequence[Column]) -> None:
    for column in columns:
        column.no_wrap, column.overflow = False, "fold"


def _told(cell: Any) -> str:
    """A cell as text: pictures left out, and no tab or line end within."""
    text = cell.plain if isinstance(cell, Text) else cell if isinstance(cell, str) else ""
    return " ".join(text.split())
