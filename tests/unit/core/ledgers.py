"""Moments and amounts of ledgers for tests."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from hypothesis import strategies as st

from orchestrator.core.ledger.budget import (
    ZERO,
    Approved,
    Caps,
    HoldTerms,
    Ledger,
    Window,
    add_cost,
    authorize,
    hold,
    key_of,
    settle,
)

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
D = Decimal
amounts = st.decimals(min_value="0", max_value="20", places=2)
caps = st.builds(Caps, *[st.none() | st.decimals(min_value="0", max_value="40", places=2)] * 4)


@dataclass(frozen=True)
class Step:
    """One thing that happens: time passes, then a run is asked for, ends, is given up, or a cost is added."""

    what: str
    run: str
    amount: Decimal
    share: int
    """Percent of the hold that the run really cost."""
    hours: int


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(["launch", "launch", "settle", "settle", "release", "add", "replay"]),
        st.sampled_from([f"run-{n}" for n in range(6)]),
        amounts,
        st.integers(0, 100),
        st.integers(0, 24 * 20),
    ),
    max_size=25,
)


@dataclass(frozen=True)
class Moment:
    """A ledger on the way, and by how much each run's settlement has been corrected upward so far."""

    now: datetime
    ledger: Ledger
    corrected: dict[str, Decimal]
    held_at: dict[str, datetime]

    def corrected_in(self, window: Window) -> Decimal:
        """Dollars, of the runs that are charged to the window that this moment is in."""
        here = key_of(window, self.now)
        return sum((usd for run, usd in self.corrected.items() if key_of(window, self.held_at[run]) == here), D(0))


def play(steps: list[Step], caps: Caps) -> list[Moment]:
    """Every ledger on the way, as clients would write it that ask before they hold. A run may be settled again and
    again, and only ever at no more than its hold."""
    ledger, now, history = Ledger(), NOON, []
    corrected: dict[str, Decimal] = {}
    held_at: dict[str, datetime] = {}
    for index, step in enumerate(steps):
        now += timedelta(hours=step.hours)
        if step.what == "launch":
            run = f"{step.run}-{index}"
            if isinstance(authorize(ledger, caps, step.amount, now, run_id=run), Approved):
                ledger = hold(ledger, run, step.amount, 600, now, HoldTerms("l4"))
                held_at[run] = now
        elif step.what == "add":
            if isinstance(authorize(ledger, caps, step.amount, now), Approved):
                ledger = add_cost(ledger, "ai", step.amount, "", now, f"cost-{index}")
        else:
            for run, entry in list(ledger.runs.items()):
                if run.startswith(step.run) and step.what == "settle":
                    cost = entry.hold_usd * step.share / 100
                    if entry.settled_usd is not None:
                        corrected[run] = corrected.get(run, D(0)) + max(cost - entry.settled_usd, D(0))
                    ledger = settle(ledger, run, cost, now)
                elif run.startswith(step.run) and step.what == "release":
                    ledger = settle(ledger, run, ZERO, now)
                elif run.startswith(step.run):
                    ledger = hold(ledger, run, D(0), 1, now)
        history.append(Moment(now, ledger, dict(corrected), held_at))
    return history


def spent(amount: str) -> Ledger:
    return add_cost(Ledger(), "ai", D(amount), "", NOON, "c")
