"""What the shapes of documents are made of; see `shapes`."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import Any, Literal

Usd = str
"""Dollars as a decimal string."""
Row = dict[str, Any]
Rows = list[Row]


@dataclass
class Document:
    """What a command prints has the number of its shape in it."""

    schema: Literal[1]


def shape(about: str = "", *, schema: Any = Literal[1], **fields: Any) -> type:
    """The shape of a document with these fields; `schema` is the type of its number, None where it has none."""
    numbered = {"schema": schema} if schema is not None else {}
    return make_dataclass("Shape", [*numbered.items(), *fields.items()], namespace={"__doc__": about or None})
