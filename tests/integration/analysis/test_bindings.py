"""Bindings of an implementation whose times differ for as long as they live: graphs of small calls do that."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from orchestrator.analysis.study import Study, false_verdicts
from orchestrator.analysis.verdicts import Verdict
from tests.unit.report.written import csv_text, records, studied

NAMES = ("bench", "sdpa:default", "bench:aa", "sdpa:default:aa")
LENGTHS = tuple(64 * (number + 8) for number in range(16))
"""Sixteen cases, the longest call three times as long as the shortest."""


def a_run(seed: int, *, apart: dict[str, float], speed: float = 1.0, cases: int = 16) -> Study:
    """Twenty blocks a case, 0.2 % of noise; each binding has a level of its own, drawn once a case: `apart` is its
    standard deviation by implementation."""
    rng = np.random.default_rng(seed)

    def rows() -> Iterator[dict[str, str]]:
        for number, length in enumerate(LENGTHS[:cases]):
            base = {name: speed if name.startswith("bench") else 1.0 for name in NAMES}
            speeds = {
                name: base[name] * math.exp(apart.get(name.removesuffix(":aa"), 0.0) * rng.standard_normal())
                for name in NAMES
            }
            yield from records(
                lengths=(length,), speeds=speeds, blocks=20, noise=0.002, seed=seed * 100 + number, regime="graph",
                cache="cold",
            )  # fmt: skip

    return studied(csv_text(list(rows())))


APART = {"bench": 0.002, "sdpa:default": 0.017}


def test_an_implementation_hardly_ever_differs_from_itself_across_instances() -> None:
    found = [a_run(seed, apart=APART) for seed in range(12)]
    assert sum(len(one.controls) for one in found) == 12 * 16 * 2
    assert sum(false_verdicts(one.controls) for one in found) <= 0.05 * 12 * 16 * 2


def test_the_interval_of_a_ratio_covers_the_truth_though_instances_are_apart() -> None:
    speed, ratios = 1.04, []
    for seed in range(12):
        ratios += [one.ratio for one in a_run(seed, apart=APART, speed=speed).contrasts]
    covered = sum(one.low <= speed <= one.high for one in ratios)
    assert covered >= 0.92 * len(ratios) == 0.92 * 12 * 16


def test_instances_that_are_alike_widen_hardly_any_interval() -> None:
    found = a_run(3, apart={}, speed=1.02)
    widths = [math.log(one.ratio.high / one.ratio.low) for one in found.contrasts]
    alone = [a_run(3, apart={}, speed=1.02, cases=1).contrasts[0].ratio]
    assert widths[0] <= 1.25 * math.log(alone[0].high / alone[0].low)
    assert {one.verdict for one in found.contrasts} == {Verdict.FASTER}


def test_a_difference_beyond_what_instances_are_apart_is_found() -> None:
    found = a_run(5, apart=APART, speed=1.10)
    assert sum(one.verdict is Verdict.FASTER for one in found.contrasts) >= 14


def one_call(seed: int, *, apart: float, length: int = 128, regime: str = "graph", speed: float = 1.0) -> Study:
    """One case of 8 us a call at 128 keys, each binding with a level of its own."""
    rng = np.random.default_rng(seed)
    speeds = {name: (speed if "bench" in name else 1.0) * math.exp(apart * rng.standard_normal()) for name in NAMES}
    rows = records(lengths=(length,), speeds=speeds, blocks=20, noise=0.002, seed=seed, regime=regime, cache="cold")
    return studied(csv_text(list(rows)))


def test_a_run_of_one_small_case_calls_hardly_any_equal_kernel_different() -> None:
    """Its own control alone is one draw of what the ratio is another draw of."""
    found = [one.verdict for seed in range(200) for one in one_call(seed, apart=0.012).contrasts]
    assert len(found) == 200
    assert sum(one in (Verdict.FASTER, Verdict.SLOWER) for one in found) <= 0.05 * 200


@pytest.mark.parametrize(("length", "speed"), [(128, 1.10), (1024, 1.03)])
def test_a_run_of_one_case_finds_what_is_beyond_what_is_usual(length: int, speed: float) -> None:
    found = [
        one.verdict for seed in range(40) for one in one_call(seed, apart=0.0, length=length, speed=speed).contrasts
    ]
    assert sum(one is Verdict.FASTER for one in found) >= 0.95 * 40


def test_what_is_usual_of_graphs_is_said_of_no_other_regime() -> None:
    (one,) = one_call(1, apart=0.0, regime="burst").contrasts
    assert one.ratio == one.paired.ratio


def test_one_implementations_spread_widens_no_other_that_has_its_own_controls() -> None:
    found = a_run(9, apart={"sdpa:default": 0.05})
    own = [one for one in found.controls if one.implementation == "bench"]
    assert all(one.verdict in (Verdict.SAME, Verdict.INCONCLUSIVE) for one in own)
    apart = a_run(9, apart={"bench": 0.05})
    wide, narrow = ([math.log(o.ratio.high / o.ratio.low) for o in s.contrasts] for s in (apart, found))
    assert np.median(wide) == pytest.approx(np.median(narrow), rel=0.6)
