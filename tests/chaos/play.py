"""Plays a scenario on the embedded cloud, on simulated time, with the real clients, and judges it at every moment.

Everything happens in one thread, in an order that the scenario alone decides: a client runs until it must wait; each
call that it makes has a moment before and a moment after it, at which it may be killed or another client may do
something. So every place between any two requests is a place to die in, and the same scenario ends the same way.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from orchestrator.adapters.fetch import fetch_run
from orchestrator.adapters.gce import GoogleCloud
from orchestrator.adapters.gce_body import instance_body
from orchestrator.adapters.gcs import GoogleBucket
from orchestrator.adapters.google_auth import Bearer
from orchestrator.core.config import load as configs
from orchestrator.core.errors import BenchError, BudgetExceeded, Unavailable
from orchestrator.core.ledger.budget import Caps, Ledger
from orchestrator.core.market.machines import InstanceRequest
from orchestrator.core.market.pricing import PriceSheet
from orchestrator.core.mode import Mode
from orchestrator.core.naming import LEDGER
from orchestrator.core.plan.plan import LaunchPlan, plan
from orchestrator.core.run.decide import Policy
from orchestrator.core.run.fold import Phase, Run, replay
from orchestrator.embedded.scripted import Script, ScriptedVm, Steps, scripted
from orchestrator.embedded.server import EmbeddedCloud
from orchestrator.embedded.timeline import SimulatedTimeline
from orchestrator.runs.accounts import Accounts
from orchestrator.runs.engine import Engine, World
from orchestrator.runs.launch import LaunchContext, Payload, begin
from orchestrator.runs.reap import reap, survey
from orchestrator.runs.reconcile import reconcile
from orchestrator.runs.resume import resume, stored_plan
from orchestrator.store.events import EventLog
from orchestrator.store.index import RunIndex
from orchestrator.store.ledger import LedgerStore
from tests.chaos.guests import Deeds, guest
from tests.chaos.promises import UNENDED, Broken, Judge
from tests.chaos.scenario import ZONES, Client, Meddling, Scenario
from tests.stories.stage import GRIDS, SHEET, Heard, Killed, TimelineClock

TURNS = 6000
"""More than any scenario needs: past this a client turns in circles."""
POLICY = Policy(poll_s=10)
LATEST_REQUEST_S = 70.0
SLICE_S = 15.0
LATEST_SETTLEMENT_S = 7200.0
"""A hold whose client died in between is kept until no machine can be running under it: longer than any deadline."""
IMAGE = ("deeplearning-platform-release", "common-cu129-ubuntu-2404-nvidia-580")


@dataclass(frozen=True, slots=True)
class Rules:
    """What all clients and machines go by. Others than these make a searcher show that it finds something."""

    policy: Policy = POLICY
    sheet: PriceSheet = SHEET
    make_guest: Callable[[str, int, float, Deeds], Script] = guest


@dataclass
class Seen:
    """What became of a scenario."""

    moments: int
    outcomes: tuple[str, ...]
    refused: int
    kills: int
    fired: Mapping[str, int]
    preemptions: int
    resumes: int
    machines: int
    checks: int
    cases: int


def packed() -> Payload:
    """A payload that can be read back: a resumed run takes its startup script from it."""
    buffer, script = io.BytesIO(), b"#!/bin/bash\n"
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        entry = tarfile.TarInfo("startup/startup.sh")
        entry.size = len(script)
        archive.addfile(entry, io.BytesIO(script))
    return Payload(hashlib.sha256(buffer.getvalue()).hexdigest(), buffer.getvalue(), script.decode())


PACKED = packed()


def done(run: Run) -> bool:
    """Whether nothing is left to do for a run."""
    return (run.over and run.settled is not None) or run.phase is Phase.REFUSED


class Arena:
    """A cloud that many scenarios share, each with a bucket of its own: a store takes longer to start than to use."""

    def __init__(self, home: Path, rules: Rules | None = None) -> None:
        self.home = home
        self.rules = rules or Rules()
        self.timeline = SimulatedTimeline()
        self.script: Callable[[ScriptedVm], Steps] | None = None
        self.played = 0
        self.cloud = EmbeddedCloud(home=home, timeline=self.timeline, machines=scripted(self._follow))

    def _follow(self, vm: ScriptedVm) -> Steps:
        assert self.script is not None
        return self.script(vm)

    def close(self) -> None:
        self.cloud.close()
        shutil.rmtree(self.home, ignore_errors=True)

    def play(self, scenario: Scenario) -> Seen:
        """Raises `Broken` with the promise that does not hold."""
        self.played += 1
        return Play(self, scenario, f"search-{self.played}").to_the_end()


@contextmanager
def arena(home: Path, rules: Rules | None = None) -> Iterator[Arena]:
    made = Arena(home, rules)
    try:
        yield made
    finally:
        made.close()


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


Announce = Callable[[str, tuple[Any, ...], Any], None]


@dataclass
class Actor:
    """A client at work."""

    client: Client
    name: str
    run_id: str
    begins: datetime
    ready: datetime = field(init=False)
    moments: int = 0
    over: bool = False
    busy: bool = False
    engine: Engine | None = None
    tried: int = 0
    doomed: int = 0
    """Like its client's `dies_at`, decided later."""

    def __post_init__(self) -> None:
        self.ready = self.begins


