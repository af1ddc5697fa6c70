"""A fleet's one entry in the ledger."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.core.errors import BudgetExceeded
from orchestrator.core.fleet.jobs import JobCost
from orchestrator.core.ledger.budget import Caps
from orchestrator.core.naming import LEDGER, Mode
from orchestrator.runs.fleet.hold import Purse
from orchestrator.runs.rebuild import rebuild_from_events
from orchestrator.runs.reconcile import reconcile_holds
from orchestrator.store.fleets import FleetRecord
from tests.unit.core.builders import T0
from tests.unit.fleet.stage import FleetStage, sweep_of

HOLD = Decimal("79.365")


def purse(tmp_path: Path, caps: Caps = Caps()) -> Purse:  # noqa: B008 - it is frozen
    stage = FleetStage(tmp_path, sweep_of(tmp_path, ("l4",), 4), caps=caps)
    record = FleetRecord(
        fleet=stage.fleet, engine="slurm", mode=Mode.HOST, user="ada", sweep=stage.sweep, created_at=T0,
        ends_at=T0 + timedelta(hours=4), hold_usd=HOLD,
    )  # fmt: skip
    return Purse(stage.world(), record)


def test_a_fleet_that_does_not_fit_under_a_cap_holds_nothing(tmp_path: Path) -> None:
    mine = purse(tmp_path, Caps(day=Decimal(50)))
    with pytest.raises(BudgetExceeded, match=r"up to \$79\.365, which is \$\S+ more than the cap of \$50 for day"):
        mine.take(HOLD)
    assert not mine.world.ledger.read().runs


def test_the_hold_of_a_fleet_is_one_entry_however_often_it_is_taken(tmp_path: Path) -> None:
    mine = purse(tmp_path)
    mine.take(HOLD)
    mine.take(HOLD)
    assert [entry.held for entry in mine.world.ledger.read().runs.values()] == [HOLD]


def test_whoever_looks_after_holds_leaves_that_of_a_fleet_to_its_own_commands(tmp_path: Path) -> None:
    mine = purse(tmp_path)
    mine.take(HOLD)
    (found,) = reconcile_holds(mine.world)
    assert not found.settled
    assert "bench fleet status" in found.what
    assert mine.world.ledger.read().runs[mine.record.fleet].held == HOLD


def test_a_fleet_that_is_resumed_settles_only_what_it_has_cost_since(tmp_path: Path) -> None:
    mine = purse(tmp_path)
    mine.take(HOLD)
    mine.settle(Decimal(20))
    mine.settle(Decimal(25))
    mine.take(HOLD, 1)
    mine.settle(Decimal(32), 1)
    entries = mine.world.ledger.read().runs
    assert [entry.settled_usd for _, entry in sorted(entries.items())] == [Decimal(20), Decimal(12)]


def test_old_prices_are_held_with_their_margin_and_never_expected_with_it() -> None:
    fresh, old = (JobCost("l4", 2, Decimal("0.50"), 3600, 4, 900, margin=Decimal(m)) for m in ("0", "0.20"))
    assert old.hold > fresh.hold
    assert abs(old.hold - fresh.hold * Decimal("1.2")) <= Decimal("0.01")
    assert old.expected_usd == fresh.expected_usd


def test_a_ledger_that_was_lost_is_rebuilt_with_what_fleets_hold(tmp_path: Path) -> None:
    stage = FleetStage(tmp_path, sweep_of(tmp_path, ("l4", "t4"), 4))
    follower = stage.launch()
    follower.store.list_as({"state": "open"})
    (before,) = stage.world().ledger.read().runs.values()
    stage.bucket.replace(LEDGER, b"{}", generation=None)
    done = rebuild_from_events(stage.world())
    assert done.added == (stage.fleet,)
    (after,) = done.ledger.runs.values()
    assert (after.hold_usd, after.settled_usd) == (before.hold_usd, None)
    assert rebuild_from_events(stage.world()).added == ()
    Purse(stage.world(), follower.record).settle(Decimal("0.01"))
    assert stage.world().ledger.read().runs[stage.fleet].settled_usd == Decimal("0.01")
