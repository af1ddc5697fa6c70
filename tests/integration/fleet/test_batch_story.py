"""A fleet on Batch in bad weather: everything is stored, nothing twice, and no machine without an end or beyond the hold.

A few fleets here; `scripts/fleet_chaos.py` plays as many, of a thousand children each, as somebody has patience for.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from orchestrator.core.errors import ConfigError
from orchestrator.core.fleet.batch import record_object
from tests.unit.fleet.batch_judge import Seen, broken
from tests.unit.fleet.batch_story import shape, story

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


def test_one_look_asks_once_for_a_job_and_never_again_for_one_that_is_over(tmp_path: Path) -> None:
    with story(tmp_path / "cloud", 3, children=20, parallel=4, wall_s=3600, calm=True) as told:
        client, asked = told.scheduler.client, []
        get = client.get_job
        client.get_job = lambda **given: (asked.append(given["name"]), get(**given))[1]  # type: ignore[method-assign]
        told.play()
        (job,) = told.jobs
        moments = len(asked)
        assert moments <= told.looks
        for _ in range(3):
            told.timeline.sleep(60)
            told.scheduler.counts([job.name])
        assert len(asked) <= moments + 1


def test_a_job_whose_record_in_the_bucket_was_rewritten_is_not_asked_for(tmp_path: Path) -> None:
    with story(tmp_path / "cloud", 1, children=2, parallel=1, wall_s=3600, calm=True) as told:
        told.hold()
        first, second = told.job([0], {}), told.job([1], {})
        told.scheduler.submit([first, second])
        waiting = told.scheduler.records.read(second.fleet, second.name)
        assert waiting is not None
        assert waiting.stage == "waiting"
        template = json.loads(json.dumps(waiting.template))
        template["properties"]["serviceAccounts"][0]["email"] = "owner@p.iam.gserviceaccount.com"
        forged = waiting.model_copy(update={"template": template})
        told.bucket.replace(record_object(second.fleet, second.name), forged.dump(), generation=None)
        told.scheduler.cancel([first.name])

        def looked_at_until_the_first_is_over() -> None:
            for _ in range(20):
                told.timeline.sleep(30)
                told.fresh().reconcile(second.fleet, [first.name, second.name], [0, 1])

        with pytest.raises(ConfigError, match="is not the one that this computer made"):
            looked_at_until_the_first_is_over()
        told.scheduler.cancel([second.name])


@pytest.fixture(scope="module")
def fair(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    with story(tmp_path_factory.mktemp("fair") / "cloud", 1, children=10, parallel=2, wall_s=3600, calm=True) as told:
        return told.play()


def test_the_judge_misses_no_broken_law(fair: Seen) -> None:
    row = fair.bill[0]
    assert broken(fair) == []
    for change, law in (
        ({"stored": 9}, "every child is stored"),
        ({"stored_twice": 1}, "nothing is stored twice"),
        ({"left_over": 1}, "nothing is left over"),
        ({"metered": fair.held + 1, "settled_s": 1e9}, "what was metered was held"),
        ({"settled_s": 0.0}, "what is settled is no less than what was metered"),
        ({"bill": (replace(row, has_deadline=False), *fair.bill[1:])}, "every machine has a server-side end"),
        ({"bill": (replace(row, ended_at=fair.ends[-1] + timedelta(seconds=31)),)}, "no machine outlives the fleet"),
        ({"bill": fair.bill * 50}, "machines had no more time than was held"),
    ):
        assert broken(replace(fair, **change)) == [law]  # type: ignore[arg-type]
