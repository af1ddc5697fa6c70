"""What stands behind the name of a fleet's engine: its scheduler, its machines and their prices. No other module
compares these names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Final

from orchestrator.adapters.batch.scheduler import GoogleBatch, Service, task_script
from orchestrator.adapters.slurm import Slurm
from orchestrator.core.config.model import Config
from orchestrator.core.errors import ConfigError
from orchestrator.core.fleet.batch import GatePace, GateSite, GateVerdict, check_object, gate_refusal, parse_gate
from orchestrator.core.fleet.state import MACHINES
from orchestrator.core.fleet.sweep import Child, EngineName, Sweep, SweepCell
from orchestrator.core.hosts import parse_target
from orchestrator.core.market.offers import region_of
from orchestrator.core.names import ImageName, ProjectId
from orchestrator.core.naming import TOOL, TOOL_LABEL, Mode
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.ports import Scheduler
from orchestrator.runs.engine import World
from orchestrator.runs.fleet.local_scheduler import Leaving, LocalScheduler
from orchestrator.runs.fleet.planning import CellPrice, hourly_price, price_of
from orchestrator.runs.launch import LaunchContext, PayloadSource
from orchestrator.runs.reconcile import after_settling_abandoned
from orchestrator.store.fleets import FleetRecord, FleetStore
from orchestrator.wiring import Wiring, launch_context, payload_of


@dataclass(frozen=True, slots=True)
class FleetEngine:
    """The kind of machines of an engine, and who starts children there."""

    is_rented: bool
    """Whether its machines are rented, within quotas. Others are the user's own."""
    is_detachable: bool
    """Whether children start without a client, so that the fleet holds its worst case as a whole. Others are runs that
    a client drives, and each holds its own."""


ENGINES: Final[Mapping[EngineName, FleetEngine]] = {
    "cloud": FleetEngine(is_rented=True, is_detachable=False),
    "hosts": FleetEngine(is_rented=False, is_detachable=False),
    "slurm": FleetEngine(is_rented=False, is_detachable=True),
    "batch": FleetEngine(is_rented=True, is_detachable=True),
}


@dataclass(frozen=True, slots=True)
class FleetParts:
    """One fleet, for its scheduler."""

    store: FleetStore
    record: FleetRecord
    children: tuple[Child, ...]
    configured: Callable[[SweepCell], Config]
    leaving: Leaving = field(default_factory=Leaving)


