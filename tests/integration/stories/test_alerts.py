"""Thresholds of a budget are told by whichever command changes the ledger, once each."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.errors import Unavailable
from orchestrator.core.ledger.budget import Caps, add_cost
from orchestrator.ports import Notice
from orchestrator.runs.engine import Engine
from orchestrator.runs.holds import Accounts
from orchestrator.runs.reconcile import reconcile_holds
from orchestrator.store.documents import LedgerStore
from tests.integration.stories.stage import RUN, Heard, Stage, good_vm, silent_vm, staged
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
        reconcile_holds(stage.world(caps))
        assert titles(stage) == [HALF], "once"


def test_reconciling_tells_too(home: Path) -> None:
    with staged(home, silent_vm) as stage:
        detached(stage)
        for _ in range(66):
            stage.timeline.advance(10)
        reconcile_holds(stage.world())
        assert len(titles(stage)) == 1
        assert "of the budget for 2026-11-21 is spent" in titles(stage)[0]


def test_a_cost_added_by_hand_is_told_of_at_each_threshold_once() -> None:
    clock, bucket, heard = SimulatedClock(), MemoryBucket(), Heard()
    caps = Caps(day=Decimal(10), month=Decimal(1000))
    for number, said in enumerate(([], [50], [50, 80], [50, 80, 100], [50, 80, 100]), 1):
        accounts = Accounts(LedgerStore(bucket, clock), caps, heard, clock)
        accounts.change(partial(add_cost, category="ai", usd=Decimal(3), note="", now=clock.now(), id=f"c{number}"))
        assert [int(notice.data["threshold_percent"]) for notice in heard.notices] == said


class Dies(BaseException):
    """SIGKILL, as far as a client in this process can have it."""


class DyingNotifier:
    """A client that dies before, or right after, it has said something."""

    def __init__(self, heard: Heard, *, after: bool) -> None:
        self.heard = heard
        self.after = after

    def notify(self, notice: Notice) -> None:
        if self.after:
            self.heard.notify(notice)
        raise Dies


@pytest.mark.parametrize(("after", "times"), [(False, 1), (True, 2)])
def test_what_a_client_that_died_was_about_to_say_is_said_by_the_next_one(after: bool, times: int) -> None:
    clock, bucket, heard = SimulatedClock(), MemoryBucket(), Heard()
    dying = Accounts(LedgerStore(bucket, clock), Caps(day=Decimal(10)), DyingNotifier(heard, after=after), clock)
    next_one = Accounts(LedgerStore(bucket, clock), Caps(day=Decimal(10)), heard, clock)

    def spend(accounts: Accounts, number: int, usd: str) -> None:
        accounts.change(partial(add_cost, category="ai", usd=Decimal(usd), note="", now=clock.now(), id=f"c{number}"))

    with pytest.raises(Dies):
        spend(dying, 1, "6")
    spend(next_one, 2, "0.01")
    assert len(heard.notices) == after, "for a while it is left to who is about to say it"
    clock.sleep(121)
    spend(next_one, 3, "0.01")
    spend(next_one, 4, "0.01")
    clock.sleep(121)
    spend(next_one, 5, "0.01")
    assert [notice.data["threshold_percent"] for notice in heard.notices] == ["50"] * times
    assert not any("@" in note for note in next_one.ledger.read().alerts), "no note is left"


def test_an_alert_whose_ledger_write_fails_keeps_the_money_and_is_repeated() -> None:
    clock, bucket, heard = SimulatedClock(), MemoryBucket(), Heard()

    class Unwilling(LedgerStore):
        writes = 0

        def update(self, change: Any) -> Any:
            self.writes += 1
            if self.writes == 3:  # that which notes that it is said
                raise Unavailable("storage is unwell")
            return super().update(change)

    accounts = Accounts(Unwilling(bucket, clock), Caps(day=Decimal(10)), heard, clock)
    for number in (1, 2):
        accounts.change(partial(add_cost, category="ai", usd=Decimal(3), note="", now=clock.now(), id=f"c{number}"))
    assert [notice.data["threshold_percent"] for notice in heard.notices] == ["50"]
    assert sum(cost.usd for cost in accounts.ledger.read().costs.values()) == 6
