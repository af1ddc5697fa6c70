"""Finds the fastest of several ways of one computation: few rounds for all, more for those that stay near the best.

The decision is pure: `scores` and `choice` use recorded times only, so the same rows always give the same table.
"""

from __future__ import annotations

import gzip
import json
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernels.attention.cuda.campaign.cells import Cell
from kernels.attention.cuda.ways.tuned import Choice, Key
from kernels.harness.timers import Timer
from kernels.harness.turns import Contender

STAGES = ((3, 2, 1.12), (5, 3, 1.025), (8, 5, 1.0))
"""For each stage: rounds of burst, rounds of graph, and the largest score, relative to the best, with which a way goes
on to the next stage."""
REGIMES = ("burst", "graph")
REFERENCE = "cudnn"
"""This backend is timed too, for comparison; it is never chosen."""
DIGITS = 3

Samples = dict[str, dict[str, list[float]]]
TimedBy = Callable[[str], Callable[[Contender], Timer]]
"""Returns for a regime the harness's maker of timers."""


def geometric_scores(samples: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """Return for each way its median time divided by the best median, as the geometric mean over both regimes. A score
    of 1 means best in both."""
    names = [name for name in samples if name != REFERENCE]
    middle = {name: [statistics.median(samples[name][regime]) for regime in REGIMES] for name in names}
    best = [min(middle[name][i] for name in names) for i in range(len(REGIMES))]
    return {
        name: statistics.geometric_mean([us / least for us, least in zip(middle[name], best, strict=True)])
        for name in names
    }


def rank_ways(samples: Mapping[str, Mapping[str, Sequence[float]]]) -> list[tuple[float, str]]:
    """Return (score, name) of each way, the best first. Equal scores are in the order of the names."""
    return sorted((score, name) for name, score in geometric_scores(samples).items())


class Track:
    """The harness's timers for the contenders of a race. Each timer is made when it is first needed."""

    def __init__(
        self, field: Mapping[str, Contender], timed_by: TimedBy, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self.field, self.timed_by, self.pause = field, timed_by, pause
        self.timers: dict[tuple[str, str], Timer] = {}
        self.calls: dict[str, int] = dict.fromkeys(field, 0)

    def time(self, name: str, regime: str) -> float:
        """Measure a contender once on its next input sets. Return the microseconds per call. Raises `Unavailable`."""
        call = self.field[name]
        with call.scope():
            timer = self.timers.get((name, regime))
            if timer is None:
                timer = self.timers[name, regime] = self.timed_by(regime)(call)
            at = self.calls[name]
            self.calls[name] += timer.calls_made
            us = timer([call.plans[(at + i) % len(call.plans)] for i in range(timer.calls_made)]).latency_us
        self.pause(timer.rest_s(us))
        return us


def measure_rounds(
    track: Track, names: list[str], regime: str, count: int, chance: random.Random
) -> dict[str, list[float]]:
    """Return `count` measurements of each contender, in microseconds per call. Each round has another random order."""
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(count):
        for name in chance.sample(names, len(names)):
            times[name].append(track.time(name, regime))
    return times


def race_ways(
    field: Mapping[str, Contender],
    timed_by: TimedBy,
    chance: random.Random,
    pause: Callable[[float], None] = time.sleep,
) -> Samples:
    """Return the measured microseconds per call, by way and regime. Each stage times the ways that the stage before it
    left in the race."""
    samples: Samples = {name: {regime: [] for regime in REGIMES} for name in field}
    track, racing = Track(field, timed_by, pause), list(field)
    measure_rounds(track, racing, "burst", 1, chance)  # a first round, which is not counted
    for *counts, keep in STAGES:
        for regime, count in zip(REGIMES, counts, strict=True):
            for name, values in measure_rounds(track, racing, regime, int(count), chance).items():
                samples[name][regime] += values
        ranked = rank_ways({name: samples[name] for name in racing})
        limit = ranked[0][0] * keep
        racing = sorted({name for score, name in ranked if score <= limit} | ({REFERENCE} & field.keys()))
        if len([name for name in racing if name != REFERENCE]) < 2:
            break
    return samples


def read_races(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of recorded races, gzipped or not. Reading ends at the first line that is not JSON: a
    process that was killed may leave such a last line."""
    data = path.read_bytes()
    rows = []
    for line in (gzip.decompress(data) if path.suffix == ".gz" else data).decode().splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def of_kind(rows: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return the rows of one kind."""
    return [row for row in rows if row["kind"] == kind]


def row_of(cell: Cell, samples: Samples, absent: Mapping[str, str], at: str) -> dict[str, Any]:
    """Return the row that records a race."""
    times = {
        name: {regime: [round(us, DIGITS) for us in values] for regime, values in by_regime.items()}
        for name, by_regime in samples.items()
    }
    return {"kind": "race", "cell": asdict(cell), "times_us": times, "absent": dict(absent), "at": at}


def final_times(row: Mapping[str, Any]) -> Samples:
    """Return the times of the ways that reached the last stage of the race. Only these were timed often enough to
    choose from."""
    times: Samples = {name: found for name, found in row["times_us"].items() if name != REFERENCE}
    most = max(len(found["burst"]) for found in times.values())
    return {name: found for name, found in times.items() if len(found["burst"]) == most}


def race_choice(row: Mapping[str, Any]) -> Choice:
    """Return the winner of a recorded race, with how much longer the others take."""
    everyone = geometric_scores(row["times_us"])
    last = geometric_scores(final_times(row))
    winner = min(last, key=lambda name: (last[name], name))
    behind = {name: score / everyone[winner] - 1 for name, score in everyone.items()}
    behind |= {name: score / last[winner] - 1 for name, score in last.items()}  # more samples, so more exact
    us = {regime: round(statistics.median(row["times_us"][winner][regime]), 2) for regime in REGIMES}
    margins = {name: round(max(0.0, value), 4) for name, value in sorted(behind.items()) if name != winner}
    return Choice(key_of(Cell(**row["cell"])), winner, margins, us, row["at"])


def key_of(cell: Cell) -> Key:
    """Return the key of a cell in the table."""
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
    """Return the median time of the reference divided by that of a way, by regime; empty if the reference is absent."""
    times = row["times_us"]
    if REFERENCE not in times:
        return {}
    return {
        regime: statistics.median(times[REFERENCE][regime]) / statistics.median(times[name][regime])
        for regime in REGIMES
    }
