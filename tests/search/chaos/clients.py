"""A client of a scenario: its world, put together as `wiring` does it, and the commands that it gives."""

from __future__ import annotations

import functools
import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import typer

from orchestrator.adapters.clock import ServerClock
from orchestrator.adapters.google.compute import GoogleCloud
from orchestrator.adapters.google.credentials import Bearer
from orchestrator.adapters.google.images import GoogleImages
from orchestrator.adapters.google.storage import GoogleBucket
from orchestrator.adapters.hosts.cloud import HostCloud, ZoneRouter
from orchestrator.adapters.settings import Settings
from orchestrator.cli import compare, costs, diagnose, fetch, history, logs, reap, report, site, ssh, status, stop
from orchestrator.core.config.model import Config
from orchestrator.core.errors import BenchError, Unavailable
from orchestrator.core.hosts import HostTarget
from orchestrator.core.ledger.budget import Caps
from orchestrator.core.market.machines import Instance
from orchestrator.core.market.pricing import PriceSheet
from orchestrator.core.naming import Mode
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.core.run.decide import Policy
from orchestrator.core.run.fold import Phase, Run
from orchestrator.embedded.server import EmbeddedCloud
from orchestrator.ports import Bucket, Clock, Notifier, RemoteShell
from orchestrator.runs.engine import Engine, World
from orchestrator.runs.holds import Accounts
from orchestrator.runs.launch import PayloadSource
from orchestrator.store.documents import ImageRecords, LedgerStore, Shelf, StockOuts
from orchestrator.store.events import EventLog
from orchestrator.store.index import RunIndex
from orchestrator.wiring import Wiring
from tests.integration.stories.stage import SHEET
from tests.search.chaos.boxes import Box
from tests.search.chaos.deeds import Deeds
from tests.search.chaos.guests import case_ids, guest
from tests.search.chaos.scenario import Client
from tests.support.connects import on_connect
from tests.support.patience import PATIENCE_S
from tests.support.scripted_machines import Script
from tests.support.simulated_clock import TimelineClock
from tests.support.simulated_timeline import SimulatedTimeline
from tests.support.store_bucket import StoreBucket

POLICY: Final = Policy(poll_s=10)
NOBODY: Final = "client-ffffff"


@dataclass(frozen=True, slots=True)
class Rules:
    """What all clients and machines go by. Others than these make a searcher show that it finds something."""

    policy: Policy = POLICY
    sheet: PriceSheet = SHEET
    make_guest: Callable[[str, int, float, Deeds], Script] = guest
    bucket: Callable[[Any], Any] = lambda bucket: bucket
    ledger: Callable[[Bucket, Clock], LedgerStore] = LedgerStore
    caps: Callable[[Caps], Caps] = lambda caps: caps
    clock: Callable[[Clock, Callable[[], timedelta]], Clock] = ServerClock
    hosts: Callable[[Any, Clock, Callable[[HostTarget], Any]], HostCloud] = HostCloud


@dataclass
class OwnClock(TimelineClock):
    """A client's own, which may be off."""

    off: timedelta

    def now(self) -> datetime:
        return self.timeline.now() + self.off


class Watched:
    """A port whose every call is announced, with its name and first argument, before it is made and after."""

    def __init__(self, port: Any, before: Announce, after: Announce) -> None:
        self._port = port
        self._before = before
        self._after = after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self._before(name, args, None)
            answer = found(*args, **kwargs)
            self._after(name, args, answer)
            return answer

        return call


@dataclass
class Clearing:
    """A bucket through HTTP, until no weather is left that could strike there."""

    http: Any
    direct: Any
    is_fair: Callable[[], bool]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.direct if self.is_fair() else self.http, name)

    def offset(self) -> timedelta:
        return (self.direct if self.is_fair() else self.http).offset()  # type: ignore[no-any-return]


Announce = Callable[[str, tuple[Any, ...], Any], None]


