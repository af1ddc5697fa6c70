"""The orders for the machines of children: a run spec for each, and the plan of its run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache

from orchestrator.core.config.model import Config, case_ids_of, effective_grids, harness, measurements
from orchestrator.core.errors import ConfigError
from orchestrator.core.fleet.children import Cell, Child
from orchestrator.core.fleet.jobs import ATTEMPTS, ChildOrder
from orchestrator.core.fleet.names import child_run
from orchestrator.core.mode import Mode
from orchestrator.core.plan.plan import LaunchPlan, run_spec


def chunked(plan: LaunchPlan, child: Child) -> LaunchPlan:
    """The plan of one child: its own part of its configuration's cases."""
    if not child.cases:
        return plan
    strange = sorted(set(child.cases) - set(plan.cases))
    if strange:
        raise ConfigError(
            f"child {child.index} would measure {strange[0]}, which is not in its configuration",
            hint="the grid or the workload has changed since the plan: start a new fleet with `bench fleet launch`",
        )
    own = set(child.cases)
    others = [case for case in plan.cases if case not in own]
    share = plan.measurements_per_implementation * len(own) // max(1, len(plan.cases))
    return replace(
        plan,
        cases=child.cases,
        measurements_per_implementation=share,
        harness={**plan.harness, "skip_cases": others},
    )


def plan_of(config: Config, name: str, mode: Mode) -> LaunchPlan:
    """The plan of a run on a machine from a scheduler: it has no offers and no hold of its own."""
    grids = effective_grids(config, mode)
    cases = case_ids_of(config, grids)
    return LaunchPlan(
        config=config,
        config_name=name,
        mode=mode,
        offers=(),
        ttl_s=config.run.max_minutes * 60,
        ceiling_usd=Decimal(0),
        attempts=ATTEMPTS,
        image="",
        cases=cases,
        measurements_per_implementation=len(cases) * measurements(config, mode),
        harness=harness(config, grids, mode),
    )


@dataclass(frozen=True, slots=True)
class Orders:
    """Makes orders for one fleet. A configuration is read once for all its children."""

    fleet: str
    mode: Mode
    bucket: str
    require_cuda: bool
    plan: Callable[[Cell], LaunchPlan]

    @classmethod
    def of(
        cls, fleet: str, mode: Mode, bucket: str, configured: Callable[[Cell], Config], *, require_cuda: bool
    ) -> Orders:
        return cls(fleet, mode, bucket, require_cuda, cache(lambda cell: plan_of(configured(cell), cell.title, mode)))

    def plan_for(self, child: Child) -> LaunchPlan:
        return chunked(self.plan(child.cell), child)

    def order(self, child: Child, attempt: int, price: Decimal) -> ChildOrder:
        """What child and attempt are told; `attempt` is the first that is free."""
        plan, run_id = self.plan_for(child), child_run(self.fleet, child.cell.gpu, child.index)
        spec = run_spec(
            plan,
            run_id=run_id,
            attempt=attempt,
            bucket=self.bucket,
            require_cuda=self.require_cuda and plan.config.gpu != "cpu",
            usd_per_hour=price,
        )
        return ChildOrder(child.index, attempt, run_id, spec)
