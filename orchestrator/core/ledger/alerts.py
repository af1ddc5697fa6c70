"""What should be said of the ledger, once each: thresholds, windows that may pass their cap, runs over their hold.

Who is about to say something notes that first, with the time, and that it is said afterwards. If it dies in between,
the next one that changes the ledger says it, once the note is old. So each is said at least once, and twice only where
a client died right after it had spoken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from orchestrator.core.ledger.budget import WINDOWS, ZERO, Caps, Ledger, Window, binding, exposure, key_of

THRESHOLDS: Final = (50, 80, 100)
SAYING: Final = timedelta(minutes=2)
"""How long somebody may take to say something before another says it."""


@dataclass(frozen=True, slots=True)
class Alert:
    """A threshold that a window's spending has reached, a window in which more is spent and held than its cap, or a run
    that cost more than its hold."""

    kind: str
    """`budget`, `overcommit` or `overspend`."""
    window: Window
    key: str
    """The day, month, `total`, or run id."""
    threshold: int
    """Percent of `cap`."""
    spent: Decimal
    held: Decimal
    cap: Decimal
    """Dollars; for an overspend, the hold."""

    @property
    def id(self) -> str:
        """Once for each window, threshold and cap: one that was raised has thresholds of its own."""
        if self.kind == "overspend":
            return f"run:{self.key}:{self.threshold}"
        what = "over" if self.kind == "overcommit" else str(self.threshold)
        return f"{self.window}:{self.key}:{what}:{self.cap.normalize():f}"

    @property
    def title(self) -> str:
        if self.kind == "overspend":
            return f"run {self.key} cost more than was held for it"
        what = f"the budget for {self.key if self.window != 'total' else 'everything'}"
        if self.kind == "overcommit":
            return f"{what} may be exceeded by runs that are not over"
        return f"{self.threshold} % of {what} is spent"

    @property
    def text(self) -> str:
        if self.kind == "overspend":
            return f"It cost ${self.spent}; ${self.cap} was held. Compare configs/prices.yaml with the bill."
        if self.kind == "overcommit":
            return (
                f"${self.spent} is spent and ${self.held} is held: together more than ${self.cap}. A cost was "
                "recorded, or the cap was lowered, after the money was held. No new run is allowed until the "
                "sum is below the cap again."
            )
        return f"${self.spent} of ${self.cap} is spent, and ${self.held} more is held for runs that are not over."


def alerts_due(ledger: Ledger, caps: Caps, now: datetime) -> tuple[Alert, ...]:
    """What should be said now and has not been, of real dollars: for each window and each cap that somebody goes by,
    the highest threshold that its spending has reached, and whether what is held on top passes the cap; and each run
    that cost more than its hold."""
    due: list[Alert] = []
    for window, cap in _caps_in_force(ledger, caps, now):
        seen = exposure(ledger, window, now)
        reached = [threshold for threshold in THRESHOLDS if seen.spent > 0 and seen.spent * 100 >= cap * threshold]
        if reached:
            due.append(Alert("budget", window, key_of(window, now), reached[-1], seen.spent, seen.held, cap))
        if seen.spent < cap < seen.total:  # from the cap on, the threshold of 100 % says it
            due.append(Alert("overcommit", window, key_of(window, now), 100, seen.spent, seen.held, cap))
    for run_id, entry in sorted(ledger.runs.items()):
        if entry.spent > entry.hold_usd:
            due.append(Alert("overspend", "run", run_id, 100, entry.spent, ZERO, entry.hold_usd))
    return tuple(alert for alert in due if not _said(ledger, alert) and not _being_said(ledger, alert, now))


def _caps_in_force(ledger: Ledger, caps: Caps, now: datetime) -> Iterator[tuple[Window, Decimal]]:
    """Each window with each cap on it: the client's own or the bucket's, and those of whoever holds money in it."""
    own = binding(ledger, caps)
    for window in WINDOWS[1:]:
        key = key_of(window, now)
        others = {
            entry.caps[window]
            for entry in ledger.runs.values()
            if window in entry.caps and not entry.pretend and key_of(window, entry.held_at) == key
        }
        mine = own.of(window)
        for cap in sorted(others | ({mine} if mine is not None else set())):
            yield window, cap


def _said(ledger: Ledger, alert: Alert) -> bool:
    """Ledgers of old named no cap."""
    return alert.id in ledger.alerts or alert.id.rpartition(":")[0] in ledger.alerts


def _being_said(ledger: Ledger, alert: Alert, now: datetime) -> bool:
    notes = (note.removeprefix(f"{alert.id}@") for note in ledger.alerts if note.startswith(f"{alert.id}@"))
    return any(_is_young(at, now) for at in notes)


def _is_young(at: str, now: datetime) -> bool:
    try:
        return abs(now - datetime.fromisoformat(at)) < SAYING
    except (TypeError, ValueError):  # no time, or one without a zone: no note of ours
        return False


def about_to_say(ledger: Ledger, alerts: tuple[Alert, ...], now: datetime) -> Ledger:
    """Notes that these are about to be said, in the place of older notes."""
    notes = {f"{alert.id}@{now.isoformat(timespec='seconds')}" for alert in alerts}
    return ledger.model_copy(update={"alerts": _without_notes(ledger, alerts) | notes})


def _without_notes(ledger: Ledger, alerts: tuple[Alert, ...]) -> frozenset[str]:
    ids = {alert.id for alert in alerts}
    return frozenset(note for note in ledger.alerts if note.partition("@")[0] not in ids)


def mark_alerted(ledger: Ledger, alerts: tuple[Alert, ...]) -> Ledger:
    """Remembers that these were said; the thresholds below them need no saying any more."""
    below = {
        replace(alert, threshold=threshold).id
        for alert in alerts
        for threshold in THRESHOLDS
        if alert.kind == "budget" and threshold < alert.threshold
    }
    said = {alert.id for alert in alerts} | below
    return ledger.model_copy(update={"alerts": _without_notes(ledger, alerts) | said})
