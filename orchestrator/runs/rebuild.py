"""`bench budget rebuild`: restores a lost ledger from the events of the bucket's runs and from its fleets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction

from orchestrator.core.errors import DocumentUnreadable, NotFound
from orchestrator.core.ledger.budget import Ledger, LedgerEntry, LedgerUnreadable
from orchestrator.core.ledger.unlisted import rebuild_entries, with_fleets
from orchestrator.core.market.pricing import DEADLINE_SLACK_S, round_up
from orchestrator.core.naming import LEDGER, hold_key, is_run_id, parse_event_object
from orchestrator.core.text import is_newer
from orchestrator.runs.engine import World
from orchestrator.store.documents import LEDGER_DOCUMENT, OF_MONEY, swap
from orchestrator.store.fleets import FleetControl, FleetStore, list_fleets


@dataclass(frozen=True, slots=True)
class Rebuilt:
    ledger: Ledger
    added: tuple[str, ...]
    """Holds that the ledger lacked."""
    kept_as: str
    """The object to which an unreadable ledger was moved; empty if it was readable or missing."""


def rebuild_from_events(world: World) -> Rebuilt:
    """Adds the holds that the runs' events mention and the ledger lacks. An unreadable ledger is moved aside first.
    Costs added by hand and caps are not in events, so they are lost with the ledger."""
    kept_as = _put_aside(world)
    names = [entry.name for entry in world.bucket.list("runs/", matching=OF_MONEY)]
    run_ids = sorted({run for name in names if (run := _has_money(name))})
    logs = [world.log(run_id).read() for run_id in run_ids]
    fleets = {key: entry for fleet, _ in list_fleets(world.bucket) for key, entry in _of_fleet(world, fleet).items()}
    before: set[str] = set()
    now = world.clock.now()

    def change(ledger: Ledger) -> Ledger:
        nonlocal before
        before = set(ledger.runs)
        return with_fleets(rebuild_entries(ledger, logs, now), fleets)

    after = swap(world.bucket, world.clock, LEDGER_DOCUMENT, change)
    return Rebuilt(after, tuple(sorted(after.runs.keys() - before)), kept_as)


def _of_fleet(world: World, fleet: str) -> dict[str, LedgerEntry]:
    """The holds of a fleet, none of them settled: whoever looks at it next settles what is over."""
    store = FleetStore(world.bucket, world.clock, fleet)
    try:
        record, control = store.record(), store.control()
    except (NotFound, DocumentUnreadable):
        return {}
    if not record.hold_usd:
        return {}
    ttl_s = int((record.ends_at - record.created_at).total_seconds())
    entry = LedgerEntry(
        hold_usd=record.hold_usd, held_at=record.created_at, ttl_s=ttl_s, gpu="fleet", note="rebuilt",
        pretend=record.mode.simulated,
    )  # fmt: skip
    generations = [one for one in range(control.generation + 1) if one not in control.void]
    generation_entries = dict.fromkeys(generations, entry)
    if control.generation in generation_entries and control.generation and control.ends_at is not None:
        generation_entries[control.generation] = _latest(entry, control, control.ends_at, world.clock.now())
    return {hold_key(fleet, generation): one for generation, one in generation_entries.items()}


def _latest(first: LedgerEntry, control: FleetControl, ends_at: datetime, now: datetime) -> LedgerEntry:
    """The hold of a fleet's latest generation, which lasts until that ends. How much it was is not written down: it was
    for no more machines than the first, so where it lasts longer it is that much more, and never less."""
    lasts = first.lasts_until - first.held_at
    held_at = max(first.held_at, min(control.held_at or now, ends_at - lasts, now))
    ttl_s = max(first.ttl_s, math.ceil((ends_at - held_at).total_seconds()))
    longer = Fraction(ttl_s + DEADLINE_SLACK_S, first.ttl_s + DEADLINE_SLACK_S)
    usd = round_up(Fraction(first.hold_usd) * longer)
    return first.model_copy(update={"held_at": held_at, "ttl_s": ttl_s, "hold_usd": max(first.hold_usd, usd)})


def _has_money(name: str) -> str:
    run_id = name.removeprefix("runs/").partition("/")[0]
    return run_id if is_run_id(run_id) and parse_event_object(name) is not None else ""


def _put_aside(world: World) -> str:
    try:
        blob = world.bucket.read(LEDGER)
    except DocumentUnreadable:  # it has more bytes than any ledger: it is moved without being read
        entry = next((one for one in world.bucket.list(LEDGER, most=1) if one.name == LEDGER), None)
        if entry is None:
            raise
        place = f"ledger/unreadable-{entry.generation}.json"
        world.bucket.compose(place, [LEDGER])
        world.bucket.replace(LEDGER, Ledger().dump(), generation=entry.generation)
        return place
    if blob is None:
        return ""
    try:
        Ledger.parse(blob.data)
    except LedgerUnreadable as exc:
        if is_newer(blob.data):
            raise LedgerUnreadable(str(exc), hint="a newer version of bench wrote it: use that version") from exc
        place = f"ledger/unreadable-{blob.generation}.json"
        world.bucket.create(place, blob.data)
        world.bucket.replace(LEDGER, Ledger().dump(), generation=blob.generation)
        return place
    return ""
