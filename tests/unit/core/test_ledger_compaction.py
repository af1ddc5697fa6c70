"""What stays of past months when a ledger is compacted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.ledger.alerts import alerts_due, mark_alerted
from orchestrator.core.ledger.budget import (
    WINDOWS,
    Caps,
    Ledger,
    LedgerEntry,
    LedgerUnreadable,
    add_cost,
    compact_ledger,
    hold,
    settle,
    window_exposure,
)
from orchestrator.core.ledger.unlisted import rebuild_entries
from orchestrator.core.run.events import BudgetHeld, Event, Settled
from tests.unit.core.builders import planned
from tests.unit.core.ledgers import NOON, D, Step, caps, play, steps


@given(steps, caps, st.integers(0, 400))
def test_compaction_changes_no_exposure_of_a_current_window(steps: list[Step], caps: Caps, days: int) -> None:
    for moment in play(steps, caps)[-1:]:
        later = moment.now + timedelta(days=days)
        smaller = compact_ledger(moment.ledger, later)
        for window in WINDOWS[1:]:
            assert window_exposure(smaller, window, later) == window_exposure(moment.ledger, window, later)
        assert compact_ledger(smaller, later) == smaller


OCTOBER, DECEMBER = datetime(2026, 10, 5, tzinfo=UTC), datetime(2026, 12, 9, tzinfo=UTC)
OLD = "20261005-000000-l4-aaaa"


def archived() -> Ledger:
    """October's run and cost are archived; a run of October that never ended is not."""
    ledger = settle(hold(Ledger(), OLD, D(2), 600, OCTOBER), OLD, D(1), OCTOBER)
    ledger = hold(ledger, "20261005-000001-l4-bbbb", D(2), 600, OCTOBER)
    ledger = add_cost(ledger, "ai", D(3), "", OCTOBER, "c1")
    return hold(ledger, "20261209-000000-l4-cccc", D(1), 600, DECEMBER)


def test_past_months_become_one_sum_each() -> None:
    ledger = archived()
    assert list(ledger.runs) == ["20261005-000001-l4-bbbb", "20261209-000000-l4-cccc"]
    assert ledger.costs == {}
    days, each = {"2026-10-05": D(4)}, {OLD: D(1)}
    assert ledger.archive["2026-10"].model_dump() == {"usd": D(4), "runs": 1, "costs": 1, "days": days, "each": each}
    assert window_exposure(ledger, "month", OCTOBER).total == D(6)


def test_a_late_replay_for_an_archived_run_counts_nothing_twice() -> None:
    ledger = archived()
    assert settle(ledger, OLD, D(1), DECEMBER) == ledger
    assert hold(ledger, OLD, D(2), 600, DECEMBER) == ledger


def test_a_month_is_kept_in_full_for_a_week() -> None:
    ledger = settle(hold(Ledger(), "r", D(2), 600, NOON), "r", D(1), NOON)
    assert compact_ledger(ledger, datetime(2026, 12, 7, tzinfo=UTC)).runs == ledger.runs
    assert compact_ledger(ledger, datetime(2026, 12, 8, tzinfo=UTC)).runs == {}


def test_the_ledger_stays_small_over_years() -> None:
    ledger, now = Ledger(), datetime(2024, 1, 1, tzinfo=UTC)
    for day in range(3 * 365):
        at = now + timedelta(days=day)
        run = f"{at:%Y%m%d}-000000-l4-0000"
        ledger = settle(hold(ledger, run, D(1), 600, at), run, D(1), at)
        ledger = mark_alerted(ledger, alerts_due(ledger, Caps(day=D(1)), at))
    assert len(ledger.runs) <= 31 + 8 + 1
    assert len(ledger.archive) <= 36
    assert len(ledger.alerts) <= 3 * 50
    assert window_exposure(ledger, "total", now).spent == 3 * 365


def twenty_thousand_runs() -> tuple[Ledger, datetime]:
    """Three years of a team, as a client that holds money every month leaves them."""
    ledger, now = Ledger(), datetime(2024, 1, 1, tzinfo=UTC)
    for number in range(20_000):
        at = now + timedelta(days=1095) / 20_000 * number
        entry = LedgerEntry(
            hold_usd=D("0.18"), held_at=at, ttl_s=1800, gpu="l4", settled_usd=D("0.012345"), settled_at=at, attempt=1,
            armed_by="0123abcd", armed_at=at, caps={"day": D(5), "month": D(50)},
        )  # fmt: skip
        ledger.runs[f"{at:%Y%m%d-%H%M%S}-l4-{number % 65536:04x}"] = entry
        if number % 500 == 499:
            ledger = compact_ledger(ledger, at)
    return ledger, at


