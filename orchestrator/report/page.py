"""The parts that every page is made of, as data. One template writes them as HTML; only the template escapes text."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from orchestrator.report.style import DARK, FIGURE_CSS, LIGHT, css_variables
from orchestrator.report.svg import Board


@dataclass(frozen=True, slots=True)
class Word:
    """A cell with a style of its own, and a text in small print beside it."""

    text: str
    style: str = ""
    more: str = ""
    href: str = ""
    """The target of its link: a page or an anchor of this site."""
    key: str = ""
    """What the column is sorted by instead of the text: a number, or text."""


Cell = str | Word
MOST_PRINTED: Final = 24
"""The most rows of a printed table if a file has them all. Six such tables and their figures fill twelve pages."""


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
    """A figure. `slim` is the same figure for narrow screens, where it is shown instead."""

    kind: ClassVar[str] = "figure"
    board: Board
    caption: str
    slim: Board | None = None


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table. Columns in `left` hold words, as the first column always does. Columns in `wrap` hold several words, and
    those in `long` may break anywhere. `groups` are headings above the heads, each with its number of columns. On a
    narrow screen the cells of a row of a `stack` are placed one below the other, without those of `minor` columns."""

    kind: ClassVar[str] = "table"
    label: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    left: Sequence[int] = ()
    wrap: Sequence[int] = ()
    long: Sequence[int] = ()
    groups: Sequence[tuple[str, int]] = ()
    minor: Sequence[int] = ()
    stack: bool = False
    sortable: bool = False
    """Whether a click on a head sorts the rows; then no two heads may be the same."""
    file: str = ""
    """The file of the report that has the same rows. A printed page names it instead of a long table."""

    @property
    def screen_only(self) -> bool:
        return bool(self.file) and is_long(self)

    def style(self, column: int) -> str:
        kinds = (("long", self.long), ("wrap", self.wrap), ("left", self.left))
        name = next((name for name, columns in kinds if column in columns), "")
        return f"{name} minor".strip() if column in self.minor else name

    def told(self, column: int) -> str:
        """The head of a column together with that of its group, as a label for a single cell."""
        before = 0
        for name, span in self.groups:
            if before <= column < before + span and name:
                return f"{name}: {self.heads[column]}"
            before += span
        return self.heads[column]


@dataclass(frozen=True, slots=True)
class Box:
    """Parts that belong together, under a small heading."""

    kind: ClassVar[str] = "box"
    title: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Fold:
    """Parts that a reader can unfold; they are not printed."""

    kind: ClassVar[str] = "fold"
    title: str
    parts: Sequence[Part]


@dataclass(frozen=True, slots=True)
class Link:
    kind: ClassVar[str] = "link"
    text: str
    href: str
    here: bool = False
    """Whether it links to the page that it is on."""


@dataclass(frozen=True, slots=True)
class Links:
    kind: ClassVar[str] = "links"
    label: str
    links: Sequence[Link]


@dataclass(frozen=True, slots=True)
class Finder:
    """Filters for the table that follows it: by words, and by the values of some columns. Without a script the filters
    are not shown, and the table has every row."""

    kind: ClassVar[str] = "finder"
    what: str
    """What the rows are, in the plural, for example `runs`."""
    choices: Sequence[PageChoice] = ()
    orders: Sequence[tuple[str, int]] = ()
    """The columns (name and index) by which rows can be sorted on a narrow screen, which shows no heads."""


@dataclass(frozen=True, slots=True)
class PageChoice:
    """A choice among the values of a column; `name` is its name in the page's address."""

    name: str
    label: str
    column: int
    values: Sequence[str]


def is_long(part: Part) -> bool:
    """Whether the part is a table that is too long to be printed and whose rows are in a file."""
    return isinstance(part, PageTable) and len(part.rows) > MOST_PRINTED


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The verdict on one kernel: its name, a badge in the style of the verdict, and the numbers in words."""

    kind: ClassVar[str] = "verdict"
    name: str
    badge: str
    style: str
    words: str


Part = Text | Code | Figure | PageTable | Box | Fold | Link | Links | Finder | Verdicts


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    parts: Sequence[Part]

    @property
    def begun(self) -> Sequence[Part]:
        """The parts that are kept on one printed page with the heading: the text, and the first part that is no text. A
        table with a finder is not kept there, nor is a long table, which would have to begin on a new page."""
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
    """A page. `nav` links to the other pages of a site; a page that stands alone has no such links and no script."""

    title: str
    heading: str
    head: Sequence[Part]
    sections: Sequence[Section]
    nav: Sequence[Link] = ()


def write_page(page: Page) -> str:
    """The page as an HTML file."""
    script = site_script() if page.nav else ""
    css, policy = style_sheet(site=bool(page.nav)), content_policy(script)
    return templates().get_template("page.html.j2").render(page=page, css=css, script=script, policy=policy) + "\n"


def content_policy(script: str) -> str:
    """The content security policy of a page. Whatever text a page contains, a browser fetches nothing but from the
    origin of the page, and runs no script but ours, which it knows by its hash."""
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
    """The only script of a site. It filters and sorts tables, and reloads a page that changes while it is served."""
    return templates().get_template("site.js").render()


@cache
def style_sheet(*, site: bool) -> str:
    """The style of a page that stands alone, or of a page of a site, on one line."""
    colours = {"light": css_variables(LIGHT), "dark": css_variables(DARK), "figures": FIGURE_CSS}
    return templates().get_template("page.css.j2").render(colours, site=site).replace("\n", "")


@cache
def templates() -> Environment:
    return Environment(
        loader=PackageLoader("orchestrator.report", "templates"), autoescape=True, undefined=StrictUndefined
    )


def figure_parts(board: Board | None, caption: str, slim: Board | None = None) -> list[Part]:
    """A figure with its caption; an empty list where there is none."""
    return [] if board is None else [Figure(board, caption, slim)]
