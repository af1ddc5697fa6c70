"""What the harness and clocks that share no code with it say of the same calls, on a calm host and on a slowed one.

python3 -m tests.kernels.agreement [--seconds 300] [--table FILE] [--from K] [--to K] [--names bench,sdpa:cudnn]

A slowed host has a thread that takes the interpreter at random, a process for every core that never rests, and calls
that sleep for up to 0.4 ms at random. Ours and theirs are taken by turns, since a chip at its power limit slows down as
it works.
"""
# ruff: noqa: T201  (a table for people)

from __future__ import annotations

import argparse
import csv
import math
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

import torch

from kernels.attention.case import Case
from kernels.harness.timers import SUSTAINED_S, Timed
from kernels.harness.watching import Missed
from kernels.harness.workload import BuildFailed, Unavailable
from tests.kernels.instruments import (
    CALM_SPIN_S,
    DEV,
    GRAPH_SPIN_S,
    LOADED_SPIN_S,
    Subject,
    by_events,
    by_loop,
    by_nvbench,
    by_own_graph,
    case,
    crowd,
    loader,
    middle,
    ours,
    sleepy,
    subject,
    taker,
    watched,
)  # fmt: skip

CELLS = (
    case(1024, "bfloat16"), case(4096, "bfloat16"), case(2048, "float16", 128), case(512, "float16"),
    case(4096, "float16", 128, causal=True), case(2048, "bfloat16", causal=True), case(8192, "bfloat16", 128),
    case(1024, "float16", 128, causal=True), case(2048, "float16"), case(8192, "float16", causal=True),
    case(256, "bfloat16"), case(16384, "bfloat16", 128, causal=True),
)  # fmt: skip
ROUNDS = 3


class Line(NamedTuple):
    """What two clocks say of one implementation on one case, in microseconds. Of `samples` of ours `hidden` prove that
    the device never waited for the host, whose enqueue took `host_us`; None where another clock watches ours."""

    host: str
    case: str
    name: str
    clocks: str
    ours_us: float
    theirs_us: float
    hidden: int | None = None
    samples: int | None = None
    host_us: float | None = None
    remark: str = ""

    def follows_the_host(self) -> bool:
        """Whether no sample of ours is hidden, so that both clocks time the host."""
        return self.hidden == 0


@contextmanager
def slowed_host() -> Iterator[None]:
    """A thread that takes the interpreter at random, and a busy process for every core."""
    with crowd(os.cpu_count() or 1), loader(0.01):
        yield


def by_turns(one: Subject, regime: str, spin_s: float) -> tuple[list[Timed], float]:
    """Rounds of ours and of events behind a spin, one after the other: our samples, and the median of their medians."""
    taken: list[Timed] = []
    told: list[float] = []
    for _ in range(ROUNDS):
        taken += ours(one, regime, 5)
        told.append(
            by_events(one.calls, spin_s, 5) if regime == "burst" else by_own_graph(one.calls, spin_s, samples=5)
        )
    return taken, statistics.median(told)


def by_turns_without_rest(one: Subject, each_us: float) -> tuple[list[Timed], float]:
    """The steady state by our timer and in a loop of calls of about `each_us`: our samples, and the loop's median. Both
    keep the chip busy for as long, and each is as often ahead of the other: at its power limit a chip is slower, the
    less it has rested."""
    take, half_s = taker(one, "sustained"), SUSTAINED_S["cuda"] / 2
    taken: list[Timed] = []
    told: list[float] = []
    by_loop(one.calls, each_us, 0.5)
    for number in range(5 * ROUNDS):
        for is_ours in (number % 2 == 0, number % 2 == 1):
            if is_ours:
                taken.append(take())
            else:
                told.append(by_loop(one.calls, each_us, half_s))
    return taken, statistics.median(told)


