"""One process's view of the world: what a command needs is made, and its module loaded, when it is first asked for."""

from __future__ import annotations

import getpass
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.adapters.settings import Settings
from orchestrator.core.errors import ConfigError, LocalError, Unavailable
from orchestrator.core.mode import Mode
from orchestrator.embedded.client import CloudAddress, CloudUnavailable, NoRoom, ensure_running, standing
from orchestrator.store.index import RunIndex
from orchestrator.store.ledger import LedgerStore
from orchestrator.wiring.chosen import configs, configured, forecast, utc_now
from orchestrator.wiring.later import Later

if TYPE_CHECKING:
    from orchestrator.adapters import (
        clock,
        gce,
        gce_images,
        gce_market,
        gcs,
        google_auth,
        notify,
        price_book,
        price_catalog,
        rest,
        setup,
        web,
    )
    from orchestrator.adapters.gcs import GoogleBucket
    from orchestrator.adapters.google_auth import Bearer
    from orchestrator.adapters.hosts import cloud as host_cloud
    from orchestrator.adapters.hosts import local_shell, named, router, ssh
    from orchestrator.adapters.hosts.cloud import HostCloud
    from orchestrator.adapters.hosts.named import Named
    from orchestrator.adapters.hosts.router import ZoneRouter
    from orchestrator.adapters.notify import Notifiers
    from orchestrator.adapters.price_book import PriceBook
    from orchestrator.adapters.setup import Setup
    from orchestrator.adapters.web import Token
    from orchestrator.core.config.model import Config
    from orchestrator.core.doctor import here, subject
    from orchestrator.core.doctor.subject import Subject
    from orchestrator.core.hosts import Target
    from orchestrator.core.market.machines import Instance
    from orchestrator.core.market.skus import Catalogue
    from orchestrator.core.plan.plan import LaunchPlan
    from orchestrator.core.run import decide
    from orchestrator.core.run.decide import Policy
    from orchestrator.ports import Bucket, Clock, Cloud, HostShell, Images
    from orchestrator.runs import doctor, engine, holds, host_planning, planning, resume
    from orchestrator.runs.doctor import Session, Surroundings
    from orchestrator.runs.engine import World
    from orchestrator.runs.holds import Accounts
    from orchestrator.runs.planning import LaunchOptions, RentedFrom
    from orchestrator.store import documents, events, stockouts
    from orchestrator.store import images as image_store
    from orchestrator.store.documents import BaselineStore
    from orchestrator.store.events import EventLog
    from orchestrator.store.images import Shelf
    from orchestrator.store.stockouts import StockOuts
