"""The archive of the ledger: past months as one sum each, so that the document stays small."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from orchestrator.core.ledger.document import ZERO, ArchivedMonth, Ledger, counted, key_of

GRACE: Final = timedelta(days=7)
"""A month is archived once this much of the next month has passed, so that late changes still find its last entries."""


def compact(ledger: Ledger, now: datetime) -> Ledger:
    """The ledger with the settled entries of past months replaced by one sum for each month. This changes no exposure
    of a current window. Simulated dollars of past months are dropped."""
    before = key_of("month", now - GRACE)
    if before <= ledger.archived_before:
        return ledger
    settled = {
        run_id: entry
        for run_id, entry in ledger.runs.items()
        if entry.settled_usd is not None and key_of("month", entry.held_at) < before
    }
    costs = {name: cost for name, cost in ledger.costs.items() if key_of("month", cost.at) < before}
    costs |= {name: cost for name, cost in ledger.costs.items() if cost.takes_back in costs}
    archive = dict(ledger.archive)
    additions = [(entry.held_at, entry.spent, key) for key, entry in settled.items() if not entry.pretend]
    additions += [
        (cost.at, cost.usd, "") for name, cost in counted(ledger).items() if name in costs and not cost.pretend
    ]
    for at, amount, key in additions:
        month, day = key_of("month", at), key_of("day", at)
        previous = archive.get(month, ArchivedMonth(usd=ZERO, runs=0, costs=0))
        days = {**previous.days, day: previous.days.get(day, ZERO) + amount}
        archive[month] = ArchivedMonth(
            usd=previous.usd + amount,
            runs=previous.runs + bool(key),
            costs=previous.costs + (not key),
            days=dict(sorted(days.items())),
            each={**previous.each, key: amount} if key else previous.each,
        )
    return ledger.model_copy(
        update={
            "runs": {run_id: entry for run_id, entry in ledger.runs.items() if run_id not in settled},
            "costs": {name: cost for name, cost in ledger.costs.items() if name not in costs},
            "archive": archive,
            "archived_before": before,
            "alerts": frozenset(name for name in ledger.alerts if _is_current(name, before, settled.keys())),
        }
    )


def corrected(ledger: Ledger, run_id: str, actual: Decimal) -> Ledger:
    """The ledger after a run of an archived month turned out to cost more: the difference is added to its month and
    day."""
    for name, month in ledger.archive.items():
        recorded = month.each.get(run_id)
        if recorded is None or recorded >= actual:
            continue
        day = f"{run_id[:4]}-{run_id[4:6]}-{run_id[6:8]}"
        changes = {
            "usd": month.usd + actual - recorded,
            "days": {**month.days, day: month.days.get(day, ZERO) + actual - recorded},
            "each": {**month.each, run_id: actual},
        }
        return ledger.model_copy(update={"archive": {**ledger.archive, name: month.model_copy(update=changes)}})
    return ledger


def is_archived(ledger: Ledger, run_id: str) -> bool:
    """Whether a run that is not among the entries is in the archive. This is known from the date in its id."""
    digits = run_id[:6]
    return digits.isdigit() and len(digits) == 6 and f"{digits[:4]}-{digits[4:]}" < ledger.archived_before


def _is_current(alert_id: str, before: str, archived: Collection[str]) -> bool:
    window, _, rest = alert_id.partition(":")
    key = rest.partition(":")[0]
    if window in ("day", "month"):
        return key[:7] >= before
    return not (window == "run" and key in archived)
