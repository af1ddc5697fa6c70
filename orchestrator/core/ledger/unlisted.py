"""The holds that a list of runs does not show: of fleets, of images, and of runs that are missing from it or over.

Whoever looks at the list after a crash must not read that there are no runs while dollars are held.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, Literal

from orchestrator.core.errors import ConfigError
from orchestrator.core.images import cost_of
from orchestrator.core.ledger.budget import (
    WINDOWS,
    ZERO,
    Caps,
    Cost,
    Ledger,
    LedgerEntry,
    counted_costs,
    key_of,
    lower_caps,
    with_run,
)
from orchestrator.core.market.pricing import DEADLINE_SLACK_S
from orchestrator.core.names import is_fleet_id
from orchestrator.core.naming import IMAGE_NAME, hold_key, is_client, run_of
from orchestrator.core.run import events as ev
from orchestrator.core.run.fold import replay

# Arming: which client may request the next machine under a hold, and which may settle the hold. The ledger decides
# this by compare-and-swap. Before a client requests machine n, it notes in the ledger that it will do so. A client
# that settles the hold must know of machine n. So a hold is never given back while a machine is about to be requested
# under it, and of two clients only one requests the machine.


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


# Reads amounts of dollars that a person types.


AMOUNT: Final = re.compile(r"\$?(\d{1,9}(?:\.\d{1,6})?)", re.ASCII)
LARGE: Final = Decimal(1000)


def parse_dollars(text: str, *, zero: bool = False, option: str = "") -> Decimal:
    """The amount in `1.50` or `$1.50`, which `option` was given. Raises `ConfigError` unless it is digits with at most
    six decimals, and more than 0 or, if `zero` is true, at least 0."""
    match = AMOUNT.fullmatch(text.strip())
    amount = Decimal(match[1]) if match else None
    if amount is None or (not amount and not zero):
        what = f"{option} {text}: not an amount in dollars" if option else f"not an amount in dollars: {text}"
        raise ConfigError(
            f"{what}; use digits, with at most six decimals" + ("" if zero else ", and more than 0"),
            hint=f"for example: {option} 1.50"
            if option
            else "for example: 1.50; to take back a recorded cost: `bench costs rm ID`",
        )
    return amount


def is_large(amount: Decimal, ledger: Ledger, caps: Caps) -> bool:
    """Whether an amount is so large that it may be a typing error: at least a whole cap, or a thousand dollars."""
    limits = [cap for window in WINDOWS[1:] if (cap := lower_caps(ledger, caps).of(window)) is not None]
    return amount >= min([LARGE, *limits])


# What the ledger sets aside for prepared images: while they are made, and for their storage once they are there.


CATEGORY: Final = "image"
MOST: Final = "-most"
"""What the id of an amount that is set aside for an image ends in."""
_IMAGE: Final = re.compile(rf"{IMAGE_NAME}[a-z0-9]+-\d{{8}}-\d{{6}}-[0-9a-f]{{4}}")


def most_of(name: str) -> str:
    """The id of the amount that is set aside for an image before it is made."""
    return f"{cost_of(name)}{MOST}"


def name_of_most(key: str) -> str:
    """The image for which the amount with this id is set aside."""
    return key.removeprefix(cost_of("")).removesuffix(MOST)


def is_due(ledger: Ledger) -> bool:
    """Whether there is any hold to look after."""
    return any(entry.settled_usd is None for entry in ledger.runs.values()) or bool(outstanding_images(ledger))


def outstanding_images(ledger: Ledger) -> dict[str, datetime]:
    """The images for which an amount is set aside, and since when."""
    return {name: cost.at for name, cost in unmade_amounts(ledger).items()}


def unmade_amounts(ledger: Ledger) -> dict[str, Cost]:
    """By image that is not made yet: the amount that is set aside for it."""
    amounts = _set_aside_for_images(ledger)
    return {name.removesuffix(MOST): cost for name, cost in amounts.items() if name.endswith(MOST)}


def stored_amounts(ledger: Ledger) -> dict[str, Cost]:
    """By image that was made and not deleted since: the cost of its storage until it expires."""
    return {name: cost for name, cost in _set_aside_for_images(ledger).items() if _IMAGE.fullmatch(name)}


def _set_aside_for_images(ledger: Ledger) -> Mapping[str, Cost]:
    return {
        key.removeprefix(cost_of("")): cost for key, cost in counted_costs(ledger).items() if cost.category == CATEGORY
    }


Kind = Literal["run", "fleet", "image_build", "image_storage"]


@dataclass(frozen=True, slots=True)
class OpenHold:
    """Dollars that are held, what they are for, and the command that shows or releases them."""

    kind: Kind
    name: str
    """The run, the fleet or the image."""
    usd: Decimal
    since: datetime
    simulated: bool
    """Whether the dollars are simulated ones of the embedded cloud."""
    remedy: str
    """A command line."""
    settles_at: datetime | None = None
    """When no machine of it can run any more, so that it may be settled without a word of it; None where its run or
    fleet tells what it has cost, and of images."""

    readable: bool = True
    """Whether the record of its image can be read."""

    @property
    def lost(self) -> bool:
        """Whether its run has left no events, or its fleet no record."""
        return self.settles_at is not None


@dataclass(frozen=True, slots=True)
class KnownHolds:
    """What is there of that for which money is held, by name."""

    open_runs: frozenset[str] = frozenset()
    """The runs that the list shows as not over: it speaks for their holds."""
    lost: frozenset[str] = frozenset()
    """Runs without events, and fleets without a record."""
    foreign: frozenset[str] = frozenset()
    """Fleets on which this client does not act, as they were launched from another computer."""
    images: frozenset[str] = frozenset()
    """Images that can be deleted: their records are readable, and they are not gone."""
    odd_images: frozenset[str] = frozenset()
    """Images whose records cannot be read."""


def unlisted_runs(ledger: Ledger, open_runs: frozenset[str]) -> frozenset[str]:
    """The runs and fleets, other than `open_runs`, for which money is held."""
    return frozenset(run_of(key) for key, entry in ledger.runs.items() if entry.held) - open_runs


def unlisted_holds(ledger: Ledger, known: KnownHolds, insert_limit_s: float) -> tuple[OpenHold, ...]:
    """Every hold that the list of runs does not show, oldest first. `insert_limit_s`: the seconds for which a client
    may be about to request a machine."""
    unlisted = unlisted_runs(ledger, known.open_runs)
    image_costs = [
        _of_entry(name, entry, known, insert_limit_s)
        for key, entry in ledger.runs.items()
        if entry.held and (name := run_of(key)) in unlisted
    ]
    image_costs += _of_images(ledger, known)
    return tuple(sorted(image_costs, key=lambda one: (one.since, one.name)))


def _of_entry(name: str, entry: LedgerEntry, known: KnownHolds, insert_limit_s: float) -> OpenHold:
    fleet = is_fleet_id(name)
    kind: Kind = "fleet" if fleet else "run"
    if name in known.lost:
        over = abandoned_from(entry, insert_limit_s, asked=fleet or entry.attempt > 0)
        return OpenHold(kind, name, entry.held, entry.held_at, entry.pretend, "bench reap --yes", over)
    look = f"bench fleet status {'--look ' if name in known.foreign else ''}{name}" if fleet else f"bench status {name}"
    return OpenHold(kind, name, entry.held, entry.held_at, entry.pretend, look)


def _of_images(ledger: Ledger, known: KnownHolds) -> Iterator[OpenHold]:
    """An image that is gone holds nothing: what its storage has cost is spent."""

    def made(kind: Kind, name: str, cost: Cost, remedy: str, *, readable: bool = True) -> OpenHold:
        return OpenHold(kind, name, cost.usd, cost.at, cost.pretend, remedy, readable=readable)

    for name, cost in unmade_amounts(ledger).items():
        yield made("image_build", name, cost, "bench image list")
    for name, cost in stored_amounts(ledger).items():
        if name in known.images:
            yield made("image_storage", name, cost, f"bench image rm {name}")
        elif name in known.odd_images:
            yield made("image_storage", name, cost, "bench image list", readable=False)


# Restores a lost ledger from the events of the bucket's runs.


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
                        ttl_s=(run.plan.ttl_s if run.plan else 0) + max((vm.queue_s for vm in run.vms), default=0),
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
