"""The one entry of a fleet in the ledger: its worst case is held once, its children never touch it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from orchestrator.core.errors import BudgetExceeded
from orchestrator.core.ledger.arming import NotArmed, arm
from orchestrator.core.ledger.budget import Ledger, Refused, authorize, binding, hold, settle
from orchestrator.core.naming import hold_key, run_of
from orchestrator.core.run.fold import Run
from orchestrator.runs.engine import World
from orchestrator.store.fleets import FleetRecord


@dataclass(frozen=True, slots=True)
class Purse:
    """What one fleet may spend."""

    world: World
    record: FleetRecord

    def take(self, usd: Decimal, generation: int = 0) -> None:
        """Holds `usd`. Taken twice it is one hold. Raises `BudgetExceeded`."""
        now, key = self.world.clock.now(), hold_key(self.record.fleet, generation)
        ttl_s = int((self.record.ends_at - self.record.created_at) / timedelta(seconds=1))
        pretend = self.record.mode.simulated

        def change(ledger: Ledger) -> Ledger | Refused:
            verdict = authorize(ledger, self.world.caps, usd, now, run_id=key, pretend=pretend)
            if isinstance(verdict, Refused):
                return verdict
            under = binding(ledger, self.world.caps)
            return hold(ledger, key, usd, ttl_s, now, "fleet", note="fleet", caps=under, pretend=pretend)

        answer = self.world.accounts.change(change)
        if isinstance(answer, Refused):
            raise BudgetExceeded(
                f"this fleet can cost up to ${answer.needs}; the cap of ${answer.cap} for {answer.window} has "
                f"${answer.spent} spent and ${answer.held} held, so ${answer.short_by} is missing",
                hint=answer.remedy,
            )

    def arm(self, attempt: int, by: str, generation: int = 0) -> bool:
        """Says that machines are about to be asked for under the hold; False when it is settled or another's turn."""
        now, key = self.world.clock.now(), hold_key(self.record.fleet, generation)
        patience = self.world.policy.insert_limit_s

        def change(ledger: Ledger) -> Ledger | NotArmed:
            return arm(ledger, key, attempt, by, now, patience)

        return isinstance(self.world.accounts.change(change), Ledger)

    def settle(self, usd: Decimal, generation: int = 0) -> None:
        """Replaces the hold by what was spent, once. `usd` is what the fleet has cost in all: what was settled for
        earlier generations is not counted again."""
        key, ledger = hold_key(self.record.fleet, generation), self.world.ledger.read()
        entry = ledger.runs.get(key)
        if entry is None or entry.settled_usd is not None:
            return
        before = [one.spent for name, one in ledger.runs.items() if run_of(name) == self.record.fleet and name != key]
        own, now = max(Decimal(0), usd - sum(before, Decimal(0))), self.world.clock.now()
        self.world.accounts.change(lambda ledger: settle(ledger, key, own, now))


def worked_s(run: Run | None, attempt: int) -> int:
    """How many seconds the machine of an attempt was at it, by its own words."""
    said = run.said(attempt) if run is not None else None
    if said is None or said.booted_at is None or said.last_word_at is None:
        return 0
    return max(0, round((said.last_word_at - said.booted_at).total_seconds()))