else:
    setup = Later("orchestrator.adapters.setup")
    clock = Later("orchestrator.adapters.clock")
    gce = Later("orchestrator.adapters.gce")
    gce_images = Later("orchestrator.adapters.gce_images")
    gce_market = Later("orchestrator.adapters.gce_market")
    gcs = Later("orchestrator.adapters.gcs")
    google_auth = Later("orchestrator.adapters.google_auth")
    local_shell = Later("orchestrator.adapters.hosts.local_shell")
    named = Later("orchestrator.adapters.hosts.named")
    notify = Later("orchestrator.adapters.notify")
    price_book = Later("orchestrator.adapters.price_book")
    price_catalog = Later("orchestrator.adapters.price_catalog")
    rest = Later("orchestrator.adapters.rest")
    setup = Later("orchestrator.adapters.setup")
    ssh = Later("orchestrator.adapters.hosts.ssh")
    local_shell = Later("orchestrator.adapters.hosts.local_shell")
    web = Later("orchestrator.adapters.web")
    here = Later("orchestrator.core.doctor.here")
    subject = Later("orchestrator.core.doctor.subject")
    decide = Later("orchestrator.core.run.decide")
    doctor = Later("orchestrator.runs.doctor")
    host_cloud = Later("orchestrator.adapters.hosts.cloud")
    host_planning = Later("orchestrator.runs.host_planning")
    router = Later("orchestrator.adapters.hosts.router")
    holds = Later("orchestrator.runs.holds")
    engine = Later("orchestrator.runs.engine")
    planning = Later("orchestrator.runs.planning")
    resume = Later("orchestrator.runs.resume")
    resume = Later("orchestrator.runs.resume")
    holds = Later("orchestrator.runs.holds")
    documents = Later("orchestrator.store.documents")
    events = Later("orchestrator.store.events")
    image_store = Later("orchestrator.store.images")
    stockouts = Later("orchestrator.store.stockouts")


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
            raise LocalError("the embedded cloud needs /proc, which macOS does not have", hint=hint)
        home, weather = self.home / "cloud", self.settings.weather
        if weather is not None and not weather.is_file():
            raise ConfigError(f"BENCH_WEATHER: there is no file {weather}", hint="docs/embedded-cloud.md has examples")
        if weather is not None:
            forecast(weather)
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise LocalError(f"cannot make {home}: {exc.strerror}", hint="set BENCH_HOME to another folder") from exc
        try:
            return ensure_running(home, weather, partial(print, file=sys.stderr))
        except NoRoom as exc:
            raise LocalError(str(exc), hint="make room there; BENCH_HOME names another place") from exc
        except CloudUnavailable as exc:
            more = f"`bench cloud stop` ends a running one and its VMs; {home / 'daemon.log'} says more"
            raise Unavailable(str(exc), hint=more) from exc

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
        return None if self.address is None else web.Token(self.address.token)

    @cached_property
    def credentials(self) -> Bearer | None:
        """The same, for Google's own clients."""
        return None if self.address is None else google_auth.Bearer(self.address.token)

    @cached_property
    def clock(self) -> Clock:
        say = partial(print, file=sys.stderr)  # beside a document on standard output
        return clock.ServerClock(clock.SystemClock(), lambda: self._bucket.offset(), say)  # noqa: PLW0108 - made when first asked

    @cached_property
    def bucket(self) -> Bucket:
        return self._bucket

    @cached_property
    def _bucket(self) -> GoogleBucket:
        if self.address is None:
            return gcs.GoogleBucket(self.settings.bucket)
        return gcs.GoogleBucket(self.address.bucket, endpoint=self.address.storage, credentials=self.key)

    @property
    def _compute(self) -> dict[str, Any]:
        where = self.address
        embedded = {} if where is None else {"endpoint": where.compute, "credentials": self.credentials}
        return {"project": where.project if where else self.settings.project, "clock": self.clock, **embedded}

    @cached_property
    def _cloud(self) -> Cloud:
        return gce.GoogleCloud(**self._compute)

    @cached_property
    def shelf(self) -> Shelf:
        def images() -> Images:
            return gce_images.GoogleImages(**self._compute)

        return image_store.Shelf(image_store.ImageStore(self.bucket, self.clock), images)

    @cached_property
    def hosts(self) -> HostCloud:
        """The user's own machines. What speaks SSH is loaded when the first of them is spoken to."""
        return host_cloud.HostCloud(self.bucket, self.clock, self.shell, self.machine)

    def shell(self, target: Target) -> HostShell:
        """The way into a host that a command of this user's has named: a process here for this machine itself, SSH for
        every other. Raises `Unavailable`."""
        if self.named.reachable(target).machine:
            return local_shell.LocalShell(target)
        return ssh.SshShell(target)

    @cached_property
    def named(self) -> Named:
        return named.Named(self.home / "named")

    @cached_property
    def machine(self) -> str:
        return local_shell.this_machine()  # what `--host local` stands for

    @cached_property
    def everywhere(self) -> ZoneRouter:
        return router.ZoneRouter(lambda: self._cloud, self.hosts, cache(self._market))

    def _market(self, **patience: Any) -> gce_market.Market:
        endpoint = self.address.compute if self.address else None
        return gce_market.Market(self.project, endpoint, self.key, self.clock, **patience)

    def cloud(self) -> Cloud:
        return self.everywhere

    def alive(self) -> tuple[Instance, ...]:
        """Every machine of ours that exists now, asked of the cloud itself without its heavy client."""
        return (*self._market(pauses_s=(0, 0), request_s=10.0).instances(), *self.hosts.instances())

    @cached_property
    def ledger(self) -> LedgerStore:
        return LedgerStore(self.bucket, self.clock)

    @cached_property
    def index(self) -> RunIndex:
        return RunIndex(self.bucket)

    @cached_property
    def baselines(self) -> BaselineStore:
        return documents.BaselineStore(self.bucket, self.clock)

    @cached_property
    def history(self) -> StockOuts:
        return stockouts.StockOuts(self.bucket, self.clock)

    def log(self, run_id: str) -> EventLog:
        return events.EventLog(self.bucket, run_id, self.client, self.clock)

    def notifier(self, command: str | None, webhook: str | None, *, here: bool = True) -> Notifiers:
        # Not `self.say` itself: it may be another by then.
        return notify.every_way(lambda text: self.say(text), command, webhook, here=here)  # noqa: PLW0108

    def accounts(self, config: Config | None = None) -> Accounts:  # under its caps; without one, this user's
        budget, alerts = (config.budget, config.alerts) if config is not None else self.settings.money()
        return holds.Accounts(self.ledger, budget.caps(), self.notifier(alerts.command, alerts.webhook), self.clock)

    def world(self, config: Config | None = None) -> World:
        return engine.World(
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
            ready=self.everywhere.ready,
        )

    @cached_property
    def price_book(self) -> PriceBook:
        """What is known of prices; the embedded cloud's are kept apart, for they are not Google's."""
        return price_book.PriceBook(configs() / "prices.yaml", self.home / f"prices.{self.mode}.yaml", self._catalogue)

    def _catalogue(self) -> tuple[Catalogue, str]:
        return price_catalog.catalogue_for(
            self._login, self._rest_endpoints(), self.settings.billing_key, self.subject().project
        )

    @property
    def reached(self) -> bool:  # whether the project has a name yet: on the embedded cloud, once that was started
        return bool(self.settings.project) or "address" in self.__dict__

    def subject(self) -> Subject:
        """The project, bucket and service account that checks look at."""
        address, settings = self.address, self.settings
        project, bucket = (address.project, address.bucket) if address else (settings.project, settings.bucket)
        account = settings.service_account or None
        return subject.Subject(project, bucket, embedded=address is not None, service_account=account)

    def surroundings(self) -> Surroundings:
        """What the checks of this machine look at."""
        return doctor.Surroundings(
            mode=self.mode,
            home=self.home,
            configs=configs(),
            prices=self.price_book.current,
            load=configured,
            now=utc_now,
            computer=local_shell,
            embedded=here.Embedded(*standing(self.home / "cloud", local_shell.newest_source)),
        )

    def checking_session(self) -> Session:
        return setup.CheckingSession(self._login, self._rest_endpoints)

    def setup(self, project: str = "") -> Setup:
        """What makes changes: for `init`, and for `doctor --fix`. It is billed to the project that is set up."""
        login = google_auth.billed_to(self._login(), project or self.settings.project)
        storage = self.address.storage if self.address else None
        changes = rest.Rest(login, self._rest_endpoints(), changes=True)
        shared = holds.Sharing(self.accounts(), self.user)
        return setup.Setup(changes, login, self.home / "settings.yaml", shared, storage=storage)

    def _login(self) -> Any:
        return self.credentials or google_auth.credentials_for(None)

    def _rest_endpoints(self) -> dict[str, str] | None:
        return dict(rest.endpoints(self.address.compute, self.address.storage)) if self.address else None

    def configured(self, options: LaunchOptions) -> tuple[Config, str]:
        """As the function; where only a host was named, with the configuration that suits it."""
        self.name_hosts(options.hosts)
        config, name = configured(host_planning.with_gpu_of_host(options, self.hosts), self.settings)
        self.name_hosts(config.host.targets)
        return config, name

    def name_hosts(self, texts: Sequence[str]) -> None:
        """This user has named these hosts; only such a one is ever connected to."""
        if texts:
            self.named.add_hosts(texts, self.machine)

    @property
    def rented_from(self) -> RentedFrom:
        return planning.RentedFrom(self.mode, self.price_book.current(), self.here)

    def plan(self, config: Config, name: str) -> LaunchPlan:
        """All that is decided before a cent is spent. Raises what stands in the way, exit codes 2, 3, 4 or 6."""
        world = self.world(config)
        if config.host.targets:
            return host_planning.plan_for_hosts(world, self.hosts, config, name, say=self.say)
        return planning.plan_on_cloud(world, config, name, self.rented_from)

    def plan_again(self, run_id: str, options: LaunchOptions) -> LaunchPlan:
        stored = resume.stored_plan(self.bucket, run_id)
        if stored.mode is Mode.HOST:
            self.named.chosen([offer.host for offer in stored.offers], run_id)
        today, _ = configured(replace(options, gpu=stored.config.gpu if options.path is None else ""))
        return resume.replanned(self.world, today, stored, run_id, self.rented_from, say=self.say)

    @property
    def policy(self) -> Policy:
        if self.mode.simulated:
            short = {"boot_limit_s": 60, "exit_grace_s": 15, "deadline_slack_s": 40, "insert_limit_s": 60}
            return decide.Policy(poll_s=0.4, host_patience_s=5, **short)
        return decide.Policy()
