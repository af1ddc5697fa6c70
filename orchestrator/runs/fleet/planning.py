"""Makes the plan of a sweep: children, jobs, worst case, expected dollars and hours. It spends nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cache
from typing import Any, Final

from orchestrator.core.config.model import Config, case_ids_of, count_measurements, effective_grids, harness_settings
from orchestrator.core.errors import BudgetExceeded, ConfigError, NoCapacity
from orchestrator.core.fleet.batch import settings_of
from orchestrator.core.fleet.jobs import ChildOrder, JobCost, divide_machines, machines_within, worst_case_usd
from orchestrator.core.fleet.state import ATTEMPTS
from orchestrator.core.fleet.sweep import Child, Sweep, SweepCell, expand_cells, expand_children
from orchestrator.core.market.catalog import find_gpu
from orchestrator.core.market.machines import Quota, quota_room
from orchestrator.core.market.offers import Offer
from orchestrator.core.market.pricing import PriceSheet, ceiling_usd
from orchestrator.core.names import NO_IMAGE
from orchestrator.core.naming import Mode
from orchestrator.core.plan.offered import priced_offers
from orchestrator.core.plan.plan import LaunchPlan, run_spec
from orchestrator.core.text import count

# The orders for the machines of children: a run spec for each, and the plan of its run.


def chunk_plan(plan: LaunchPlan, child: Child) -> LaunchPlan:
    """The plan of one child: its own part of its configuration's cases."""
    if not child.cases:
        return plan
    strange = sorted(set(child.cases) - set(plan.cases))
    if strange:
        raise ConfigError(
            f"child {child.index} would measure {strange[0]}, which is not in its configuration",
            hint="the grid or the workload has changed since the plan: start a new fleet with `bench fleet launch`",
        )
    child_cases = set(child.cases)
    other_cases = [case for case in plan.cases if case not in child_cases]
    share = plan.measurements_per_implementation * len(child_cases) // max(1, len(plan.cases))
    return replace(
        plan,
        cases=child.cases,
        measurements_per_implementation=share,
        harness={**plan.harness, "skip_cases": other_cases},
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
        image=NO_IMAGE,
        cases=cases,
        measurements_per_implementation=len(cases) * count_measurements(config, mode),
        harness=harness_settings(config, grids, mode),
    )


@dataclass(frozen=True, slots=True)
class Orders:
    """Makes orders for one fleet. A configuration is read once for all its children."""

    fleet: str
    mode: Mode
    bucket: str
    require_cuda: Callable[[str], bool]
    """Whether a machine for this GPU must have CUDA."""
    plan: Callable[[SweepCell], LaunchPlan]

    @classmethod
    def of(
        cls,
        fleet: str,
        mode: Mode,
        bucket: str,
        configured: Callable[[SweepCell], Config],
        *,
        require_cuda: Callable[[str], bool],
    ) -> Orders:
        return cls(fleet, mode, bucket, require_cuda, cache(lambda cell: plan_of(configured(cell), cell.title, mode)))

    def plan_for(self, child: Child) -> LaunchPlan:
        return chunk_plan(self.plan(child.cell), child)

    def order(self, child: Child, attempt: int, price: Decimal) -> ChildOrder:
        """What child and attempt are told; `attempt` is the first that is free."""
        plan, run_id = self.plan_for(child), child.run_id(self.fleet)
        spec = run_spec(
            plan,
            run_id=run_id,
            attempt=attempt,
            bucket=self.bucket,
            require_cuda=self.require_cuda(plan.config.gpu),
            usd_per_hour=price,
        )
        return ChildOrder(child.index, attempt, run_id, spec)


# Where a fleet on Google Cloud Batch may run a configuration, at which price, and on which machines.


REGIONS: Final = 3
"""How many regions a job tries, the cheapest first: a queue without an answer costs ten minutes in each."""


@dataclass(frozen=True, slots=True)
class BatchPlacement:
    """Where the machines of a job may be, best first, and what a template says of them."""

    regions: tuple[str, ...]
    settings: Mapping[str, Any]
    provisioning: str


def dearest_by_region(config: Config, prices: PriceSheet) -> dict[str, Decimal]:
    """What an hour costs at most in each region, the cheapest region first: Batch chooses the zone. Raises
    `NoCapacity` where no price is known."""
    if config.machine.provisioning == "flex-start":
        raise ConfigError(
            "a fleet on Batch rents no flex-start machines: its hold is for machines with an absolute end",
            hint="--set machine.provisioning=spot; or `engine: cloud`, where each child waits in the queue for itself",
        )
    wanted, prices_by_region = config.machine.provisioning.upper(), dict[str, Decimal]()
    for offer in priced_offers(config, prices):
        if offer.provisioning == wanted:
            prices_by_region[offer.region] = max(prices_by_region.get(offer.region, Decimal(0)), offer.usd_per_hour)
    if not prices_by_region:
        raise NoCapacity(
            f"no price is known for {config.machine.provisioning} {config.machine_type} in the allowed regions",
            hint="choose other regions, or add their prices to configs/prices.yaml",
        )
    return dict(sorted(prices_by_region.items(), key=lambda entry: (entry[1], entry[0])))


