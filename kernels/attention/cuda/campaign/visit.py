"""One visit of a cell: all its contenders timed against each other, in every regime, within the seconds allotted."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernels.attention.cuda.campaign.budget import LAGGARD_ROUNDS, laggards, round_costs, rounds_for
from kernels.attention.cuda.campaign.cells import Cell, as_row
from kernels.attention.cuda.campaign.contenders import Field, Stable
from kernels.attention.cuda.campaign.timing import Call, Contender, Stopwatch, graph_calls

DIGITS = 3
"""Of a microsecond: the events themselves resolve half of one."""
SUSTAINED_S = 0.5
SUSTAINED_NAMES = ("ours", "cudnn", "flash", "fa4")


@dataclass(slots=True)
class Visitor:
    """Visits cells on one device."""

    stable: Stable
    watch: Stopwatch
    chance: random.Random

    def visit(self, cell: Cell, turn: int, seconds: float) -> dict[str, Any]:
        """The row of a visit: raw microseconds a call, one for each round, by regime and contender."""
        started = self.watch.now()
        found = self.stable.prepare(cell, check=turn == 0)
        field = {one.name: one for one in found.contenders}
        row = opening(cell, turn, found)
        if field:
            cold = max(len(one.calls) for one in field.values()) > 1
            burst = self.first_rounds(field)
            middle = {name: statistics.median(values) for name, values in burst.items()}
            slow = laggards(middle) if len(field) > 2 else set()
            racing = {name: one for name, one in field.items() if name not in slow}
            counts = {name: graph_calls(us) for name, us in middle.items()}
            costs = round_costs(
                [middle[name] for name in racing], [middle[name] * counts[name] for name in racing], cold
            )
            rounds = rounds_for(seconds - (self.watch.now() - started), costs)
            for name, values in self.burst_rounds(racing, rounds.burst - LAGGARD_ROUNDS).items():
                burst[name] += values
            state = self.watch.state()
            row["burst_us"] = rounded(burst)
            row["graph_us"] = rounded(self.graph_rounds(field, slow, counts, rounds.graph, cold=False))
            if cold:
                row["cold_us"] = rounded(self.graph_rounds(field, slow, counts, rounds.cold, cold=True))
            row |= {"graph_calls": counts, "laggards": sorted(slow), "state": state}
        row["seconds"] = round(self.watch.now() - started, DIGITS)
        return row

    def first_rounds(self, field: dict[str, Contender]) -> dict[str, list[float]]:
        """A round that nobody counts, then three for all."""
        self.watch.burst([*field.values()])
        return self.burst_rounds(field, LAGGARD_ROUNDS)

    def burst_rounds(self, field: dict[str, Contender], rounds: int) -> dict[str, list[float]]:
        return self.shuffled_rounds(list(field), rounds, lambda order: self.watch.burst([field[n] for n in order]))

    def graph_rounds(
        self, field: dict[str, Contender], slow: set[str], counts: dict[str, int], rounds: int, *, cold: bool
    ) -> dict[str, list[float]]:
        """The first rounds for all, the rest without the laggards."""
        graphs: dict[str, Call] = {name: self.watch.capture(one, counts[name], cold) for name, one in field.items()}

        def once(order: list[str]) -> list[float]:
            return self.watch.replay([graphs[name] for name in order])

        found = self.shuffled_rounds(list(field), LAGGARD_ROUNDS, once)
        more = self.shuffled_rounds([name for name in field if name not in slow], rounds - LAGGARD_ROUNDS, once)
        for name, values in more.items():
            found[name] += values
        return {name: [us / counts[name] for us in values] for name, values in found.items()}

    def shuffled_rounds(
        self, names: list[str], rounds: int, once: Callable[[list[str]], list[float]]
    ) -> dict[str, list[float]]:
        """Rounds in random order; what each round gave, by name."""
        found: dict[str, list[float]] = {name: [] for name in names}
        order = list(names)
        for _ in range(rounds):
            self.chance.shuffle(order)
            for name, us in zip(order, once(order), strict=True):
                found[name].append(us)
        return found

    def sustain(self, cell: Cell) -> dict[str, Any]:
        """The row of half a second of each, there and back: whoever runs first and coolest also runs last."""
        found = self.stable.prepare(cell, check=False)
        field = [one for one in found.contenders if one.name in SUSTAINED_NAMES]
        times: dict[str, list[dict[str, Any]]] = {one.name: [] for one in field}
        for one in [*field, *reversed(field)]:
            result = self.watch.sustain(one, SUSTAINED_S)
            times[one.name].append({"us": round(result.us, DIGITS), "calls": result.calls, "state": dict(result.state)})
        return {"kind": "sustained", "cell": as_row(cell), "times": times, "absent": found.absent}


def opening(cell: Cell, turn: int, found: Field) -> dict[str, Any]:
    """What a visit's row says before anything is timed."""
    row = {"kind": "visit", "cell": as_row(cell), "turn": turn, "ways": found.ways, "absent": found.absent}
    return {**row, "errors": found.errors} if found.errors else row


def rounded(values: dict[str, list[float]]) -> dict[str, list[float]]:
    return {name: [round(one, DIGITS) for one in many] for name, many in values.items()}
