"""The children of a fleet: an immutable list, made once from the sweep, in the order in which they are measured.

A child is one repeat of one configuration on one GPU, or of a chunk of its cases. Each child is one run. All first
repeats come before all second repeats, so that a fleet that ends early has measured a complete grid.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.core.errors import ConfigError
from orchestrator.core.fleet.names import MOST_CHILDREN
from orchestrator.core.fleet.sweep import GPU, WORKLOAD, Sweep, text_of
from orchestrator.core.market.catalog import find_gpu
from orchestrator.core.text import clean_line, count, of_schema


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One point of the sweep. `settings` are `(key, YAML text)` in the order of the axes."""

    gpu: str
    settings: tuple[tuple[str, str], ...] = ()
    workload: str = ""

    @property
    def overrides(self) -> tuple[str, ...]:
        """The settings as `bench launch --set` takes them."""
        return tuple(f"{key}={value}" for key, value in self.settings)

    @property
    def title(self) -> str:
        """The workload and the settings for messages, without the GPU."""
        return " ".join(filter(None, (self.workload.rpartition("/")[2], *self.overrides))) or "defaults"

    @property
    def question(self) -> str:
        """The workload and the settings as JSON, without the GPU. Cells of one row of a table have the same."""
        return json.dumps([self.workload, sorted(self.settings)])


@dataclass(frozen=True, slots=True)
class Child:
    """One entry of the list. `index` is its place, from 0."""

    index: int
    cell: SweepCell
    repeat: int
    """From 1."""
    chunk: int
    cases: tuple[str, ...]
    """The case ids that it measures; empty: all cases of its configuration."""

    @property
    def config(self) -> str:
        """The key of its cell and chunk. Repeats share it, because they fail for the same reasons."""
        return config_key(self.cell, self.chunk)


def config_key(cell: SweepCell, chunk: int) -> str:
    return f"{cell.gpu}-{hashlib.sha256(cell.question.encode()).hexdigest()[:8]}-{chunk}"


def expand_cells(sweep: Sweep) -> tuple[SweepCell, ...]:
    """Every combination of the axes that is not excluded. Raises `ConfigError` if none is left."""
    names = [GPU, *(name for name in sweep.axes if name != GPU)]
    excluded = [{name: text_of(value) for name, value in entry.items()} for entry in sweep.exclude]
    axes = [[text_of(value) for value in sweep.axes[name]] for name in names]
    cell_list = []
    for values in itertools.product(*axes):
        point = dict(zip(names, values, strict=True))
        if any(all(point[name] == value for name, value in entry.items()) for entry in excluded):
            continue
        settings = tuple((name, value) for name, value in point.items() if name not in (GPU, WORKLOAD))
        workload = str(json.loads(point[WORKLOAD])) if point.get(WORKLOAD, "").startswith('"') else point.get(WORKLOAD)
        cell_list.append(SweepCell(point[GPU].lower(), settings, workload or ""))
    if not cell_list:
        raise ConfigError("the sweep has no cell: everything is excluded", hint="remove an entry from `exclude`")
    return tuple(cell_list)


def chunk_cases(cases: Sequence[str], most: int) -> tuple[tuple[str, ...], ...]:
    """The cases in pieces of at most `most`. A single piece is returned as the empty tuple, which means all cases; it
    is the result if `most` is 0 or no fewer than the number of cases."""
    if not most or len(cases) <= most:
        return ((),)
    return tuple(tuple(cases[at : at + most]) for at in range(0, len(cases), most))


def expand_children(sweep: Sweep, cases_of: Callable[[SweepCell], Sequence[str]]) -> tuple[Child, ...]:
    """The list of children. `cases_of` returns the case ids of a cell's configuration that are known before it runs.
    Raises `ConfigError` if the list is empty or longer than `MOST_CHILDREN`."""
    pieces = {cell: chunk_cases(cases_of(cell), sweep.cases_per_child) for cell in expand_cells(sweep)}
    total = sweep.repeats * sum(len(found) for found in pieces.values())
    if total > MOST_CHILDREN:
        raise ConfigError(
            f"the sweep has {count(total, 'child', 'children')}; a fleet has at most {MOST_CHILDREN:,}",
            hint="choose fewer repeats, a larger cases_per_child, or several fleets",
        )
    place = {gpu: number for number, gpu in enumerate(sweep.gpus)}
    entries = [
        ((repeat, _shuffled(sweep.seed, repeat, cell, chunk), place[cell.gpu]), cell, repeat, chunk, cases)
        for repeat in range(1, sweep.repeats + 1)
        for cell, found in pieces.items()
        for chunk, cases in enumerate(found)
    ]
    entries.sort(key=lambda entry: entry[0])
    return tuple(Child(index, *entry[1:]) for index, entry in enumerate(entries))


def _shuffled(seed: int, repeat: int, cell: SweepCell, chunk: int) -> str:
    """A pseudo-random sort key that depends on the seed. It is the same on every GPU, so that a row of the table is
    filled at once."""
    return hashlib.sha256(f"{seed}/{repeat}/{cell.question}/{chunk}".encode()).hexdigest()


def children_document(children: Sequence[Child]) -> dict[str, Any]:
    """The list as JSON data, with each cell and each chunk written once."""
    numbers: dict[SweepCell, int] = {}
    pieces: dict[tuple[SweepCell, int], tuple[str, ...]] = {}
    for child in children:
        numbers.setdefault(child.cell, len(numbers))
        pieces[(child.cell, child.chunk)] = child.cases
    return {
        "schema": 1,
        "cells": _cells(numbers, pieces),
        "children": [[numbers[child.cell], child.repeat, child.chunk] for child in children],
    }


def _cells(
    numbers: Mapping[SweepCell, int], pieces: Mapping[tuple[SweepCell, int], tuple[str, ...]]
) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = [
        {"gpu": cell.gpu, "workload": cell.workload, "settings": [list(pair) for pair in cell.settings], "chunks": {}}
        for cell in numbers
    ]
    for (cell, chunk), cases in pieces.items():
        cells[numbers[cell]]["chunks"][str(chunk)] = list(cases)
    return cells


def read_children(data: Any) -> tuple[Child, ...]:
    """The list of children in a document. Raises `ValueError` if it is not valid."""
    try:
        of_schema(data)
        return tuple(_read(data))
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"not a list of children: {error}") from error


def _read(data: Any) -> Iterator[Child]:
    cell_list = [
        (
            SweepCell(
                str(one["gpu"]), tuple((str(key), str(value)) for key, value in one["settings"]), str(one["workload"])
            ),
            {int(chunk): tuple(str(case) for case in cases) for chunk, cases in one["chunks"].items()},
        )
        for one in data["cells"]
    ]
    if len(data["children"]) > MOST_CHILDREN:
        raise ValueError("more children than a fleet can have")
    for cell, pieces in cell_list:
        text = "".join((cell.title, *itertools.chain(*pieces.values())))
        if find_gpu(cell.gpu) is None or clean_line(cell.gpu) != cell.gpu or clean_line(text, len(text)) != text:
            raise ValueError("a cell that no sweep has")
    for index, (number, repeat, chunk) in enumerate(data["children"]):
        cell, pieces = cell_list[int(number)]
        yield Child(index, cell, int(repeat), int(chunk), pieces[int(chunk)])
