"""Settles the holds that no client settles, but only when no machine can still be running under them.

A client may die between any two of its steps. Whoever looks next (`bench status`, `bench costs`, a launch that finds no
money left) takes each hold that is not settled, of whatever kind the work is that it is for (`kinds`).
`bench reap --yes` drives no run: it takes the holds of fleets, of images, and of runs that have left no events.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from orchestrator.core.errors import BenchError, BudgetExceeded, CredentialsMissing, StillThere, Unavailable
from orchestrator.core.images import image_recorded_in
from orchestrator.core.ledger.budget import Ledger
from orchestrator.core.ledger.unlisted import KnownHolds, is_due, stored_amounts, unlisted_runs
from orchestrator.core.text import count
from orchestrator.runs.engine import World
from orchestrator.runs.kinds import KINDS, How, ReconciledHold, kind_of

T = TypeVar("T")


def reconcile_holds(
    world: World, *, eager: bool = False, drive: bool = True, say: Callable[[ReconciledHold], None] = lambda _: None
) -> tuple[ReconciledHold, ...]:
    """Looks after every hold that is not settled. Costs one request when there is none. With `eager`, as money is
    needed now, also after fleets that may go on. Without `drive`, no run is driven on: only fleets and images are
    looked after, and runs that have left no events. Raises what the ports raise: at once where it concerns every hold,
    else once all others have been looked after."""
    reconciled: list[ReconciledHold] = []
    first: BenchError | None = None
    ledger, how = world.ledger.read(), How(eager, drive)
    for kind, key in [(one, key) for one in KINDS for key in one.open_keys(ledger)]:
        try:
            seen = kind.reconcile(world, key, how)
        except BenchError as exc:
            if concerns_every_hold(exc):
                raise
            first = first or exc
            seen = ReconciledHold(key, False, str(exc))
        if seen is not None:
            reconciled.append(seen)
            say(seen)
    if first is not None:
        raise first
    return tuple(reconciled)


def after_settling_abandoned(world: World, attempt: Callable[[], T], say: Callable[[str], None]) -> T:
    """What `attempt` returns. If there is no money for it, settle the holds of clients that died, say so, and try once
    more. Raise what `attempt` raises."""
    try:
        return attempt()
    except BudgetExceeded:
        due = is_due(world.ledger.read())
        settled = [found.key for found in reconcile_holds(world, eager=True) if found.settled] if due else []
        if not settled:
            raise
        say(f"settled {count(len(settled), 'hold')} of clients that are gone: {', '.join(settled[:3])}")
    return attempt()


def concerns_every_hold(error: BenchError) -> bool:
    """Whether looking at the next hold would most likely fail too, after as long a wait."""
    return isinstance(error, CredentialsMissing | Unavailable) and not isinstance(error, StillThere)


def known_of(world: World, ledger: Ledger, open_runs: frozenset[str]) -> KnownHolds:
    """What is there of that for which the ledger holds money, beside `open_runs`; whose fleets they are is not told.
    Asks nothing of the bucket where there is no such hold. Raises `Unavailable`."""
    names = unlisted_runs(ledger, open_runs)
    lost = {name for name in names if not kind_of(name).exists(world, name)}
    shelf = world.shelf if stored_amounts(ledger) else None
    records, odd = shelf.records.every() if shelf is not None else ((), {})
    there = frozenset(one.name for one in records if one.gone_at is None)
    return KnownHolds(open_runs, frozenset(lost), images=there, odd_images=frozenset(map(image_recorded_in, odd)))
