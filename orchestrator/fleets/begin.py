"""Begins a fleet: stores its record, then holds its worst case, then lists it."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core.fleet.children import Child
from orchestrator.core.fleet.state import FleetState
from orchestrator.fleets.decisions import summary
from orchestrator.fleets.purse import Purse
from orchestrator.store.fleets import Control, FleetRecord, FleetStore


def begin(store: FleetStore, record: FleetRecord, children: Sequence[Child], purse: Purse | None) -> None:
    """Stores a fleet and, with a `purse`, holds its worst case; nothing is started. The record comes before the hold,
    so that a client that dies between any two of these steps leaves no hold that says nothing of what it is for:
    `runs.reconcile` gives back the one of a fleet that never asked for a machine. Raises `BudgetExceeded`."""
    if purse is not None:
        purse.check(record.hold_usd)  # a fleet that is refused leaves nothing behind
    store.create(record, children)
    if purse is not None:
        purse.take(record.hold_usd)
    store.list_as(summary(record, FleetState(tuple(children)), Control()))
