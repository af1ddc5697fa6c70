"""One process's view of the world: what a command needs is made, and its module loaded, when it is first asked for."""

from __future__ import annotations

import getpass
import os
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.core.errors import ConfigError, LocalError, Unavailable
from orchestrator.core.mode import Mode
from orchestrator.embedded.client import CloudAddress, CloudUnavailable, ensure_running, standing
from orchestrator.store.index import RunIndex
from orchestrator.store.ledger import LedgerStore
from orchestrator.user_settings import Settings
from orchestrator.wiring.chosen import configs, configured, utc_now

if TYPE_CHECKING:
    from orchestrator.adapters.gcs import GoogleBucket
    from orchestrator.adapters.google_auth import Bearer
    from orchestrator.adapters.notify import Notifiers
    from orchestrator.adapters.price_book import PriceBook
    from orchestrator.adapters.setup import Setup
    from orchestrator.adapters.web import Token
    from orchestrator.core.config.model import Config
    from orchestrator.core.doctor.subject import Subject
    from orchestrator.core.hosts import Target
    from orchestrator.core.market.machines import Instance
    from orchestrator.core.market.skus import Catalogue
    from orchestrator.core.plan.plan import LaunchPlan
    from orchestrator.core.run.decide import Policy
    from orchestrator.doctor.tasks import Session, Surroundings
    from orchestrator.hosts.cloud import HostCloud
    from orchestrator.hosts.router import ZoneRouter
    from orchestrator.ports import Bucket, Clock, Cloud, HostShell, Images
    from orchestrator.runs.accounts import Accounts
    from orchestrator.runs.engine import World
    from orchestrator.runs.planning import LaunchOptions, RentedFrom
    from orchestrator.store.baselines import BaselineStore
    from orchestrator.store.events import EventLog
    from orchestrator.store.images import Shelf
    from orchestrator.store.stockouts import StockOuts


