"""Fits the prices that dispatch uses to recorded times, and says how good the resulting choices are.

    python3 -m kernels.attention.cuda.campaign.fit --rows ROWS.jsonl ... --costs COSTS.json [--held-out HELD.jsonl]

A row has a cell and the microseconds that each way took in a graph. A causal problem whose mask is aligned with the
last key also has `"alignment": "bottom-right"`. Needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels.attention.cuda.campaign.cells import Cell
from kernels.attention.cuda.campaign.race import read_races
from kernels.attention.cuda.explaining import machine_named
from kernels.attention.cuda.plan.planning import Layout, Machine, Problem
from kernels.attention.cuda.ways.costs import TERMS, Costs, Terms, caution_factor, kinds_of, work_terms
from kernels.attention.cuda.ways.dispatch import list_ways

SWEEPS = 400
NEAR = 4.0
"""How fast the weight of a time falls with its distance from the best time of its cell."""
ENOUGH, LEAST = 4 * len(TERMS), 5
"""The smallest number of times for a price of an exact kind (`full`, `causal`), and for a price of an `any` kind."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One way in one cell: its kinds, its amounts of work, its measured microseconds, and the factor for its estimate
    in comparisons."""

    kinds: tuple[str, str]
    work: Terms
    us: float
    caution: float = 1.0


@dataclass(frozen=True, slots=True)
class Race:
    """The timed ways of one cell, by name."""

    cell: Cell
    ways: Mapping[str, Timed]
    near: float | None = None
    """The best time in microseconds of all ways, if `ways` has only some of them."""

    @property
    def best(self) -> float:
        return self.near or min(one.us for one in self.ways.values())


def problem_of_cell(cell: Cell, alignment: str = "top-left") -> Problem:
    """Return the problem of a cell, with dense tensors."""

    def dense(heads: int, rows: int) -> Layout:
        return Layout(heads * rows * cell.head_dim, rows * cell.head_dim, cell.head_dim, 4096)

    q, k = dense(cell.heads, cell.seq_q), dense(cell.kv_heads, cell.seq_k)
    sizes = (cell.batch, cell.heads, cell.kv_heads, cell.seq_q, cell.seq_k, cell.head_dim)
    offset = cell.seq_k - cell.seq_q if cell.causal and alignment == "bottom-right" else 0
    return Problem(cell.dtype, *sizes, cell.causal, offset, q, k, k, q)


def recorded_races(rows: Sequence[Mapping[str, Any]], machine: Machine) -> Iterator[Race]:
    """Yield a race for each row that has times, with the amounts of work of each way."""
    for row in rows:
        if not row.get("us"):
            continue
        cell = Cell("fit", **row["cell"])
        problem = problem_of_cell(cell, row.get("alignment", "top-left"))
        race_rows = {}
        for way in list_ways(problem, machine):
            us, work = (row["us"] | row.get("rough", {})).get(way.name), work_terms(way, problem, machine)
            if us is not None and work is not None:
                race_rows[way.name] = Timed(kinds_of(way, problem), work, us, caution_factor(way))
        if race_rows:
            yield Race(cell, race_rows)


def fit_prices(timed: Sequence[tuple[Terms, float, float]]) -> Terms:
    """Return the prices, none negative, with the least weighted sum of squared relative errors. `timed` has a (work,
    microseconds, weight) for each time."""
    count = len(TERMS)
    matrix = [[0.0] * count for _ in range(count)]
    right = [0.0] * count
    for work, us, weight in timed:
        row = [x / us for x in work]
        for i in range(count):
            right[i] += weight * row[i]
            for j in range(count):
                matrix[i][j] += weight * row[i] * row[j]
    solution = [0.0] * count
    for _ in range(SWEEPS):
        for i in range(count):
            if matrix[i][i] > 0.0:
                residual = right[i] - sum(matrix[i][j] * solution[j] for j in range(count) if j != i)
                solution[i] = max(0.0, residual / matrix[i][i])
    return tuple(solution)


def predicted_time(prices: Terms, work: Terms) -> float:
    return sum(map(float.__mul__, prices, work))


def fit_kinds(found: Sequence[Race]) -> dict[str, Terms]:
    """Return prices for every kind with enough times. A way whose time is near the best of its cell has more weight."""
    by_kind: dict[str, list[tuple[Terms, float, float]]] = defaultdict(list)
    for race in found:
        for one in race.ways.values():
            for kind in one.kinds:
                by_kind[kind].append((one.work, one.us, 1.0 / (1.0 + NEAR * (one.us / race.best - 1.0))))
    least = {kind: LEAST if kind.split()[2] == "any" else ENOUGH for kind in by_kind}
    return {kind: fit_prices(timed) for kind, timed in sorted(by_kind.items()) if len(timed) >= least[kind]}


def price_of(one: Timed, prices: Mapping[str, Terms]) -> Terms | None:
    """Return the price of a way's exact kind, else of its `any` kind; None if there is neither."""
    return next((prices[kind] for kind in one.kinds if kind in prices), None)


