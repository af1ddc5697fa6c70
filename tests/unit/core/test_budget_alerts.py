"""Which alerts are told about what was spent, and how often."""

from __future__ import annotations

import pytest

from orchestrator.core.ledger.alerts import Alert, alerts_due, mark_alerted
from orchestrator.core.ledger.budget import Caps, HoldTerms, Ledger, add_cost, hold, settle
from tests.unit.core.ledgers import NOON, D, spent


@pytest.mark.parametrize(
    ("amount", "threshold"),
    [("4.99", None), ("5", 50), ("7.99", 50), ("8", 80), ("9.99", 80), ("10", 100), ("11", 100)],
)
def test_the_highest_threshold_reached_is_told(amount: str, threshold: int | None) -> None:
    due = alerts_due(spent(amount), Caps(month=D(10)), NOON)
    assert [alert.threshold for alert in due] == ([threshold] if threshold else [])


def test_each_threshold_of_each_window_is_told_once() -> None:
    caps = Caps(day=D(10), month=D(100), total=D(10))
    ledger = spent("8")
    due = alerts_due(ledger, caps, NOON)
    assert [alert.id for alert in due] == ["day:2026-11-21:80:10", "total:total:80:10"]
    told = mark_alerted(ledger, due)
    assert alerts_due(told, caps, NOON) == ()
    more = add_cost(told, "ai", D(2), "", NOON, "c2")
    assert [alert.id for alert in alerts_due(more, caps, NOON)] == ["day:2026-11-21:100:10", "total:total:100:10"]


def test_money_that_is_only_held_alarms_nobody() -> None:
    assert alerts_due(hold(Ledger(), "r", D(10), 600, NOON), Caps(day=D(10)), NOON) == ()


def test_a_cap_of_nothing_is_reached_by_the_first_cent_and_not_before() -> None:
    assert alerts_due(Ledger(), Caps(day=D(0)), NOON) == ()
    assert [alert.threshold for alert in alerts_due(spent("0.01"), Caps(day=D(0)), NOON)] == [100]


def test_a_run_that_cost_more_than_its_hold_is_told_once() -> None:
    ledger = settle(hold(Ledger(), "r", D(1), 600, NOON), "r", D("1.2"), NOON)
    due = alerts_due(ledger, Caps(), NOON)
    assert due == (Alert("overspend", "run", "r", 100, D("1.2"), D(0), D(1)),)
    assert alerts_due(mark_alerted(ledger, due), Caps(), NOON) == ()


def test_alerts_say_what_happened_in_dollars() -> None:
    said = [
        f"{alert.title}. {alert.text}"
        for alert in (
            Alert("budget", "month", "2026-11", 80, D(8), D(1), D(10)),
            Alert("budget", "total", "total", 100, D(10), D(0), D(10)),
            Alert("overcommit", "day", "2026-11-21", 100, D(3), D(10), D(10)),
            Alert("overspend", "run", "r", 100, D("1.2"), D(0), D(1)),
        )
    ]
    assert said == [
        "80 % of the budget for 2026-11 is spent. $8 of $10 is spent, and $1 more is held for runs that are not over.",
        "100 % of the budget for everything is spent. $10 of $10 is spent, and $0 more is held for runs that are not over.",
        "the budget for 2026-11-21 may be exceeded by runs that are not over. $3 is spent and $10 is held: together more than $10. A cost was recorded, or the cap was lowered, after the money was held. No new run is allowed until the sum is below the cap again.",
        "run r cost more than was held for it. It cost $1.2; $1 was held. Compare configs/prices.yaml with the bill.",
    ]


def test_an_alert_of_a_ledger_of_old_is_not_told_again() -> None:
    ledger = spent("8").model_copy(update={"alerts": frozenset({"day:2026-11-21:80", "total:total:over"})})
    assert alerts_due(ledger, Caps(day=D(10)), NOON) == ()


def test_a_cap_that_was_raised_has_thresholds_of_its_own() -> None:
    told = mark_alerted(spent("10"), alerts_due(spent("10"), Caps(day=D(10)), NOON))
    assert alerts_due(told, Caps(day=D("10.00")), NOON) == ()
    assert [alert.threshold for alert in alerts_due(told, Caps(day=D(20)), NOON)] == [50]


def test_whoever_settles_judges_the_caps_under_which_the_money_was_held() -> None:
    held = hold(Ledger(), "a", D(1), 600, NOON, HoldTerms(caps=Caps(day=D(1), total=D(50))))
    due = alerts_due(settle(held, "a", D("0.9"), NOON), Caps(day=D(10)), NOON)
    assert [(alert.window, alert.threshold, alert.cap) for alert in due] == [("day", 80, D(1))]