def scheduler_of(wiring: Wiring, fleet: FleetParts) -> Scheduler:
    """The scheduler of a fleet."""
    sweep = fleet.record.sweep
    if sweep.engine == "slurm":
        return slurm_of(wiring, sweep)
    if sweep.engine == "batch":
        return batch_of(wiring, partial(check_gate, wiring))
    rented = ENGINES[sweep.engine].is_rented
    return LocalScheduler(
        fleet.store, fleet.record, fleet.children, fleet.configured,
        sites=lambda: OwnSite(Wiring(wiring.settings, say=wiring.say)),
        targets=("",) * sweep.parallel if rented else sweep.hosts,
        machines=MACHINES if rented else len(set(sweep.hosts)),
        world=wiring.world, say=wiring.say, leaving=fleet.leaving,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class OwnSite:
    """A worker's own connections and its own name in the logs."""

    wiring: Wiring

    def plan(self, config: Config, name: str) -> LaunchPlan:
        world, say = self.wiring.world(config), self.wiring.say
        return after_settling_abandoned(world, lambda: self.wiring.plan(config, name), say)

    def world(self, config: Config) -> World:
        return self.wiring.world(config)

    def payload(self, config: Config) -> PayloadSource:
        return payload_of(config)

    def where(self, plan: LaunchPlan) -> LaunchContext:
        return launch_context(self.wiring, plan)


def mode_of(wiring: Wiring, sweep: Sweep) -> Mode:
    """What a fleet's machines are."""
    return wiring.mode if ENGINES[sweep.engine].is_rented else Mode.HOST


def prices_of(wiring: Wiring, sweep: Sweep) -> Callable[[Config], CellPrice]:
    """What a machine of a configuration costs. Raises `NoCapacity` where no price is known."""
    prices, engine = wiring.price_book.current(), ENGINES[sweep.engine]
    margin = prices.margin(wiring.clock.now()) if mode_of(wiring, sweep) is Mode.GCE else Decimal(0)

    def price(config: Config) -> CellPrice:
        if not engine.is_rented:
            return CellPrice(config.host.hourly_usd if sweep.usd_per_hour is None else sweep.usd_per_hour)
        if engine.is_detachable:
            return CellPrice(hourly_price(config, prices), margin=margin)
        return price_of(config, prices, margin)

    return price


def slurm_of(wiring: Wiring, sweep: Sweep) -> Slurm:
    login = parse_target(sweep.slurm.login or "local", wiring.machine)
    return Slurm(wiring.shell(login), sweep.slurm, wiring.bucket, wiring.clock)


def logins_of(sweep: Sweep) -> tuple[str, ...]:
    """The hosts on which a sweep's scheduler is asked."""
    return (sweep.slurm.login or "local",) if sweep.engine == "slurm" else ()


def check_launchable(wiring: Wiring, sweep: Sweep) -> None:
    """Raises `ConfigError` where a sweep's engine has not been seen to bound dollars."""
    if sweep.engine == "batch":
        check_gate(wiring)


def check_cluster(wiring: Wiring, sweep: Sweep, child_s: Callable[[], int]) -> None:
    """Before anything is stored or held: raises what the adapters raise where a sweep's cluster does not answer, and
    `ConfigError` where it would never start a child that may take `child_s()` seconds."""
    if sweep.engine != "slurm":
        return
    wiring.name_hosts(logins_of(sweep))
    scheduler = slurm_of(wiring, sweep)
    _ = scheduler.most_children
    if problem := scheduler.time_problem(child_s()):
        hint = "set run.max_minutes lower, or slurm.partition to another one: `sinfo -o '%P %l'` lists their limits"
        raise ConfigError(problem, hint=hint)


def check_gate(wiring: Wiring) -> None:
    """Raises `ConfigError` where Google Cloud Batch has not been seen to bound dollars in this project."""
    project = wiring.project
    blob = wiring.bucket.read(check_object(project))
    why = gate_refusal(project, parse_gate(blob.data if blob is not None else None))
    if why:
        raise ConfigError(
            why, hint="`bench fleet check-batch` checks it, for a few cents, in about a quarter of an hour"
        )


def batch_of(wiring: Wiring, gate: Callable[[], None]) -> GoogleBatch:
    """Google Cloud Batch, or the embedded cloud's."""
    endpoints = wiring.endpoints or {}
    return GoogleBatch(
        Service(wiring.project, wiring.credentials, endpoints.get("compute", ""), endpoints.get("storage", "")),
        wiring.bucket,
        wiring.clock,
        script=task_script(),
        image=wiring.cloud().image,
        gate=gate,
        known=wiring.named,
    )


def check_batch(wiring: Wiring, config: Config, say: Callable[[str], None]) -> GateVerdict:
    """Looks at Batch in this project, and leaves the verdict in the bucket. Raises `ProviderError` and its kin; nothing
    that it made is left over either way."""
    endpoint, embedded = (wiring.endpoints or {}).get("compute", ""), wiring.mode is Mode.EMBEDDED
    site = GateSite(
        project=wiring.project,
        region=region_of(config.allowed_zones()[0]),
        machine_type="e2-standard-4" if embedded else "e2-micro",
        image=wiring.cloud().image(ProjectId("debian-cloud"), ImageName("debian-12")),
        network=config.machine.network,
        service_account=config.machine.service_account or "",
        labels={TOOL_LABEL: TOOL},
        compute=endpoint,
    )
    pace = GatePace(end_s=40, late_s=12, quiet_s=12, poll_s=0.5, step_s=3) if embedded else GatePace()
    verdict = batch_of(wiring, lambda: None).check(site, pace, say)
    wiring.bucket.replace(check_object(wiring.project), verdict.dump(), generation=None)
    return verdict
