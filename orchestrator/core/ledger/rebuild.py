"""Restores a lost ledger from the events of the bucket's runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from orchestrator.core.ledger.arming import REBUILT
from orchestrator.core.ledger.budget import ZERO, Ledger, LedgerEntry, key_of, with_run
from orchestrator.core.naming import hold_key, is_client
from orchestrator.core.run import events as ev
from orchestrator.core.run.fold import replay


def entries_of(log: Iterable[ev.Event]) -> dict[str, LedgerEntry]:
    """The entries that the ledger should have for one run, by key: one for each hold in its clients' events. If the
    events are not clear, the higher amount counts: a hold that was never settled is still held, and a settlement is at
    least what its machines cost. What machines write about money is ignored."""
    events = sorted((event for event in log if is_client(event.writer)), key=lambda event: event.order)
    run = replay(events)
    if run is None:
        return {}
    entries: dict[str, LedgerEntry] = {}
    for event in events:
        match event.fact:
            case ev.BudgetHeld(hold_usd=usd, generation=generation):
                key = hold_key(run.run_id, generation)
                if key in entries:
                    most = max(usd, entries[key].hold_usd)
                    entries[key] = entries[key].model_copy(update={"hold_usd": most})
                else:
                    entries[key] = LedgerEntry(
                        hold_usd=usd,
                        held_at=event.time,
                        ttl_s=run.plan.ttl_s if run.plan else 0,
                        gpu=run.plan.gpu if run.plan else "",
                        note=REBUILT,
                        attempt=max((vm.attempt for vm in run.vms if vm.generation == generation), default=0),
                        pretend=run.simulated,
                    )
            case ev.Settled(cost_usd=usd, generation=generation):
                key = hold_key(run.run_id, generation or 0)
                metered = sum((vm.cost(event.time) for vm in run.vms if vm.generation == (generation or 0)), ZERO)
                entry = entries.get(key)
                if entry is not None:
                    spent = max(usd, metered, entry.spent)
                    entries[key] = entry.model_copy(update={"settled_usd": spent, "settled_at": event.time})
    return entries


def rebuild_entries(ledger: Ledger, logs: Iterable[Iterable[ev.Event]], now: datetime) -> Ledger:
    """The ledger with every entry from the runs' events that it lacks. Entries that it has are not changed. No event
    says which client was about to request a machine. So the restored holds count as armed now, and nobody settles them
    before such a client has requested its machine or counts as dead."""
    for log in logs:
        for key, entry in entries_of(log).items():
            if not is_counted(ledger, key, entry):
                armed = now if entry.settled_usd is None else None
                ledger = with_run(ledger, key, entry.model_copy(update={"armed_at": armed}))
    return ledger


def with_fleets(ledger: Ledger, holds: Mapping[str, LedgerEntry]) -> Ledger:
    """The ledger with the holds of fleets that it lacks."""
    for key, entry in holds.items():
        if not is_counted(ledger, key, entry):
            ledger = with_run(ledger, key, entry)
    return ledger


def is_counted(ledger: Ledger, key: str, entry: LedgerEntry) -> bool:
    """Whether a hold is in the ledger or in its archive. A month that is long past has all of its runs in one sum."""
    past = ledger.archive.get(key_of("month", entry.held_at))
    summed = past is not None and past.runs > 0 and not past.each and entry.settled_usd is not None
    return key in ledger.runs or summed or any(key in month.each for month in ledger.archive.values())
