"""Alerts about the ledger: thresholds reached, windows that may pass their cap, and runs that cost more than their
hold.

Before a client sends an alert, it notes this in the ledger with the time; after sending it, it notes that the alert was
sent. If the client dies in between, the next client that changes the ledger sends the alert once the note is old. So
each alert is sent at least once, and twice only if a client died right after sending it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from orchestrator.core.ledger.budget import WINDOWS, ZERO, Caps, Ledger, Window, key_of, lower_caps, window_exposure

THRESHOLDS: Final = (50, 80, 100)
SAYING: Final = timedelta(minutes=2)
"""How long a client may take to send an alert before another client sends it."""


@dataclass(frozen=True, slots=True)
class Alert:
    """A threshold that a window's spending has reached, a window in which more is spent and held than its cap, or a run
    that cost more than its hold."""

    kind: str
    """`budget`, `overcommit` or `overspend`."""
    window: Window
    key: str
    """The day, the month, `total`, or the run id."""
    threshold: int
    """In per cent of `cap`."""
    spent: Decimal
    held: Decimal
    cap: Decimal
    """Dollars; for an overspend, the hold."""

    @property
    def id(self) -> str:
        """The id under which the ledger remembers the alert. It includes the cap, so that a raised cap gets new
        alerts."""
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
    """The alerts about real dollars to send now that were not sent yet. There are three kinds: the highest threshold
    that the spending of a window has reached; a window in which more is spent and held than its cap; and a run that
    cost more than its hold. Each window is checked against every cap that a client applies to it."""
    due: list[Alert] = []
    for window, cap in _caps_in_force(ledger, caps, now):
        exposed = window_exposure(ledger, window, now)
        reached = [
            threshold for threshold in THRESHOLDS if exposed.spent > 0 and exposed.spent * 100 >= cap * threshold
        ]
        if reached:
            due.append(Alert("budget", window, key_of(window, now), reached[-1], exposed.spent, exposed.held, cap))
        if exposed.spent < cap < exposed.total:  # once the whole cap is spent, the threshold of 100 % is reached
            due.append(Alert("overcommit", window, key_of(window, now), 100, exposed.spent, exposed.held, cap))
    for run_id, entry in sorted(ledger.runs.items()):
        if entry.spent > entry.hold_usd:
            due.append(Alert("overspend", "run", run_id, 100, entry.spent, ZERO, entry.hold_usd))
    return tuple(alert for alert in due if not _said(ledger, alert) and not _being_said(ledger, alert, now))


def _caps_in_force(ledger: Ledger, caps: Caps, now: datetime) -> Iterator[tuple[Window, Decimal]]:
    """(window, cap) for each cap on each window: the client's own or the bucket's, and the caps of the holds in it."""
    binding_caps = lower_caps(ledger, caps)
    for window in WINDOWS[1:]:
        key = key_of(window, now)
        caps_in_force = {
            entry.caps[window]
            for entry in ledger.runs.values()
            if window in entry.caps and not entry.pretend and key_of(window, entry.held_at) == key
        }
        own_cap = binding_caps.of(window)
        for cap in sorted(caps_in_force | ({own_cap} if own_cap is not None else set())):
            yield window, cap


def _said(ledger: Ledger, alert: Alert) -> bool:
    """Whether the alert was sent. Ids in older ledgers have no cap."""
    return alert.id in ledger.alerts or alert.id.rpartition(":")[0] in ledger.alerts


def _being_said(ledger: Ledger, alert: Alert, now: datetime) -> bool:
    notes = (note.removeprefix(f"{alert.id}@") for note in ledger.alerts if note.startswith(f"{alert.id}@"))
    return any(_is_young(at, now) for at in notes)


def _is_young(at: str, now: datetime) -> bool:
    try:
        return abs(now - datetime.fromisoformat(at)) < SAYING
    except (TypeError, ValueError):  # not a time, or a time without a zone: we write no such notes
        return False


def about_to_say(ledger: Ledger, alerts: tuple[Alert, ...], now: datetime) -> Ledger:
    """The ledger with a note that these alerts are about to be sent. It replaces older notes about them."""
    notes = {f"{alert.id}@{now.isoformat(timespec='seconds')}" for alert in alerts}
    return ledger.model_copy(update={"alerts": _without_notes(ledger, alerts) | notes})


def _without_notes(ledger: Ledger, alerts: tuple[Alert, ...]) -> frozenset[str]:
    ids = {alert.id for alert in alerts}
    return frozenset(note for note in ledger.alerts if note.partition("@")[0] not in ids)


def mark_alerted(ledger: Ledger, alerts: tuple[Alert, ...]) -> Ledger:
    """The ledger with a note that these alerts were sent. It covers the lower thresholds too."""
    below = {
        replace(alert, threshold=threshold).id
        for alert in alerts
        for threshold in THRESHOLDS
        if alert.kind == "budget" and threshold < alert.threshold
    }
    sent = {alert.id for alert in alerts} | below
    return ledger.model_copy(update={"alerts": _without_notes(ledger, alerts) | sent})
