"""The composition root: which adapters stand behind which ports. Adapters are loaded when they are first needed."""

from __future__ import annotations

import getpass
import importlib
import json
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orchestrator.adapters.files import is_installed, run_attached, write_atomically
from orchestrator.adapters.settings import Settings, another_home, load_settings
from orchestrator.core.errors import ConfigError, LocalError, Unavailable
from orchestrator.core.naming import Mode, plan_name, run_id
from orchestrator.embedded.client import (
    CloudAddress,
    CloudUnavailable,
    NoRoom,
    ask_control,
    cloud_standing,
    ensure_running,
    living_cloud,
)
from orchestrator.embedded.client import stop_cloud as stop_cloud
from orchestrator.embedded.device import practice_device as practice_device
from orchestrator.store.documents import BaselineStore, LedgerStore
from orchestrator.store.index import RunIndex

if TYPE_CHECKING:
    from orchestrator.adapters import site_server
    from orchestrator.adapters.fetch import Fetched, download_object, fetch_run
    from orchestrator.adapters.figure_files import print_figure
    from orchestrator.adapters.files import start_bench
    from orchestrator.adapters.google.credentials import Bearer
    from orchestrator.adapters.google.market import GoogleMarket
    from orchestrator.adapters.google.storage import GoogleBucket
    from orchestrator.adapters.hosts.cloud import HostCloud, ZoneRouter
    from orchestrator.adapters.hosts.named import Named
    from orchestrator.adapters.ncu_report import pages_of as ncu_pages
    from orchestrator.adapters.notify import Notifiers
    from orchestrator.adapters.price_book import PriceBook
    from orchestrator.adapters.run_folder import open_folder
    from orchestrator.adapters.run_folder import read_lines as csv_lines
    from orchestrator.adapters.setup import Setup
    from orchestrator.adapters.sql import require_duckdb as sql_ready
    from orchestrator.adapters.sql import run_query as answered_in_sql
    from orchestrator.adapters.timer import ReapTimer, install_timer_files
    from orchestrator.adapters.workload_files import files_of, trace_set
    from orchestrator.core.config.model import Config
    from orchestrator.core.doctor.verdicts import Subject
    from orchestrator.core.hosts import HostTarget
    from orchestrator.core.ledger.budget import Ledger
    from orchestrator.core.ledger.unlisted import KnownHolds
    from orchestrator.core.market.machines import Instance
    from orchestrator.core.market.skus import SkuCatalogue
    from orchestrator.core.plan.plan import LaunchPlan
    from orchestrator.core.run.decide import Policy
    from orchestrator.ports import Bucket, Clock, Cloud, HostShell, Images
    from orchestrator.runs.doctor import DoctorSession, Surroundings
    from orchestrator.runs.engine import Engine, World
    from orchestrator.runs.holds import Accounts
    from orchestrator.runs.launch import LaunchContext
    from orchestrator.runs.launch import PayloadSource as LaunchPayload
    from orchestrator.runs.planning import LaunchOptions, RentedFrom
    from orchestrator.runs.reap import MachineFinding, PriceOf
    from orchestrator.runs.resume import StoredPlan
    from orchestrator.store.documents import Shelf, StockOuts
    from orchestrator.store.events import EventLog


__all__ = [
    "CloudAddress", "CloudUnavailable", "Fetched", "ReapTimer", "Setup", "Wiring", "answered_in_sql", "ask_control",
    "configs_folder", "csv_lines", "docs_folder", "download_object", "fetch_run", "files_of", "install_timer_files",
    "is_installed", "launch_context", "living_cloud", "load_chosen_config", "load_settings", "load_weather",
    "ncu_pages", "new_run_id", "open_folder", "payload_of", "practice_device", "practice_lacks",
    "print_figure", "run_attached", "serve_site", "site_server", "sql_ready", "start_bench", "stop_cloud", "trace_set",
    "utc_now", "wire", "wire_embedded", "write_atomically",
]  # fmt: skip
HANDED_ON: Final = {
    "ReapTimer": "timer.ReapTimer",
    "answered_in_sql": "sql.run_query",
    "csv_lines": "run_folder.read_lines",
    "docs_folder": "payload.docs_folder",
    "download_object": "fetch.download_object",
    "fetch_run": "fetch.fetch_run",
    "files_of": "workload_files.files_of",
    "install_timer_files": "timer.install_timer_files",
    "ncu_pages": "ncu_report.pages_of",
    "open_folder": "run_folder.open_folder",
    "print_figure": "figure_files.print_figure",
    "practice_lacks": "hosts.local_shell.practice_lacks",
    "site_server": "site_server.",
    "sql_ready": "sql.require_duckdb",
    "start_bench": "files.start_bench",
    "trace_set": "workload_files.trace_set",
}
"""What stands behind no port is handed on from here, as commands import no adapter; it is loaded when it is named."""