def by_region(config: Config, prices: PriceSheet) -> tuple[Offer, ...]:
    """One offer of each of the cheapest regions."""
    wanted = config.machine.provisioning.upper()
    offers: dict[str, Offer] = {}
    for offer in sorted(priced_offers(config, prices), key=lambda one: (one.usd_per_hour, one.region)):
        if offer.provisioning == wanted:
            offers.setdefault(offer.region, offer)
    return tuple(offers.values())[:REGIONS]


def hourly_price(config: Config, prices: PriceSheet) -> Decimal:
    """The price that a fleet's hold assumes: no region that its jobs may use costs more. Raises `NoCapacity`."""
    return list(dearest_by_region(config, prices).values())[:REGIONS][-1]


def job_placement(config: Config, prices: PriceSheet, held_at: Decimal) -> BatchPlacement:
    """The regions that cost no more than the hold of the fleet assumes. Raises `NoCapacity` if there are none."""
    regions = tuple(region for region, usd in dearest_by_region(config, prices).items() if usd <= held_at)
    if not regions:
        raise NoCapacity(
            f"every region now costs more than ${held_at} an hour, the price that the fleet's hold assumes",
            hint="`bench fleet stop FLEET` releases the hold; `bench fleet launch` starts a new one at today's prices",
        )
    project, family = config.image_source
    settings = {
        **settings_of(config.gpu, config.machine.model_dump()),
        "image_project": project,
        "image_family": family,
    }
    return BatchPlacement(regions[:REGIONS], settings, config.machine.provisioning.upper())


Configured = Callable[[SweepCell], Config]
CASE_KEYS = ("measure.grid", "measure.dtypes", "measure.embedded", "workload", "gpu")
"""Settings on which the cases of a configuration depend."""


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Everything that is decided before any money is spent."""

    sweep: Sweep
    children: tuple[Child, ...]
    jobs: tuple[JobCost, ...]
    """One for each GPU."""
    cases: int
    """Over all children."""
    notices: tuple[str, ...] = ()
    quotas: tuple[Mapping[str, Any], ...] = field(default=())
    """Room by GPU and region, where a cloud was asked."""

    @property
    def hold_usd(self) -> Decimal:
        return worst_case_usd(self.jobs)

    @property
    def expected_usd(self) -> Decimal:
        return sum((job.expected_usd for job in self.jobs), Decimal(0))

    @property
    def expected_s(self) -> int:
        """The expected time if every machine is there from the beginning."""
        if all(job.ceiling_usd is None for job in self.jobs):
            return max(job.expected_s for job in self.jobs)
        # Children that are runs of one client's take whatever machine of `parallel` is free.
        return -(-len(self.children) // self.sweep.parallel) * self.sweep.child_minutes * 60


@dataclass(frozen=True, slots=True)
class CellPrice:
    """What machines of one configuration cost: an hour, and where each child holds its own, its worst case."""

    usd_per_hour: Decimal
    ceiling_usd: Decimal | None = None
    margin: Decimal = Decimal(0)
    """Held on top of the price, while it is old."""


def price_of(config: Config, prices: PriceSheet, margin: Decimal = Decimal(0)) -> CellPrice:
    """Of a rented machine: the cheapest offer for the estimate, the dearest and `margin` of it for the worst case.
    Raises `NoCapacity`."""
    offers = priced_offers(config, prices)
    if not offers:
        raise NoCapacity(
            f"no price is known for {config.machine.provisioning} {config.machine_type} in the zones that are allowed",
            hint="choose other zones, or add their prices to configs/prices.yaml",
        )
    rates = sorted(offer.usd_per_hour for offer in offers)
    return CellPrice(rates[0], ceiling_usd(rates[-1] * (1 + margin), config.run.max_minutes * 60, config.run.attempts))


def plan_fleet(sweep: Sweep, configured: Configured, mode: str, price: Callable[[Config], CellPrice]) -> FleetPlan:
    """The plan of a sweep whose machines are of `mode`. `configured` reads a cell's configuration: each value of each
    axis once, and each combination on which the cases depend; the rest is read when the fleet is launched. Raises
    `ConfigError`."""
    cell_list = expand_cells(sweep)
    examples = {_sample(cell): cell for cell in reversed(cell_list)}
    for cell in _varied(cell_list):
        configured(cell)

    @cache
    def cases_of(sample: SweepCell) -> tuple[str, ...]:
        config = configured(examples[sample])
        return case_ids_of(config, effective_grids(config, mode))

    children = expand_children(sweep, lambda cell: cases_of(_sample(cell)))
    total = sum(len(child.cases) or len(cases_of(_sample(child.cell))) for child in children)
    prices = {gpu: price(configured(next(cell for cell in cell_list if cell.gpu == gpu))) for gpu in _gpus(cell_list)}
    plan = FleetPlan(sweep, children, job_costs(sweep, children, prices), total)
    hours, most = plan.expected_s / 3600, sweep.wall_minutes / 60
    if hours <= most:
        return plan
    return replace(plan, notices=(f"expected to take {hours:.1f} h, and it ends after {most:.1f} h (wall_minutes)",))


def with_quotas(
    plan: FleetPlan, offers: Mapping[str, Sequence[Offer]], quotas: Callable[[str], Sequence[Quota]]
) -> FleetPlan:
    """The plan with the room that quotas leave, by GPU and region, the cheapest regions first; with a word on a GPU
    whose machines do not fit. `quotas` is asked once a region."""
    rows: list[Mapping[str, Any]] = []
    notices: list[str] = []
    for job in plan.jobs:
        fits = 0
        for region in dict.fromkeys(offer.region for offer in offers.get(job.gpu, ())):
            offer = next(one for one in offers[job.gpu] if one.region == region)
            gpu_spec = find_gpu(offer.gpu)
            quota_room_found = quota_room(gpu_spec, offer, quotas(region)) if gpu_spec is not None else None
            if quota_room_found is not None:
                rows.append(
                    {
                        "gpu": job.gpu,
                        "region": region,
                        "room": quota_room_found[0],
                        "metric": quota_room_found[1].metric,
                    }
                )
                fits += quota_room_found[0]
        if any(row["gpu"] == job.gpu for row in rows) and fits < job.machines:
            notices.append(f"{job.gpu}: the quotas leave room for {fits} of {count(job.machines, 'machine')}")
    return replace(plan, quotas=tuple(rows), notices=(*plan.notices, *notices))


def job_costs(sweep: Sweep, children: Sequence[Child], prices: Mapping[str, CellPrice]) -> tuple[JobCost, ...]:
    """The price and the time of each GPU's machines."""
    counted = Counter(child.cell.gpu for child in children)
    machines = divide_machines(sweep.parallel, counted, sweep.shares)
    return tuple(
        JobCost(
            gpu,
            machines[gpu],
            prices[gpu].usd_per_hour,
            sweep.wall_minutes * 60,
            count,
            sweep.child_minutes * 60,
            prices[gpu].ceiling_usd,
            prices[gpu].margin,
        )
        for gpu, count in counted.items()
    )


