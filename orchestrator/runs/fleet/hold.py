"""The entry of a fleet in the ledger: its worst case is held once, and its children never change the ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

from orchestrator.core.errors import BudgetExceeded
from orchestrator.core.ledger.budget import HoldTerms, Ledger, Refused, authorize, binding, hold, settle
from orchestrator.core.naming import hold_key
from orchestrator.core.run.fold import Run
from orchestrator.runs.engine import World
from orchestrator.runs.reconcile import reconcile
from orchestrator.store.fleets import Control, FleetRecord

HELD_WITHIN: Final = timedelta(minutes=3)
"""Between the decision that a fleet goes on and the hold for it."""


@dataclass(frozen=True, slots=True)
class Purse:
    """Holds and settles the money of one fleet."""

    world: World
    record: FleetRecord

    def take(self, usd: Decimal, generation: int = 0, lasts: timedelta | None = None) -> None:
        """Holds `usd` for so long; as long as the fleet was to last, if nothing is said. Taken twice it is one hold.
        Raises `BudgetExceeded`."""
        self._with_open_holds_settled(lambda: self._take(usd, generation, lasts or self._lasts))

    @property
    def _lasts(self) -> timedelta:
        return self.record.ends_at - self.record.created_at

    def _take(self, usd: Decimal, generation: int, lasts: timedelta) -> Refused | None:
        now, key = self.world.clock.now(), hold_key(self.record.fleet, generation)
        ttl_s = int(lasts / timedelta(seconds=1))
        pretend = self.record.mode.simulated

        def change(ledger: Ledger) -> Ledger | Refused:
            verdict = authorize(ledger, self.world.caps, usd, now, run_id=key, pretend=pretend)
            if isinstance(verdict, Refused):
                return verdict
            under = binding(ledger, self.world.caps)
            return hold(ledger, key, usd, ttl_s, now, HoldTerms("fleet", "fleet", under, pretend))

        answer = self.world.accounts.change(change)
        return answer if isinstance(answer, Refused) else None

    def check(self, usd: Decimal, generation: int = 0) -> None:
        """Raises `BudgetExceeded` if `usd` could not be held now. It holds nothing."""
        self._with_open_holds_settled(lambda: self._check(usd, generation))

    def _check(self, usd: Decimal, generation: int) -> Refused | None:
        ledger, now, pretend = self.world.ledger.read(), self.world.clock.now(), self.record.mode.simulated
        key = hold_key(self.record.fleet, generation)
        verdict = authorize(ledger, self.world.caps, usd, now, run_id=key, pretend=pretend)
        return verdict if isinstance(verdict, Refused) else None

    def _with_open_holds_settled(self, ask: Callable[[], Refused | None]) -> None:
        """Settles the holds of clients that died before it refuses money."""
        refused = ask()
        if refused is not None and any(found.settled for found in reconcile(self.world, eager=True)):
            refused = ask()
        if refused is not None:
            raise _too_dear(refused)

    def holds(self, generation: int = 0) -> bool:
        """Whether machines may be requested: the hold exists and is not settled, or the fleet costs nothing."""
        entry = self.world.ledger.read().runs.get(hold_key(self.record.fleet, generation))
        return not self.record.hold_usd or (entry is not None and entry.settled_usd is None)

    def awaited(self, control: Control) -> bool:
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
        ledger, now = self.world.ledger.read(), self.world.clock.now()
        keys = [hold_key(self.record.fleet, number) for number in range(generation + 1)]
        entries = {key: entry for key in keys if (entry := ledger.runs.get(key)) is not None}
        left = max(Decimal(0), usd - sum((entry.spent for entry in entries.values()), Decimal(0)))
        shares: dict[str, Decimal] = {}
        for key in (unsettled := [key for key, entry in entries.items() if entry.settled_usd is None]):
            shares[key] = left if key == unsettled[-1] else min(left, entries[key].hold_usd)
            left -= shares[key]
        if shares:
            self.world.accounts.change(lambda ledger: _settled(ledger, shares, now))


def _settled(ledger: Ledger, shares: Mapping[str, Decimal], now: datetime) -> Ledger:
    for key, usd in shares.items():
        ledger = settle(ledger, key, usd, now)
    return ledger


def _too_dear(answer: Refused) -> BudgetExceeded:
    return BudgetExceeded(
        f"this fleet can cost up to ${answer.needs}, which is ${answer.short_by} more than the cap of ${answer.cap} "
        f"for {answer.window} leaves (${answer.spent} spent, ${answer.held} held by other runs)",
        hint=answer.remedy,
    )


def worked_s(run: Run | None, attempt: int) -> int:
    """How many seconds the machine of an attempt was at it, by its own words."""
    said = run.report_of(attempt) if run is not None else None
    if said is None or said.booted_at is None or said.last_word_at is None:
        return 0
    return max(0, round((said.last_word_at - said.booted_at).total_seconds()))
