"""A client of a fleet dies, on simulated time: whatever it was about to do, its hold is settled and counts what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.core.errors import BudgetExceeded
from orchestrator.core.ledger.budget import Caps, LedgerEntry, add_cost
from orchestrator.core.naming import LEDGER
from orchestrator.runs.engine import World
from orchestrator.runs.fleet.follow import Follower
from orchestrator.runs.holds import Accounts
from orchestrator.runs.rebuild import rebuild_from_events
from orchestrator.runs.reconcile import reconcile_holds
from orchestrator.store.documents import LedgerStore
from orchestrator.store.fleets import FleetStore, list_fleets
from tests.integration.fleet.test_follow import Forgetful
from tests.integration.stories.stage import Heard
from tests.support.memory_bucket import MemoryBucket
from tests.support.simulated_clock import SimulatedClock
from tests.unit.fleet.stage import FleetStage, sweep_of

DAY_S = 24 * 3600.0


class Died(BaseException):
    """The client is no more."""


class Deadly(MemoryBucket):
    """The client dies before its write number `dies_at`."""

    dies_at = 0
    writes = 0

    def replace(self, name: str, *arguments: Any, **more: Any) -> int | None:
        self.writes += 1
        if self.writes == self.dies_at:
            raise Died
        return super().replace(name, *arguments, **more)

    def lives(self) -> None:
        self.dies_at = 0


class Contested(MemoryBucket):
    """Another run takes the rest of the day's money once a resumption is recorded."""

    contested = False

    def replace(self, name: str, *arguments: Any, **more: Any) -> int | None:
        stored = super().replace(name, *arguments, **more)
        if self.contested and name.endswith("/control.json"):
            self.contested = False
            ledger, now = LedgerStore(self, SimulatedClock()), SimulatedClock().now()
            add = add_cost(ledger.read(), "other", Decimal(59), "another's", now, "another-s")
            super().replace(LEDGER, add.dump(), generation=None)
        return stored


@dataclass
class Site:
    """One fleet, its bucket, its scheduler, and a clock that all clients share."""

    stage: FleetStage
    clock: SimulatedClock
    scheduler: Forgetful

    @classmethod
    def of(cls, tmp_path: Path, bucket: MemoryBucket, caps: Caps = Caps()) -> Site:  # noqa: B008 - it is frozen
        stage = SimulatedStage(tmp_path, sweep_of(tmp_path, ("l4", "t4"), 8), bucket=bucket, caps=caps)
        return cls(stage, stage.clock, Forgetful())

    def client(self) -> Follower:
        real = self.stage.again()
        return replace(
            real, scheduler=self.scheduler, store=FleetStore(self.stage.bucket, self.clock, self.stage.fleet)
        )

    def holds(self) -> Mapping[str, LedgerEntry]:
        return self.stage.world().ledger.read().runs

    def later(self, seconds: float = DAY_S) -> None:
        """Somebody looks after holds."""
        self.clock.sleep(seconds)
        reconcile_holds(self.stage.world())


@dataclass
class SimulatedStage(FleetStage):
    """A stage whose clients all have one clock, that moves only when somebody sleeps."""

    clock: SimulatedClock = field(default_factory=SimulatedClock)

    def world(self) -> World:
        nothing: Any = SimpleNamespace(instances=lambda: ())
        accounts = Accounts(LedgerStore(self.bucket, self.clock), self.caps, Heard(), self.clock)
        return replace(super().world(), cloud=lambda: nothing, clock=self.clock, accounts=accounts)


def launched(site: Site) -> bool:
    """A launch up to its first jobs; whether its client lived."""
    try:
        site.stage.launch()
        site.client().step()
    except Died:
        return False
    return True


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site.of(tmp_path, MemoryBucket())


@pytest.mark.parametrize("dies_at", range(1, 12))
def test_wherever_a_launch_dies_its_hold_is_given_back_unless_jobs_were_asked_for(tmp_path: Path, dies_at: int) -> None:
    bucket = Deadly()
    bucket.dies_at = dies_at
    site = Site.of(tmp_path, bucket)
    launched(site)
    bucket.lives()
    noted = bool(FleetStore(bucket, site.clock, site.stage.fleet).control().jobs)
    site.later()
    for entry in site.holds().values():
        assert noted == (entry.settled_usd is None)
        assert entry.settled_usd in (None, 0)


def test_a_hold_that_was_just_taken_is_its_clients(site: Site) -> None:
    site.stage.launch()
    site.later(60)
    (entry,) = site.holds().values()
    assert entry.settled_usd is None


