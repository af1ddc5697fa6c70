"""What the commands of `bench fleet` share: a fleet found by its name, and what drives it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path

from orchestrator.api.finding import only_match, remember_fleets, require_name
from orchestrator.cli import interrupts
from orchestrator.cli.fleet import trust
from orchestrator.cli.terminal import Unheard
from orchestrator.core.config.model import Config
from orchestrator.core.errors import ConfigError, NotFound
from orchestrator.core.fleet.jobs import PayloadRef
from orchestrator.core.fleet.sweep import Child, Sweep, SweepCell
from orchestrator.core.names import fleet_id, is_fleet_id
from orchestrator.core.naming import payload_object
from orchestrator.core.plan.plan import practice_label
from orchestrator.runs.fleet import planning
from orchestrator.runs.fleet.follow import FleetSighting, Follower, record_fleet
from orchestrator.runs.fleet.hold import Purse
from orchestrator.runs.fleet.local_scheduler import Leaving
from orchestrator.runs.fleet.planning import FleetPlan, Orders, check_cap, plan_fleet, with_quotas
from orchestrator.runs.planning import LaunchOptions
from orchestrator.store.fleets import FleetRecord, FleetStore, list_fleets
from orchestrator.wiring import Wiring, payload_of
from orchestrator.wiring.schedulers import (
    ENGINES,
    FleetEngine,
    FleetParts,
    check_launchable,
    logins_of,
    mode_of,
    prices_of,
    scheduler_of,
)


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
    if text == "last":
        return names[-1]
    return only_match(text, names, "fleet", "`bench fleet ls` lists the fleets in this bucket")


def configurations(wiring: Wiring, sweep: Sweep) -> Callable[[SweepCell], Config]:
    """Reads the configuration of a cell, each once."""

    @cache
    def configured(cell: SweepCell) -> Config:
        path = Path(cell.workload or sweep.config) if cell.workload or sweep.config else None
        config, _ = wiring.configured(LaunchOptions(cell.gpu, path, (*sweep.overrides, *cell.overrides)))
        return config

    return configured


def plan_sweep(wiring: Wiring, sweep: Sweep) -> FleetPlan:
    """The plan of a sweep; nothing is sent but reads."""
    configured = configurations(wiring, sweep)
    plan = plan_fleet(sweep, configured, mode_of(wiring, sweep), prices_of(wiring, sweep))
    check_cap(plan, sweep.cap_usd)
    if not ENGINES[sweep.engine].is_rented:
        return plan
    prices = wiring.price_book.current()
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

    @property
    def engine(self) -> FleetEngine:
        return ENGINES[self.sweep.engine]

    def look(self) -> FleetSighting:
        """What the bucket says about the fleet; its scheduler is not asked."""
        return FleetSighting(self.store.state(self.children), self.store.control())

    def driver(self) -> Follower:
        """What drives the fleet from here. Raises `ConfigError` for one that is not believed and whose scheduler would
        be connected to."""
        if self.engine.is_detachable:
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

        parts = FleetParts(
            self.store, self.record, self.children, configured, Leaving(Unheard(), offer=interrupts.listen)
        )
        scheduler = scheduler_of(wiring, parts)
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
            place=self._place if self.engine.is_rented else None,
        )  # fmt: skip

    def _place(self, config: Config, held_at: Decimal) -> planning.BatchPlacement:
        return planning.job_placement(config, self.wiring.price_book.current(), held_at)


def look_after(wiring: Wiring, fleet: str) -> None:
    """One look at a fleet whose client may be gone: nothing is started, what is over is settled, nothing is said."""
    follower = Desk.of(wiring, fleet).driver()
    follower.say = lambda _: None
    follower.step(start=False)


def begin_fleet(wiring: Wiring, plan: FleetPlan) -> Desk:
    """A fleet that is stored, with its worst case held where it is held as a whole. Nothing is started yet. Raises
    `BudgetExceeded`."""
    now, sweep = wiring.clock.now(), plan.sweep
    holds = ENGINES[sweep.engine].is_detachable
    fleet = fleet_id(now, secrets.token_hex(2))
    record = FleetRecord(
        fleet=fleet,
        engine=sweep.engine,
        mode=mode_of(wiring, sweep),
        user=wiring.user,
        sweep=sweep,
        created_at=now,
        ends_at=now + timedelta(minutes=sweep.wall_minutes),
        hold_usd=plan.hold_usd if holds else Decimal(0),
        usd_per_hour={job.gpu: job.usd_per_hour for job in plan.jobs},
        price_margin=max(job.margin for job in plan.jobs),
        machines={job.gpu: job.machines for job in plan.jobs},
    )
    check_launchable(wiring, sweep)
    label = practice_label(wiring.here) if record.mode.simulated else ""
    children = tuple(replace(child, label=label) for child in plan.children)
    store = FleetStore(wiring.bucket, wiring.clock, fleet)
    purse = Purse(wiring.world(), record, wiring.say) if holds else None
    record_fleet(store, record, children, purse)
    trust.remember(wiring, store)
    return Desk(wiring, store, record, children)
