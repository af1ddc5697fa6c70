"""The searcher outlives what it searches with: processes that die, scenarios that do not end, chunks of any size."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from scripts.chaos import Part, search_parts, split_parts
from tests.search.chaos import campaign
from tests.search.chaos.campaign import NoEnd, Tally, breaks, no_longer_than, seeds
from tests.search.chaos.judge import CRASHED
from tests.search.chaos.scenario import SWAP, Client, Scenario
from tests.support.patience import PATIENCE_S


@given(st.integers(1, 10**6), st.integers(0, 1200), st.integers(1, 9))
def test_the_parts_of_a_search_are_all_its_seeds_once(first: int, count: int, processes: int) -> None:
    made = [
        seed for part in split_parts(first, count, processes) for seed in range(part.first, part.first + part.count)
    ]
    assert made == list(range(first, first + count))


def dies(part: Part) -> Tally:
    """Plays nothing; a process that is given seed 3 is killed."""
    if part.first == 3:
        os._exit(9)
    return Tally(played=part.count, outcomes=Counter(succeeded=part.count))


def test_a_process_that_dies_costs_no_other_parts_findings_and_is_named() -> None:
    said: list[str] = []
    total, left = search_parts([Part(1, 2), Part(3, 2), Part(5, 2)], 1, dies, said.append)
    assert Part(3, 2) in left
    assert total.played + sum(part.count for part in left) == 6
    assert total.played >= 2
    assert any(line.startswith("seeds 3 to 4: ") for line in said)


def test_a_scenario_that_does_not_end_is_found_and_no_code_catches_its_end() -> None:
    began = time.monotonic()
    try:
        with no_longer_than(1):
            while True:
                try:
                    time.sleep(3600)
                except Exception:
                    continue
    except NoEnd:
        pass
    assert time.monotonic() - began < PATIENCE_S


def test_what_never_ends_counts_as_a_crash() -> None:
    class Stuck:
        def play(self, scenario: Scenario) -> None:
            raise NoEnd("after 300 s")

    found = breaks(Stuck(), Scenario(0))  # type: ignore[arg-type]
    assert found is not None
    assert found.promise == CRASHED


def test_the_weather_of_the_reach_is_in_the_seeds() -> None:
    """Of a thousand: kept machines, clocks that are off, answers to swaps that are lost, hostile documents."""
    thousand = list(seeds(1, 1000))
    assert sum(one.keep and one.runs > 1 for one in thousand) > 150
    assert sum(client.off_s != 0 for one in thousand for client in one.clients) > 500
    assert sum(fault.get("path", "").startswith(SWAP) for one in thousand for fault in one.faults) > 100
    assert sum(bool(one.junk) for one in thousand) > 300


def test_a_kept_machine_is_taken_over_and_counted(tmp_path: Path) -> None:
    launches = (Client("launch"), Client("launch", 1, starts_s=140.0, off_s=7200.0))
    tally = campaign.campaign([Scenario(0, runs=2, keep=True, clients=launches)], tmp_path)
    assert (tally.played, tally.machines, tally.taken_over, tally.clocks) == (1, 1, 1, 1)
    assert "runs on kept machines" in tally.table()