def test_a_client_that_slept_until_its_hold_was_given_back_asks_for_nothing(site: Site) -> None:
    site.stage.launch()
    sleeper, once_more = site.client(), site.client()
    before = sleeper.look()
    site.later()
    sleeper.step()
    once_more._start(before.state, before.control, (), set())  # what it saw before it slept
    assert site.scheduler.submitted == []


def test_a_fleet_that_never_began_goes_on_under_a_hold_of_its_own(site: Site) -> None:
    site.stage.launch()
    site.later()
    site.client().resume()
    site.client().step()
    assert len(site.scheduler.submitted) == 2
    first, second = (entry for _, entry in sorted(site.holds().items()))
    assert (first.settled_usd, second.settled_usd) == (0, None)
    site.later()
    assert site.holds()[f"{site.stage.fleet}+2"].settled_usd is None, "machines were asked for under this one"


@pytest.mark.parametrize("dies_at", range(1, 6))
def test_wherever_a_resumption_dies_no_hold_is_left_under_which_nothing_runs(tmp_path: Path, dies_at: int) -> None:
    bucket = Deadly()
    site = Site.of(tmp_path, bucket)
    launched(site)
    site.client().stop("ada")
    assert [entry.settled_usd for entry in site.holds().values()] == [0]
    bucket.writes, bucket.dies_at = 0, dies_at
    before = len(site.scheduler.submitted)
    client = site.client()
    try:
        client.resume()
        client.step()
    except Died:
        pass
    bucket.lives()
    control = client.store.control()
    begun = control.generation == 1 and any(job.number >= control.first_job for job in control.jobs)
    site.later()
    unsettled = [key for key, entry in site.holds().items() if entry.settled_usd is None]
    assert unsettled == ([f"{site.stage.fleet}+1"] if begun else [])
    assert begun or len(site.scheduler.submitted) == before


@pytest.mark.parametrize("dies_at", range(1, 6))
@pytest.mark.parametrize("late", [False, True])
def test_wherever_a_resumption_dies_stopping_the_fleet_gives_its_hold_back_at_once(
    tmp_path: Path, dies_at: int, late: bool
) -> None:
    bucket = Deadly()
    site = Site.of(tmp_path, bucket)
    launched(site)
    if late:
        site.clock.sleep(DAY_S)
    else:
        site.client().stop("ada")
    bucket.writes, bucket.dies_at = 0, dies_at
    with suppress(Died):
        client = site.client()
        client.resume()
        client.step()
    bucket.lives()
    site.client().stop("eve")
    assert [key for key, entry in site.holds().items() if entry.settled_usd is None] == []


def test_a_fleet_that_a_dead_client_resumed_goes_on_under_the_hold_that_it_left(site: Site) -> None:
    launched(site)
    site.client().stop("ada")
    site.client().resume()  # and its client dies
    assert [entry.settled_usd for _, entry in sorted(site.holds().items())] == [0, None]
    site.client().resume()
    site.client().step()
    assert len(site.holds()) == 2
    assert len(site.scheduler.submitted) == 4


def test_a_watcher_waits_for_a_resumptions_hold_only_as_long_as_a_client_takes(
    tmp_path: Path,
) -> None:
    bucket = Deadly()
    site = Site.of(tmp_path, bucket)
    launched(site)
    site.clock.sleep(DAY_S)
    site.client().stop("ada")
    before = len(site.scheduler.submitted)
    bucket.writes, bucket.dies_at = 0, 2
    with pytest.raises(Died):
        site.client().resume()
    bucket.lives()
    assert site.client().store.control().generation == 1
    assert len(site.holds()) == 1, "it died before it held anything"
    assert site.client().step().control.paused == "", "its client may be about to hold it"
    site.clock.sleep(200)
    assert f"`bench fleet resume {site.stage.fleet}` holds it" in site.client().step().control.paused
    assert len(site.scheduler.submitted) == before


def test_no_word_in_the_bucket_makes_a_fleet_without_a_hold_wait_for_it_for_ever(site: Site) -> None:
    launched(site)
    site.client().stop("ada")
    far = site.clock.now() + timedelta(days=300)
    store = site.client().store
    store.decide(lambda one: one.model_copy(update={"stopped": "", "generation": 1, "held_at": far}))
    assert "no money is held" in site.client().step().control.paused


@pytest.mark.parametrize("late", [False, True])
def test_a_resumption_that_is_refused_leaves_the_fleet_as_it_was(site: Site, late: bool) -> None:
    launched(site)
    site.client().stop("ada")
    if late:
        site.clock.sleep(DAY_S)
    before, site.stage.caps = site.client().store.control(), Caps(day=Decimal("0.01"))
    with pytest.raises(BudgetExceeded):
        site.client().resume()
    assert site.client().store.control() == before


