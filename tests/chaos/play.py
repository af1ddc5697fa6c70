"""Plays a scenario on the embedded cloud, on simulated time, with the real clients, and judges it at every moment.

Everything happens in one thread, in an order that the scenario alone decides: a client runs until it must wait; each
call that it makes has a moment before and a moment after it, at which it may be killed or another client may do
something. So every place between any two requests is a place to die in, and the same scenario ends the same way.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from orchestrator.adapters.eventlog import EventLog
from orchestrator.adapters.fetch import fetch_run
from orchestrator.adapters.gce import GoogleCloud
from orchestrator.adapters.gcs import GoogleBucket
from orchestrator.adapters.index import RunIndex
from orchestrator.adapters.ledger import LedgerStore
from orchestrator.core.budget import Caps, Ledger
from orchestrator.core.decide import Policy
from orchestrator.core.errors import BenchError, BudgetExceeded, Unavailable
from orchestrator.core.events import StopRequested
from orchestrator.core.naming import LEDGER
from orchestrator.core.plan import LaunchPlan
from orchestrator.core.run import Run
from orchestrator.embedded.scripted import ScriptedVm, Steps, scripted
from orchestrator.embedded.server import EmbeddedCloud
from orchestrator.embedded.timeline import SimulatedTimeline
from orchestrator.engine import Engine, World
from orchestrator.launch import Where, begin
from orchestrator.reaping import reap, survey
from tests.chaos.guests import Deeds, guest
from tests.chaos.promises import UNENDED, Broken, Judge
from tests.chaos.scenario import ZONES, Client, Meddling, Scenario
from tests.stories.stage import GRIDS, PAYLOAD, SHEET, Heard, Killed, TimelineClock
from orchestrator.core import config as configs
from orchestrator.core.plan import plan

TURNS = 6000
"""More than any scenario needs: past this a client turns in circles."""
POLICY = Policy(poll_s=10)
IMAGE = ("deeplearning-platform-release", "common-cu129-ubuntu-2404-nvidia-580")


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


class Arena:
    """A cloud that many scenarios share, each with a bucket of its own: a store takes longer to start than to use."""

    def __init__(self, home: Path) -> None:
        self.home = home
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
def arena(home: Path) -> Iterator[Arena]:
    made = Arena(home)
    try:
        yield made
    finally:
        made.close()


class Watched:
    """A port whose every call is announced before and after."""

    def __init__(self, port: Any, announce: Callable[[str], None], stored: Callable[[str, bytes], None]) -> None:
        self._port = port
        self._announce = announce
        self._stored = stored

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self._announce(f"before {name}")
            answer = found(*args, **kwargs)
            if name == "replace" and answer is not None:
                self._stored(args[0], args[1])
            self._announce(f"after {name}")
            return answer

        return call


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

    def __post_init__(self) -> None:
        self.ready = self.begins


class Play:
    def __init__(self, arena: Arena, scenario: Scenario, bucket: str) -> None:
        self.arena, self.scenario, self.bucket = arena, scenario, bucket
        self.cloud, self.timeline = arena.cloud, arena.timeline
        self.cloud.storage.create_bucket(bucket, self.cloud.project)
        self.deeds = Deeds()
        self.heard = Heard()
        arena.script = guest(scenario.temper, scenario.cases, scenario.seconds_each, self.deeds)
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
        self.actors = [
            Actor(client, f"client-{index:06d}", self.run_ids[client.run], start + timedelta(seconds=client.starts_s))
            for index, client in enumerate(scenario.clients, 1)
        ]

    # --- the world of a client --------------------------------------------------------------------------------------

    def planned(self, image: str) -> LaunchPlan:
        overrides = (
            f"zones=[{','.join(ZONES)}]", "measure.repeats=2", f"run.attempts={self.scenario.attempts}",
            f"run.max_minutes={self.scenario.max_minutes}",
        )  # fmt: skip
        config = configs.load("gpu: l4", source="chaos.yaml", overrides=overrides, grids=GRIDS)
        made = plan(
            config, config_name="chaos", mode="gce", prices=SHEET, quotas=None, ledger=Ledger(), caps=Caps(),
            image=image, now=self.timeline.now(),
        )  # fmt: skip
        assert isinstance(made, LaunchPlan), made
        return made

    def world(self, actor: Actor | None) -> World:
        clock = TimelineClock(self.timeline)
        plain = GoogleBucket(self.bucket, project=self.cloud.project, endpoint=self.cloud.storage_url)
        google = GoogleCloud(project=self.cloud.project, endpoint=self.cloud.compute_url, clock=clock)

        def announce(what: str) -> None:
            self.moment(actor)

        bucket: Any = Watched(plain, announce, self.stored)
        cloud: Any = Watched(google, announce, self.stored)
        writer = actor.name if actor else "client-ffffff"
        return World(
            cloud=lambda: cloud,
            bucket=bucket,
            ledger=LedgerStore(bucket, clock),
            index=RunIndex(bucket),
            clock=clock,
            notifier=self.heard,
            caps=self.judge.caps,
            log=lambda run_id: EventLog(bucket, run_id, writer, clock),
            policy=POLICY,
        )

    def stored(self, name: str, data: bytes) -> None:
        if name == LEDGER:
            self.judge.when_the_ledger_changes(Ledger.parse(data))

    def moment(self, actor: Actor | None) -> None:
        """Between two things: the promises are judged, somebody may die, somebody else may do something."""
        self.moments += 1
        self.judge.at_every_moment()
        if actor is None:
            return
        actor.moments += 1
        if actor.moments == actor.client.dies_at:
            raise Killed
        meddling = self.meddlings.get(self.moments)
        if meddling is not None and self.depth == 0:
            other = self.actors[meddling.client]
            if other is not actor and not other.busy and not other.over:
                self.turn(other)

    # --- time -------------------------------------------------------------------------------------------------------

    def to_the_end(self) -> Seen:
        self.cloud.weather.replace({"faults": list(self.scenario.faults)})
        for _ in range(TURNS):
            waiting = [actor for actor in self.actors if not actor.over]
            if not waiting:
                break
            actor = min(waiting, key=lambda one: one.ready)
            ahead = (actor.ready - self.timeline.now()).total_seconds()
            if ahead > 0:
                self.timeline.advance(ahead)
                self.judge.at_every_moment()
            self.turn(actor)
        else:
            stuck = ", ".join(f"{actor.client.role} of {actor.run_id}" for actor in self.actors if not actor.over)
            raise Broken(UNENDED, f"after {TURNS} turns these still turn: {stuck}")
        return self.aftermath()

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
                where = Where("gce", self.bucket, "ada", None, require_cuda=False)
                made = self.planned(world.cloud().image(*IMAGE))
                actor.engine = begin(world, made, PAYLOAD, run_id=actor.run_id, where=where)
                return 0
            case "relaunch" if actor.engine is None:
                actor.engine = self.resumed(world, actor.run_id)
                return 0
            case "stop" if actor.engine is None:
                engine = Engine(world, actor.run_id)
                if engine.look().closed is None:
                    engine.log.append(StopRequested(by="bob", reason="enough"))
                actor.engine = engine
                return 0
            case "reap":
                actor.over = True
                reap(world, survey(world))
                return 0
            case _ if actor.engine is None:
                actor.engine = Engine(world, actor.run_id)
        run, pause = actor.engine.step()
        actor.over = run.closed is not None
        return pause

    def resumed(self, world: World, run_id: str) -> Engine:
        """What `bench launch --resume` makes; without it, a client that only looks after the run."""
        self.resumes += 1
        return Engine(world, run_id)

    # --- afterwards -------------------------------------------------------------------------------------------------

    def aftermath(self) -> Seen:
        """Nobody is there: every deadline passes. Then somebody looks once more, in fair weather."""
        self.pass_every_deadline()
        self.judge.at_every_moment()
        leaked = self.judge.alive()
        faults = [fault for fault in self.cloud.weather.document()["faults"] if fault["id"] not in self.before]
        self.cloud.weather.replace({"faults": []})
        world = self.world(None)
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
        """In steps, so that a machine that outlives its own is seen."""
        for _ in range(200):
            if not self.judge.alive():
                return
            self.timeline.advance(60)
            self.judge.at_every_moment()

    def last_look(self, world: World, run_id: str) -> Run | None:
        engine = Engine(world, run_id)
        if not engine.log.read():
            return None
        for _ in range(TURNS):
            run, pause = engine.step()
            if run.closed is not None:
                return run
            self.timeline.advance(max(pause, 1))
        raise Broken(UNENDED, f"{run_id} is {run.phase.value} for good")

    def fetched(self, world: World, run: Run) -> set[str]:
        folder = self.arena.home / "fetched" / self.bucket
        fetch_run(world.bucket, run, folder)
        return {path.stem for path in (folder / run.run_id / "cases").glob("*.csv")}
