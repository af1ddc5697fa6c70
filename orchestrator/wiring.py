"""The composition root: which adapters stand behind which ports. Adapters are loaded when they are first needed."""

from __future__ import annotations

import getpass
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.budget import Caps
from orchestrator.core.decide import Policy
from orchestrator.core.errors import ConfigError, LocalError, Unavailable
from orchestrator.core.naming import run_id
from orchestrator.ports import Bucket, Clock, Cloud, EventLog, History, Notice, Notifier, RemoteShell
from orchestrator.settings import Settings, load_settings

if TYPE_CHECKING:
    from orchestrator.adapters.baselines import BaselineStore
    from orchestrator.adapters.index import RunIndex
    from orchestrator.adapters.ledger import LedgerStore
    from orchestrator.adapters.notify import Notifiers
    from orchestrator.core.hosts import Target
    from orchestrator.core.machines import Instance
    from orchestrator.embedded.client import CloudAddress
    from orchestrator.engine import World
    from orchestrator.everywhere import Everywhere
    from orchestrator.host_cloud import HostCloud
    from orchestrator.launch import Payload as LaunchPayload


def wire(*, project: str = "", bucket: str = "") -> Wiring:
    settings = load_settings(project=project, bucket=bucket)
    if settings.project and not settings.bucket:
        raise ConfigError(
            f"project {settings.project} is set but no bucket is",
            hint=f"`bench init --project {settings.project}` makes one; or name one that is there with BENCH_BUCKET",
        )
    return Wiring(settings)


def wire_embedded() -> Wiring:
    """The embedded cloud, whatever the settings say of a project."""
    return Wiring(load_settings().model_copy(update={"project": "", "bucket": ""}))


def utc_now() -> datetime:
    return datetime.now(UTC)


def new_run_id(now: datetime, gpu: str) -> str:
    return run_id(now, gpu, secrets.token_hex(2))


def payload_of(root: str | None) -> LaunchPayload:
    """What the machine will run, from `root` or from this installation."""
    from orchestrator.adapters.payload import bundle_root, find_root, pack
    from orchestrator.launch import Payload as LaunchPayload

    base = bundle_root() if root is None else find_root((Path(root).expanduser().resolve(),))
    packed = pack(base)
    return LaunchPayload(packed.sha256, packed.data, (base / "startup" / "startup.sh").read_text(encoding="utf-8"))


@dataclass
class Wiring:
    """One process's view of the world. Everything is made once, on first use."""

    settings: Settings
    client: str = field(default_factory=lambda: f"client-{secrets.token_hex(3)}")
    say: Callable[[str], None] = print

    @property
    def mode(self) -> str:
        return "gce" if self.settings.project else "embedded"

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
        from orchestrator.embedded.client import CloudUnavailable, ensure_running

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

    @cached_property
    def endpoints(self) -> dict[str, str] | None:
        """What the VM must be told of where the services are; None on Google."""
        if self.address is None:
            return None
        return {"storage": self.address.storage, "compute": self.address.compute}

    @cached_property
    def clock(self) -> Clock:
        from orchestrator.adapters.clock import SystemClock

        return SystemClock()

    @cached_property
    def bucket(self) -> Bucket:
        from orchestrator.adapters.gcs import GoogleBucket

        if self.address is None:
            return GoogleBucket(self.settings.bucket, project=self.settings.project)
        return GoogleBucket(self.address.bucket, project=self.address.project, endpoint=self.address.storage)

    @cached_property
    def _cloud(self) -> Cloud:
        from orchestrator.adapters.gce import GoogleCloud

        if self.address is None:
            return GoogleCloud(project=self.settings.project, clock=self.clock)
        return GoogleCloud(project=self.address.project, endpoint=self.address.compute, clock=self.clock)

    @cached_property
    def hosts(self) -> HostCloud:
        """The user's own machines. What speaks SSH is loaded when the first of them is spoken to."""
        from orchestrator.host_cloud import HostCloud

        def connect(target: Target) -> RemoteShell:
            from orchestrator.adapters.ssh import SshShell

            return SshShell(target)

        return HostCloud(self.bucket, self.clock, connect)

    @cached_property
    def everywhere(self) -> Everywhere:
        from orchestrator.everywhere import Everywhere

        return Everywhere(lambda: self._cloud, self.hosts)

    def cloud(self) -> Cloud:
        return self.everywhere

    def alive(self) -> tuple[Instance, ...]:
        """Every machine of ours that exists now, asked of the cloud itself without its heavy client."""
        from orchestrator.adapters.alive import alive

        if self.address is None:
            rented = alive(self.settings.project)
        else:
            rented = alive(self.address.project, self.address.compute)
        return (*rented, *self.hosts.instances())

    @cached_property
    def ledger(self) -> LedgerStore:
        from orchestrator.adapters.ledger import LedgerStore

        return LedgerStore(self.bucket, self.clock)

    @cached_property
    def index(self) -> RunIndex:
        from orchestrator.adapters.index import RunIndex

        return RunIndex(self.bucket)

    @cached_property
    def baselines(self) -> BaselineStore:
        from orchestrator.adapters.baselines import BaselineStore

        return BaselineStore(self.bucket, self.clock)

    @cached_property
    def history(self) -> History:
        from orchestrator.adapters.history import StockOuts

        return StockOuts(self.bucket)

    def log(self, run_id: str) -> EventLog:
        from orchestrator.adapters.eventlog import EventLog as BucketEventLog

        return BucketEventLog(self.bucket, run_id, self.client, self.clock)

    def notifier(self, *, command: str | None = None, webhook: str | None = None) -> Notifiers:
        from orchestrator.adapters.notify import CommandNotifier, Notifiers, TerminalNotifier, WebhookNotifier

        def terminal(notice: Notice) -> None:
            self.say(f"{notice.title}. {notice.text}")

        ways: list[Notifier] = [TerminalNotifier(terminal)]
        if command:
            ways.append(CommandNotifier(command, self.say))
        if webhook:
            ways.append(WebhookNotifier(webhook, self.say))
        return Notifiers(ways)

    def world(self, caps: Caps, *, command: str | None = None, webhook: str | None = None) -> World:
        from orchestrator.engine import World

        return World(
            cloud=self.cloud,
            bucket=self.bucket,
            ledger=self.ledger,
            index=self.index,
            clock=self.clock,
            notifier=self.notifier(command=command, webhook=webhook),
            caps=caps,
            log=self.log,
            policy=self.policy,
            history=self.history,
        )

    @property
    def policy(self) -> Policy:
        if self.mode == "embedded":
            return Policy(
                poll_s=0.4, boot_limit_s=60, exit_grace_s=15, deadline_slack_s=40, insert_limit_s=60, lease_ttl_s=15
            )
        return Policy()
