"""What drives runs and settles holds, loaded only if there is something to drive: most looks find nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orchestrator.wiring import Wiring

if TYPE_CHECKING:
    from orchestrator.core.ledger.budget import Ledger
    from orchestrator.core.ledger.unlisted import KnownHolds
    from orchestrator.core.market.machines import Instance
    from orchestrator.runs.engine import Engine, World
    from orchestrator.runs.reap import MachineFinding, PriceOf


def engine_of(wiring: Wiring, run_id: str) -> Engine:
    from orchestrator.runs.engine import Engine

    return Engine(wiring.world(), run_id)


def reconcile(wiring: Wiring) -> None:
    """See `runs.reconcile.reconcile_holds`."""
    from orchestrator.runs.reconcile import reconcile_holds

    reconcile_holds(wiring.world())


def survey(wiring: Wiring, instances: Sequence[Instance], price_of: PriceOf) -> tuple[MachineFinding, ...]:
    """See `runs.reap.survey_machines`."""
    from orchestrator.runs.reap import survey_machines

    return survey_machines(wiring.world(), instances, price_of)


def known_holds(world: World, ledger: Ledger, open_runs: frozenset[str]) -> KnownHolds:
    """See `runs.reconcile.known_of`."""
    from orchestrator.runs.reconcile import known_of

    return known_of(world, ledger, open_runs)
