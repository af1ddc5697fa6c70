"""Who may ask for a machine under a hold, and who may settle it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.ledger.budget import Caps, HoldRefused, Ledger, authorize, hold, settle, window_exposure
from orchestrator.core.ledger.unlisted import NotArmed, arm_request, may_settle

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
RUN = "20261121-040506-l4-7f3a"
D = Decimal
PATIENCE = 180


def held() -> Ledger:
    return hold(Ledger(), RUN, D(1), 600, NOON)


def armed(attempt: int = 1, by: str = "one", seconds: float = 0, ledger: Ledger | None = None) -> Ledger | NotArmed:
    return arm_request(ledger or held(), RUN, attempt, by, NOON + timedelta(seconds=seconds), PATIENCE)


def test_nothing_is_asked_for_without_a_hold_or_after_its_settlement() -> None:
    assert arm_request(Ledger(), RUN, 1, "one", NOON, PATIENCE) == NotArmed("no_hold")
    assert armed(ledger=settle(held(), RUN, D(0), NOON)) == NotArmed("settled")


def test_of_two_clients_the_first_asks_until_it_is_taken_for_dead() -> None:
    first = armed()
    assert isinstance(first, Ledger)
    assert armed(by="other", ledger=first, seconds=10) == NotArmed("taken", "one")
    assert armed(ledger=first, seconds=10) == first
    again = armed(ledger=first, seconds=100)
    assert isinstance(again, Ledger)
    assert again.runs[RUN].armed_at == NOON + timedelta(seconds=100)
    late = armed(by="other", ledger=first, seconds=PATIENCE + 1)
    assert isinstance(late, Ledger)
    assert late.runs[RUN].armed_by == "other"


def test_a_client_that_is_behind_asks_for_nothing() -> None:
    second = armed(2)
    assert isinstance(second, Ledger)
    assert armed(1, ledger=second, seconds=1e6) == NotArmed("taken", "one")


def test_a_hold_is_not_settled_by_a_client_that_does_not_know_of_the_last_machine() -> None:
    second = armed(2)
    assert isinstance(second, Ledger)
    assert not may_settle(second, RUN, 1, NOON, PATIENCE)
    assert may_settle(second, RUN, 2, NOON, PATIENCE)
    assert may_settle(second, RUN, 1, NOON + timedelta(seconds=PATIENCE), PATIENCE)
    assert may_settle(held(), RUN, 0, NOON, PATIENCE)
    assert may_settle(Ledger(), RUN, 0, NOON, PATIENCE)


amounts = st.decimals(min_value="0.01", max_value="3", places=2)
clients = st.lists(
    st.tuples(st.integers(0, 8), st.integers(-90, 90), st.integers(0, 23), amounts, st.booleans()), max_size=30
)


@given(clients, st.decimals(min_value="1", max_value="6", places=2))
def test_however_wrong_the_clocks_are_no_day_no_month_and_no_total_is_over_its_cap(
    steps: list[tuple[int, int, int, Decimal, bool]], cap: Decimal
) -> None:
    caps, ledger, seen = Caps(day=cap, month=cap, total=4 * cap), Ledger(), set()
    for number, (run, days_off, hours, amount, over) in enumerate(steps):
        now = NOON + timedelta(days=days_off, hours=hours)
        seen.add(now)
        name = f"{now:%Y%m%d}-000000-l4-{run:04x}"
        if not over and not isinstance(authorize(ledger, caps, amount, now), HoldRefused):
            before = window_exposure(ledger, "total", now).total
            ledger = hold(ledger, f"{name}x{number}", amount, 600, now)
            assert window_exposure(ledger, "total", now).total == before + amount, "an approved hold is always taken"
        elif open_runs := sorted(name for name, entry in ledger.runs.items() if entry.held):
            first = open_runs[run % len(open_runs)]
            ledger = settle(ledger, first, min(amount, ledger.runs[first].hold_usd), now)
        for at in seen:
            assert window_exposure(ledger, "day", at).total <= cap
            assert window_exposure(ledger, "month", at).total <= cap
        assert window_exposure(ledger, "total", now).total <= 4 * cap


def test_the_cost_of_a_run_and_its_resumptions_counts_together_against_its_cap() -> None:
    ledger = settle(held(), RUN, D("0.80"), NOON)
    assert isinstance(authorize(ledger, Caps(run=D(1)), D("0.30"), NOON, run_id=f"{RUN}+1"), HoldRefused)
    ledger = hold(ledger, f"{RUN}+1", D("0.20"), 600, NOON + timedelta(days=1))
    assert window_exposure(ledger, "run", NOON, run_id=RUN).total == D("1.00")
    assert window_exposure(ledger, "day", NOON).total == D("0.80")


def test_no_machine_is_asked_for_that_alone_may_cost_more_than_the_ledger_holds() -> None:
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    ledger = hold(Ledger(), "r", Decimal("0.50"), 600, now)
    assert arm_request(ledger, "r", 1, "me", now, 60, Decimal("0.500001")) == NotArmed("too_dear")
    assert not isinstance(arm_request(ledger, "r", 1, "me", now, 60, Decimal("0.50")), NotArmed)
