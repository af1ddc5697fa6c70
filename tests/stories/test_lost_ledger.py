"""A ledger that is gone, empty or unreadable beside runs that have held money."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.core.errors import BudgetExceeded
from orchestrator.core.ledger.budget import Caps, LedgerMissing, LedgerUnreadable, exposure
from orchestrator.core.naming import LEDGER
from orchestrator.core.run.fold import Phase
from orchestrator.runs.rebuild import rebuild
from orchestrator.store.ledger import LedgerStore
from tests.stories.stage import RUN, Stage, good_vm, same_to_the_cent, staged
from tests.support.memory_bucket import MemoryBucket
from tests.support.simulated_clock import SimulatedClock

NEXT = "20261121-050000-l4-0002"


def lose(stage: Stage, how: str) -> None:
    if how == "gone":
        stage.delete_objects(LEDGER)
    else:
        stage.world().bucket.replace(LEDGER, how.encode(), generation=None)


@pytest.mark.parametrize("how", ["gone", "{}", '{"schema": 1, "runs": {}}'])
def test_a_ledger_that_knows_nothing_of_the_buckets_runs_is_refused(home: Path, how: str) -> None:
    with staged(home, good_vm()) as stage:
        stage.launch()
        lose(stage, how)
        with pytest.raises(LedgerMissing, match="what was spent is not known") as refusal:
            stage.begin(stage.world(), stage.plan(), NEXT)
        assert "bench budget rebuild" in refusal.value.hint
        assert stage.cloud.instances() == []


def test_a_machine_that_says_it_held_money_makes_no_ledger_missing(home: Path) -> None:
    with staged(home, good_vm()) as stage:
        name = f"runs/{RUN}/events/20261121T040000.000000Z-vm-1-deadbeef-000007-budget_held.json"
        stage.world().bucket.replace(name, b'{"kind": "budget_held"}', generation=None)
        assert stage.world().ledger.read().empty
        assert stage.begin(stage.world()).follow().phase is Phase.SUCCEEDED


@pytest.mark.parametrize("how", ["gone", "{}", "not json", '{"schema": 1, "runs": {"x": 1}}'])
def test_it_is_rebuilt_from_the_events_and_binds_as_before(home: Path, how: str) -> None:
    with staged(home, good_vm()) as stage:
        stage.launch()
        running = stage.begin(stage.world(), stage.plan(), NEXT)
        running.step()
        running.step()
        before = stage.ledger()
        lose(stage, how)
        done = rebuild(stage.world())
        assert done.added == (RUN, NEXT)
        assert bool(done.kept_as) == (how not in ("gone", "{}"))
        after = stage.ledger()
        for key, entry in before.runs.items():
            assert (after.runs[key].hold_usd, after.runs[key].settled_usd) == (entry.hold_usd, entry.settled_usd)
            assert after.runs[key].attempt == entry.attempt
        now = stage.timeline.now()
        assert exposure(after, "total", now) == exposure(before, "total", now)
        cap = exposure(before, "total", now).total + Decimal("0.001")
        with pytest.raises(BudgetExceeded):
            stage.begin(stage.world(Caps(total=cap)), stage.plan(), "20261121-050000-l4-0003")
        running.follow()
        assert same_to_the_cent(stage.ledger().runs[NEXT].spent, stage.billed(NEXT))
        assert rebuild(stage.world()).added == ()


def test_a_ledger_of_a_newer_version_is_not_put_aside(home: Path) -> None:
    with staged(home, good_vm()) as stage:
        stage.launch()
        lose(stage, '{"schema": 2, "runs": []}')
        with pytest.raises(LedgerUnreadable):
            rebuild(stage.world())
        blob = stage.world().bucket.read(LEDGER)
        assert blob is not None
        assert blob.data == b'{"schema": 2, "runs": []}'


def test_in_a_bucket_without_runs_there_is_nothing_to_know() -> None:
    assert LedgerStore(MemoryBucket(), SimulatedClock()).read().empty
