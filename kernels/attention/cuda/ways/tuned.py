"""Measured tables of the fastest way by size: data that `campaign.tune` writes and `dispatch` reads. No torch.

There is one file for each chip, with one line for each cell. A problem takes the way of the nearest cell; the distance
is measured in the logarithms of the sizes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "tables"
SCHEMA = 1
SIZES = ("all_heads", "seq_q", "seq_k", "group")
FAR = 2.0
"""A cell that is more than this many doublings away, over all sizes, is not used for a problem."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """The values on which a choice depends. `all_heads` is batch times heads of Q; `group` is the number of heads of Q
    for one head of K and V."""

    dtype: str
    head_dim: int
    causal: bool
    group: int
    all_heads: int
    seq_q: int
    seq_k: int

    @property
    def words(self) -> str:
        group = f", {self.group} to a head of K and V" if self.group > 1 else ""
        return f"{self.all_heads} heads{group}, {self.seq_q} queries, {self.seq_k} keys"

    def distance(self, other: Key) -> float:
        """Return the distance in doublings between two problems with the same element type, head dimension and mask."""
        steps = (math.log2(getattr(self, name) / getattr(other, name)) for name in SIZES)
        return math.sqrt(sum(step * step for step in steps))


@dataclass(frozen=True, slots=True)
class Choice:
    """A cell: the fastest way, how much longer every other way takes (0.02 is 2 %), and the microseconds of a call by
    regime. `at` is the time of the measurement, in UTC."""

    key: Key
    way: str
    behind: Mapping[str, float]
    us: Mapping[str, float]
    at: str

    @property
    def second(self) -> str:
        """The name of the second fastest way; empty if there was no other."""
        return min(self.behind, key=lambda name: (self.behind[name], name), default="")

    @property
    def margin(self) -> float:
        """How much longer the second fastest way takes (0.02 is 2 %)."""
        return self.behind.get(self.second, 0.0)


def way_stem(way: str) -> str:
    """Return a way's name without the number of parts into which it cuts the keys: `fa2-64x64w4s2` for
    `fa2-64x64w4s2-4`."""
    return re.sub(r"-\d+$", "", way)


def lead_text(cell: Choice) -> str:
    """Return in words by how much the winner is faster than the second."""
    return f"{cell.margin:.1%} before {cell.second}" if cell.second else "no other way"


@dataclass(frozen=True, slots=True)
class Table:
    """The cells of one chip. `about` says on which device and with which software they were measured."""

    about: Mapping[str, Any]
    cells: tuple[Choice, ...] = ()
    picked: dict[tuple[Key, tuple[str, ...], float], tuple[str, str] | None] = field(
        default_factory=dict, compare=False
    )
    """The earlier answers of `pick`, because a search takes longer than an eager call may."""

    def pick(self, key: Key, names: Sequence[str], at_most: float = FAR) -> tuple[str, str] | None:
        """Return one of the ways `names`, and the reason: the winner of the nearest cell whose winner is among them.

        The number of parts into which it cuts the keys may differ, because it depends on the sizes. None if all such
        cells are more than `at_most` doublings away.
        """
        question = key, tuple(names), at_most
        if question not in self.picked:
            self.picked[question] = self.search(key, names, at_most)
        return self.picked[question]

    def search(self, key: Key, names: Sequence[str], at_most: float = FAR) -> tuple[str, str] | None:
        """Return what `pick` returns, but search each time."""
        by_stem = {way_stem(name): name for name in names}
        near = (
            (distance, cell)
            for distance, cell in self.nearest(key)
            if distance <= at_most and way_stem(cell.way) in by_stem
        )
        nearest_cell = next(near, None)
        if nearest_cell is None:
            return None
        distance, cell = nearest_cell
        where = "here" if distance == 0 else f"{distance:.1f} doublings away, at {cell.key.words}"
        return by_stem[way_stem(cell.way)], f"measured {where} on {self.about['device']}: {lead_text(cell)}"

    def nearest(self, key: Key) -> list[tuple[float, Choice]]:
        """Return the cells with this element type, head dimension and mask that are at most FAR doublings away, each
        with its distance, the nearest first."""
        kind = (key.dtype, key.head_dim, key.causal)
        same = (cell for cell in self.cells if (cell.key.dtype, cell.key.head_dim, cell.key.causal) == kind)
        distances = [(key.distance(cell.key), cell) for cell in same]
        return sorted((one for one in distances if one[0] <= FAR), key=lambda one: (one[0], one[1].key))

    def merged(self, about: Mapping[str, Any], cells: Iterable[Choice]) -> Table:
        """Return this table with the new cells; they replace old cells with the same key."""
        cell_by_key = {cell.key: cell for cell in (*self.cells, *cells)}
        return Table(about, tuple(cell_by_key[key] for key in sorted(cell_by_key)))

    def text(self) -> str:
        """Return the text of the file. The same table always gives the same text."""
        rows = ",\n  ".join(json.dumps(as_row(cell), sort_keys=True) for cell in self.cells)
        about = json.dumps(dict(self.about), sort_keys=True)
        return f'{{\n "schema": {SCHEMA},\n "about": {about},\n "cells": [\n  {rows}\n ]\n}}\n'


def as_row(cell: Choice) -> dict[str, Any]:
    return {**asdict(cell.key), "way": cell.way, "behind": dict(cell.behind), "us": dict(cell.us), "at": cell.at}


def parse_table(text: str) -> Table:
    """Return the table in the text of a file. Raises ValueError if it has another schema."""
    document = json.loads(text)
    if document.get("schema") != SCHEMA:
        raise ValueError(f"the table must have schema {SCHEMA}, not {document.get('schema')!r}")
    names = Key.__slots__
    cells = (
        Choice(Key(**{name: row[name] for name in names}), row["way"], row["behind"], row["us"], row["at"])
        for row in document["cells"]
    )
    return Table(document["about"], tuple(cells))


@cache
def table_for(chip: str, sm_count: int) -> Table | None:
    """Return the table measured on a chip of this family with this number of SMs; None if there is none."""
    tables = [parse_table(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
    return next((one for one in tables if (one.about["chip"], one.about["sm_count"]) == (chip, sm_count)), None)