def __getattr__(name: str) -> Any:
    if name not in HANDED_ON:
        raise AttributeError(name)
    module, _, inner = HANDED_ON[name].rpartition(".")
    module_object = importlib.import_module(f"orchestrator.adapters.{module}")
    return getattr(module_object, inner) if inner else module_object


def serve_site(folder: Path, port: int) -> site_server.SiteServer:
    """A server of the pages in `folder` for this user alone. Raises `LocalError`."""
    from orchestrator.adapters.site_server import SiteServer
    from orchestrator.embedded.guard import is_own_connection

    return SiteServer(folder, port, is_own=is_own_connection)


def utc_now() -> datetime:
    return datetime.now(UTC)


def configs_folder() -> Path:
    """The folder of the configurations, grids and prices that come with the tool."""
    from orchestrator.adapters.payload import bundle_root

    return bundle_root() / "configs"


def load_chosen_config(options: LaunchOptions, own: Settings | None = None) -> tuple[Config, str]:
    """The configuration that was chosen, with this user's settings, and its name. Raises `ConfigError`."""
    from orchestrator.adapters.workload_files import own_workload
    from orchestrator.runs.planning import load_config

    return load_config(
        options, configs=configs_folder(), defaults=(own or load_settings()).defaults, workload=own_workload
    )


def load_weather(path: Path) -> Any:
    """The weather in a file, fit for an embedded cloud. Raises `ConfigError`."""
    from orchestrator.core import yamltext
    from orchestrator.embedded.weather import parse_weather
    from orchestrator.runs.planning import read_file

    hint = "`bench docs embedded-cloud` has examples"
    document = yamltext.read_yaml(read_file(path, hint))
    for line, key, what in document.problems:
        raise ConfigError(f"{path}:{line}: {key + ': ' if key else ''}{what}", hint=hint)
    weather = document.data or {"faults": []}
    try:
        parse_weather(weather)
        return json.loads(json.dumps(weather, default=str))  # a time in YAML is no text
    except (ValueError, TypeError) as exc:
        raise ConfigError(f"{path}: {exc}", hint=hint) from exc