@dataclass
class Actor:
    """A client at work."""

    client: Client
    name: str
    run_id: str
    begins: datetime
    caps: Caps
    ready: datetime = field(init=False)
    moments: int = 0
    over: bool = False
    busy: bool = False
    engine: Engine | None = None
    plan: LaunchPlan | None = None
    tried: int = 0
    doomed: int = 0
    """Like its client's `dies_at`, decided later."""

    def __post_init__(self) -> None:
        self.ready = self.begins


def world_of(
    cloud: EmbeddedCloud,
    timeline: SimulatedTimeline,
    bucket: str,
    rules: Rules,
    notifier: Notifier,
    actor: Actor | None,
    before: Announce,
    after: Announce,
    boxes: Mapping[str, Box] | None = None,
    *,
    is_fair: Callable[[], bool] = lambda: False,
) -> World:
    """What a client sees, with connections of its own, to `boxes` too; an observer's without an actor. `is_fair`:
    whether no weather is left between it and the bucket, which it then reaches without HTTP: that takes most of the
    time of a scenario."""
    off = timedelta(seconds=actor.client.off_s if actor else 0)
    local, key = OwnClock(timeline, off), Bearer(cloud.token)
    plain: Any = StoreBucket(bucket, cloud.storage.store, local)
    if not is_fair():
        through_http = GoogleBucket(
            bucket, endpoint=cloud.storage_url, credentials=key, patience_s=PATIENCE_S, clock=local
        )
        plain = Clearing(through_http, plain, is_fair)
    clock = rules.clock(local, plain.offset)
    google = GoogleCloud(project=cloud.project, endpoint=cloud.compute_url, credentials=key, clock=clock)
    watched: Any = rules.bucket(Watched(plain, before, after))
    rented: Any = google
    if boxes:
        hosts = rules.hosts(watched, clock, lambda target: Watched(boxes[target.name], before, after))
        rented = ZoneRouter(lambda: google, hosts, lambda: google)  # type: ignore[arg-type,return-value]
    rented = Watched(rented, before, after)
    images = functools.cache(
        lambda: GoogleImages(project=cloud.project, endpoint=cloud.compute_url, credentials=key, clock=clock)
    )
    caps, writer = rules.caps(actor.caps if actor else Caps()), actor.name if actor else NOBODY
    return World(
        cloud=lambda: rented,
        bucket=watched,
        accounts=Accounts(rules.ledger(watched, clock), caps, notifier, clock),
        index=RunIndex(watched),
        clock=clock,
        log=lambda run_id: EventLog(watched, run_id, writer, clock),
        policy=rules.policy,
        history=StockOuts(watched, clock),
        shelf=Shelf(ImageRecords(watched, clock), images),
    )


# --- payloads -------------------------------------------------------------------------------------------------------


def packed() -> PayloadSource:
    """A payload that can be read back: a resumed run takes its startup script from it."""
    buffer, script = io.BytesIO(), b"#!/bin/bash\n"
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        entry = tarfile.TarInfo("startup/startup.sh")
        entry.size = len(script)
        archive.addfile(entry, io.BytesIO(script))
    return PayloadSource(hashlib.sha256(buffer.getvalue()).hexdigest(), buffer.getvalue(), script.decode())


PACKED: Final = packed()


# --- commands -------------------------------------------------------------------------------------------------------


class Desk(Wiring):
    """A user's shell on the scenario's cloud: the commands themselves, with a world that is watched."""

    def __init__(self, home: Path, world: World) -> None:
        super().__init__(Settings(home=home), say=lambda _: None)
        self.there = world
        self.__dict__.update(
            bucket=world.bucket, clock=world.clock, ledger=world.ledger, index=world.index, history=world.history,
            hosts=hosts_of(world) or HostCloud(world.bucket, world.clock, _no_host),
        )  # fmt: skip

    @property
    def mode(self) -> Mode:
        return Mode.GCE

    @property
    def policy(self) -> Policy:
        return self.there.policy

    def alive(self) -> tuple[Instance, ...]:
        listed = self.there.cloud().instances()
        return listed if hosts_of(self.there) is not None else (*listed, *self.hosts.instances())

    def world(self, config: Config | None = None) -> World:
        return self.there


