"""Thresholds of a budget are told by whichever command changes the ledger, once each."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from pathlib import Path

import pytest

from orchestrator.core.ledger.budget import Caps, add_cost
from orchestrator.runs.accounts import Accounts
from orchestrator.runs.engine import Engine
from orchestrator.runs.reconcile import reconcile
from orchestrator.store.ledger import LedgerStore
from tests.stories.stage import RUN, Heard, Stage, good_vm, silent_vm, staged
from tests.support.memory_bucket import MemoryBucket
from tests.support.simulated_clock import SimulatedClock

DAY = Caps(day=Decimal("0.028"))
HALF = "50 % of the budget for 2026-11-21 is spent"


def titles(stage: Stage) -> list[str]:
    return [notice.title for notice in stage.heard.notices]


def detached(stage: Stage) -> None:
    """A launch whose client goes away once there is a machine."""
    engine = stage.begin(stage.world(DAY), stage.plan(caps=DAY), RUN)
    engine.step()
    engine.step()


@pytest.mark.parametrize("caps", [None, DAY, Caps(day=Decimal("500"))])
def test_a_threshold_is_told_whoever_settles_the_run(home: Path, caps: Caps | None) -> None:
    with staged(home, good_vm(cases=5)) as stage:
        detached(stage)
        Engine(stage.world(caps), RUN).follow()
        assert titles(stage) == [HALF]
        Engine(stage.world(caps), RUN).follow()
        reconcile(stage.world(caps))
        assert titles(stage) == [HALF], "once"


def test_reconciling_tells_too(home: Path) -> None:
    with staged(home, silent_vm) as stage:
        detached(stage)
        for _ in range(66):
            stage.timeline.advance(10)
        reconcile(stage.world())
        assert len(titles(stage)) == 1
        assert "of the budget for 2026-11-21 is spent" in titles(stage)[0]


def test_a_cost_added_by_hand_is_told_of_at_each_threshold_once() -> None:
    clock, bucket, heard = SimulatedClock(), MemoryBucket(), Heard()
    caps = Caps(day=Decimal(10), month=Decimal(1000))
    for number, said in enumerate(([], [50], [50, 80], [50, 80, 100], [50, 80, 100]), 1):
        accounts = Accounts(LedgerStore(bucket, clock), caps, heard, clock)
        accounts.change(partial(add_cost, category="ai", usd=Decimal(3), note="", now=clock.now(), id=f"c{number}"))
        assert [int(notice.data["threshold_percent"]) for notice in heard.notices] == said
