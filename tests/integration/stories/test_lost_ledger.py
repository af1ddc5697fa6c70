"""A ledger that is gone, empty or unreadable beside runs that have held money."""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.core.errors import BudgetExceeded, DocumentUnreadable
from orchestrator.core.ledger.budget import Caps, LedgerMissing, LedgerUnreadable, window_exposure
from orchestrator.core.ledger.unlisted import may_settle
from orchestrator.core.naming import LEDGER
from orchestrator.core.run.fold import Phase
from orchestrator.ports import DOCUMENT_BYTES
from orchestrator.runs.rebuild import rebuild_from_events
from orchestrator.store.documents import LedgerStore
from tests.integration.stories.stage import RUN, Stage, good_vm, same_to_the_cent, silent_vm, staged
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
        name = f"runs/{NEXT}/events/20261121T040000.000000Z-vm-1-deadbeef-000007-budget_held.json"
        stage.world().bucket.replace(name, b'{"kind": "budget_held"}', generation=None)
        assert stage.world().ledger.read().empty
        assert stage.begin(stage.world()).follow().phase is Phase.SUCCEEDED


TOO_LARGE = " " * (DOCUMENT_BYTES + 1)


def test_a_ledger_that_is_larger_than_any_is_refused_unread_and_says_what_helps(home: Path) -> None:
    with staged(home, good_vm()) as stage:
        stage.launch()
        lose(stage, TOO_LARGE)
        with pytest.raises(DocumentUnreadable, match="so it is not read") as refusal:
            stage.begin(stage.world(), stage.plan(), NEXT)
        assert "bench budget rebuild" in refusal.value.hint
        assert refusal.value.exit_code == 16


HOW = ["gone", "{}", "not json", '{"schema": 1, "runs": {"x": 1}}', pytest.param(TOO_LARGE, id="too large")]


@pytest.mark.parametrize("how", HOW)
def test_it_is_rebuilt_from_the_events_and_binds_as_before(home: Path, how: str) -> None:
    with staged(home, good_vm()) as stage:
        stage.launch()
        running = stage.begin(stage.world(), stage.plan(), NEXT)
        running.step()
        running.step()
        before = stage.ledger()
        lose(stage, how)
        done = rebuild_from_events(stage.world())
        assert done.added == (RUN, NEXT)
        assert bool(done.kept_as) == (how not in ("gone", "{}"))
        after = stage.ledger()
        for key, entry in before.runs.items():
            assert (after.runs[key].hold_usd, after.runs[key].settled_usd) == (entry.hold_usd, entry.settled_usd)
            assert after.runs[key].attempt == entry.attempt
        now = stage.timeline.now()
        assert window_exposure(after, "total", now) == window_exposure(before, "total", now)
        cap = window_exposure(before, "total", now).total + Decimal("0.001")
        with pytest.raises(BudgetExceeded):
            stage.begin(stage.world(Caps(total=cap)), stage.plan(), "20261121-050000-l4-0003")
        running.follow()
        assert same_to_the_cent(stage.ledger().runs[NEXT].spent, stage.billed(NEXT))
        assert rebuild_from_events(stage.world()).added == ()


@pytest.mark.parametrize("kind", ["budget_held", "settled"])
def test_a_machines_word_on_money_is_not_rebuilt(home: Path, kind: str) -> None:
    with staged(home, silent_vm) as stage:
        stage.with_a_machine()
        before = stage.ledger().runs[RUN]
        facts = {
            "budget_held": {"hold_usd": "0", "generation": 0},
            "settled": {"cost_usd": "0", "released_usd": str(before.hold_usd), "generation": 0},
        }[kind]
        at = stage.timeline.now()  # after the client's own words, and all of a settlement
        event = {"schema": 1, "run_id": RUN, "kind": kind, "time": f"{at:%Y-%m-%dT%H:%M:%S.%fZ}", "writer": "vm-1-deadbeef",
                 "seq": 7, "data": facts}  # fmt: skip
        name = f"runs/{RUN}/events/{at:%Y%m%dT%H%M%S.%fZ}-vm-1-deadbeef-000007-{kind}.json"
        stage.world().bucket.replace(name, json.dumps(event).encode(), generation=None)
        lose(stage, "gone")
        rebuild_from_events(stage.world())
        after = stage.ledger().runs[RUN]
        assert (after.hold_usd, after.settled_usd) == (before.hold_usd, None)


def test_a_rebuilt_hold_is_not_settled_while_somebody_may_still_ask_under_it(home: Path) -> None:
    """Who had set out for a machine stood in the ledger alone."""
    with staged(home, good_vm()) as stage:
        engine = stage.begin(stage.world())
        lose(stage, "gone")
        rebuild_from_events(stage.world())
        now, patience = stage.timeline.now(), stage.world().policy.insert_limit_s
        assert not may_settle(stage.ledger(), RUN, 0, now, patience)
        assert may_settle(stage.ledger(), RUN, 0, now + timedelta(seconds=patience), patience)
        assert engine.follow().phase is Phase.SUCCEEDED
        assert same_to_the_cent(stage.ledger().runs[RUN].spent, stage.billed())


def test_a_ledger_of_a_newer_version_is_not_put_aside(home: Path) -> None:
    with staged(home, good_vm()) as stage:
        stage.launch()
        lose(stage, '{"schema": 2, "runs": []}')
        with pytest.raises(LedgerUnreadable):
            rebuild_from_events(stage.world())
        blob = stage.world().bucket.read(LEDGER)
        assert blob is not None
        assert blob.data == b'{"schema": 2, "runs": []}'


def test_in_a_bucket_without_runs_there_is_nothing_to_know() -> None:
    assert LedgerStore(MemoryBucket(), SimulatedClock()).read().empty