def payload_of(config: Config) -> LaunchPayload:
    """What the machine will run: our own trees, and the files of the user's own workload."""
    from orchestrator.adapters.payload import bundle_root, find_root, pack_payload
    from orchestrator.adapters.workload_files import files_of
    from orchestrator.runs.launch import PayloadSource as LaunchPayload

    root = config.payload.root
    base = bundle_root() if root is None else find_root((Path(root).expanduser().resolve(),))
    packed = pack_payload(base, files_of(config.workload))
    return LaunchPayload(packed.sha256, packed.data, (base / "startup" / "startup.sh").read_text(encoding="utf-8"))


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
            hint = "BENCH_PROJECT and BENCH_BUCKET name a project and a bucket; see `bench docs platforms`"
            raise LocalError("the embedded cloud needs /proc, which macOS does not have", hint=hint)
        home, weather = self.home / "cloud", self.settings.weather
        if weather is not None and not weather.is_file():
            raise ConfigError(f"BENCH_WEATHER: there is no file {weather}", hint="see `bench docs embedded-cloud`")
        if weather is not None:
            load_weather(weather)
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise LocalError(f"cannot make {home}: {exc.strerror}", hint=another_home()) from exc
        try:
            return ensure_running(home, weather, partial(print, file=sys.stderr))
        except NoRoom as exc:
            raise LocalError(str(exc), hint="make room there; BENCH_HOME names another place") from exc
        except CloudUnavailable as exc:
            remedy = f"`bench cloud stop` ends a running one and its VMs; {home / 'daemon.log'} says more"
            raise Unavailable(str(exc), hint=remedy) from exc

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
    def credentials(self) -> Bearer | None:
        """What the embedded cloud wants to see; None on Google, where the application-default credentials serve."""
        if self.address is None:
            return None
        from orchestrator.adapters.google.credentials import Bearer

        return Bearer(self.address.token)

    @cached_property
    def clock(self) -> Clock:
        from orchestrator.adapters import clock

        say = partial(print, file=sys.stderr)  # beside a document on standard output
        return clock.ServerClock(clock.SystemClock(), lambda: self._bucket.offset(), say)  # noqa: PLW0108 - made when first asked

    @cached_property
    def bucket(self) -> Bucket:
        return self._bucket

    @cached_property
    def _bucket(self) -> GoogleBucket:
        from orchestrator.adapters.google.storage import GoogleBucket

        if self.address is None:
            return GoogleBucket(self.settings.bucket)
        return GoogleBucket(self.address.bucket, endpoint=self.address.storage, credentials=self.credentials)

    @property
    def _compute(self) -> dict[str, Any]:
        where = self.address
        embedded = {} if where is None else {"endpoint": where.compute, "credentials": self.credentials}
        return {"project": where.project if where else self.settings.project, "clock": self.clock, **embedded}

    @cached_property
    def _cloud(self) -> Cloud:
        from orchestrator.adapters.google import compute

        return compute.GoogleCloud(**self._compute)

    def load_clients(self, plan: LaunchPlan) -> None:
        """Import what a launch of this plan needs, before money is asked for: an import that is interrupted cannot be
        repeated."""
        if plan.mode is plan.mode.HOST:
            from orchestrator.adapters.hosts import ssh  # noqa: F401
        else:
            from orchestrator.adapters.google import compute  # noqa: F401

    @cached_property
    def shelf(self) -> Shelf:
        from orchestrator.store import documents

        def images() -> Images:
            from orchestrator.adapters.google import images as google_images

            return google_images.GoogleImages(**self._compute)

        return documents.Shelf(documents.ImageRecords(self.bucket, self.clock), images)

    @cached_property
    def hosts(self) -> HostCloud:
        """The user's own machines. What speaks SSH is loaded when the first of them is spoken to."""
        from orchestrator.adapters.hosts import cloud as host_cloud

        return host_cloud.HostCloud(self.bucket, self.clock, self.shell, self.machine)

    def shell(self, target: HostTarget) -> HostShell:
        """The way into a host that a command of this user's has named: a process here for this machine itself, SSH for
        every other. Raises `Unavailable`."""
        if self.named.reachable(target).machine:
            from orchestrator.adapters.hosts.local_shell import LocalShell

            return LocalShell(target)
        from orchestrator.adapters.hosts.ssh import SshShell

        return SshShell(target)

    @cached_property
    def named(self) -> Named:
        from orchestrator.adapters.hosts import named

        return named.Named(self.home / "named")

    @cached_property
    def machine(self) -> str:
        from orchestrator.adapters.hosts import local_shell

        return local_shell.this_machine()  # what `--host local` stands for

    @cached_property
    def everywhere(self) -> ZoneRouter:
        from orchestrator.adapters.hosts import cloud as host_cloud

        return host_cloud.ZoneRouter(lambda: self._cloud, self.hosts, cache(self._market))

    def _market(self, **patience: Any) -> GoogleMarket:
        from orchestrator.adapters.google.market import CallPatience, GoogleMarket

        endpoint, limits = self.address.compute if self.address else None, CallPatience(**patience)
        return GoogleMarket(self.project, endpoint, self.credentials, self.clock, patience=limits)

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
        return BaselineStore(self.bucket, self.clock)

    @cached_property
    def history(self) -> StockOuts:
        from orchestrator.store import documents

        return documents.StockOuts(self.bucket, self.clock)

    def log(self, run_id: str) -> EventLog:
        from orchestrator.store import events

        return events.EventLog(self.bucket, run_id, self.client, self.clock)

    def notifier(self, command: str | None, webhook: str | None, *, here: bool = True) -> Notifiers:
        from orchestrator.adapters import notify

        # Not `self.say` itself: it may be another by then.
        return notify.every_way(lambda text: self.say(text), command, webhook, here=here)  # noqa: PLW0108

    def accounts(self, config: Config | None = None) -> Accounts:  # under its caps; without one, this user's
        from orchestrator.runs import holds

        budget, alerts = (config.budget, config.alerts) if config is not None else self.settings.money()
        return holds.Accounts(self.ledger, budget.caps(), self.notifier(alerts.command, alerts.webhook), self.clock)

    def world(self, config: Config | None = None) -> World:
        from orchestrator.runs import engine

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
            remember=lambda what: self.named.add(what),  # noqa: PLW0108 - BENCH_HOME is looked at when it is needed
        )

    # What drives runs and settles holds is loaded only if there is something to drive: most looks find nothing.

    def engine(self, run_id: str) -> Engine:
        from orchestrator.runs import engine

        return engine.Engine(self.world(), run_id)

    def reconcile(self) -> None:
        """See `runs.reconcile.reconcile_holds`."""
        from orchestrator.runs import reconcile

        reconcile.reconcile_holds(self.world())

    def known_holds(self, ledger: Ledger, open_runs: frozenset[str]) -> KnownHolds:
        from orchestrator.runs import reconcile

        return reconcile.known_of(self.world(), ledger, open_runs)

    def survey(self, instances: Sequence[Instance], price_of: PriceOf) -> tuple[MachineFinding, ...]:
        from orchestrator.runs import reap

        return reap.survey_machines(self.world(), instances, price_of)

    @cached_property
    def price_book(self) -> PriceBook:
        """What is known of prices; the embedded cloud's are kept apart, for they are not Google's."""
        from orchestrator.adapters import price_book

        return price_book.PriceBook(
            configs_folder() / "prices.yaml", self.home / f"prices.{self.mode}.yaml", self._catalogue
        )

    def _catalogue(self) -> tuple[SkuCatalogue, str]:
        from orchestrator.adapters.google import rest

        return rest.catalogue_for(
            self._login, self._rest_endpoints(), self.settings.billing_key, self.subject().project
        )

    @property
    def reached(self) -> bool:  # whether the project has a name yet: on the embedded cloud, once that was started
        return bool(self.settings.project) or "address" in self.__dict__

    def subject(self) -> Subject:
        """The project, bucket and service account that checks look at."""
        from orchestrator.core.doctor import verdicts

        address, settings = self.address, self.settings
        project, bucket = (address.project, address.bucket) if address else (settings.project, settings.bucket)
        account = settings.service_account or None
        return verdicts.Subject(project, bucket, embedded=address is not None, service_account=account)

    def surroundings(self) -> Surroundings:
        """What the checks of this machine look at."""
        from orchestrator.adapters.hosts import local_shell
        from orchestrator.core.doctor import here
        from orchestrator.runs import doctor

        return doctor.Surroundings(
            mode=self.mode, home=self.home, configs=configs_folder(), prices=self.price_book.current,
            load=load_chosen_config, now=utc_now, computer=local_shell, another_home=another_home,
            embedded=here.Embedded(*cloud_standing(self.home / "cloud", local_shell.newest_source)),
        )  # fmt: skip

    def checking_session(self) -> DoctorSession:
        from orchestrator.adapters import setup

        return setup.CheckingSession(self._login, self._rest_endpoints, lambda: self._cloud)

    def setup(self, project: str = "") -> Setup:
        """What makes changes: for `init`, and for `doctor --fix`. It is billed to the project that is set up."""
        from orchestrator.adapters import setup
        from orchestrator.adapters.google import credentials, rest
        from orchestrator.runs import holds

        login = credentials.billed_to(self._login(), project or self.settings.project)
        storage = self.address.storage if self.address else None
        changes = rest.Rest(login, self._rest_endpoints(), changes=True)
        shared = holds.CapSharing(self.accounts(), self.user)
        return setup.Setup(changes, login, self.home / "settings.yaml", shared, storage=storage)

    def _login(self) -> Any:
        from orchestrator.adapters.google.credentials import credentials_for

        return self.credentials or credentials_for(None)

    def _rest_endpoints(self) -> dict[str, str] | None:
        from orchestrator.adapters.google import rest

        return dict(rest.endpoints(self.address.compute, self.address.storage)) if self.address else None

    def configured(self, options: LaunchOptions) -> tuple[Config, str]:
        """As the function; where only a host was named, with the configuration that suits it."""
        from orchestrator.runs import host_planning

        self.name_hosts(options.hosts)
        config, name = load_chosen_config(host_planning.with_gpu_of_host(options, self.hosts), self.settings)
        self.name_hosts(config.host.targets)
        return config, name

    def name_hosts(self, texts: Sequence[str]) -> None:
        """This user has named these hosts; only such a one is ever connected to."""
        if texts:
            self.named.add_hosts(texts, self.machine)

    @property
    def rented_from(self) -> RentedFrom:
        from orchestrator.runs import planning

        return planning.RentedFrom(self.mode, self.price_book.current(), self.here)

    def plan(self, config: Config, name: str) -> LaunchPlan:
        """All that is decided before a cent is spent. Raises what stands in the way, exit codes 2, 3, 4 or 6."""
        from orchestrator.runs import host_planning, planning

        world = self.world(config)
        if config.host.targets:
            return host_planning.plan_for_hosts(world, self.hosts, config, name, say=self.say)
        made = planning.plan_on_cloud(world, config, name, self.rented_from)
        if not self.mode.simulated:
            return made
        from orchestrator.adapters.hosts.local_shell import practice_lacks

        lacks = practice_lacks(compiler_needed=config.workload is None and not self.here)
        return replace(made, notices=(*made.notices, *map(": ".join, lacks)))

    def stored_plan(self, run_id: str, options: LaunchOptions) -> StoredPlan:
        """The plan of a run in the bucket, beside what `options` choose. Raises `NotFound`, `ConfigError`."""
        from orchestrator.runs import resume

        plan, digest = resume.read_plan(self.bucket, run_id)
        if plan.mode is Mode.HOST:
            self.named.chosen([offer.host for offer in plan.offers], run_id)
        today, _ = load_chosen_config(replace(options, gpu=plan.config.gpu if options.path is None else ""))
        return resume.StoredPlan(run_id, plan, digest, today, plan_name(run_id, digest) in self.named)

    def plan_again(self, stored: StoredPlan, *, accepted: bool = False) -> LaunchPlan:
        """The plan under which a run goes on. A stored plan that was `accepted` is remembered."""
        from orchestrator.runs import resume

        run_id, plan = stored.run_id, stored.plan
        if accepted:
            self.named.add(plan_name(run_id, stored.digest))
        return resume.replan_run(
            self.world, stored.today, plan, run_id, self.rented_from, accepted=accepted, say=self.say
        )

    @property
    def policy(self) -> Policy:
        from orchestrator.core.run import decide

        if self.mode.simulated:
            short = {"boot_limit_s": 60, "exit_grace_s": 15, "deadline_slack_s": 40, "insert_limit_s": 60}
            return decide.Policy(poll_s=0.4, host_patience_s=5, **short)
        return decide.Policy()


