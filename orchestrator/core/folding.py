"""Folds a line at a terminal's width, so that no part of it begins a line of the screen.

A terminal breaks a longer line where it ends, and whoever wrote a part of it could have what follows the break pass for
a line of ours, such as a hint. Where a line goes on it is indented, as none that we begin is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

NARROWEST: Final = 20
"""A terminal with fewer columns gets lines for one of so many."""


def folded(text: str, columns: int | None, indent: int) -> str:
    """`text` in lines of at most `columns` cells; those that go on begin with `indent` spaces. As it is where there is
    no limit. Line ends that it has stay."""
    if columns is None:
        return text
    columns = max(columns, NARROWEST)
    room = columns - min(indent, columns // 2)
    gap = " " * (columns - room)
    return "\n".join(f"\n{gap}".join(_lines(line, columns, room)) for line in text.split("\n"))


def _lines(line: str, first: int, room: int) -> Iterator[str]:
    """Pieces of a line: the first of `first` cells at most, the others of `room`; broken at a space where there is one
    that does not make a piece much shorter."""
    left, width = line, first
    while cells(left) > width:
        cut = _fitting(left, width)
        space = left.rfind(" ", width // 2, cut + 1)
        end = space if space > 0 else cut
        yield left[:end]
        left, width = left[end:].lstrip(" "), room
    yield left


def _fitting(text: str, width: int) -> int:
    """How many characters fit into so many cells."""
    used = 0
    for place, character in enumerate(text):
        used += cells(character)
        if used > width:
            return max(place, 1)
    return len(text)


def cells(text: str) -> int:
    """The most cells that it takes: no terminal shows what is beyond ASCII in more than two."""
    return len(text) if text.isascii() else sum(1 if character.isascii() else 2 for character in text)