def hosts_of(world: World) -> HostCloud | None:
    """The part of a client's cloud that is machines of the user's own; None where nobody has any."""
    return getattr(world.cloud(), "hosts", None)


def _no_host(target: HostTarget) -> RemoteShell:
    raise Unavailable(f"{target} cannot be reached")


def command(home: Path, world: World, name: str, run_id: str = "") -> BenchError | None:
    """What `bench status`, `reap --yes`, `stop RUN` or `fetch RUN` ends with, all said and done. Raises what no command
    may raise."""
    desk, folder = Desk(home, world), str(home / "by-command" / run_id)
    ctx: Any = SimpleNamespace(find_root=lambda: SimpleNamespace(obj={"wire": lambda **_: desk}))
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            match name:
                case "status":
                    status.status(ctx, run_id, limit=20)
                case "reap":
                    reap.reap(ctx, yes=True)
                case "stop":
                    stop.stop(ctx, run_id)
                case "ssh":
                    ssh.ssh(ctx, run_id, show=True)
                case "logs":
                    logs.logs(ctx, run_id)
                case "diagnose":
                    diagnose.diagnose(ctx, run_id)
                case "costs":
                    costs.costs(SimpleNamespace(find_root=ctx.find_root, invoked_subcommand=None), last=20)
                case "fetch":
                    fetch.fetch(ctx, run_id, into=home / "by-command")
                case "report":
                    bare(report.report)(ctx, folder, insertion=report.Insertion(), drawing=report.ReportOptions())
                case "compare":
                    pages = compare.ComparisonPages()
                    bare(compare.compare)(ctx, [folder, folder], compare.NamedBaseline(), compare.Judgement(), pages)
                case "history":
                    bare(history.history)(ctx, history.Question(case_ids(1)[0]), span=history.Span())
                case "site":
                    site.site(ctx, out=home / f"site-{world.bucket.name}")
    except BenchError as error:
        return error
    except typer.Exit:
        return None
    return None


def bare(command: Any) -> Callable[..., None]:
    """A command that takes its options as the dataclasses that they are grouped in."""
    return command.__wrapped__  # type: ignore[no-any-return]


def lost_its_kept_machine(run: Run) -> bool:
    """Whether a run that was on another's machine must go on, on one of its own (as `bench launch` decides it)."""
    lost = run.phase not in (Phase.SUCCEEDED, Phase.INCORRECT) and run.stop is None
    return lost and not (run.current.finished is not None and run.current.finished.outcome == "failed")


# --- what must not happen -------------------------------------------------------------------------------------------

STARTED: Final[list[str]] = []
"""Processes that were started, and addresses that were called, while `watch.on`."""
STARTS: Final = ("system", "posix_spawn", "posix_spawnp", "execv", "execve", "fork", "forkpty")
DISCARD: Final = 9
"""The port of the webhook in junk."""
watch = SimpleNamespace(on=False)


def _told(event: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, which writes down that it was called. No audit hook: `on_connect` says why."""

    @functools.wraps(function)
    def told(*arguments: Any, **options: Any) -> Any:
        if watch.on:
            STARTED.append(f"{event} {options.get('args', arguments[-1:])}")
        return function(*arguments, **options)

    return told


def _called(address: Any) -> None:
    if watch.on and isinstance(address, tuple) and address[1] == DISCARD:
        STARTED.append("the webhook of a plan in the bucket")


for _name in STARTS:
    setattr(os, _name, _told(f"os.{_name}", getattr(os, _name)))
subprocess.Popen.__init__ = _told("subprocess.Popen", subprocess.Popen.__init__)  # type: ignore[method-assign]
on_connect(_called)
