"""The plan of a run on the user's own machine. Nothing is rented, and the same budget applies."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from orchestrator.core.config.model import Config, case_ids_of, effective_grids, harness, measurements
from orchestrator.core.hosts import MACHINE_TYPE, PROVISIONING, Target
from orchestrator.core.ledger.budget import Caps, Ledger, Refused, authorize
from orchestrator.core.market.offers import Offer
from orchestrator.core.market.pricing import ceiling
from orchestrator.core.mode import Mode
from orchestrator.core.plan.offered import PlanRefused
from orchestrator.core.plan.plan import LaunchPlan, fit_budget


def plan_on_hosts(
    config: Config,
    *,
    config_name: str,
    target: Target,
    ledger: Ledger,
    caps: Caps,
    now: datetime,
    notices: Sequence[str] = (),
) -> LaunchPlan | PlanRefused:
    """The launch plan for a run on `target`, or why there is none. An hour counts `host.hourly_usd` dollars."""
    offers: tuple[Offer, ...] = (
        Offer(
            gpu=config.gpu,
            region=Mode.HOST,
            zone=target.zone,
            machine_type=MACHINE_TYPE,
            accelerator=None,
            accelerator_count=0,
            provisioning=PROVISIONING,
            usd_per_hour=config.host.hourly_usd,
            host=str(target),
        ),
    )
    timed = fit_budget(config, Mode.HOST, offers, ledger, caps, now)
    if isinstance(timed, PlanRefused):
        return timed
    offers, ttl_s, attempts, budget_notices = timed
    grids = effective_grids(config, Mode.HOST)
    if grids.left_out:
        budget_notices.append(f"{config.gpu} has no {', '.join(grids.left_out)} arithmetic: left out")
    worst = ceiling(config.host.hourly_usd, ttl_s, attempts)
    fits = authorize(ledger, caps, worst, now)
    assert not isinstance(fits, Refused), "a deadline that fits the budget is one whose ceiling does"
    cases = case_ids_of(config, grids)
    return LaunchPlan(
        config=config,
        config_name=config_name,
        mode=Mode.HOST,
        offers=offers,
        ttl_s=ttl_s,
        ceiling_usd=worst,
        attempts=attempts,
        image="",
        cases=cases,
        measurements_per_implementation=len(cases) * measurements(config, Mode.HOST),
        harness=harness(config, grids, Mode.HOST),
        notices=(*notices, *budget_notices),
        headroom=fits.headroom,
    )
