"""What every page of ours is made of: data, which one template writes as HTML. It alone escapes text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from orchestrator.report.palette import DARK, FIGURE_CSS, LIGHT, variables
from orchestrator.report.svg import Board

CSS = f"""
:root{{color-scheme:light dark;{variables(LIGHT)}}}
@media (prefers-color-scheme:dark){{:root{{{variables(DARK)}}}}}
@media print{{:root{{color-scheme:light;{variables(LIGHT)}}}}}
*{{box-sizing:border-box}}
body{{margin:0 auto;max-width:74rem;padding:1.5rem 1rem 4rem;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}}
h1{{font-size:1.7rem;line-height:1.2;margin:.2rem 0 .4rem}}h2{{font-size:1.25rem;margin:2.4rem 0 .4rem}}
h3{{font-size:1.05rem;margin:1.6rem 0 .3rem}}a{{color:inherit}}
nav ul{{list-style:none;padding:0;margin:1rem 0;display:flex;flex-wrap:wrap;gap:.2rem 1.2rem}}
.setting{{border-left:.25rem solid var(--line);padding:.1rem .9rem;margin:.9rem 0}}.setting h3{{margin:.1rem 0}}
p{{margin:.4rem 0;max-width:52rem}}.lead{{font-size:1.1rem}}.soft,figcaption,small{{color:var(--soft)}}
.warn{{border-left:.25rem solid var(--bad);padding:.3rem .8rem;margin:.6rem 0;background:var(--band)}}
pre{{background:var(--band);padding:.4rem .7rem;margin:.6rem 0;font-size:.85rem}}
details{{margin:1rem 0}}summary{{cursor:pointer;font-weight:600}}
figure{{margin:.6rem 0}}figcaption{{font-size:.9rem;max-width:52rem}}
svg{{display:block;min-width:40rem;max-width:62rem;width:100%;height:auto}}
.wide{{overflow-x:auto;background:linear-gradient(90deg,var(--paper) 2rem,transparent) 0 0/3rem 100% no-repeat local,
linear-gradient(270deg,var(--paper) 2rem,transparent) 100% 0/3rem 100% no-repeat local,
linear-gradient(90deg,var(--cue),transparent) 0 0/.8rem 100% no-repeat scroll,
linear-gradient(270deg,var(--cue),transparent) 100% 0/.8rem 100% no-repeat scroll}}
.wide:focus-visible,summary:focus-visible,a:focus-visible{{outline:2px solid var(--c0);outline-offset:2px}}
table{{border-collapse:collapse;font-size:.87rem;font-variant-numeric:tabular-nums;width:100%}}
th,td{{padding:.28rem .5rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}}
th{{font-weight:600;border-bottom:1.5px solid var(--soft);vertical-align:bottom}}
th:first-child,td:first-child,.left{{text-align:left}}
td.wrap,th.wrap,td.long{{white-space:normal;text-align:left}}td small{{display:block}}
td.long{{overflow-wrap:anywhere}}
th.group{{text-align:center;border-bottom:1px solid var(--line)}}
.differs{{font-weight:700}}.faster{{color:var(--good);font-weight:600}}.slower{{color:var(--bad);font-weight:600}}
{FIGURE_CSS}
@media (max-width:40rem){{table.stack thead{{display:none}}table.stack tr{{display:block;padding:.5rem 0;
border-bottom:1.5px solid var(--soft)}}table.stack td{{display:flex;justify-content:space-between;gap:1rem;
text-align:right;border:0;padding:.1rem 0;white-space:normal}}table.stack td:first-child{{font-weight:600}}
table.stack td:not(:first-child):not(:empty)::before{{content:attr(data-head);color:var(--soft);text-align:left}}}}
@media print{{body{{max-width:none;padding:0;font-size:9.5pt;line-height:1.35}}nav,details{{display:none}}
figure,tr,.setting,pre,.keep{{break-inside:avoid}}h1,h2,h3,p.soft{{break-after:avoid}}h2{{margin:1.1rem 0 .3rem}}
figcaption,.soft{{font-size:8.5pt}}.lead{{font-size:10pt}}
thead{{display:table-header-group}}.wide{{overflow:visible;background:none}}svg{{min-width:0;max-height:165mm}}
table{{font-size:7pt}}th,td{{padding:.08rem .2rem;white-space:normal}}}}
@page{{margin:10mm}}
""".replace("\n", "")


@dataclass(frozen=True, slots=True)
class Word:
    """A cell with a style of its own, and what is said beside it in small print."""

    text: str
    style: str = ""
    more: str = ""


Cell = str | Word


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
    kind: ClassVar[str] = "figure"
    board: Board
    caption: str


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


Part = Text | Code | Figure | Table | Box | Fold


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    parts: Sequence[Part]

    @property
    def begun(self) -> Sequence[Part]:
        """What stays with the heading on paper: the words, and the first thing that is none."""
        first = next((place for place, part in enumerate(self.parts) if not isinstance(part, Text)), len(self.parts))
        return self.parts[: first + 1]

    @property
    def rest(self) -> Sequence[Part]:
        return self.parts[len(self.begun) :]

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-") or "section"


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    heading: str
    head: Sequence[Part]
    sections: Sequence[Section]


def written(page: Page) -> str:
    """The whole file."""
    return template().render(page=page, css=CSS) + "\n"


@cache
def template() -> Template:
    loader = PackageLoader("orchestrator.report", "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("page.html.j2")


def drawn(board: Board | None, caption: str) -> list[Part]:
    """A figure; nothing where there is none."""
    return [] if board is None else [Figure(board, caption)]


def verdict(word: str, doubt: str = "") -> Word:
    """A verdict in its colour, and why it is none."""
    return Word(word, word, doubt)
