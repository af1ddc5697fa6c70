"""Searches over many orders and many simulated kernels: how soon they find the best, and how often."""

from __future__ import annotations

import math
import random
from statistics import mean

import pytest

from orchestrator.api.tuning import Search
from orchestrator.core.candidates import Strategy, read_space
from tests.unit.analysis.test_tuning import SOURCE, PlayedDesk, searched

SEARCHES = 20


def test_a_race_finds_the_best_of_96_in_a_quarter_of_the_blocks_that_all_take() -> None:
    shares, shortfalls = [], []
    for seed in range(SEARCHES):
        blocks = {}
        for strategy in ("exhaustive", "racing"):
            search, desk = searched(seed, 96, strategy=strategy)
            desk.speeds = {one: 4 ** (-random.Random(seed * 97 + one).random()) for one in desk.speeds}
            desk.plays_rules = True
            winner = search.run().winner
            blocks[strategy] = desk.blocks
        shares.append(blocks["racing"] / blocks["exhaustive"])
        shortfalls.append(max(desk.speeds.values()) / desk.speeds[winner.values["block"]] - 1)
    assert mean(shares) <= 0.25
    assert sum(one > 0.02 for one in shortfalls) <= 0.05 * SEARCHES


@pytest.mark.parametrize(("strategy", "least", "most"), [("racing", 2, 18), ("random", 30, 96)])
def test_a_race_tries_first_what_the_times_before_it_promise(strategy: Strategy, least: float, most: float) -> None:
    tries = []
    source = SOURCE.replace("[64, 128, 256]", "[1, 2, 3, 4, 5, 6, 7, 8]").replace("64", "1")
    source = source.replace("[2, 3]", str(list(range(2, 14))))
    for seed in range(60):
        chance = random.Random(seed)
        speeds = {block: math.exp(chance.random()) for block in range(1, 9)}
        desk = PlayedDesk(chance, speeds, {one: math.exp(chance.random()) for one in range(2, 14)})
        made = Search(desk, read_space(source, "f.py"), source, strategy, seed).run()  # type: ignore[arg-type]
        speed = [speeds[one.values["block"]] * desk.stages[one.values["stages"]] for one in made.trials]  # type: ignore[index]
        tries.append(next(at for at, one in enumerate(speed, start=1) if one >= 0.98 * max(speed)))
        assert len(made.trials) == 96
    assert least <= mean(tries) <= most, tries
