"""Partial answers: the `fields` of a request, such as `items(name,size),nextPageToken`, as the JSON APIs read it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from orchestrator.embedded.errors import ApiError

Selection = Mapping[str, "Selection"]
"""The names that are wanted and what is wanted below each; `*` is every name, and nothing below is all of it."""

LONGEST = 1000
"""Characters of a selection: each level takes two of them, and one call of the reader."""


@lru_cache(64)
def parse_selection(text: str) -> Selection:
    """The selection that a `fields` asks for. Raises `ApiError` (400) if it is none."""
    refusal = ApiError(400, f"Invalid field selection {text[:LONGEST]}", "invalidParameter")
    if len(text) > LONGEST:
        raise refusal
    tokens = re.findall(r"[A-Za-z_*][\w.-]*|\S", text)
    tokens.reverse()

    def names_until(end: str) -> Selection:
        names: dict[str, Selection] = {}
        while True:
            path = [tokens.pop()] if tokens else [""]
            while tokens and tokens[-1] == "/":
                tokens.pop()
                path.append(tokens.pop() if tokens else "")
            if not all(re.fullmatch(r"\*|[A-Za-z_][\w.-]*", name) for name in path):
                raise refusal
            below: Selection = {}
            if tokens and tokens[-1] == "(":
                tokens.pop()
                below = names_until(")")
            for name in reversed(path[1:]):
                below = {name: below}
            names[path[0]] = {**names.get(path[0], {}), **below}
            following = tokens.pop() if tokens else ""
            if following == end:
                return names
            if following != ",":
                raise refusal

    return names_until("")


def select_fields(document: Any, selection: Selection) -> Any:
    """What is wanted of a document; of a list, of each of its entries."""
    if not selection or not isinstance(document, dict | list):
        return document
    if isinstance(document, list):
        return [select_fields(entry, selection) for entry in document]
    if "*" in selection:
        selection = dict.fromkeys(document, selection["*"])
    wanted = ((name, below) for name, below in selection.items() if name in document)
    return {name: select_fields(document[name], below) if below else document[name] for name, below in wanted}
