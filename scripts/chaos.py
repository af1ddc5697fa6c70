"""Searches for a run that breaks a promise: `make chaos N=500 SEED=1`, on the embedded cloud and simulated time.

Exits 1 when one was found; each is printed with the line that plays it again.
"""

from __future__ import annotations

import argparse
import logging
import math
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.chaos.campaign import Tally, campaign, seeds
from tests.chaos.scenario import Scenario


def part(work: tuple[int, int, float]) -> Tally:
    first, count, seconds = work
    logging.disable(logging.CRITICAL)  # machines that die in the middle of a sentence are what is searched with
    with tempfile.TemporaryDirectory(prefix="bench-chaos-") as home:
        return campaign(seeds(first, count), Path(home), say=lambda text: print(text, flush=True), seconds=seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no scenario after so long")
    parser.add_argument("--scenario", default="", help="one scenario, as the JSON line that a search printed")
    asked = parser.parse_args()
    began = time.monotonic()
    if asked.scenario:
        with tempfile.TemporaryDirectory(prefix="bench-chaos-") as home:
            total = campaign([Scenario.parse(asked.scenario)], Path(home), say=print)
    else:
        each = -(-asked.runs // max(asked.processes, 1))
        works = [
            (asked.seed + begin, min(each, asked.runs - begin), asked.minutes * 60)
            for begin in range(0, asked.runs, each)
            if asked.runs
        ]
        with multiprocessing.get_context("spawn").Pool(len(works)) as pool:
            total = together(pool.map(part, works))
    total.seconds = time.monotonic() - began
    print(total.table())
    return 1 if total.broken else 0


def together(tallies: list[Tally]) -> Tally:
    total = Tally()
    for tally in tallies:
        for name, value in vars(tally).items():
            if isinstance(value, dict):
                getattr(total, name).update(value)
            else:
                setattr(total, name, getattr(total, name) + value)
    return total


if __name__ == "__main__":
    sys.exit(main())
