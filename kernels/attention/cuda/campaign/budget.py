"""Divides the time there is among cells and regimes. Pure: it is told the time, it does not read a clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernels.attention.cuda.campaign.cells import Cell

REGIMES = ("burst", "graph", "cold")
"""burst: one call on an idle chip with a cold L2 cache. graph: calls back to back on one set of inputs. cold: the same,
each call on another set of inputs, as many as it takes to leave the L2 cache."""
LEAST = {"burst": 5, "graph": 3, "cold": 3}
MOST = {"burst": 21, "graph": 11, "cold": 7}
SHARE = {"burst": 0.45, "graph": 0.35, "cold": 0.20}
LAGGARD, LAGGARD_ROUNDS = 2.0, 3
"""What takes more than twice as long as the best after three rounds is not timed further: it decides nothing."""

SETUP_S, ROUND_S, CALL_S, GRAPH_S = 0.35, 0.004, 0.0004, 0.004
ASSUMED_CONTENDERS, ASSUMED_SLOWNESS = 7, 1.6


@dataclass(frozen=True, slots=True)
class Rounds:
    """How many rounds of each regime a visit takes."""

    burst: int
    graph: int
    cold: int

    def of(self, regime: str) -> int:
        return {"burst": self.burst, "graph": self.graph, "cold": self.cold}[regime]


def round_costs(single_us: Sequence[float], graph_us: Sequence[float], cold: bool) -> dict[str, float]:
    """Seconds that one round of each regime takes, from what a call and a graph of each contender take."""
    count = len(single_us)
    burst = ROUND_S + count * CALL_S + sum(single_us) * 1e-6
    graph = ROUND_S + sum(graph_us) * 1e-6
    return {"burst": burst, "graph": graph, **({"cold": graph} if cold else {})}


def rounds_for(seconds: float, costs: Mapping[str, float]) -> Rounds:
    """As many rounds as fit, within the least and the most of each regime. A regime without a cost has none."""
    shares = sum(SHARE[name] for name in costs)
    counts = {
        name: max(LEAST[name], min(MOST[name], int(seconds * SHARE[name] / shares / max(cost, 1e-9))))
        for name, cost in costs.items()
    }
    return Rounds(*(counts.get(name, 0) for name in REGIMES))


def weight(cell: Cell) -> float:
    """Seconds that the least visit of a cell may take; the measured cost replaces it after the first."""
    costs = round_costs([cell.guess_us * ASSUMED_SLOWNESS] * ASSUMED_CONTENDERS, [GRAPH_S * 1e6] * 5, cold=True)
    # Inputs and the exact answer take time of their own: float64 runs at a tenth of the rate.
    exact = cell.guess_us * 60e-6
    return SETUP_S + exact + sum(LEAST[name] * cost for name, cost in costs.items())


def allot(left: float, cell: Cell, todo: Sequence[Cell], known: Mapping[Cell, float]) -> float:
    """The seconds for a cell's visit: its share, by weight, of what is left for all that are still to come."""
    total = sum(known.get(one, weight(one)) for one in todo)
    return left * known.get(cell, weight(cell)) / max(total, 1e-9)


def laggards(medians_us: Mapping[str, float]) -> set[str]:
    """The contenders that are out of the race."""
    best = min(medians_us.values(), default=0.0)
    return {name for name, value in medians_us.items() if value > LAGGARD * best}