def choice_regret(race: Race, prices: Mapping[str, Terms]) -> float | None:
    """Return the time of the way that the prices choose, divided by the best time; None if no way has a price."""
    predicted_times = {
        name: predicted_time(own, one.work) * one.caution
        for name, one in race.ways.items()
        if (own := price_of(one, prices)) is not None
    }
    return race.ways[min(predicted_times, key=predicted_times.__getitem__)].us / race.best if predicted_times else None


def judge_prices(found: Sequence[Race], prices: Mapping[str, Terms]) -> dict[str, float]:
    """Return the number of cells with a choice, and the mean, median, 95th percentile and worst of their regrets."""
    values = sorted(x for race in found if (x := choice_regret(race, prices)) is not None)
    if not values:
        return {"cells": 0}
    return {
        "cells": len(values),
        "mean": round(statistics.mean(values), 4),
        "median": round(statistics.median(values), 4),
        "p95": round(values[min(len(values) - 1, math.ceil(0.95 * len(values)) - 1)], 4),
        "worst": round(values[-1], 4),
    }


def cross_validate(found: Sequence[Race], parts: int = 5) -> dict[str, float]:
    """Return the number of cells and the 95th percentile and worst of their regrets, with prices that were fitted to
    other cells: the cells are divided into `parts`, and each part is judged by prices from the others."""
    order, values = list(found), []
    random.Random(1).shuffle(order)
    for part in range(parts):
        prices = fit_kinds([race for i, race in enumerate(order) if i % parts != part])
        values += [(race, prices) for i, race in enumerate(order) if i % parts == part]
    every = sorted(x for race, prices in values if (x := choice_regret(race, prices)) is not None)
    return {"cells": len(every), "p95": round(every[math.ceil(0.95 * len(every)) - 1], 4), "worst": round(every[-1], 4)}


def costs_text(costs: Costs) -> str:
    """Return the text of the file. The same prices always give the same text."""
    rows = ",\n  ".join(
        f"{json.dumps(kind)}: {json.dumps([float(f'{x:.4g}') for x in price])}" for kind, price in costs.prices.items()
    )
    about = json.dumps(dict(costs.about), sort_keys=True)
    return f'{{\n "schema": 1,\n "about": {about},\n "terms": {json.dumps(TERMS)},\n "prices": {{\n  {rows}\n }}\n}}\n'


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=Path, nargs="+", required=True, help="what the prices are fitted to")
    parser.add_argument("--held-out", type=Path, nargs="*", default=[], help="rows that only judge")
    parser.add_argument("--chip", default="h200")
    parser.add_argument("--costs", type=Path, help="the file to write")
    options = parser.parse_args(arguments)
    machine = machine_named(options.chip)
    seen = [race for path in options.rows for race in recorded_races(read_races(path), machine)]
    prices = fit_kinds(seen)
    about: dict[str, Any] = {
        "chip": machine.chip.name,
        "sm_count": machine.sm_count,
        "fitted": judge_prices(seen, prices),
    }
    about["crossed"] = cross_validate(seen)
    unseen = [race for path in options.held_out for race in recorded_races(read_races(path), machine)]
    if unseen:
        about["held_out"] = judge_prices(unseen, prices)
    sys.stdout.write(json.dumps(about) + "\n")
    if options.costs:
        options.costs.write_text(costs_text(Costs(about, prices)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
