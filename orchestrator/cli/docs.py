"""`bench docs`: the pages of the documentation, as they came with this installation."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown

from orchestrator.cli.options import Json, completing
from orchestrator.cli.screen import Columns, screen
from orchestrator.cli.terminal import emit_json, print_answer
from orchestrator.core.errors import NotFound
from orchestrator.wiring import docs_folder


def page_names() -> list[str]:
    """Each page by its path without the suffix: `judge`, `forms/program`."""
    return sorted(path.relative_to(docs_folder()).with_suffix("").as_posix() for path in docs_folder().rglob("*.md"))


def find_page(name: str) -> Path:
    """The file of a page; `docs/judge.md`, `judge` and the last part of a longer name all name one. Raises
    `NotFound`."""
    short = name.removeprefix("docs/").removesuffix(".md").strip("/")
    names = page_names()
    matches = [one for one in names if one == short] or [one for one in names if one.rpartition("/")[2] == short]
    if len(matches) != 1:
        close = get_close_matches(short, names, 1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise NotFound(f"page not found: {name}{meant}", hint="`bench docs` lists every page")
    return Path(docs_folder(), f"{matches[0]}.md")


def title_of(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return next((line.lstrip("# ").strip() for line in file if line.startswith("# ")), path.stem)


def docs(
    name: Annotated[
        str, typer.Argument(metavar="[PAGE]", help="A page, such as judge.", autocompletion=completing(page_names))
    ] = "",
    json: Json = False,
) -> None:
    """Show a page of the documentation; without a name, list the pages."""
    if name:
        path = find_page(name)
        text = path.read_text(encoding="utf-8")
        if json:
            emit_json({"schema": 1, "pages": [path.stem], "text": text})
        elif screen().is_terminal:
            screen().print(Markdown(text, hyperlinks=False))
        else:
            typer.echo(text, nl=False)
        return
    pages = {page: title_of(docs_folder() / f"{page}.md") for page in page_names() if "decisions/0" not in page}
    table = Columns("page", "about", rows=pages.items(), prose=("about",))
    print_answer({"schema": 1, "pages": list(pages), "text": ""}, table, json=json)