def test_a_ledger_of_twenty_thousand_runs_stays_under_a_megabyte() -> None:
    ledger, now = twenty_thousand_runs()
    assert len(ledger.dump()) < 1_000_000
    assert window_exposure(ledger, "total", now).spent == 20_000 * D("0.012345")
    assert ledger.archive["2024-05"].each == {}
    assert sum(len(month.each) for month in ledger.archive.values()) < 3_000


def test_a_run_of_a_month_that_is_long_past_is_not_restored_beside_its_sum() -> None:
    ledger, now = twenty_thousand_runs()
    run, at = "20240504-000000-l4-beef", datetime(2024, 5, 4, tzinfo=UTC)
    facts = (planned(), BudgetHeld(hold_usd=D(2)), Settled(cost_usd=D(1), released_usd=D(1)))
    log = [Event(run_id=run, time=at, writer="client-000000", seq=seq, fact=fact) for seq, fact in enumerate(facts, 1)]
    assert rebuild_entries(ledger, [log], now) == ledger
    assert list(rebuild_entries(ledger, [log[:2]], now).runs)[-1] == run, "one that was never settled is held"
    assert run in rebuild_entries(Ledger(), [log], now).runs


def test_a_sent_alert_about_an_archived_run_is_forgotten_with_it() -> None:
    over = settle(hold(Ledger(), OLD, D(1), 600, OCTOBER), OLD, D(2), OCTOBER)
    told = mark_alerted(over, alerts_due(over, Caps(total=D(1)), OCTOBER))
    assert compact_ledger(told, DECEMBER).alerts == {"total:total:50:1", "total:total:80:1", "total:total:100:1"}


def test_an_archived_run_that_turns_out_dearer_counts() -> None:
    ledger = archived()
    before = window_exposure(ledger, "total", DECEMBER).spent
    dearer = settle(ledger, OLD, D("1.5"), DECEMBER)
    assert window_exposure(dearer, "total", DECEMBER).spent == before + D("0.5")
    assert dearer.archive["2026-10"].days == {"2026-10-05": D("4.5")}
    assert settle(dearer, OLD, D("1.2"), DECEMBER) == dearer


def test_an_alert_that_nobody_sends_does_not_keep_a_ledger_from_being_compacted() -> None:
    odd = frozenset({"", "@", "day", "day:", "run", ":::", "total@2026"})
    ledger = hold(Ledger(alerts=odd), OLD, D(2), 600, OCTOBER)
    assert compact_ledger(ledger, DECEMBER).alerts <= odd


# How a ledger is written and read, and that one that cannot be read stops all spending.


@given(steps, caps)
def test_a_ledger_survives_being_written_and_read(steps: list[Step], caps: Caps) -> None:
    for ledger in [moment.ledger for moment in play(steps, caps)[-1:]]:
        assert Ledger.parse(ledger.dump()) == ledger
        assert Ledger.parse(ledger.dump()).dump() == ledger.dump()


def test_an_empty_document_is_an_empty_ledger() -> None:
    assert Ledger.parse(b"{}") == Ledger()


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "document: Invalid JSON"),
        (b'{"schema": 2}', "schema: Input should be 1"),
        (b'{"runs": {"r": {"hold_usd": "-1", "held_at": "2026-11-21T00:00:00Z"}}}', "runs.r.hold_usd: "),
        (b'{"runs": {"r": {"hold_usd": "1", "held_at": "2026-11-21T00:00:00"}}}', "runs.r.held_at: "),
        (b'{"surprise": 1}', "surprise: Extra inputs"),
        (b'{"runs": {"r": {"hold_usd": "1", "held_at": "0001-01-01T00:00:00+14:00"}}}', "runs.r.held_at: "),
        (b'{"runs": {"r": {"hold_usd": "1", "held_at": "9999-12-31T23:59:59-12:00"}}}', "runs.r.held_at: "),
        (b'{"runs": {"r": {"hold_usd": "1", "held_at": "2026-11-21T00:00:00Z", "ttl_s": 1e18}}}', "runs.r.ttl_s: "),
        (b'{"runs": {"r+x": {"hold_usd": "1", "held_at": "2026-11-21T00:00:00Z"}}}', r"runs.r\+x.\[key\]: "),
        (b'{"costs": {"c": {"usd": "1", "at": "9999-12-31T23:59:59-12:00", "category": "ai"}}}', "costs.c.at: "),
        (b'{"caps": {"by": "ada", "at": "0001-01-01T00:00:00+14:00"}}', "caps.at: "),
    ],
)
def test_a_ledger_that_cannot_be_read_stops_all_spending(data: bytes, complaint: str) -> None:
    with pytest.raises(LedgerUnreadable, match="the ledger cannot be read: " + complaint) as caught:
        Ledger.parse(data)
    assert "bench budget rebuild" in caught.value.hint
