"""Arming: which client may request the next machine under a hold, and which may settle the hold.

The ledger decides this by compare-and-swap. Before a client requests machine n, it notes in the ledger that it will do
so. A client that settles the hold must know of machine n. So a hold is never given back while a machine is about to be
requested under it, and of two clients only one requests the machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from orchestrator.core.ledger.budget import ZERO, Ledger, LedgerEntry, with_run
from orchestrator.core.market.pricing import DEADLINE_SLACK_S

REBUILT: Final = "rebuilt"
"""The note of an entry that was restored from events. Events do not tell which client was about to request a
machine."""
MARGIN: Final = timedelta(minutes=10)
"""How far the clocks of two clients may be apart."""


@dataclass(frozen=True, slots=True)
class NotArmed:
    """Why no machine may be requested. `kind` is `no_hold`, `settled`, `too_dear` (the machine alone may cost more than
    is held), or `taken` (the client `by` is about to request it)."""

    kind: str
    by: str = ""


def arm_request(
    ledger: Ledger, run_id: str, attempt: int, by: str, now: datetime, patience_s: float, worst: Decimal = ZERO
) -> Ledger | NotArmed:
    """The ledger with a note that the client `by` is about to request machine number `attempt`, or why it must not.
    From then on no client that does not know of this machine settles the hold, and no other client requests the
    machine. A client that has not requested it after `patience_s` seconds counts as dead, and another may. `worst` is
    the most that the machine can cost, in dollars: the hold in the ledger must cover it, whatever the run's events say
    is held."""
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
    """Whether a client that knows of the machines up to `attempt` knows all machines of the hold, so that it may settle
    it."""
    entry = ledger.runs.get(run_id)
    if entry is None or not _fresh(entry, now, patience_s):
        return True
    forgotten = entry.note == REBUILT and not entry.armed_by
    return entry.attempt <= attempt and not forgotten


def abandoned_from(entry: LedgerEntry, insert_limit_s: float, *, asked: bool) -> datetime:
    """When whoever took the hold can no longer be about to request a machine under it, and, if one may have been
    `asked` for, none of them can still be within its deadline. `insert_limit_s`: the seconds that a client may need to
    request one."""
    begun = entry.armed_at if asked and entry.armed_at is not None else entry.held_at
    lasts_s = entry.ttl_s + DEADLINE_SLACK_S if asked else 0
    return begun + timedelta(seconds=insert_limit_s + lasts_s) + MARGIN


def _fresh(entry: LedgerEntry, now: datetime, patience_s: float) -> bool:
    """Whether the client that armed the hold may still be about to request its machine. If this client's clock is
    behind that client's, the answer is yes."""
    return entry.armed_at is not None and (now - entry.armed_at).total_seconds() < patience_s
