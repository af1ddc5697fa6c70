"""The law of the ledger: at every instant, in every window, spent + held <= cap."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from hypothesis import example, given

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
    add_cost,
    authorize,
    compact_ledger,
    headroom,
    hold,
    key_of,
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
    assert isinstance(verdict, HoldRefused)
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