def wire(*, project: str = "", bucket: str = "", needs_bucket: bool = True) -> Wiring:
    settings = load_settings(project=project, bucket=bucket)
    if needs_bucket and settings.project and not settings.bucket:
        raise ConfigError(
            f"project {settings.project} is set but no bucket is",
            hint=f"`bench init --project {settings.project}` creates one; or set BENCH_BUCKET to one that exists",
        )
    return Wiring(settings)


def launch_context(wiring: Wiring, plan: LaunchPlan) -> LaunchContext:
    """The place that a plan's machines are launched into: the user's own hosts, or where this user rents."""
    from orchestrator.runs.launch import LaunchContext

    wiring.load_clients(plan)
    mode = plan.mode if plan.mode is Mode.HOST else wiring.mode
    return LaunchContext(
        mode=mode,
        bucket=wiring.bucket.name,
        user=wiring.user,
        endpoints=wiring.endpoints,
        require_cuda=mode.requires_cuda(plan.config.gpu, wiring.here),
    )


def wire_embedded() -> Wiring:
    """The embedded cloud, whatever the settings say of a project."""
    return Wiring(load_settings().model_copy(update={"project": "", "bucket": ""}))


def new_run_id(now: datetime, gpu: str) -> str:
    return run_id(now, gpu, secrets.token_hex(2))
