"""What the rows of a campaign say: medians, rates, ratios. Pure."""

from __future__ import annotations

import gzip
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernels.attention.cuda.campaign.cells import Cell, from_row

Row = dict[str, Any]
BACKENDS = ("cudnn", "flash", "efficient")
BACKENDS_WITH_SUMS = ("cudnn:lse", "flash", "efficient:lse")
"""PyTorch's FLASH backend writes the log-sum-exp whether it is asked for or not."""


def read(path: Path) -> list[Row]:
    """The rows of a results file, gzipped or not; a last line that a kill cut short is left out."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    found = []
    for line in text.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def of_kind(rows: Iterable[Row], kind: str) -> list[Row]:
    return [row for row in rows if row["kind"] == kind]


def by_cell(rows: Iterable[Row]) -> dict[Cell, list[Row]]:
    """The visits of each cell."""
    found: dict[Cell, list[Row]] = {}
    for row in of_kind(rows, "visit"):
        found.setdefault(from_row(row["cell"]), []).append(row)
    return found


def medians(visits: Sequence[Row], regime: str) -> dict[str, float]:
    """Microseconds of each contender over all rounds of all visits."""
    pooled: dict[str, list[float]] = {}
    for row in visits:
        for name, values in row.get(f"{regime}_us", {}).items():
            pooled.setdefault(name, []).extend(values)
    return {name: statistics.median(values) for name, values in pooled.items() if values}


def rate(cell: Cell, us: float) -> str:
    """TFLOP/s, or GB/s for decoding, which moves bytes and computes little."""
    if cell.group == "decode":
        return f"{cell.set_bytes / us / 1e3:.0f} GB/s"
    return f"{cell.flops / us / 1e6:.0f}"


def best_of(times: Mapping[str, float], names: Sequence[str]) -> float | None:
    """The least time among those that were taken."""
    return min((times[name] for name in names if name in times), default=None)


def ratio(times: Mapping[str, float], lse: bool) -> float | None:
    """How many times as fast as PyTorch's best backend we are, the log-sum-exp written or not."""
    ours = times.get("ours:lse" if lse else "ours")
    best = best_of(times, BACKENDS_WITH_SUMS if lse else BACKENDS)
    return None if ours is None or best is None else best / ours


def over(times: Mapping[str, float], rival: str) -> float | None:
    """How many times as fast as a rival we are."""
    return times[rival] / times["ours"] if {rival, "ours"} <= times.keys() else None


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