@dataclass
class Wiring:
    """One process's view of the world. Everything is made once, on first use."""

    settings: Settings
    client: str = field(default_factory=lambda: f"client-{secrets.token_hex(3)}")
    say: Callable[[str], None] = print
    fleets: Callable[[str], None] | None = None
    """As in `World`: schedulers stand above the wiring."""

    @property
    def mode(self) -> Mode:
        return Mode.GCE if self.settings.project else Mode.EMBEDDED

    @property
    def home(self) -> Path:
        return self.settings.home

    @property
    def user(self) -> str:
        try:
            return os.environ.get("BENCH_USER") or getpass.getuser()
        except (KeyError, OSError):  # no entry for this uid
            return "unknown"

    @cached_property
    def address(self) -> CloudAddress | None:
        """Where the embedded cloud listens, started if need be; None on Google."""
        if self.settings.project:
            return None
        if sys.platform == "darwin":
            hint = "BENCH_PROJECT and BENCH_BUCKET name a project and a bucket; docs/platforms.md says what works here"
            raise LocalError("the embedded cloud needs /proc, which macOS has not", hint=hint)
        home, weather = self.home / "cloud", self.settings.weather
        if weather is not None and not weather.is_file():
            raise ConfigError(f"BENCH_WEATHER: there is no file {weather}", hint="docs/embedded-cloud.md has examples")
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise LocalError(f"cannot make {home}: {exc.strerror}", hint="BENCH_HOME names another folder") from exc
        try:
            return ensure_running(home, weather=weather)
        except CloudUnavailable as exc:
            raise Unavailable(str(exc), hint=f"{home / 'daemon.log'} says more") from exc

    @property
    def project(self) -> str:
        """Where machines are made: the project of the settings, or the embedded cloud's."""
        return self.address.project if self.address else self.settings.project

    @property
    def here(self) -> str:
        """The GPU that the embedded cloud's machines really have; empty without one, and on Google."""
        return self.address.gpu if self.address else ""

    @cached_property
    def endpoints(self) -> dict[str, str] | None:
        """What the VM must be told of where the services are; None on Google."""
        if self.address is None:
            return None
        return {"storage": self.address.storage, "compute": self.address.compute}

    @cached_property
    def key(self) -> Token | None:
        """What the embedded cloud wants to see; None on Google, where the application-default credentials serve."""
        from orchestrator.adapters.web import Token

        return None if self.address is None else Token(self.address.token)

    @cached_property
    def credentials(self) -> Bearer | None:
        """The same, for Google's own clients."""
        from orchestrator.adapters.google_auth import Bearer

        return None if self.address is None else Bearer(self.address.token)

    @cached_property
    def clock(self) -> Clock:
        from orchestrator.adapters.clock import ServerClock, SystemClock

        say = partial(print, file=sys.stderr)  # beside a document on standard output
        return ServerClock(SystemClock(), lambda: self._bucket.offset(), say)  # noqa: PLW0108 - made when first asked

    @cached_property
    def bucket(self) -> Bucket:
        return self._bucket

    @cached_property
    def _bucket(self) -> GoogleBucket:
        from orchestrator.adapters.gcs import GoogleBucket

        if self.address is None:
            return GoogleBucket(self.settings.bucket)
        return GoogleBucket(self.address.bucket, endpoint=self.address.storage, credentials=self.key)

    @property
    def _compute(self) -> dict[str, Any]:
        where = self.address
        embedded = {} if where is None else {"endpoint": where.compute, "credentials": self.credentials}
        return {"project": where.project if where else self.settings.project, "clock": self.clock, **embedded}

    @cached_property
    def _cloud(self) -> Cloud:
        from orchestrator.adapters.gce import GoogleCloud

        return GoogleCloud(**self._compute)

    @cached_property
    def shelf(self) -> Shelf:
        from orchestrator.store.images import ImageStore, Shelf

        def images() -> Images:
            from orchestrator.adapters.gce_images import GoogleImages

            return GoogleImages(**self._compute)

        return Shelf(ImageStore(self.bucket, self.clock), images)

    @cached_property
    def hosts(self) -> HostCloud:
        """The user's own machines. What speaks SSH is loaded when the first of them is spoken to."""
        from orchestrator.hosts.cloud import HostCloud

        return HostCloud(self.bucket, self.clock, self.shell, self.machine)

    def shell(self, target: Target) -> HostShell:
        """The way into a host: a process here for this machine itself, SSH for every other."""
        if target.machine:
            from orchestrator.adapters.local_shell import LocalShell

            return LocalShell(target)
        from orchestrator.adapters.ssh import SshShell

        return SshShell(target)

    @cached_property
    def machine(self) -> str:
        from orchestrator.adapters.local_shell import this_machine

        return this_machine()  # what `--host local` stands for

    @cached_property
    def everywhere(self) -> ZoneRouter:
        from orchestrator.adapters.gce_market import Market
        from orchestrator.hosts.router import ZoneRouter

        def market() -> Market:
            if self.address is None:
                return Market(self.settings.project, clock=self.clock)
            return Market(self.address.project, self.address.compute, self.key, self.clock)

        return ZoneRouter(lambda: self._cloud, self.hosts, cache(market))

    def cloud(self) -> Cloud:
        return self.everywhere

    def alive(self) -> tuple[Instance, ...]:
        """Every machine of ours that exists now, asked of the cloud itself without its heavy client."""
        from orchestrator.adapters.alive import alive

        if self.address is None:
            rented = alive(self.settings.project)
        else:
            rented = alive(self.address.project, self.address.compute, self.key)
        return (*rented, *self.hosts.instances())

    @cached_property
    def ledger(self) -> LedgerStore:
        return LedgerStore(self.bucket, self.clock)

    @cached_property
    def index(self) -> RunIndex:
        return RunIndex(self.bucket)

    @cached_property
    def baselines(self) -> BaselineStore:
        from orchestrator.store.baselines import BaselineStore

        return BaselineStore(self.bucket, self.clock)

    @cached_property
    def history(self) -> StockOuts:
        from orchestrator.store.stockouts import StockOuts

        return StockOuts(self.bucket, self.clock)

    def log(self, run_id: str) -> EventLog:
        from orchestrator.store.events import EventLog

        return EventLog(self.bucket, run_id, self.client, self.clock)

    def notifier(self, command: str | None, webhook: str | None, *, here: bool = True) -> Notifiers:
        from orchestrator.adapters.notify import every_way

        # Not `self.say` itself: it may be another by then.
        return every_way(lambda text: self.say(text), command, webhook, here=here)  # noqa: PLW0108

    def accounts(self, config: Config | None = None) -> Accounts:  # under its caps; without one, this user's
        from orchestrator.runs.accounts import Accounts

        budget, alerts = (config.budget, config.alerts) if config is not None else self.settings.money()
        return Accounts(self.ledger, budget.caps(), self.notifier(alerts.command, alerts.webhook), self.clock)

    def world(self, config: Config | None = None) -> World:
        from orchestrator.runs.engine import World

        return World(
            cloud=self.cloud,
            bucket=self.bucket,
            accounts=self.accounts(config),
            index=self.index,
            clock=self.clock,
            log=self.log,
            policy=self.policy,
            history=self.history,
            shelf=self.shelf,
            fleets=self.fleets,
        )

    @cached_property
    def price_book(self) -> PriceBook:
        """What is known of prices; the embedded cloud's are kept apart, for they are not Google's."""
        from orchestrator.adapters.price_book import PriceBook

        return PriceBook(configs() / "prices.yaml", self.home / f"prices.{self.mode}.yaml", self._catalogue)

    def _catalogue(self) -> tuple[Catalogue, str]:
        from orchestrator.adapters.price_catalog import catalogue_for

        return catalogue_for(self._login, self._rest_endpoints(), self.settings.billing_key, self.subject().project)

    @property
    def reached(self) -> bool:  # whether the project has a name yet: on the embedded cloud, once that was started
        return bool(self.settings.project) or "address" in self.__dict__

    def subject(self) -> Subject:
        """The project, bucket and service account that checks look at."""
        from orchestrator.core.doctor.subject import Subject

        address, settings = self.address, self.settings
        project, bucket = (address.project, address.bucket) if address else (settings.project, settings.bucket)
        account = settings.service_account or None
        return Subject(project, bucket, embedded=address is not None, service_account=account)

    def surroundings(self) -> Surroundings:
        """What the checks of this machine look at."""
        from orchestrator.adapters import this_machine
        from orchestrator.core.doctor import here
        from orchestrator.doctor.tasks import Surroundings

        return Surroundings(
            mode=self.mode,
            home=self.home,
            configs=configs(),
            prices=self.price_book.current,
            load=configured,
            now=utc_now,
            computer=this_machine,
            embedded=here.Embedded(*standing(self.home / "cloud", this_machine.newest_source)),
        )

    def checking_session(self) -> Session:
        from orchestrator.adapters.checking import CheckingSession

        return CheckingSession(self._login, self._rest_endpoints)

    def setup(self, project: str = "") -> Setup:
        """What makes changes: for `init`, and for `doctor --fix`. It is billed to the project that is set up."""
        from orchestrator.adapters.google_auth import billed_to
        from orchestrator.adapters.rest import Rest
        from orchestrator.adapters.setup import Setup
        from orchestrator.runs.sharing import Sharing

        login = billed_to(self._login(), project or self.settings.project)
        storage = self.address.storage if self.address else None
        rest, sharing = Rest(login, self._rest_endpoints(), changes=True), Sharing(self.accounts(), self.user)
        return Setup(rest, login, self.home / "settings.yaml", sharing, storage=storage)

    def _login(self) -> Any:
        from orchestrator.adapters.google_auth import credentials_for

        return self.credentials or credentials_for(None)

    def _rest_endpoints(self) -> dict[str, str] | None:
        from orchestrator.adapters.rest import endpoints

        return dict(endpoints(self.address.compute, self.address.storage)) if self.address else None

    def configured(self, options: LaunchOptions) -> tuple[Config, str]:
        """As the function; where only a host was named, with the configuration that suits it."""
        from orchestrator.hosts.planning import with_gpu_of_host

        return configured(with_gpu_of_host(options, self.hosts), self.settings)

    @property
    def rented_from(self) -> RentedFrom:
        from orchestrator.runs.planning import RentedFrom

        return RentedFrom(self.mode, self.price_book.current(), self.here)

    def plan(self, config: Config, name: str) -> LaunchPlan:
        """All that is decided before a cent is spent. Raises what stands in the way, exit codes 2, 3, 4 or 6."""
        from orchestrator.hosts.planning import plan_for_hosts
        from orchestrator.runs.planning import plan_on_cloud

        world = self.world(config)
        if config.host.targets:
            return plan_for_hosts(world, self.hosts, config, name, say=self.say)
        return plan_on_cloud(world, config, name, self.rented_from)

    def plan_again(self, run_id: str, options: LaunchOptions) -> LaunchPlan:
        from orchestrator.runs.replanning import replanned
        from orchestrator.runs.resume import stored_plan

        stored = stored_plan(self.bucket, run_id)
        today, _ = configured(replace(options, gpu=stored.config.gpu if options.path is None else ""))
        return replanned(self.world, today, stored, run_id, self.rented_from, say=self.say)

    @property
    def policy(self) -> Policy:
        from orchestrator.core.run.decide import Policy

        if self.mode.simulated:
            short = {"boot_limit_s": 60, "exit_grace_s": 15, "deadline_slack_s": 40, "insert_limit_s": 60}
            return Policy(poll_s=0.4, host_patience_s=5, **short)
        return Policy()
