"""Finds the fastest of several ways of one computation: few rounds for all, more for those that stay near the best.

What decides is pure: `scores` and `choice` look at recorded times only, so the same rows always give the same table.
"""

from __future__ import annotations

import gzip
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernels.attention.cuda.campaign.cells import Cell, as_row, from_row
from kernels.attention.cuda.ways.tuned import Choice, Key
from kernels.harness.timers import Timer
from kernels.harness.turns import Contender

STAGES = ((3, 2, 1.12), (5, 3, 1.025), (8, 5, 1.0))
"""Rounds of burst, rounds of graph, and how much worse than the best may go on to the next stage."""
REGIMES = ("burst", "graph")
REFERENCE = "cudnn"
"""Timed along, to see where we stand; never chosen."""
DIGITS = 3

Samples = dict[str, dict[str, list[float]]]
TimedBy = Callable[[str], Callable[[Contender], Timer]]
"""The timers of a regime, from the harness."""


def scores(samples: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """How many times as long as the best a way takes, the geometric mean over both regimes; 1 is best in both."""
    names = [name for name in samples if name != REFERENCE]
    middle = {name: [statistics.median(samples[name][regime]) for regime in REGIMES] for name in names}
    best = [min(middle[name][i] for name in names) for i in range(len(REGIMES))]
    return {name: geometric_mean([us / least for us, least in zip(middle[name], best, strict=True)]) for name in names}


def ranking(samples: Mapping[str, Mapping[str, Sequence[float]]]) -> list[tuple[float, str]]:
    """Scores and names, the best first; ways that are level come in the order of their names."""
    return sorted((score, name) for name, score in scores(samples).items())


class Track:
    """The harness's timers for a field, each made when it is first needed."""

    def __init__(
        self, field: Mapping[str, Contender], timed_by: TimedBy, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self.field, self.timed_by, self.pause = field, timed_by, pause
        self.timers: dict[tuple[str, str], Timer] = {}
        self.calls: dict[str, int] = dict.fromkeys(field, 0)

    def time(self, name: str, regime: str) -> float:
        """Microseconds a call of one measurement, on the next input sets. Raises `Unavailable`."""
        one = self.field[name]
        with one.scope():
            timer = self.timers.get((name, regime))
            if timer is None:
                timer = self.timers[name, regime] = self.timed_by(regime)(one)
            at = self.calls[name]
            self.calls[name] += timer.calls_made
            us = timer([one.plans[(at + i) % len(one.plans)] for i in range(timer.calls_made)]).latency_us
        self.pause(timer.rest_s(us))
        return us


def rounds(track: Track, names: list[str], regime: str, count: int, chance: random.Random) -> dict[str, list[float]]:
    """So many measurements of each, in an order that changes from round to round."""
    found: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(count):
        for name in chance.sample(names, len(names)):
            found[name].append(track.time(name, regime))
    return found


def race(
    field: Mapping[str, Contender],
    timed_by: TimedBy,
    chance: random.Random,
    pause: Callable[[float], None] = time.sleep,
) -> Samples:
    """Microseconds a call by way and regime. Each stage times those that the last one left."""
    samples: Samples = {name: {regime: [] for regime in REGIMES} for name in field}
    track, racing = Track(field, timed_by, pause), list(field)
    rounds(track, racing, "burst", 1, chance)  # a round that nobody counts
    for *counts, keep in STAGES:
        for regime, count in zip(REGIMES, counts, strict=True):
            for name, values in rounds(track, racing, regime, int(count), chance).items():
                samples[name][regime] += values
        found = ranking({name: samples[name] for name in racing})
        limit = found[0][0] * keep
        racing = sorted({name for score, name in found if score <= limit} | ({REFERENCE} & field.keys()))
        if len([name for name in racing if name != REFERENCE]) < 2:
            break
    return samples


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers, at least one."""
    return math.exp(sum(map(math.log, values)) / len(values))


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of recorded races, gzipped or not; a last line that a kill cut short is left out."""
    data = path.read_bytes()
    found = []
    for line in (gzip.decompress(data) if path.suffix == ".gz" else data).decode().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def of_kind(rows: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The rows of one kind."""
    return [row for row in rows if row["kind"] == kind]


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
