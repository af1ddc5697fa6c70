"""A client dies after its jobs were noted and never comes back: whoever looks after holds settles what it held."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.core.errors import BudgetExceeded, ProviderError, Unavailable
from orchestrator.core.ledger.budget import Caps, HoldTerms, LedgerEntry, hold
from orchestrator.core.names import child_run
from orchestrator.runs.engine import World
from orchestrator.runs.fleet.follow import record_fleet
from orchestrator.runs.fleet.hold import Purse
from orchestrator.runs.kinds import ReconciledHold
from orchestrator.runs.reconcile import reconcile_holds
from orchestrator.store.fleets import FleetStore
from tests.integration.fleet.test_lost_clients import Site, launched
from tests.support.memory_bucket import MemoryBucket
from tests.unit.core.builders import planned

END_S = 4 * 3600.0
MARGIN_S = 660.0
DAY_S = 24 * 3600.0


@dataclass
class Abandoned:
    """A fleet whose client died with jobs at its scheduler, and a later client of the same bucket."""

    site: Site
    asked: int = 0
    away: str = ""
    """Why its scheduler does not answer."""

    @classmethod
    def of(cls, tmp_path: Path, caps: Caps = Caps()) -> Abandoned:  # noqa: B008 - it is frozen
        site = Site.of(tmp_path, MemoryBucket(), caps)
        assert launched(site)
        return cls(site)

    def world(self) -> World:
        return replace(self.site.stage.world(), fleets=self.look_after)

    def look_after(self, fleet: str) -> None:
        assert fleet == self.site.stage.fleet
        self.asked += 1
        if self.away:
            raise Unavailable(self.away, hint="try again")
        self.site.client().step(start=False)

    def later(self, seconds: float, *, eager: bool = False) -> ReconciledHold:
        self.site.clock.sleep(seconds)
        (found,) = reconcile_holds(self.world(), eager=eager)
        return found

    @property
    def entry(self) -> LedgerEntry:
        (entry,) = self.site.holds().values()
        return entry


@pytest.fixture
def dead(tmp_path: Path) -> Abandoned:
    return Abandoned.of(tmp_path)


def test_a_fleet_whose_end_is_past_is_asked_for_and_its_hold_settled_at_what_it_cost(dead: Abandoned) -> None:
    found = dead.later(END_S + MARGIN_S)
    assert (found.settled, dead.entry.settled_usd) == (True, 0), "no child of it ever began"
    assert dead.site.scheduler.jobs == {}, "its jobs were ended first"


def test_no_word_in_the_bucket_holds_dollars_beyond_their_time(dead: Abandoned) -> None:
    store = FleetStore(dead.site.stage.bucket, dead.site.clock, dead.site.stage.fleet)
    far = dead.site.clock.now() + timedelta(days=300)
    store.decide(lambda one: one.model_copy(update={"ends_at": far}))
    found = dead.later(END_S + MARGIN_S)
    assert (found.settled, dead.entry.settled_usd) == (True, 0)


def test_until_its_end_a_fleet_is_left_to_its_client_unless_money_is_needed(dead: Abandoned) -> None:
    assert "bench fleet status" in dead.later(600).what
    assert dead.asked == 0
    assert not dead.later(0, eager=True).settled, "its machines still run"
    assert dead.asked == 1


def test_an_absent_scheduler_is_asked_for_a_day_then_the_whole_hold_is_spent(dead: Abandoned) -> None:
    dead.away = "the login node does not answer"
    assert dead.later(END_S + MARGIN_S) == ReconciledHold(dead.site.stage.fleet, False, dead.away)
    assert dead.later(DAY_S / 2).settled is False
    assert dead.later(DAY_S).settled is True
    assert dead.entry.settled_usd == dead.entry.hold_usd


def test_where_no_scheduler_can_be_asked_a_hold_is_not_kept_for_ever_either(dead: Abandoned) -> None:
    dead.site.later(END_S + MARGIN_S)
    assert dead.entry.settled_usd is None
    dead.site.later(DAY_S)
    assert dead.entry.settled_usd == dead.entry.hold_usd


def test_a_fleet_without_money_first_settles_the_holds_of_dead_clients(tmp_path: Path) -> None:
    room = Abandoned.of(tmp_path / "room").entry.hold_usd  # of one fleet, and not of two
    dead = Abandoned.of(tmp_path, Caps(total=room + Decimal("0.01")))
    world, later = dead.world(), dead.site.stage.again()
    record = later.record.model_copy(update={"fleet": "fleet-20261122-090000-00ab"})
    store = FleetStore(dead.site.stage.bucket, dead.site.clock, record.fleet)
    with pytest.raises(BudgetExceeded):
        record_fleet(store, record, later.children, Purse(world, record))
    assert dead.asked == 1, "it was asked what its machines do, and they run"
    dead.site.clock.sleep(END_S + MARGIN_S)
    record_fleet(store, record, later.children, Purse(world, record))
    assert dead.site.holds()[dead.site.stage.fleet].settled_usd == 0
    assert dead.site.holds()[record.fleet].settled_usd is None


def test_holds_of_fleets_are_looked_after_where_no_run_is_to_be_driven(dead: Abandoned) -> None:
    dead.site.clock.sleep(END_S + MARGIN_S)
    run, now = "20261122-040000-l4x0001", dead.site.clock.now()
    dead.world().log(run).append(planned())
    dead.world().accounts.change(lambda ledger: hold(ledger, run, Decimal(1), 3600, now, HoldTerms("l4")))
    (found,) = reconcile_holds(dead.world(), drive=False)
    assert (found.key, found.settled) == (dead.site.stage.fleet, True)
    assert dead.site.holds()[run].settled_usd is None


def test_a_fleet_whose_id_was_guessed_before_its_launch_holds_nothing(dead: Abandoned) -> None:
    """A machine of another run has stored a case of a child that nobody has planned."""
    world, later = dead.world(), dead.site.stage.again()
    record = later.record.model_copy(update={"fleet": "fleet-20261122-090000-00ab"})
    gpu = later.children[-1].cell.gpu
    case = f"runs/{child_run(record.fleet, gpu, 3)}/cases/b1.csv"
    dead.site.stage.bucket.create(case, b"vm,median_us\n")
    store = FleetStore(dead.site.stage.bucket, dead.site.clock, record.fleet)
    with pytest.raises(ProviderError, match="stored before"):
        record_fleet(store, record, later.children, Purse(world, record))
    assert record.fleet not in dead.site.holds()
