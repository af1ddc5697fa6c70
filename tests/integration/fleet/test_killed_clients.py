"""`kill -9` of the client of a fleet on Batch at any call: the next `status` or `reap` ends what is left, and what the
ledger says was spent is no less than what was metered."""

from __future__ import annotations

import random
from contextlib import closing, suppress
from pathlib import Path

import pytest

from orchestrator.core.names import job_name
from orchestrator.runs.reconcile import reconcile_holds
from tests.unit.fleet.batch_story import FLEET
from tests.unit.fleet.killed_batch import MARGIN_S, Fate, Killed, Killing

SEEDS = range(1, 13)


def life(killing: Killing, fate: Fate, chance: random.Random) -> bool:
    """The first client, from its launch on; whether it lived to see the end."""
    try:
        killing.begin(fate)
        return killing.follows(killing.client(fate), 60, chance)
    except Killed:
        return False


@pytest.mark.parametrize("next_is", ["reap", "stop", "status", "nobody"])
@pytest.mark.parametrize("seed", SEEDS)
def test_wherever_the_client_dies_the_next_command_ends_the_rest_and_books_balance(
    tmp_path: Path, seed: int, next_is: str
) -> None:
    chance = random.Random(f"{seed}/{next_is}")
    killing = Killing.at(tmp_path / "cloud", seed, calm=bool(seed % 2), elsewhere=chance.random() < 0.5)
    with closing(killing.story):
        fate = Fate(at=chance.choice((chance.randint(1, 12), chance.randint(1, 90))), after=chance.random() < 0.5)
        lived = life(killing, fate, chance)
        assert lived != fate.dead
        killing.story.timeline.sleep(chance.choice((1, 60, 600, 2000)))
        if not killing.holds():
            return  # it died before it held anything
        if next_is == "reap":
            killing.reaped()
        elif next_is == "stop":
            killing.client().stop("eve")
            killing.story.timeline.sleep(120)
            assert killing.broken() == [], (fate, killing.said)
        elif next_is == "status":
            with suppress(Killed):
                killing.follows(killing.client(Fate(at=chance.randint(1, 60))), 60, chance)
        killing.settled_after(killing.story.wall_s + MARGIN_S)
        assert killing.broken() == [], (fate, killing.said)


def silent(killing: Killing) -> None:
    """No machine is found for the fleet's job."""
    killing.story.cloud.weather.add({"fault": "batch_silent", "cause": "quota"})


def test_a_job_that_waited_for_its_first_machine_and_was_stopped_holds_no_money(tmp_path: Path) -> None:
    killing = Killing.at(tmp_path / "cloud", 1, calm=True)
    with closing(killing.story):
        silent(killing)
        killing.begin(Fate())
        killing.client().step()
        killing.story.timeline.sleep(60)
        killing.client().stop("eve")
        assert [fault["fired"] for fault in killing.story.cloud.weather.document()["faults"]] == [1]
        assert killing.broken() == []
        assert [entry.settled_usd for entry in killing.holds().values()] != [None]


@pytest.mark.parametrize("next_is", ["stop", "reap", "status"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_client_that_is_killed_between_two_regions_leaves_no_job_and_no_hold(
    tmp_path: Path, elsewhere: bool, next_is: str
) -> None:
    """Its job is cancelled in the one, and not yet asked for in the other."""
    killing, chance = Killing.at(tmp_path / "cloud", 1, calm=True, elsewhere=elsewhere), random.Random(1)
    with closing(killing.story):
        silent(killing)
        killing.begin(Fate())
        killing.client().step()
        killing.story.timeline.sleep(660)
        doomed = killing.client()
        doomed.scheduler.client.fate = Fate(at=2, after=True)  # type: ignore[attr-defined]
        if elsewhere:
            killing.story.known = set()
        with pytest.raises(Killed):
            doomed.step()
        record = killing.story.fresh().records.read(FLEET, job_name(FLEET, 0))
        assert record is not None
        assert record.stage == "leaving"
        if next_is == "stop":
            killing.client().stop("eve")
            assert killing.broken() == [], killing.said
        elif next_is == "status":
            killing.follows(killing.client(), 60, chance)
        else:
            killing.story.timeline.sleep(killing.story.wall_s + MARGIN_S)
            (found,) = reconcile_holds(killing.world(Fate()))
            assert found.settled, found
            assert len(killing.story.cloud.batch.jobs) == 1, "nothing is asked for after its end"
        killing.settled_after(killing.story.wall_s + MARGIN_S)
        assert killing.broken() == [], killing.said


def test_machines_that_booted_too_slowly_in_a_region_that_was_left_are_paid_for(tmp_path: Path) -> None:
    killing, chance = Killing.at(tmp_path / "cloud", 1, calm=True, children=3), random.Random(1)
    with closing(killing.story):
        slow = {"fault": "slow_boot", "seconds": 900}
        killing.story.cloud.weather.add(slow, slow, slow)
        killing.begin(Fate())
        killing.follows(killing.client(), 60, chance)
        killing.settled_after(killing.story.wall_s + MARGIN_S)
        record = killing.story.fresh().records.read(FLEET, job_name(FLEET, 0))
        assert record is not None
        assert record.at == 1, "it was given up in the first region"
        assert killing.broken() == [], killing.said
