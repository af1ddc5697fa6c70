"""What the commands of `bench fleet` share: a fleet found by its name, and what drives it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.api.finding import remember_fleets, require_name
from orchestrator.cli.completion import known_fleets
from orchestrator.cli.fleet import trust
from orchestrator.core.config.model import Config
from orchestrator.core.errors import ConfigError, NotFound
from orchestrator.core.fleet.children import Child, SweepCell
from orchestrator.core.fleet.jobs import PayloadRef
from orchestrator.core.fleet.names import fleet_id, is_fleet_id
from orchestrator.core.fleet.sweep import Sweep
from orchestrator.core.mode import Mode
from orchestrator.core.naming import payload_object
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.core.text import count
from orchestrator.runs.engine import World
from orchestrator.runs.fleet import planning
from orchestrator.runs.fleet.follow import Follower, record_fleet
from orchestrator.runs.fleet.hold import Purse
from orchestrator.runs.fleet.local_scheduler import RunFleet
from orchestrator.runs.fleet.planning import CellPrice, FleetPlan, Orders, check_cap, plan_fleet, price_of, with_quotas
from orchestrator.runs.launch import LaunchContext, PayloadSource
from orchestrator.runs.planning import LaunchOptions
from orchestrator.runs.reconcile import after_settling_abandoned
from orchestrator.store.fleets import FleetRecord, FleetStore, list_fleets
from orchestrator.wiring import Wiring, launch_context, payload_of
from orchestrator.wiring.schedulers import check_launchable, logins_of, machine_seconds_of, scheduler_of

FleetName = Annotated[
    str,
    typer.Argument(metavar="FLEET", help="A fleet, a unique part of its name, or `last`.", autocompletion=known_fleets),
]


def find_fleet(wiring: Wiring, text: str) -> str:
    """The fleet that is meant by a name, `last`, or a unique part of a name. Raises `NotFound`, `ConfigError`."""
    if is_fleet_id(
        require_name(text, "fleet", "`bench fleet ls` lists the fleets in this bucket; `last` is the newest")
    ):
        return text
    names = [fleet for fleet, _ in list_fleets(wiring.bucket)]
    remember_fleets(wiring.home, names)
    if not names:
        raise NotFound("there are no fleets in this bucket", hint="`bench fleet launch --gpu l4,t4` makes one")
    matches = names[-1:] if text == "last" else [name for name in names if text in name]
    if not matches:
        raise NotFound(f"fleet not found: {text}", hint="`bench fleet ls` lists the fleets in this bucket")
    if len(matches) > 1:
        several = f"{count(len(matches), 'fleet')}: {', '.join(matches[-5:])}"
        raise ConfigError(f"{text} is ambiguous: it matches {several}", hint="give a longer part of its id")
    return matches[0]


def configurations(wiring: Wiring, sweep: Sweep) -> Callable[[SweepCell], Config]:
    """Reads the configuration of a cell, each once."""

    @cache
    def configured(cell: SweepCell) -> Config:
        path = Path(cell.workload or sweep.config) if cell.workload or sweep.config else None
        config, _ = wiring.configured(LaunchOptions(cell.gpu, path, (*sweep.overrides, *cell.overrides)))
        return config

    return configured


def mode_of(wiring: Wiring, sweep: Sweep) -> Mode:
    """What a fleet's machines are."""
    return wiring.mode if sweep.is_rented else Mode.HOST


def plan_sweep(wiring: Wiring, sweep: Sweep) -> FleetPlan:
    """The plan of a sweep; nothing is sent but reads."""
    prices, now = wiring.price_book.current(), wiring.clock.now()
    margin = prices.margin(now) if mode_of(wiring, sweep) is Mode.GCE else Decimal(0)

    def price(config: Config) -> CellPrice:
        if not sweep.is_rented:
            hourly = config.host.hourly_usd if sweep.usd_per_hour is None else sweep.usd_per_hour
            return CellPrice(hourly)
        if sweep.is_scheduled:
            return CellPrice(planning.hourly_price(config, prices), margin=margin)
        return price_of(config, prices, margin)

    configured = configurations(wiring, sweep)
    plan = plan_fleet(sweep, configured, mode_of(wiring, sweep), price)
    check_cap(plan, sweep.cap_usd)
    if not sweep.is_rented:
        return plan
    examples = {child.cell.gpu: child.cell for child in reversed(plan.children)}
    offers = {gpu: planning.by_region(configured(cell), prices) for gpu, cell in examples.items()}
    return with_quotas(plan, offers, cache(wiring.cloud().quotas))


