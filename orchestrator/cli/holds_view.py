"""Shows what the ledger holds for something that is not an open run of the list, as lines and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from orchestrator.cli import fleet_trust as trust
from orchestrator.cli.render import usd
from orchestrator.core.errors import BenchError
from orchestrator.core.fleet.names import is_fleet_id
from orchestrator.core.foreign import words
from orchestrator.core.ledger.budget import Ledger
from orchestrator.core.ledger.set_aside import stored
from orchestrator.core.ledger.unlisted import OpenHold, unlisted_holds, unlisted_runs
from orchestrator.core.run.status import StatusLine, iso
from orchestrator.runs.reconcile import is_due, known_of
from orchestrator.store.fleets import FleetStore
from orchestrator.wiring import Wiring


def holds_of(wiring: Wiring, ledger: Ledger, lines: Sequence[StatusLine]) -> tuple[OpenHold, ...]:
    """The holds that the list of runs does not show. Raises `Unavailable`. Where all is settled and there is no image,
    nothing is loaded or read."""
    if not is_due(ledger) and not stored(ledger):
        return ()
    open_runs = frozenset(line.run_id for line in lines if not line.over)
    world = wiring.world()
    known = known_of(world, ledger, open_runs)
    fleets = {name for name in unlisted_runs(ledger, open_runs) - known.lost if is_fleet_id(name)}
    foreign = frozenset(name for name in fleets if not _believed(wiring, name))
    return unlisted_holds(ledger, replace(known, foreign=foreign), world.policy.insert_limit_s)


def _believed(wiring: Wiring, fleet: str) -> bool:
    """Whether this client acts on a fleet; it can only show one that it did not launch, or whose documents are odd."""
    store = FleetStore(wiring.bucket, wiring.clock, fleet)
    try:
        store.record()
        store.children()
    except BenchError:
        return False
    return trust.believed(wiring, store)


def line(hold: OpenHold) -> str:
    """One line: how much, since when, for what, and the command that shows or releases it."""
    name = words(hold.name)
    what, then = {
        "run": (f"run {name}", "shows it"),
        "fleet": (name, "shows it, and settles what is over"),
        "image_build": (f"the build of image {name}", "says what it waits for"),
        "image_storage": (f"storing image {name}", "deletes it and releases the rest"),
    }[hold.kind]
    if not hold.readable:
        what, then = f"{what}, whose record cannot be read", "says why"
    if hold.settles_at is not None:
        what += ", whose events are gone" if hold.kind == "run" else ", whose record is gone"
        then = f"deletes what is left of it, and settles this from {_reached(hold.settles_at)} on"
    simulated = " (simulated)" if hold.simulated else ""
    return f"{usd(hold.usd)}{simulated} held since {iso(hold.since)} for {what}: `{words(hold.remedy)}` {then}"


def document(hold: OpenHold) -> dict[str, Any]:
    return {
        "kind": hold.kind,
        "name": hold.name,
        "held_usd": str(hold.usd),
        "held_at": iso(hold.since),
        "prices_simulated": hold.simulated,
        "remedy": hold.remedy,
        "settles_at": _reached(hold.settles_at) if hold.settles_at is not None else None,
    }


def _reached(at: datetime) -> str:
    """The first whole second at which a moment is reached."""
    return iso(at + timedelta(microseconds=999_999))