def check_cap(plan: FleetPlan, cap: Decimal | None) -> None:
    """Raises `BudgetExceeded` where the worst case is more than the fleet's own cap; where children hold their own,
    and the fleet stops at its cap, where there is none that could begin."""
    if cap is None or plan.hold_usd <= cap:
        return
    if each := [job.ceiling_usd for job in plan.jobs if job.ceiling_usd is not None]:
        if min(each) <= cap:
            return
        raise BudgetExceeded(
            f"a child of this fleet can cost up to ${min(each)}; the fleet's cap is ${cap}",
            hint=f"--cap {plan.hold_usd} is enough for all of them; or a lower run.max_minutes",
        )
    asked, fits = sum(job.machines for job in plan.jobs), machines_within(cap, plan.jobs)
    shorter = int(plan.sweep.wall_minutes * cap / plan.hold_usd) if plan.hold_usd else 0
    raise BudgetExceeded(
        f"this fleet can cost up to ${plan.hold_usd}; its cap is ${cap}",
        hint=f"--cap {plan.hold_usd}; or --parallel {fits} instead of {asked}; or --wall-minutes {shorter}"
        if fits >= len(plan.jobs)
        else f"--cap {plan.hold_usd}, or --wall-minutes {max(shorter, 1)}",
    )


def _gpus(found: Sequence[SweepCell]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(cell.gpu for cell in found))


def _sample(cell: SweepCell) -> SweepCell:
    """The part of a cell on which its cases depend."""
    kept = tuple((key, value) for key, value in cell.settings if key.startswith(CASE_KEYS))
    return SweepCell(cell.gpu, kept, cell.workload)


def _varied(found: Sequence[SweepCell]) -> tuple[SweepCell, ...]:
    """A few cells that between them have every value of every axis with every GPU."""
    wanted: dict[tuple[str, ...], SweepCell] = {}
    for cell in found:
        wanted.setdefault((cell.gpu, "workload", cell.workload), cell)
        for key, value in cell.settings:
            wanted.setdefault((cell.gpu, key, value), cell)
    return tuple(dict.fromkeys(wanted.values()))