@dataclass(frozen=True, slots=True)
class Desk:
    """One fleet and what drives it from here."""

    wiring: Wiring
    store: FleetStore
    record: FleetRecord
    children: tuple[Child, ...]

    @classmethod
    def of(cls, wiring: Wiring, fleet: str) -> Desk:
        store = FleetStore(wiring.bucket, wiring.clock, fleet)
        return cls(wiring, store, store.record(), store.children())

    def believed(self) -> Desk:
        """The same, for what it asks for to be done, its hosts those of this user's own choice. Raises `ConfigError`
        where that was only found in the bucket."""
        trust.check(self.wiring, self.store, self.sweep, self.children)
        self.wiring.name_hosts((*self.sweep.hosts, *logins_of(self.sweep)))
        return self

    def under(self, cap: Decimal) -> Desk:
        """The same under another cap of its own."""
        sweep = self.record.sweep.model_copy(update={"cap_usd": cap})
        return replace(self, record=self.record.model_copy(update={"sweep": sweep}))

    @property
    def sweep(self) -> Sweep:
        return self.record.sweep

    def follower(self) -> Follower:
        """For a fleet that a scheduler runs. Raises `ConfigError` for one that is not believed."""
        self.believed()
        wiring, configured = self.wiring, configurations(self.wiring, self.sweep)

        @cache
        def packed(workload: str) -> PayloadRef:
            cell = next(child.cell for child in self.children if child.cell.workload == workload)
            made = payload_of(configured(cell))
            known_hash = self.record.payloads.get(workload, made.sha256)
            if made.sha256 != known_hash:
                raise ConfigError(
                    (
                        f"{self.record.fleet} runs payload {known_hash[:12]}, but this installation has payload "
                        f"{made.sha256[:12]}"
                    ),
                    hint="use the version and files that launched it, or start a new fleet with `bench fleet launch`",
                )
            name = payload_object(made.sha256)
            return PayloadRef(wiring.bucket.name, name, made.sha256, made.startup_script, made.data)

        scheduler = scheduler_of(self.sweep, wiring)
        return Follower(
            world=wiring.world(),
            store=self.store,
            scheduler=scheduler,
            record=self.record,
            children=self.children,
            orders=Orders.of(
                self.record.fleet, self.record.mode, wiring.bucket.name, configured,
                require_cuda=lambda gpu: self.sweep.require_cuda and self.record.mode.requires_cuda(gpu, wiring.here),
            ),
            payload=packed,
            say=wiring.say,
            place=self._place if self.sweep.is_rented else None,
            machine_seconds=machine_seconds_of(scheduler),
        )  # fmt: skip

    def _place(self, config: Config, held_at: Decimal) -> planning.BatchPlacement:
        return planning.job_placement(config, self.wiring.price_book.current(), held_at)

    def driver(self) -> Follower | RunFleet:
        """What drives the fleet from here."""
        return self.follower() if self.sweep.is_scheduled else self.runs()

    def runs(self) -> RunFleet:
        """For a fleet whose children are runs of this client's."""
        targets = ("",) * self.sweep.parallel if self.sweep.is_rented else self.sweep.hosts
        return RunFleet(
            store=self.store,
            record=self.record,
            children=self.children,
            configured=configurations(self.wiring, self.sweep),
            sites=lambda: OwnSite(Wiring(self.wiring.settings, say=self.wiring.say)),
            targets=targets,
            world=self.wiring.world,
            say=self.wiring.say,
        )


def look_after(wiring: Wiring, fleet: str) -> None:
    """One look at a fleet whose client may be gone: nothing is started, what is over is settled, nothing is said."""
    desk = Desk.of(wiring, fleet)
    if desk.sweep.is_scheduled:
        follower = desk.follower()
        follower.say = lambda _: None
        follower.step(start=False)


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


def begin_fleet(wiring: Wiring, plan: FleetPlan) -> Desk:
    """A fleet that is stored, with its worst case held where it is held as a whole. Nothing is started yet. Raises
    `BudgetExceeded`."""
    now, sweep = wiring.clock.now(), plan.sweep
    fleet = fleet_id(now, secrets.token_hex(2))
    record = FleetRecord(
        fleet=fleet,
        engine=sweep.engine,
        mode=mode_of(wiring, sweep),
        user=wiring.user,
        sweep=sweep,
        created_at=now,
        ends_at=now + timedelta(minutes=sweep.wall_minutes),
        hold_usd=plan.hold_usd if sweep.is_scheduled else Decimal(0),
        usd_per_hour={job.gpu: job.usd_per_hour for job in plan.jobs},
        price_margin=max(job.margin for job in plan.jobs),
        machines={job.gpu: job.machines for job in plan.jobs},
    )
    check_launchable(wiring, sweep)
    store = FleetStore(wiring.bucket, wiring.clock, fleet)
    record_fleet(
        store, record, plan.children, Purse(wiring.world(), record, wiring.say) if sweep.is_scheduled else None
    )
    trust.remember(wiring, store)
    return Desk(wiring, store, record, plan.children)