class Play:
    def __init__(self, arena: Arena, scenario: Scenario, bucket: str) -> None:
        self.arena, self.scenario, self.bucket = arena, scenario, bucket
        self.cloud, self.timeline = arena.cloud, arena.timeline
        self.cloud.storage.create_bucket(bucket)
        self.deeds = Deeds()
        self.heard = Heard()
        arena.script = arena.rules.make_guest(scenario.temper, scenario.cases, scenario.seconds_each, self.deeds)
        start = self.timeline.now()
        self.run_ids = [f"{start:%Y%m%d-%H%M%S}-l4-{arena.played % 256:02x}{run:02x}" for run in range(scenario.runs)]
        self.moments = 0
        self.depth = 0
        self.kills = 0
        self.refused = 0
        self.resumes = 0
        self.meddlings: dict[int, Meddling] = {one.moment: one for one in scenario.meddlings}
        self.before = {fault["id"] for fault in self.cloud.weather.document()["faults"]}
        self.judge = Judge(self.cloud, Caps())
        cap = self.planned("any").ceiling_usd * int(scenario.fits * 10) / 10 if scenario.fits else None
        self.judge.caps = Caps(day=cap)
        self.judge.runs = set(self.run_ids)
        self.actors: list[Actor] = []
        for client in scenario.clients:
            self.enter(client)

    # --- the world of a client --------------------------------------------------------------------------------------

    def planned(self, image: str) -> LaunchPlan:
        overrides = (
            f"zones=[{','.join(ZONES)}]", "measure.repeats=2", f"run.attempts={self.scenario.attempts}",
            f"run.max_minutes={self.scenario.max_minutes}",
        )  # fmt: skip
        config = configs.load("gpu: l4", source="chaos.yaml", overrides=overrides, grids=GRIDS)
        made = plan(
            config, config_name="chaos", mode=Mode.GCE, prices=self.arena.rules.sheet, quotas=None, ledger=Ledger(), caps=Caps(),
            image=image, now=self.timeline.now(),
        )  # fmt: skip
        assert isinstance(made, LaunchPlan), made
        return made

    def world(self, actor: Actor | None) -> World:
        clock = TimelineClock(self.timeline)
        key = Bearer(self.cloud.token)
        self.plain = GoogleBucket(
            self.bucket, project=self.cloud.project, endpoint=self.cloud.storage_url, credentials=key
        )
        google = GoogleCloud(project=self.cloud.project, endpoint=self.cloud.compute_url, credentials=key, clock=clock)

        def before(call: str, arguments: tuple[Any, ...], _: Any) -> None:
            try:
                self.moment(actor, f"before {call}")
            except Killed:
                if call == "insert" and actor is not None and actor.client.late_s:
                    request: InstanceRequest = arguments[0]
                    self.timeline.call_later(actor.client.late_s, lambda: self.arrives(request))
                raise

        def after(call: str, arguments: tuple[Any, ...], answer: Any) -> None:
            if call == "replace" and answer is not None and arguments[0] == LEDGER:
                self.judge.when_the_ledger_changes(Ledger.parse(arguments[1]))
            self.moment(actor, f"after {call}")

        bucket: Any = Watched(self.plain, before, after)
        cloud: Any = Watched(google, before, after)
        writer = actor.name if actor else "client-ffffff"
        return World(
            cloud=lambda: cloud,
            bucket=bucket,
            accounts=Accounts(LedgerStore(bucket, clock), self.judge.caps, self.heard, clock),
            index=RunIndex(bucket),
            clock=clock,
            log=lambda run_id: EventLog(bucket, run_id, writer, clock),
            policy=self.arena.rules.policy,
        )

    def arrives(self, request: InstanceRequest) -> None:
        """A request of a client that is dead by now reaches the cloud."""
        body = json.loads(json.dumps(instance_body(request, self.cloud.project)))
        self.cloud.fleet.insert(body, request.zone, request.request_id, "a dead client")

    def moment(self, actor: Actor | None, what: str) -> None:
        """Between two things: the promises are judged, somebody may die, somebody else may do something."""
        self.moments += 1
        self.judge.at_every_moment()
        if actor is None:
            return
        actor.moments += 1
        if actor.moments in (actor.client.dies_at, actor.doomed) or what == actor.client.dies_on:
            raise Killed
        meddling = self.meddlings.get(self.moments)
        if meddling is not None and self.depth == 0:
            other = self.actors[meddling.client]
            if other is not actor and not other.busy and not other.over:
                self.turn(other)

    # --- time -------------------------------------------------------------------------------------------------------

    def to_the_end(self) -> Seen:
        self.forecast()
        for _ in range(TURNS):
            waiting = [actor for actor in self.actors if not actor.over]
            if not waiting:
                break
            actor = min(waiting, key=lambda one: one.ready)
            ahead = (actor.ready - self.timeline.now()).total_seconds()
            if ahead > 0:
                self.let_pass(ahead)
            self.turn(actor)
        else:
            stuck = ", ".join(f"{actor.client.role} of {actor.run_id}" for actor in self.actors if not actor.over)
            raise Broken(UNENDED, f"after {TURNS} turns these still turn: {stuck}")
        return self.aftermath()

    def forecast(self) -> None:
        self.cloud.weather.replace({"faults": list(self.scenario.faults)})

    def let_pass(self, seconds: float) -> None:
        """In slices, so that what is wrong for a minute is seen."""
        while seconds > 0:
            self.timeline.advance(min(seconds, SLICE_S))
            self.judge.at_every_moment()
            seconds -= SLICE_S

    def enter(self, client: Client) -> Actor:
        """One more client, from now on."""
        name = f"client-{len(self.actors) + 1:06d}"
        actor = Actor(client, name, self.run_ids[client.run], self.timeline.now() + timedelta(seconds=client.starts_s))
        self.actors.append(actor)
        return actor

    def turn(self, actor: Actor) -> None:
        """One thing that a client does."""
        actor.busy = True
        self.depth += 1
        try:
            pause = self.act(actor)
            actor.ready = self.timeline.now() + timedelta(seconds=max(pause, 0))
        except Killed:
            actor.over = True
            self.kills += 1
        except Unavailable:
            actor.tried += 1
            actor.ready = self.timeline.now() + timedelta(seconds=20)
            actor.over = actor.engine is None or actor.tried > 30
        except BudgetExceeded:
            actor.over = True
            self.refused += 1
        except BenchError:
            actor.over = True
        finally:
            actor.busy = False
            self.depth -= 1

    def act(self, actor: Actor) -> float:
        world = self.world(actor) if actor.engine is None else actor.engine.world
        match actor.client.role:
            case "launch" if actor.engine is None:
                where = LaunchContext(Mode.GCE, self.bucket, "ada", None, require_cuda=False)
                made = self.planned(world.cloud().image(*IMAGE))
                actor.engine = begin(world, made, PACKED, run_id=actor.run_id, where=where)
                return 0
            case "relaunch" if actor.engine is None:
                actor.engine = self.resumed(world, actor.run_id)
                return 0
            case "stop" if actor.engine is None:
                engine = Engine(world, actor.run_id)
                if engine.look().closed is None:
                    engine.request_stop("bob", "enough")
                actor.engine = engine
                return 0
            case "reap":
                actor.over = True
                findings = survey(world)
                for finding in findings:
                    self.judge.of_a_reaper(finding.orphan, finding.instance, self.live(finding.run_id), self.deeds)
                reap(world, findings)
                return 0
            case _ if actor.engine is None:
                actor.engine = Engine(world, actor.run_id)
        run, pause = actor.engine.step()
        actor.over = done(run)
        return pause

    def live(self, run_id: str) -> Run | None:
        """The run, unless it is over or was stopped."""
        log = EventLog(self.plain, run_id, "client-eeeeee", TimelineClock(self.timeline))
        run = replay(log.read())
        return run if run is not None and run.closed is None and run.stop is None else None

    def resumed(self, world: World, run_id: str) -> Engine:
        """What `bench launch --resume` does."""
        where = LaunchContext(Mode.GCE, self.bucket, "ada", None, require_cuda=False)
        plan = stored_plan(world.bucket, run_id)
        engine = resume(world, plan, run_id=run_id, where=where, fresh=lambda: PACKED)
        self.resumes += 1
        return engine

    # --- afterwards -------------------------------------------------------------------------------------------------

    def aftermath(self) -> Seen:
        """Nobody is there: every deadline passes. Then somebody looks once more, in fair weather."""
        self.let_pass(LATEST_REQUEST_S)
        self.pass_every_deadline()
        self.judge.at_every_moment()
        leaked = self.judge.alive()
        faults = [fault for fault in self.cloud.weather.document()["faults"] if fault["id"] not in self.before]
        self.cloud.weather.replace({"faults": []})
        world = self.world(None)
        reconcile(world)
        self.timeline.advance(LATEST_SETTLEMENT_S)
        reconcile(world)
        runs = [run for run_id in self.run_ids if (run := self.last_look(world, run_id)) is not None]
        fetched = {run.run_id: self.fetched(world, run) for run in runs}
        self.judge.at_every_moment()
        assert not leaked, leaked
        self.judge.at_the_end(runs, self.deeds, fetched)
        fired: dict[str, int] = {}
        for fault in faults:
            fired[fault["fault"]] = fired.get(fault["fault"], 0) + fault["fired"]
        return Seen(
            moments=self.moments,
            outcomes=tuple(run.phase.value for run in runs),
            refused=self.refused,
            kills=self.kills,
            fired=fired,
            preemptions=sum(1 for row in self.judge.bill() if row.ended_by == "preemption"),
            resumes=self.resumes,
            machines=len(self.judge.bill()),
            checks=self.judge.checks,
            cases=len(self.deeds.stored),
        )

    def pass_every_deadline(self) -> None:
        for _ in range(200):
            if not self.judge.alive():
                return
            self.let_pass(60)

    def last_look(self, world: World, run_id: str) -> Run | None:
        engine = Engine(world, run_id)
        if not engine.log.read():
            return None
        for _ in range(TURNS):
            run, pause = engine.step()
            if done(run):
                return run
            self.timeline.advance(max(pause, 1))
        raise Broken(UNENDED, f"{run_id} is {run.phase.value} for good")

    def fetched(self, world: World, run: Run) -> set[str]:
        folder = self.arena.home / "fetched" / self.bucket
        fetch_run(world.bucket, run, folder)
        return {path.stem for path in (folder / run.run_id / "cases").glob("*.csv")}
