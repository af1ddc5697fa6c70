"""Turns docs/ into a site. For a file outside docs/ a page shows the path instead of a link."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def is_inside(page: Path, target: str) -> bool:
    """Whether a link of a page leads to a page or a file of the site."""
    there = (page.parent / target).resolve()
    return there.is_file() and there.is_relative_to(DOCS)


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    source = DOCS / page.file.src_uri

    def kept(found: re.Match[str]) -> str:
        target = found[2]
        if "://" in target or is_inside(source, target):
            return found[0]
        there = (source.parent / target).resolve()
        name = there.relative_to(DOCS.parent) if there.is_relative_to(DOCS.parent) else target
        return f"{found[1]} (`{name}`)"

    return LINK.sub(kept, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Makes code and tables reachable by keyboard, so that wide ones can be scrolled."""
    return re.sub(r"<(pre|table)>", r'<\1 tabindex="0">', html)
