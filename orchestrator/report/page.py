"""What every page of ours is made of: data, which one template writes as HTML. It alone escapes text."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from orchestrator.report.style import CSS, SITE_CSS
from orchestrator.report.svg import Board


@dataclass(frozen=True, slots=True)
class Word:
    """A cell with a style of its own, and what is said beside it in small print."""

    text: str
    style: str = ""
    more: str = ""
    href: str = ""
    """Where it leads: a page or an anchor of this site."""
    key: str = ""
    """What a column that can be sorted takes in the place of the text: a number, or text."""


Cell = str | Word
MOST_PRINTED: Final = 24
"""Rows of a table on paper, where a file has them all: six such tables and their figures are twelve pages."""


@dataclass(frozen=True, slots=True)
class Text:
    kind: ClassVar[str] = "text"
    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    kind: ClassVar[str] = "code"
    text: str


@dataclass(frozen=True, slots=True)
class Figure:
    """`slim` is the same drawn for a narrow screen, and shown there in its place."""

    kind: ClassVar[str] = "figure"
    board: Board
    caption: str
    slim: Board | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Columns in `left` are words, the first always is; those in `wrap` several, and those in `long` may break
    anywhere. `groups` stand above the heads: what they say, and over how many columns. On a narrow screen the rows of a
    `stack` are set one below the other."""

    kind: ClassVar[str] = "table"
    label: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    left: Sequence[int] = ()
    wrap: Sequence[int] = ()
    long: Sequence[int] = ()
    groups: Sequence[tuple[str, int]] = ()
    stack: bool = False
    sortable: bool = False
    """Whether a click on a head puts the rows in order; then no two heads are alike."""
    file: str = ""
    """The file of the report that has the same rows: paper names it in the place of a long table."""

    @property
    def screen_only(self) -> bool:
        return bool(self.file) and is_long(self)

    def style(self, column: int) -> str:
        kinds = (("long", self.long), ("wrap", self.wrap), ("left", self.left))
        return next((name for name, columns in kinds if column in columns), "")

    def told(self, column: int) -> str:
        """The head of a column, with its group's, for a cell that stands alone."""
        before = 0
        for name, span in self.groups:
            if before <= column < before + span and name:
                return f"{name}: {self.heads[column]}"
            before += span
        return self.heads[column]


@dataclass(frozen=True, slots=True)
class Box:
    """What belongs together, under a small heading."""

    kind: ClassVar[str] = "box"
    title: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Fold:
    """What is there on demand; paper has none."""

    kind: ClassVar[str] = "fold"
    title: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Link:
    kind: ClassVar[str] = "link"
    text: str
    href: str
    here: bool = False
    """Whether it leads to the page that it is on."""


@dataclass(frozen=True, slots=True)
class Links:
    kind: ClassVar[str] = "links"
    label: str
    links: Sequence[Link]


@dataclass(frozen=True, slots=True)
class Finder:
    """What narrows the table that follows it: by words, and by what stands in some of its columns. Without a script it
    is not shown, and the table has every row."""

    kind: ClassVar[str] = "finder"
    what: str
    """What the rows are, in the plural: `runs`."""
    choices: Sequence[Choice] = ()
    orders: Sequence[tuple[str, int]] = ()
    """The columns that rows can be sorted by where a narrow screen has no heads: name and place."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the values of a column; `name` is what the address calls it."""

    name: str
    label: str
    column: int
    values: Sequence[str]


def is_long(part: Part) -> bool:
    """Whether it is a table of more rows than are printed where a file has them."""
    return isinstance(part, Table) and len(part.rows) > MOST_PRINTED


Part = Text | Code | Figure | Table | Box | Fold | Link | Links | Finder


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    parts: Sequence[Part]

    @property
    def begun(self) -> Sequence[Part]:
        """The parts that stay with the heading on one page of paper: the words, and the first part that is not text. A
        table with a finder is not kept, as both would be; nor is a long table, which would begin on a new page."""
        first = next((place for place, part in enumerate(self.parts) if not isinstance(part, Text)), len(self.parts))
        apart = first < len(self.parts) and (isinstance(self.parts[first], Finder) or is_long(self.parts[first]))
        return self.parts[:first] if apart else self.parts[: first + 1]

    @property
    def rest(self) -> Sequence[Part]:
        return self.parts[len(self.begun) :]

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-") or "section"


@dataclass(frozen=True, slots=True)
class Page:
    """`nav` leads to the other pages of a site; a page that stands alone has none, and no script either."""

    title: str
    heading: str
    head: Sequence[Part]
    sections: Sequence[Section]
    nav: Sequence[Link] = ()


def written(page: Page) -> str:
    """The whole file."""
    script = site_script() if page.nav else ""
    css = CSS + SITE_CSS if page.nav else CSS
    return template().render(page=page, css=css, script=script, policy=policy(script)) + "\n"


def policy(script: str) -> str:
    """What a browser may do on a page, whatever text found its way into it: nothing is fetched but from where the page
    itself came, and no script runs but ours, which is known by its hash."""
    rules = [
        "default-src 'none'",
        "img-src data:",
        "style-src 'unsafe-inline'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        rules += [f"script-src 'sha256-{digest}'", "connect-src 'self'"]
    return "; ".join(rules)


@cache
def site_script() -> str:
    """The one script of a site: it filters and sorts tables, and reloads what is served while it changes."""
    loader = PackageLoader("orchestrator.report", "templates")
    return loader.get_source(Environment(autoescape=True), "site.js")[0].strip()


@cache
def template() -> Template:
    loader = PackageLoader("orchestrator.report", "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("page.html.j2")


def drawn(board: Board | None, caption: str, slim: Board | None = None) -> list[Part]:
    """A figure; nothing where there is none."""
    return [] if board is None else [Figure(board, caption, slim)]


def verdict(word: str, doubt: str = "") -> Word:
    """A verdict in its colour, and why it is none."""
    return Word(word, word, doubt)