def compared(host: str, one: Subject) -> list[Line]:
    """What is said of one subject. On a slowed host sustained is compared with CUPTI alone: a loop follows the host."""
    calm = host == "calm"
    lines: list[Line] = []

    def line(clocks: str, told: float, theirs: float, taken: Sequence[Timed] = (), remark: str = "") -> None:
        proof = (sum(bool(sample.hidden) for sample in taken), len(taken)) if taken else (None, None)
        waited = statistics.median(sample.host_us or 0 for sample in taken) if taken else None
        lines.append(Line(host, one.case.id, one.name, clocks, told, theirs, *proof, waited, remark))

    graph_us = math.nan
    with one.scope():
        for regime in ("burst", "graph", "sustained"):
            if regime == "sustained" and not calm:
                continue
            calm_spin_s = GRAPH_SPIN_S if regime == "graph" else CALM_SPIN_S
            try:
                if regime == "sustained":
                    taken, theirs = by_turns_without_rest(one, graph_us)
                else:
                    taken, theirs = by_turns(one, regime, calm_spin_s if calm else LOADED_SPIN_S)
            except Unavailable as exc:
                line(f"{regime}/events", math.nan, math.nan, remark=str(exc)[:60])
                continue
            graph_us = middle(taken) if regime == "graph" else graph_us
            line(f"{regime}/events", middle(taken), theirs, taken)
    for regime in ("burst", "graph", "sustained"):
        found = watched(one, regime)
        if isinstance(found, Missed):
            line(f"{regime}/cupti", math.nan, math.nan, remark=found.why[:60])
            continue
        theirs = found.cupti_us if math.isnan(found.covered_us) else found.covered_us
        line(f"{regime}/cupti", found.watched_us, theirs, remark=f"worst sample {found.worst_ratio - 1:+.1%}")
    return lines


def all_lines(until: float, cells: Sequence[Case], names: list[str]) -> Iterator[Line]:
    """Cell by cell, on a calm and on a slowed host, until the time is up."""
    for cell in cells:
        for name in names:
            for host in ("calm", "slowed"):
                if time.monotonic() > until:
                    return
                try:
                    one = subject(cell, name, 60)
                    with nullcontext() if host == "calm" else slowed_host():
                        yield from compared(host, one if host == "calm" else sleepy(one))
                except (Unavailable, BuildFailed, RuntimeError) as exc:
                    print(f"{host} {cell.id} {name}: {type(exc).__name__} {str(exc)[:150]}", flush=True)


def nvbench_lines() -> Iterator[Line]:
    """Five cells by NVBench, where it is installed."""
    subjects = [subject(cell, "bench", 60) for cell in CELLS[:5]]
    try:
        times = by_nvbench([one.calls for one in subjects])
    except Exception as exc:  # an experimental package, which may not be there
        print(f"nvbench: {type(exc).__name__}: {str(exc)[:120]}", flush=True)
        return
    for one, theirs in zip(subjects, times, strict=True):
        with one.scope():
            yield Line("calm", one.case.id, one.name, "burst/nvbench", middle(ours(one, "burst")), theirs)


def summary(lines: list[Line]) -> Iterator[str]:
    """A sentence for each host and pair of clocks. What follows the host is not counted."""
    yield "host and clocks: above 10 us within 2 % / 5 %; below 10 us within 0.5 us; worst; not compared"
    for host, clocks in dict.fromkeys((one.host, one.clocks) for one in lines):
        own = [one for one in lines if (one.host, one.clocks) == (host, clocks)]
        known = [one for one in own if not math.isnan(one.ours_us) and not one.follows_the_host()]
        large = [abs(one.ours_us / one.theirs_us - 1) for one in known if one.theirs_us >= 10]
        small = [abs(one.ours_us - one.theirs_us) for one in known if one.theirs_us < 10]
        two, five, half = (sum(x <= y for x in xs) for xs, y in ((large, 0.02), (large, 0.05), (small, 0.5)))
        yield (
            f"{host:6} {clocks:16} {two}/{len(large)} {five}/{len(large)}; {half}/{len(small)}; "
            f"worst {max(large, default=0):.1%}, {max(small, default=0):.2f} us; {len(own) - len(known)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=600.0, help="begin no further case after so long")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first of the cells, from 0 on")
    parser.add_argument("--to", type=int, default=len(CELLS), dest="last", help="the first that is left out")
    parser.add_argument("--names", default="bench,sdpa:cudnn", help="implementations, comma-separated")
    parser.add_argument("--table", type=Path, help="write the lines to this CSV file too")
    asked = parser.parse_args()
    began = time.monotonic()
    print(torch.cuda.get_device_name(DEV), "torch", torch.__version__, flush=True)
    lines: list[Line] = []
    with torch.inference_mode():
        cells = CELLS[asked.first : asked.last]
        for source in (all_lines(began + asked.seconds, cells, asked.names.split(",")), nvbench_lines()):
            for one in source:
                lines.append(one)
                ratio = one.ours_us / one.theirs_us - 1
                print(
                    f"{one.host:6} {one.case:44} {one.name:10} {one.clocks:16} {one.ours_us:9.2f} "
                    f"{one.theirs_us:9.2f} {ratio:+7.2%} {one.hidden}/{one.samples} {one.remark}",
                    flush=True,
                )
    if asked.table:
        with asked.table.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(Line._fields)
            for one in lines:
                writer.writerow(["" if x != x else round(x, 3) if isinstance(x, float) else x for x in one])
    print(*summary(lines), sep="\n")


if __name__ == "__main__":
    main()
