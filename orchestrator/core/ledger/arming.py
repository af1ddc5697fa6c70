"""Who may ask for the next machine under a hold, and who may settle it: decided in the ledger, by compare-and-swap.

A client says in the ledger that it sets out for machine n before it does; whoever settles must know of machine n. So a
hold is never given back under a machine that is about to be asked for, and of two clients one asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final

from orchestrator.core.ledger.budget import ZERO, Entry, Ledger, with_run

REBUILT: Final = "rebuilt"
"""The note of an entry that was made again from events: they do not tell who had set out for a machine."""


@dataclass(frozen=True, slots=True)
class NotArmed:
    """Why nothing may be asked for. `kind` is `no_hold`, `settled`, `too_dear` (the machine alone may cost more than is
    held), or `taken`: another client is at it."""

    kind: str
    by: str = ""


def arm(
    ledger: Ledger, run_id: str, attempt: int, by: str, now: datetime, patience_s: float, worst: Decimal = ZERO
) -> Ledger | NotArmed:
    """Sets out to ask for machine number `attempt` under a hold: from here on the hold is not settled by a client that
    does not know of that machine, and no other client asks for it. One that has not asked after `patience_s` is taken
    for dead, and another may. `worst` is what the machine can cost: what the ledger holds must cover it, whatever the
    run's events say is held."""
    entry = ledger.runs.get(run_id)
    if entry is None:
        return NotArmed("no_hold")
    if entry.settled_usd is not None:
        return NotArmed("settled")
    if worst > entry.hold_usd:
        return NotArmed("too_dear")
    if entry.attempt > attempt or (
        entry.attempt == attempt and entry.armed_by != by and _fresh(entry, now, patience_s)
    ):
        return NotArmed("taken", entry.armed_by)
    if (entry.attempt, entry.armed_by) == (attempt, by) and _fresh(entry, now, patience_s / 2):
        return ledger
    armed = entry.model_copy(update={"attempt": attempt, "armed_by": by, "armed_at": now})
    return with_run(ledger, run_id, armed)


def may_settle(ledger: Ledger, run_id: str, attempt: int, now: datetime, patience_s: float) -> bool:
    """Whether a client that knows of the machines up to `attempt` knows them all."""
    entry = ledger.runs.get(run_id)
    if entry is None or not _fresh(entry, now, patience_s):
        return True
    forgotten = entry.note == REBUILT and not entry.armed_by
    return entry.attempt <= attempt and not forgotten


def _fresh(entry: Entry, now: datetime, patience_s: float) -> bool:
    """Whether whoever armed the hold may still be about to ask. A clock that is behind the armer's says yes."""
    return entry.armed_at is not None and (now - entry.armed_at).total_seconds() < patience_s
