"""A fleet on Batch in bad weather: everything is stored, nothing twice, and no machine without an end or beyond the hold.

A few fleets here; `scripts/fleet_chaos.py` plays as many, of a thousand children each, as somebody has patience for.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.fleet.batch_story import broken, shape, story

CHILDREN = 60
SEEDS = range(1, 7)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_the_weather_all_is_stored_once_within_the_hold(tmp_path: Path, seed: int) -> None:
    with story(tmp_path / "cloud", seed, children=CHILDREN, **shape(seed, CHILDREN)) as told:
        seen = told.play()
    assert broken(seen) == [], seen


def test_in_calm_weather_one_job_does_it_and_costs_little_more_than_its_work(tmp_path: Path) -> None:
    with story(tmp_path / "cloud", 1, children=40, parallel=5, wall_s=3 * 3600, calm=True) as told:
        seen = told.play()
    assert broken(seen) == [], seen
    assert (seen.generations, seen.fired) == (1, Counter())
    assert seen.jobs <= 2


def test_a_fleet_without_time_enough_is_held_for_anew_and_measures_nothing_again(tmp_path: Path) -> None:
    with story(tmp_path / "cloud", 5, children=30, parallel=2, wall_s=2400, calm=True) as told:
        seen = told.play()
    assert broken(seen) == [], seen
    assert seen.generations > 1
