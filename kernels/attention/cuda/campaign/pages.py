"""Markdown made from results: tables, and pages whose marked sections are made anew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]
BEGIN, END = "<!-- begin: {name} -->", "<!-- end: {name} -->"


def markdown(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cells) + " |" for cells in body]
    return "\n".join(lines)


def fill(text: str, rows: Sequence[Row], sections: Mapping[str, Callable[[Sequence[Row]], str]]) -> str:
    """The text with each marked section made anew. Raises ValueError for a section without its end mark."""
    for name, make in sections.items():
        begin, end = BEGIN.format(name=name), END.format(name=name)
        if begin not in text:
            continue
        before, _, rest = text.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"{begin} has no {end}")
        text = f"{before}{begin}\n{make(rows)}\n{end}{after}"
    return text
