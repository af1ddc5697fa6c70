"""When enough of a case has been measured."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kernels.harness.stopping import first_of, half_width, never_stop, precision_rule, time_rule
from orchestrator.analysis.bootstrap import median_interval
from tests.kernels.measured import Journal, measured


def test_measuring_ends_when_it_is_told_that_it_is_enough() -> None:
    seen: list[dict[str, int]] = []

    def enough(latencies: Mapping[str, Sequence[float]]) -> str:
        seen.append({name: len(times) for name, times in latencies.items()})
        return "precision" if len(seen) == 4 else ""

    done, samples = measured(Journal(), "ab", blocks=50, enough=enough)
    assert max(s.block for s in samples) == 4
    assert seen == [{"a": n, "b": n} for n in (1, 2, 3, 4)]
    assert done.stopped == "precision"
    assert measured(Journal(), "ab", blocks=3)[0].stopped == "repeats"


def blocks_until_enough(noise: float, relative_ci: float | None, most: int = 500) -> int | None:
    chance = random.Random(4)
    latencies: dict[str, list[float]] = {"a": [], "b": []}
    enough = precision_rule(relative_ci)
    for block in range(1, most + 1):
        for times in latencies.values():
            times.append(10 * math.exp(chance.gauss(0, noise)))
        if enough(latencies):
            return block
    return None


def test_noisy_cases_are_measured_longer_and_by_default_all_are_measured_alike() -> None:
    calm, noisy = blocks_until_enough(0.002, 0.01), blocks_until_enough(0.05, 0.02)
    assert calm == 30  # precise at 20 and at 30
    assert noisy is not None
    assert noisy > 50
    assert noisy % 10 == 0
    assert blocks_until_enough(0.2, 0.001) is None
    assert blocks_until_enough(0.002, None) is None
    assert not precision_rule(0.5)({})
    alone = precision_rule(0.5)
    assert [alone({"alone": [1.0] * blocks}) for blocks in (20, 25, 30)] == ["", "", "precision"]


def test_a_long_case_is_observed_less_often_so_that_measuring_prevails() -> None:
    looked: list[int] = []

    class Series(list[float]):
        def __iter__(self) -> Iterator[float]:
            looked.append(len(self))
            return super().__iter__()

    enough, alone, chance = precision_rule(1e-9), Series(), random.Random(2)
    for _ in range(4000):
        alone.append(1.0 + chance.random())
        assert not enough({"alone": alone})
    assert looked[:3] == [20, 30, 40]
    assert len(looked) < 120
    assert sum(looked) < 60 * 4000


def test_a_case_ends_once_its_dollars_are_spent_and_an_order_has_been_turned_around() -> None:
    now = [100.0]
    enough = time_rule(10, clock=lambda: now[0])
    assert enough({"a": [1.0] * 4}) == ""
    now[0] = 110.0
    assert enough({"a": [1.0] * 4}) == "dollars"
    assert enough({"a": [1.0] * 5}) == ""
    assert enough({"a": [], "b": []}) == ""
    assert time_rule(-5, clock=lambda: now[0])({"a": [1.0] * 2}) == "dollars"
    assert time_rule(None)({"a": [1.0] * 2}) == ""


def test_of_two_rules_the_one_that_stops_is_named() -> None:
    both = first_of(precision_rule(0.5), time_rule(0))
    assert both({"a": [1.0] * 2}) == "dollars"
    assert both({"a": [1.0] * 20}) == "dollars"
    assert both({"a": [1.0] * 30}) == "precision"
    assert first_of(never_stop, never_stop)({"a": [1.0] * 20}) == ""


def test_the_stopping_rules_interval_covers_the_median_as_often_as_it_says() -> None:
    chance = random.Random(6)
    covered = 0
    for _ in range(1000):
        values = [chance.gauss(0, 1) for _ in range(50)]
        covered += abs(statistics.median(values)) <= half_width(values)
    assert covered >= 940


def test_a_case_does_not_end_at_a_look_that_is_precise_by_luck() -> None:
    rule = precision_rule(0.01)
    calm, wild = [10.0, 10.01] * 10, [9.0, 11.0] * 5
    assert rule({"a": [10.0] * 20, "b": calm}) == ""
    assert rule({"a": [10.0] * 100, "b": calm + 8 * wild}) == ""
    assert rule({"a": [10.0] * 400, "b": calm + 8 * wild + 150 * [10.0, 10.01]}) == ""
    assert rule({"a": [10.0] * 420, "b": calm + 8 * wild + 160 * [10.0, 10.01]}) == "precision"


def test_intervals_of_cases_that_end_early_hold_as_often_as_those_of_fixed_ones() -> None:
    """1,000 cases each of two kinds of noise, with the rule's looks and the report's intervals; seeds are fixed."""
    rng = np.random.default_rng(7)
    for draw in (lambda: rng.normal(0, 0.05, 300), lambda: 0.05 * (rng.lognormal(0, 0.8, 300) - 1)):
        held = early = 0
        for _ in range(1000):
            logs, rule = draw(), precision_rule(0.01)
            latencies = list(np.exp(logs))
            looks = range(20, logs.size + 1, 10)
            end = next((n for n in looks if rule({"a": [1.0] * n, "b": latencies[:n]})), logs.size)
            interval = median_interval(logs[:end])
            held += interval.low <= 0 <= interval.high
            early += end < logs.size
        assert early > 500
        assert held >= 937  # two standard deviations below 950
