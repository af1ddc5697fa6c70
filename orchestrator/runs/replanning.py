"""A run goes on by a plan of today's: of the one in the bucket only what is measured is believed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from orchestrator.core.config.model import Config
from orchestrator.core.ledger.budget import exposure
from orchestrator.core.mode import Mode
from orchestrator.core.naming import hold_key
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.core.plan.resumption import resumed_config, resumed_on_hosts, same_image
from orchestrator.core.run.fold import replay
from orchestrator.runs.engine import World
from orchestrator.runs.planning import RentedFrom, plan_on_cloud


def replanned(
    world_for: Callable[[Config], World],
    today: Config,
    stored: LaunchPlan,
    run_id: str,
    site: RentedFrom,
    *,
    say: Callable[[str], None],
) -> LaunchPlan:
    """The plan under which `run_id` goes on: `today`'s limits, caps, prices and channels, and what `stored` measures.
    Raises as `plan_on_cloud`."""
    if stored.mode is Mode.HOST:
        return resumed_on_hosts(today, stored)
    world = world_for(today)
    spent = exposure(world.ledger.read(), "run", world.clock.now(), run_id=run_id).spent
    config = resumed_config(today, stored, spent)
    run = replay(world.log(run_id).read())
    under = hold_key(run_id, run.generation) if run is not None and run.closed is None else ""
    made = plan_on_cloud(world, config, stored.config_name, site, under=under)
    if made.ttl_s < stored.ttl_s - 59:
        say(f"{run_id} had {stored.ttl_s // 60} min; under your present caps and prices it gets {made.ttl_s // 60} min")
    # The hold is judged with all that the run has cost before, so under the whole of today's caps.
    whole = made.config.model_copy(update={"budget": today.budget})
    return same_image(replace(made, config=whole), stored)
