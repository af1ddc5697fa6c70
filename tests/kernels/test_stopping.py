"""When enough of a case has been measured."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence

from kernels.harness.stopping import first_of, half_width, never_stop, precision_rule, time_rule
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
    assert calm == 20
    assert noisy is not None
    assert noisy > 50
    assert noisy % 10 == 0
    assert blocks_until_enough(0.2, 0.001) is None
    assert blocks_until_enough(0.002, None) is None
    assert not precision_rule(0.5)({})
    assert precision_rule(0.5)({"alone": [1.0] * 20})


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
    assert both({"a": [1.0] * 20}) == "precision"
    assert first_of(never_stop, never_stop)({"a": [1.0] * 20}) == ""


def test_the_stopping_rules_interval_covers_the_median_as_often_as_it_says() -> None:
    chance = random.Random(6)
    covered = 0
    for _ in range(1000):
        values = [chance.gauss(0, 1) for _ in range(50)]
        covered += abs(statistics.median(values)) <= half_width(values)
    assert covered >= 940