def test_a_resumption_whose_money_others_took_leaves_the_fleet_paused(tmp_path: Path) -> None:
    site = Site.of(tmp_path, Contested())
    launched(site)
    site.client().stop("ada")
    site.stage.bucket.contested = True  # type: ignore[attr-defined]
    site.stage.caps = Caps(day=Decimal(60))
    with pytest.raises(BudgetExceeded):
        site.client().resume()
    assert "no money could be held for it" in site.client().store.control().paused
    assert all(entry.settled_usd is not None for entry in site.holds().values())


def test_a_fleet_resumed_after_its_time_settles_its_dead_clients_hold(site: Site) -> None:
    launched(site)
    site.clock.sleep(DAY_S)
    site.client().resume()
    site.client().step()
    held = [entry.hold_usd for entry in site.holds().values()]
    site.client().stop("ada")
    site.client().purse.settle(held[0] + Decimal("0.25"), 1)
    assert all(entry.settled_usd is not None for entry in site.holds().values())


@pytest.mark.parametrize("wall", [None, timedelta(hours=1), timedelta(hours=9)])
def test_a_resumed_fleet_goes_on_to_its_own_end_under_a_rebuilt_ledger(site: Site, wall: timedelta | None) -> None:
    launched(site)
    site.clock.sleep(DAY_S)
    site.client().step()
    control = site.client().resume(wall=wall)
    site.client().step()
    before = site.holds()[f"{site.stage.fleet}+1"]
    site.clock.sleep(600)
    site.stage.bucket.replace(LEDGER, b"{}", generation=None)
    rebuild_from_events(site.stage.world())
    after = site.holds()[f"{site.stage.fleet}+1"]
    assert after.hold_usd >= before.hold_usd, "never less than what was held"
    assert after.held_at <= before.held_at
    assert control.ends_at is not None
    assert control.ends_at <= after.lasts_until
    assert site.client().step().control.paused == ""
    site.clock.sleep((control.ends_at - site.clock.now()).total_seconds())
    assert "minutes (wall_minutes) are over" in site.client().step().control.paused


def test_no_word_in_the_bucket_makes_a_rebuilt_hold_shorter_or_smaller(site: Site) -> None:
    launched(site)
    site.client().stop("ada")
    site.client().resume()
    before, now = site.holds()[f"{site.stage.fleet}+1"], site.clock.now()
    for ends_at in (now - timedelta(days=300), now, now + timedelta(hours=3)):
        for held_at in (None, now, now + timedelta(days=300), ends_at):
            forged = {"ends_at": ends_at, "held_at": held_at}
            site.client().store.decide(lambda one, forged=forged: one.model_copy(update=forged))
            site.stage.bucket.replace(LEDGER, b"{}", generation=None)
            rebuild_from_events(site.stage.world())
            after = site.holds()[f"{site.stage.fleet}+1"]
            assert after.hold_usd >= before.hold_usd
            assert after.ttl_s >= before.ttl_s


def test_what_several_holds_paid_for_is_counted_once(site: Site) -> None:
    launched(site)
    site.clock.sleep(DAY_S)
    site.client().resume()
    first = site.holds()[site.stage.fleet].hold_usd
    site.client().purse.settle(first + Decimal("0.25"), 1)
    assert [entry.settled_usd for _, entry in sorted(site.holds().items())] == [first, Decimal("0.25")]


def test_a_fleet_under_which_nothing_is_held_starts_nothing_and_says_what_helps(site: Site) -> None:
    site.stage.launch()
    site.stage.bucket.replace(LEDGER, b"{}", generation=None)
    seen = site.client().step()
    assert site.scheduler.submitted == []
    assert f"`bench fleet resume {site.stage.fleet}` holds it" in seen.control.paused


def test_a_hold_whose_fleet_is_gone_from_the_bucket_counts_as_spent_after_its_end(site: Site) -> None:
    client = site.stage.launch()
    bucket = site.stage.bucket
    bucket.forget(*(entry.name for entry in bucket.list("") if entry.name != LEDGER))
    site.later(3600)
    assert [entry.settled_usd for entry in site.holds().values()] == [None], "its machines may still run"
    site.later()
    assert [entry.settled_usd for entry in site.holds().values()] == [client.record.hold_usd]


def test_a_fleet_that_is_refused_leaves_nothing_behind(tmp_path: Path) -> None:
    site = Site.of(tmp_path, MemoryBucket(), Caps(day=Decimal("0.01")))
    with pytest.raises(BudgetExceeded):
        site.stage.launch()
    assert site.stage.bucket.list("fleets/") == ()
    assert list_fleets(site.stage.bucket) == ()
