"""Restores a lost ledger from the events of the bucket's runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal

from orchestrator.core.ledger.arming import REBUILT
from orchestrator.core.ledger.budget import ZERO, Entry, Ledger, with_run
from orchestrator.core.naming import hold_key, is_client
from orchestrator.core.run import events as ev
from orchestrator.core.run.fold import replay


def entries_of(log: Iterable[ev.Event]) -> dict[str, Entry]:
    """What the ledger should have of one run: an entry for each hold that its clients' events tell of. Where they leave
    doubt the dearer counts: a hold that was never settled is still held, and a settlement is no less than its machines
    cost. A machine's word on money is none.
    """
    events = sorted((event for event in log if is_client(event.writer)), key=lambda event: event.order)
    run = replay(events)
    if run is None:
        return {}
    found: dict[str, Entry] = {}
    for event in events:
        match event.fact:
            case ev.BudgetHeld(hold_usd=usd, generation=generation):
                key = hold_key(run.run_id, generation)
                if key in found:
                    most = max(usd, found[key].hold_usd)
                    found[key] = found[key].model_copy(update={"hold_usd": most})
                else:
                    found[key] = Entry(
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
                entry = found.get(key)
                if entry is not None:
                    spent = max(usd, metered, entry.spent)
                    found[key] = entry.model_copy(update={"settled_usd": spent, "settled_at": event.time})
    return found


def rebuilt(ledger: Ledger, logs: Iterable[Iterable[ev.Event]], now: datetime) -> Ledger:
    """The ledger with every entry that it lacks and the runs' events tell of. Nothing that it has is lowered. Who had
    set out for a machine is in no event: a hold is not settled before whoever it was has asked or is taken for dead."""
    for log in logs:
        for key, entry in entries_of(log).items():
            if key not in ledger.runs and key not in archived(ledger):
                armed = now if entry.settled_usd is None else None
                ledger = with_run(ledger, key, entry.model_copy(update={"armed_at": armed}))
    return ledger


def with_fleets(ledger: Ledger, holds: Mapping[str, Entry]) -> Ledger:
    """The ledger with the holds of fleets that it lacks."""
    for key, entry in holds.items():
        if key not in ledger.runs and key not in archived(ledger):
            ledger = with_run(ledger, key, entry)
    return ledger


def archived(ledger: Ledger) -> dict[str, Decimal]:
    return {key: usd for month in ledger.archive.values() for key, usd in month.each.items()}
