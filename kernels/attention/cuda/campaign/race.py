"""Finds the fastest of several ways of one computation: few rounds for all, more for those that stay near the best.

What decides is pure: `scores` and `choice` look at recorded times only, so the same rows always give the same table.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from kernels.attention.cuda.campaign.cells import Cell, as_row, from_row
from kernels.attention.cuda.campaign.numbers import geometric_mean
from kernels.attention.cuda.campaign.timing import Call, Contender, Stopwatch, graph_calls
from kernels.attention.cuda.tuned import Choice, Key

STAGES = ((3, 2, 1.12), (5, 3, 1.025), (8, 5, 1.0))
"""Rounds of burst, rounds of graph, and how much worse than the best may go on to the next stage."""
REGIMES = ("burst", "graph")
REFERENCE = "cudnn"
"""Timed along, to see where we stand; never chosen."""
DIGITS = 3

Samples = dict[str, dict[str, list[float]]]


def scores(samples: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """How many times as long as the best a way takes, the geometric mean over both regimes; 1 is best in both."""
    names = [name for name in samples if name != REFERENCE]
    middle = {name: [statistics.median(samples[name][regime]) for regime in REGIMES] for name in names}
    best = [min(middle[name][i] for name in names) for i in range(len(REGIMES))]
    return {name: geometric_mean([us / least for us, least in zip(middle[name], best, strict=True)]) for name in names}


def ranking(samples: Mapping[str, Mapping[str, Sequence[float]]]) -> list[tuple[float, str]]:
    """Scores and names, the best first; ways that are level come in the order of their names."""
    return sorted((score, name) for name, score in scores(samples).items())


def race(field: Mapping[str, Contender], watch: Stopwatch, chance: random.Random) -> Samples:
    """Microseconds a call by way and regime. Each stage times those that the last one left."""
    samples: Samples = {name: {regime: [] for regime in REGIMES} for name in field}
    graphs: dict[str, tuple[Call, int]] = {}
    racing = list(field)
    watch.burst([*field.values()])  # a round that nobody counts
    for burst_rounds, graph_rounds, keep in STAGES:
        for _ in range(burst_rounds):
            chance.shuffle(racing)
            for name, us in zip(racing, watch.burst([field[name] for name in racing]), strict=True):
                samples[name]["burst"].append(us)
        for name in racing:
            if name not in graphs:
                calls = graph_calls(statistics.median(samples[name]["burst"]))
                graphs[name] = watch.capture(field[name], calls, False), calls
        for _ in range(graph_rounds):
            chance.shuffle(racing)
            for name, us in zip(racing, watch.replay([graphs[name][0] for name in racing]), strict=True):
                samples[name]["graph"].append(us / graphs[name][1])
        found = ranking({name: samples[name] for name in racing})
        limit = found[0][0] * keep
        racing = sorted({name for score, name in found if score <= limit} | ({REFERENCE} & field.keys()))
        if len([name for name in racing if name != REFERENCE]) < 2:
            break
    return samples


def row_of(cell: Cell, samples: Samples, absent: Mapping[str, str], at: str) -> dict[str, Any]:
    """What a race is recorded as."""
    times = {
        name: {regime: [round(us, DIGITS) for us in values] for regime, values in by_regime.items()}
        for name, by_regime in samples.items()
    }
    return {"kind": "race", "cell": as_row(cell), "times_us": times, "absent": dict(absent), "at": at}


def finalists(row: Mapping[str, Any]) -> Samples:
    """The ways that reached the last stage that was run: only these were timed often enough to be judged."""
    times: Samples = {name: found for name, found in row["times_us"].items() if name != REFERENCE}
    most = max(len(found["burst"]) for found in times.values())
    return {name: found for name, found in times.items() if len(found["burst"]) == most}


def choice(row: Mapping[str, Any]) -> Choice:
    """The winner of a recorded race, and how far behind it the others are."""
    everyone = scores(row["times_us"])
    last = scores(finalists(row))
    winner = min(last, key=lambda name: (last[name], name))
    behind = {name: score / everyone[winner] - 1 for name, score in everyone.items()}
    behind |= {name: score / last[winner] - 1 for name, score in last.items()}  # timed longer: known better
    us = {regime: round(statistics.median(row["times_us"][winner][regime]), 2) for regime in REGIMES}
    others = {name: round(max(0.0, value), 4) for name, value in sorted(behind.items()) if name != winner}
    return Choice(key_of(from_row(row["cell"])), winner, others, us, row["at"])


def key_of(cell: Cell) -> Key:
    """What the table looks a cell up by."""
    return Key(
        cell.dtype,
        cell.head_dim,
        cell.causal,
        cell.heads // cell.kv_heads,
        cell.batch * cell.heads,
        cell.seq_q,
        cell.seq_k,
    )


def against_reference(row: Mapping[str, Any], name: str) -> dict[str, float]:
    """How many times as fast as the reference a way is, by regime; empty where the reference is absent."""
    times = row["times_us"]
    if REFERENCE not in times:
        return {}
    return {
        regime: statistics.median(times[REFERENCE][regime]) / statistics.median(times[name][regime])
        for regime in REGIMES
    }
