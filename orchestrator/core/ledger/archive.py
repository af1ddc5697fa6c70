"""Past months of the ledger: one sum each, so that the document stays small and no current window changes."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from orchestrator.core.ledger.document import ZERO, ArchivedMonth, Ledger, counted, key_of

GRACE: Final = timedelta(days=7)
"""A month is archived once this much of the next has passed: replays of its last entries still find them."""


def compact(ledger: Ledger, now: datetime) -> Ledger:
    """Folds the settled entries of past months into one sum a month. No exposure of a current window changes; what was
    pretended is forgotten."""
    before = key_of("month", now - GRACE)
    if before <= ledger.archived_before:
        return ledger
    done = {
        run_id: entry
        for run_id, entry in ledger.runs.items()
        if entry.settled_usd is not None and key_of("month", entry.held_at) < before
    }
    costs = {name: cost for name, cost in ledger.costs.items() if key_of("month", cost.at) < before}
    costs |= {name: cost for name, cost in ledger.costs.items() if cost.takes_back in costs}
    archive = dict(ledger.archive)
    additions = [(entry.held_at, entry.spent, key) for key, entry in done.items() if not entry.pretend]
    additions += [
        (cost.at, cost.usd, "") for name, cost in counted(ledger).items() if name in costs and not cost.pretend
    ]
    for at, amount, key in additions:
        month, day = key_of("month", at), key_of("day", at)
        old = archive.get(month, ArchivedMonth(usd=ZERO, runs=0, costs=0))
        days = {**old.days, day: old.days.get(day, ZERO) + amount}
        archive[month] = ArchivedMonth(
            usd=old.usd + amount,
            runs=old.runs + bool(key),
            costs=old.costs + (not key),
            days=dict(sorted(days.items())),
            each={**old.each, key: amount} if key else old.each,
        )
    return ledger.model_copy(
        update={
            "runs": {run_id: entry for run_id, entry in ledger.runs.items() if run_id not in done},
            "costs": {name: cost for name, cost in ledger.costs.items() if name not in costs},
            "archive": archive,
            "archived_before": before,
            "alerts": frozenset(name for name in ledger.alerts if _is_current(name, before, done.keys())),
        }
    )


def corrected(ledger: Ledger, run_id: str, actual: Decimal) -> Ledger:
    """A run of an archived month turned out dearer: what came on top counts in its month and on its day."""
    for name, month in ledger.archive.items():
        known = month.each.get(run_id)
        if known is None or known >= actual:
            continue
        day = f"{run_id[:4]}-{run_id[4:6]}-{run_id[6:8]}"
        more = {
            "usd": month.usd + actual - known,
            "days": {**month.days, day: month.days.get(day, ZERO) + actual - known},
            "each": {**month.each, run_id: actual},
        }
        return ledger.model_copy(update={"archive": {**ledger.archive, name: month.model_copy(update=more)}})
    return ledger


def is_archived(ledger: Ledger, run_id: str) -> bool:
    """Whether a run that is not listed was settled and folded away: its id starts with its date."""
    digits = run_id[:6]
    return digits.isdigit() and len(digits) == 6 and f"{digits[:4]}-{digits[4:]}" < ledger.archived_before


def _is_current(alert_id: str, before: str, archived: Collection[str]) -> bool:
    window, key, *_ = alert_id.split(":")
    if window in ("day", "month"):
        return key[:7] >= before
    return not (window == "run" and key in archived)
