"""Searches for a run that breaks a promise: `make chaos N=500 SEED=1`, on the embedded cloud and simulated time.

Exits 1 when one was found; each is printed with the command that plays it again. Exits 2 when the search itself failed
and could not play all seeds; the missing ones are named.
"""

from __future__ import annotations

import argparse
import logging
import math
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.search.chaos.agents import Told, story
from tests.search.chaos.agents import play as live
from tests.search.chaos.campaign import EACH_ARENA, Tally, breaks, campaign, seeds
from tests.search.chaos.play import arena
from tests.search.chaos.scenario import Scenario, from_seed

TRIES = 2
"""How often a part is started in all if its process dies."""


@dataclass(frozen=True, slots=True)
class Part:
    """The seeds from `first` on that one process plays; none is started after the moment `until`."""

    first: int
    count: int
    until: float = math.inf


def play_part(part: Part) -> Tally:
    logging.disable(logging.CRITICAL)  # machines that die in the middle of a log line are part of the search
    with tempfile.TemporaryDirectory(prefix="bench-chaos-", ignore_cleanup_errors=True) as home:
        return campaign(
            seeds(part.first, part.count), Path(home), say=print_line, seconds=max(part.until - time.time(), 0)
        )


def print_line(text: str) -> None:
    print(text, flush=True)


def split_parts(first: int, count: int, processes: int, until: float = math.inf) -> list[Part]:
    """Small parts, so that at the end no process has much more left than the others."""
    each = max(1, min(EACH_ARENA, -(-count // max(processes, 1))))
    return [Part(first + begin, min(each, count - begin), until) for begin in range(0, count, each)]


def search_parts(
    works: Sequence[Part],
    processes: int,
    play: Callable[[Part], Tally] = play_part,
    say: Callable[[str], None] = print_line,
) -> tuple[Tally, list[Part]]:
    """Plays all parts in `processes` processes. Returns the findings, and the parts that could not be played. If a
    process dies, the findings of other parts are kept."""
    total, pending, began = Tally(), list(works), time.monotonic()
    wanted = sum(part.count for part in works)
    for _ in range(TRIES):
        waiting, pending = pending, []
        if not waiting:
            break
        with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
            asked = {pool.submit(play, part): part for part in waiting}
            for done in as_completed(asked):
                try:
                    total.take(done.result())
                except Exception as fault:  # any reason for which the process died
                    pending.append(asked[done])
                    say(f"seeds {asked[done].first} to {asked[done].first + asked[done].count - 1}: {fault!r}")
                else:
                    some = f"{total.played + len(total.broken)} of {wanted} scenarios, {len(total.broken)} broken"
                    say(f"{some}, {time.monotonic() - began:.0f} s")
    return total, pending


def play_agents(first: int, count: int) -> int:
    """Plays the agent that ships, one seeded story after the other."""
    total, broken = Told(), 0
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory(prefix="bench-agents-", ignore_cleanup_errors=True) as home:
            try:
                tally = live(story(seed), Path(home))
            except Exception as fault:
                broken += 1
                print_line(f"BROKEN seed {seed}: {type(fault).__name__}: {fault}\nmake chaos-agents N=1 SEED={seed}")
                continue
        total.take(tally)
    print_line(f"{count} stories, {broken} broken: {total.line()}")
    return 1 if broken else 0


def find_first(first: int, count: int) -> int:
    """Plays one seed after the other until one breaks a promise, which is printed as it is, not made smaller."""
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="bench-chaos-", ignore_cleanup_errors=True) as home:
        for seed in range(first, first + count):
            with arena(Path(home) / str(seed)) as made:
                found = breaks(made, from_seed(seed))
            if found is not None:
                print_line(f"BROKEN seed {seed}, scenario {seed - first + 1}: {found}")
                return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no scenario after so long")
    parser.add_argument("--scenario", default="", help="one scenario, as the JSON line that a search printed")
    parser.add_argument("--first", action="store_true", help="in one process, until the first scenario that is broken")
    parser.add_argument("--agents", type=int, default=0, help="so many lives of the real agent instead, from --seed on")
    asked = parser.parse_args()
    if asked.agents:
        return play_agents(asked.seed, asked.agents)
    if asked.first:
        return find_first(asked.seed, asked.runs)
    began, unplayed = time.monotonic(), []
    if asked.scenario:
        with tempfile.TemporaryDirectory(prefix="bench-chaos-", ignore_cleanup_errors=True) as home:
            total = campaign([Scenario.parse(asked.scenario)], Path(home), say=print_line)
    else:
        until = time.time() + asked.minutes * 60
        total, unplayed = search_parts(
            split_parts(asked.seed, asked.runs, asked.processes, until), max(asked.processes, 1)
        )
    total.seconds = time.monotonic() - began
    print_line(total.table())
    for part in unplayed:
        print_line(f"not played: seeds {part.first} to {part.first + part.count - 1}")
    return 1 if total.broken else 2 if unplayed else 0


if __name__ == "__main__":
    sys.exit(main())
