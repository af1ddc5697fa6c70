"""The law of the ledger: at every instant, in every window, spent + held <= cap."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.core.ledger.alerts import Alert, alerts_due, mark_alerted
from orchestrator.core.ledger.budget import (
    WINDOWS,
    ZERO,
    Approved,
    Caps,
    Exposure,
    HoldRefused,
    HoldTerms,
    Ledger,
    SharedCaps,
    add_cost,
    authorize,
    compact_ledger,
    headroom,
    hold,
    key_of,
    set_caps,
    settle,
    take_back,
    window_exposure,
)
from tests.unit.core.ledgers import NOON, D, Step, amounts, caps, play, spent, steps

LATE_BILL = [
    Step("launch", "run-0", D(5), 0, 0),
    Step("release", "run-0", D(0), 0, 0),
    Step("launch", "run-1", D(10), 0, 0),
    Step("settle", "run-0", D(0), 60, 0),
    Step("launch", "run-2", D("0.01"), 0, 0),
    Step("settle", "run-1", D(0), 50, 0),
    Step("launch", "run-3", D(2), 0, 0),
]
"""A hold is given back, another run takes the money, and then the first turns out to have cost $3."""


@given(steps, caps)
@example(LATE_BILL, Caps(total=D(10)))
def test_spent_and_held_pass_a_cap_by_no_more_than_settlements_were_corrected_upward(
    steps: list[Step], caps: Caps
) -> None:
    for moment in play(steps, caps):
        for window in WINDOWS[1:]:
            cap = caps.of(window)
            seen = window_exposure(moment.ledger, window, moment.now)
            assert seen.spent >= 0
            assert seen.held >= 0
            assert cap is None or seen.total <= cap + moment.corrected_in(window), window
        for run in moment.ledger.runs:
            assert caps.run is None or window_exposure(moment.ledger, "run", moment.now, run_id=run).total <= caps.run


@given(steps, caps, amounts)
@example(LATE_BILL, Caps(total=D(10)), D(0))
def test_no_hold_ever_passes_a_cap_and_none_fits_while_a_window_is_over_its_own(
    steps: list[Step], caps: Caps, more: Decimal
) -> None:
    for moment in play(steps, caps):
        seen = {window: window_exposure(moment.ledger, window, moment.now).total for window in WINDOWS[1:]}
        over = {window for window, total in seen.items() if (cap := caps.of(window)) is not None and total > cap}
        verdict = authorize(moment.ledger, caps, more, moment.now)
        if isinstance(verdict, Approved):
            assert not over
            held = hold(moment.ledger, "more", more, 600, moment.now)
            for window in WINDOWS[1:]:
                cap = caps.of(window)
                assert cap is None or window_exposure(held, window, moment.now).total <= cap
        told = {alert.window for alert in alerts_due(moment.ledger, caps, moment.now)}
        assert over <= told, "a window over its cap is always told"


def test_an_upward_correction_is_recorded_told_once_and_then_nothing_fits() -> None:
    caps = Caps(total=D(10))
    given_back = settle(hold(Ledger(), "a", D(5), 600, NOON), "a", ZERO, NOON)
    full = hold(given_back, "b", D(10), 600, NOON)
    over = settle(full, "a", D(3), NOON)
    assert window_exposure(over, "total", NOON) == Exposure(spent=D(3), held=D(10))
    due = alerts_due(over, caps, NOON)
    assert due == (Alert("overcommit", "total", "total", 100, D(3), D(10), D(10)),)
    assert [alert.id for alert in due] == ["total:total:over:10"]
    assert alerts_due(full, caps, NOON) == ()
    told = mark_alerted(over, due)
    assert alerts_due(told, caps, NOON) == ()
    assert isinstance(authorize(told, caps, D(0), NOON), HoldRefused)
    ended = settle(told, "b", D(6), NOON)
    assert [alert.id for alert in alerts_due(ended, caps, NOON)] == ["total:total:80:10"], (
        "thresholds are still to be told"
    )
    assert authorize(ended, caps, D(1), NOON) == Approved(D(1), {"total": D(0)})


@given(amounts, amounts, amounts)
def test_settlements_come_to_the_same_in_any_order_and_number(hold_usd: Decimal, one: Decimal, two: Decimal) -> None:
    held = hold(Ledger(), "r", hold_usd, 60, NOON)
    a = settle(settle(settle(held, "r", one, NOON), "r", two, NOON), "r", one, NOON)
    b = settle(settle(held, "r", two, NOON), "r", one, NOON)
    assert window_exposure(a, "total", NOON) == window_exposure(b, "total", NOON)
    assert window_exposure(a, "total", NOON).spent == max(one, two)


@given(amounts, amounts)
def test_an_approved_hold_leaves_the_headroom_that_was_promised(ceiling: Decimal, cap: Decimal) -> None:
    verdict = authorize(Ledger(), Caps(total=cap), ceiling, NOON)
    if isinstance(verdict, Approved):
        after = headroom(hold(Ledger(), "r", ceiling, 60, NOON), Caps(total=cap), NOON)
        assert after == (verdict.headroom["total"], "total")
    else:
        assert verdict.short_by == ceiling - cap > 0


def test_a_refusal_names_the_window_that_is_short_by_most() -> None:
    ledger = hold(settle(hold(Ledger(), "a", D(2), 60, NOON), "a", D(1), NOON), "b", D(2), 60, NOON)
    verdict = authorize(ledger, Caps(run=D(10), day=D(4), month=D(3)), D("1.5"), NOON)
    assert verdict == HoldRefused("month", cap=D(3), spent=D(1), held=D(2), needs=D("1.5"), short_by=D("1.5"))


def test_without_caps_everything_fits() -> None:
    assert authorize(Ledger(), Caps(), D(10**6), NOON) == Approved(D(10**6), {})
    assert headroom(Ledger(), Caps(), NOON) is None


def test_a_cap_on_one_run_holds_for_each_run_alone() -> None:
    ledger = hold(Ledger(), "a", D(1), 60, NOON)
    assert isinstance(authorize(ledger, Caps(run=D(1)), D(1), NOON), Approved)
    assert isinstance(authorize(ledger, Caps(run=D(1)), D("1.01"), NOON), HoldRefused)
    assert headroom(ledger, Caps(run=D(1), day=D(5)), NOON) == (D(1), "run")


def test_a_run_is_charged_to_the_day_and_month_of_its_hold() -> None:
    eve = datetime(2026, 11, 30, 23, 59, tzinfo=UTC)
    ledger = settle(hold(Ledger(), "r", D(1), 600, eve), "r", D("0.5"), eve + timedelta(minutes=9))
    after = eve + timedelta(minutes=9)
    assert [window_exposure(ledger, window, eve).spent for window in WINDOWS[1:]] == [D("0.5")] * 3
    assert [window_exposure(ledger, window, after).spent for window in WINDOWS[1:]] == [D(0), D(0), D("0.5")]


def test_windows_are_of_utc_wherever_the_clock_stands() -> None:
    tokyo = datetime.fromisoformat("2026-12-01T08:00:00+09:00")
    assert (key_of("day", tokyo), key_of("month", tokyo), key_of("total", tokyo)) == ("2026-11-30", "2026-11", "total")


def test_a_second_hold_raises_the_first_and_never_lowers_it() -> None:
    first = hold(Ledger(), "r", D(2), 600, NOON, HoldTerms("l4", note="why"))
    assert hold(first, "r", D(1), 60, NOON + timedelta(days=1), HoldTerms("t4")) == first
    raised = hold(first, "r", D(3), 900, NOON + timedelta(days=1))
    assert (raised.runs["r"].hold_usd, raised.runs["r"].ttl_s, raised.runs["r"].held_at) == (D(3), 900, NOON)
    assert (raised.runs["r"].gpu, raised.runs["r"].note) == ("l4", "why")


def test_a_raised_hold_needs_only_the_difference_in_the_windows_of_the_first() -> None:
    ledger = hold(Ledger(), "r", D(3), 600, NOON)
    later = NOON + timedelta(days=1)
    assert isinstance(authorize(ledger, Caps(day=D(4)), D(4), later, run_id="r"), Approved)
    assert isinstance(authorize(ledger, Caps(day=D(4)), D(5), later, run_id="r"), HoldRefused)


def test_a_settled_run_is_not_opened_again() -> None:
    settled = settle(hold(Ledger(), "r", D(2), 600, NOON), "r", D(1), NOON)
    assert hold(settled, "r", D(2), 600, NOON) == settled
    assert settle(settled, "r", ZERO, NOON) == settled


def test_a_hold_given_back_costs_nothing_and_a_late_bill_still_counts() -> None:
    released = settle(hold(Ledger(), "r", D(2), 600, NOON), "r", ZERO, NOON)
    assert window_exposure(released, "total", NOON).total == 0
    assert window_exposure(settle(released, "r", D(1), NOON), "total", NOON).total == 1


def test_the_cost_of_a_run_without_a_hold_is_not_lost() -> None:
    ledger = settle(Ledger(), "r", D(1), NOON)
    assert window_exposure(ledger, "day", NOON).spent == 1
    assert [alert.kind for alert in alerts_due(ledger, Caps(), NOON)] == ["overspend"]


def test_the_same_cost_added_twice_counts_once() -> None:
    once = add_cost(Ledger(), "ai", D("1.50"), "review", NOON, "c1")
    assert add_cost(once, "ai", D("1.50"), "review", NOON, "c1") == once
    assert window_exposure(once, "month", NOON).spent == D("1.50")


def test_a_cost_added_by_hand_may_pass_the_cap_and_then_nothing_fits() -> None:
    ledger = add_cost(Ledger(), "ai", D(9), "", NOON, "c1")
    verdict = authorize(ledger, Caps(day=D(5)), D("0.01"), NOON)
    assert verdict.short_by == D("4.01")
    assert headroom(ledger, Caps(day=D(5)), NOON) == (D(-4), "day")


def test_a_cost_that_is_taken_back_counts_no_more_and_stays_to_be_seen() -> None:
    ledger = spent("8")
    back = take_back(ledger, "c", "a mistake", NOON, "c-back")
    assert back is not None
    assert window_exposure(back, "total", NOON) == Exposure(ZERO, ZERO)
    assert set(back.costs) == {"c", "c-back"}
    assert back.costs["c-back"].takes_back == "c"
    assert take_back(back, "c", "again", NOON, "c-more") == back
    assert take_back(back, "c-back", "", NOON, "c-more") is None
    assert take_back(back, "never", "", NOON, "c-more") is None
    later = compact_ledger(back, datetime(2027, 3, 1, tzinfo=UTC))
    assert window_exposure(later, "total", NOON).spent == 0
    assert later.costs == {}


@given(amounts, amounts, amounts)
def test_pretended_dollars_and_real_ones_are_two_accounts(real: Decimal, pretended: Decimal, cost: Decimal) -> None:
    ledger = hold(Ledger(), "real", real, 600, NOON)
    ledger = hold(ledger, "practice", pretended, 600, NOON, HoldTerms(pretend=True))
    ledger = add_cost(ledger, "ai", cost, "", NOON, "c")
    for window in WINDOWS[1:]:
        assert window_exposure(ledger, window, NOON).total == real + cost
        assert window_exposure(ledger, window, NOON, pretend=True).total == pretended


# The caps of the bucket beside those of the client.


def shared(**caps: Decimal) -> Ledger:
    return set_caps(Ledger(), SharedCaps(by="ada", at=NOON, **caps))


@given(st.builds(Caps, *[st.none() | amounts] * 4), st.builds(Caps, *[st.none() | amounts] * 4), amounts)
def test_of_the_clients_caps_and_the_buckets_the_lower_binds(own: Caps, theirs: Caps, ceiling: Decimal) -> None:
    ledger = shared(**{w: cap for w in WINDOWS if (cap := theirs.of(w)) is not None})
    fits = isinstance(authorize(ledger, own, ceiling, NOON), Approved)
    alone = [isinstance(authorize(Ledger(), caps, ceiling, NOON), Approved) for caps in (own, theirs)]
    assert fits == all(alone)


def test_a_refusal_says_who_set_the_cap_and_how_it_is_changed() -> None:
    refused = authorize(shared(day=D(1)), Caps(day=D(5)), D(2), NOON)
    assert isinstance(refused, HoldRefused)
    assert (refused.cap, refused.set_by) == (D(1), "ada")
    assert "bench budget set --day" in refused.remedy
    own = authorize(shared(day=D(5)), Caps(day=D(1)), D(2), NOON)
    assert isinstance(own, HoldRefused)
    assert own.set_by == ""
    assert "budget.per_day_usd" in own.remedy


def test_caps_that_were_changed_stay_on_record() -> None:
    ledger = shared(day=D(1))
    for amount in range(2, 40):
        ledger = set_caps(ledger, SharedCaps(by="bob", at=NOON, day=D(amount)))
    assert ledger.caps.day == 39
    assert [caps.day for caps in ledger.earlier_caps] == list(range(19, 39))
    assert Ledger.parse(ledger.dump()) == ledger


# Which alerts are told about what was spent, and how often.


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
