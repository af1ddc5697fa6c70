"""Goes through the cells until the time is spent. Rows leave as they come, so that a kill loses none."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from kernels.attention.cuda.campaign.budget import allot, weight
from kernels.attention.cuda.campaign.cells import Cell, as_row
from kernels.attention.cuda.campaign.visit import SUSTAINED_NAMES, SUSTAINED_S, Visitor

Emit = Callable[[dict[str, Any]], None]
MOST_TURNS = 4
"""More rounds than four visits give would tell nothing new."""


def run(cells: Sequence[Cell], visitor: Visitor, seconds: float, emit: Emit) -> None:
    """Visit every cell once in the order given, then again in random orders, while there is time.

    A cell whose least visit no longer fits is left out, in the first turn with a row that says so.
    """
    end = visitor.watch.now() + seconds
    sustained = [cell for cell in cells if cell.sustained]
    known: dict[Cell, float] = {}
    for turn in range(MOST_TURNS):
        order = list(cells)
        if turn:
            random.Random(turn).shuffle(order)
        visited = one_turn(order, turn, visitor, end, len(sustained) if turn == 0 else 0, known, emit)
        if turn == 0:
            for cell in sustained:
                if cell in known and end - visitor.watch.now() > sustained_s() + 1:
                    emit(visitor.sustain(cell))
        if not visited:
            return


def one_turn(
    order: Sequence[Cell],
    turn: int,
    visitor: Visitor,
    end: float,
    to_sustain: int,
    known: dict[Cell, float],
    emit: Emit,
) -> int:
    """One visit of each cell that there is time for; how many that were. `known` learns what each one's least costs."""
    visited = 0
    for place, cell in enumerate(order):
        left = end - visitor.watch.now() - to_sustain * sustained_s()
        if left < known.get(cell, weight(cell)):
            if turn == 0:
                emit({"kind": "skipped", "cell": as_row(cell), "why": f"{max(left, 0):.1f} s were left"})
            continue
        seconds = allot(left, cell, order[place:], known)
        row = visitor.visit(cell, turn, seconds)
        emit(row)
        visited += 1
        known[cell] = min(row["seconds"], known.get(cell, row["seconds"]))
    return visited


def sustained_s() -> float:
    """What the sustained regime takes on one cell, about."""
    return 2 * len(SUSTAINED_NAMES) * SUSTAINED_S
