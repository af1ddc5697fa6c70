"""The entry of a fleet in the ledger: its worst case is held once, and its children never change the ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from orchestrator.core.naming import hold_key
from orchestrator.core.run.fold import Run
from orchestrator.runs.engine import World
from orchestrator.runs.holds import HoldRequest, acquire, check, settle_shares
from orchestrator.runs.reconcile import after_settling_abandoned
from orchestrator.store.fleets import FleetControl, FleetRecord

HELD_WITHIN: Final = timedelta(minutes=3)
"""Between the decision that a fleet goes on and the hold for it."""


@dataclass(frozen=True, slots=True)
class Purse:
    """Holds and settles the money of one fleet."""

    world: World
    record: FleetRecord
    say: Callable[[str], None] = lambda _: None

    def take(self, usd: Decimal, generation: int = 0, lasts: timedelta | None = None) -> None:
        """Hold `usd` for so long; as long as the fleet was to last, if nothing is said. Taken twice it is one hold.
        Raise `BudgetExceeded`."""
        request = self._request(usd, generation, lasts or self._lasts)
        after_settling_abandoned(self.world, lambda: acquire(self.world.accounts, request), self.say)

    def check(self, usd: Decimal, generation: int = 0) -> None:
        """Raise `BudgetExceeded` if `usd` could not be held now. It holds nothing."""
        request = self._request(usd, generation, self._lasts)
        after_settling_abandoned(self.world, lambda: check(self.world.accounts, request), self.say)

    @property
    def _lasts(self) -> timedelta:
        return self.record.ends_at - self.record.created_at

    def _request(self, usd: Decimal, generation: int, lasts: timedelta) -> HoldRequest:
        key, ttl_s = hold_key(self.record.fleet, generation), int(lasts / timedelta(seconds=1))
        return HoldRequest(key, usd, "this fleet", ttl_s, "fleet", "fleet", self.record.mode.simulated)

    def holds(self, generation: int = 0) -> bool:
        """Whether machines may be requested: the hold exists and is not settled, or the fleet costs nothing."""
        entry = self.world.ledger.read().runs.get(hold_key(self.record.fleet, generation))
        return not self.record.hold_usd or (entry is not None and entry.settled_usd is None)

    def awaited(self, control: FleetControl) -> bool:
        """Whether a client that resumed the fleet may still be about to take its hold: it says so first."""
        if control.held_at is None or abs(self.world.clock.now() - control.held_at) > HELD_WITHIN:
            return False
        return hold_key(self.record.fleet, control.generation) not in self.world.ledger.read().runs

    def until(self, generation: int = 0) -> datetime:
        """When the time is over that was paid for; as the record says where nothing is held."""
        entry = self.world.ledger.read().runs.get(hold_key(self.record.fleet, generation))
        return entry.lasts_until if entry is not None else self.record.ends_at

    def settle(self, usd: Decimal, generation: int = 0) -> None:
        """Replaces every hold up to `generation` by what was spent, once. `usd` is what the fleet has cost in all: what
        was settled before is not counted again, and of several holds the earlier ones are used up first."""
        ledger = self.world.ledger.read()
        keys = [hold_key(self.record.fleet, number) for number in range(generation + 1)]
        entries = {key: entry for key in keys if (entry := ledger.runs.get(key)) is not None}
        usd_left = max(Decimal(0), usd - sum((entry.spent for entry in entries.values()), Decimal(0)))
        shares: dict[str, Decimal] = {}
        for key in (unsettled := [key for key, entry in entries.items() if entry.settled_usd is None]):
            shares[key] = usd_left if key == unsettled[-1] else min(usd_left, entries[key].hold_usd)
            usd_left -= shares[key]
        if shares:
            settle_shares(self.world.accounts, shares)


def worked_s(run: Run | None, attempt: int) -> int:
    """How many seconds the machine of an attempt was at it, by its own words."""
    report = run.report_of(attempt) if run is not None else None
    if report is None or report.booted_at is None or report.last_word_at is None:
        return 0
    return max(0, round((report.last_word_at - report.booted_at).total_seconds()))
