"""Plays a scenario on the embedded cloud, on simulated time, with the real clients, and judges it at every moment.

Everything happens in one thread, in an order that the scenario alone decides: a client runs until it must wait; each
call that it makes has a moment before and a moment after it, at which it may be killed or another client may do
something. So every place between any two requests is a place to die in, and the same scenario ends the same way.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from orchestrator.adapters.google.instance_body import instance_body
from orchestrator.core.config import load as configs
from orchestrator.core.config.model import Config
from orchestrator.core.errors import BenchError, BudgetExceeded, HostUnfit, Unavailable
from orchestrator.core.ledger.budget import Caps, Ledger, SharedCaps, set_caps, settle
from orchestrator.core.market.machines import InstanceRequest
from orchestrator.core.naming import Mode
from orchestrator.core.plan.plan import Circumstances, LaunchPlan, plan_launch
from orchestrator.core.run.fold import Run, replay
from orchestrator.embedded.operations import Sender
from orchestrator.embedded.server import EmbeddedCloud
from orchestrator.runs.engine import Engine, World
from orchestrator.runs.launch import LaunchContext, RunOrder, begin_launch
from orchestrator.runs.planning import RentedFrom
from orchestrator.runs.reap import MachineFinding, reap_orphans, survey_machines
from orchestrator.runs.resume import replan_run, resume_run, stored_plan
from orchestrator.runs.takeover import settle_owner
from tests.integration.stories.stage import GRIDS, Heard, Killed
from tests.search.chaos.aftermath import TURNS, Seen, aftermath, done
from tests.search.chaos.clients import (
    PACKED,
    POLICY,
    STARTED,
    Actor,
    Rules,
    command,
    lost_its_kept_machine,
    watch,
    world_of,
)
from tests.search.chaos.damage import Lost, hurt
from tests.search.chaos.deeds import Deeds
from tests.search.chaos.hosted import Hosted
from tests.search.chaos.judge import CRASHED, OBEYED, UNENDED, WINDOWS, Broken, Judge, Launching
from tests.search.chaos.junk import Place, written
from tests.search.chaos.scenario import ZONES, Client, Junk, Meddling, Scenario
from tests.support.direct import asked_directly
from tests.support.scripted_machines import ScriptedVm, Steps, scripted
from tests.support.simulated_timeline import SimulatedTimeline

SLICE_S = 15.0
NEVER = datetime(2000, 1, 1, tzinfo=UTC)
WAITS_S = 30.0
PATIENT_TURNS = 40
"""So often, and so long each time, a reaper waits for a machine that is at work."""
IMAGE = ("deeplearning-platform-release", "common-cu129-ubuntu-2404-nvidia-580")
AMPLE = "1000000"


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
        with asked_directly(made.cloud):
            yield made
    finally:
        made.close()


class Play:
    def __init__(self, arena: Arena, scenario: Scenario, bucket: str) -> None:
        self.arena, self.scenario, self.bucket = arena, scenario, bucket
        self.cloud, self.timeline = arena.cloud, arena.timeline
        self.cloud.storage.store.make_bucket(bucket)
        self.fair = False
        """Whether no weather is left."""
        self.deeds = Deeds()
        self.heard = Heard()
        arena.script = arena.rules.make_guest(scenario.temper, scenario.cases, scenario.seconds_each, self.deeds)
        if scenario.midnight_s:
            self.timeline.advance(to_the_end_of_the_month(self.timeline, scenario.midnight_s))
        start = self.timeline.now()
        runs = scenario.runs + len(scenario.hosted)
        self.run_ids = [f"{start:%Y%m%d-%H%M%S}-l4-{arena.played % 256:02x}{run:02x}" for run in range(runs)]
        self.hosted = Hosted(self)
        self.moments = 0
        self.depth = 0
        self.kills = 0
        self.refused = 0
        self.resumes = 0
        self.damages = list(scenario.damage)
        self.lost: Lost | None = None
        self.damaged = 0
        self.put = 0
        self.meddlings = list(scenario.meddlings)
        self.junk: dict[int, Junk] = {one.moment: one for one in scenario.junk}
        self.before = {fault["id"] for fault in self.cloud.weather.document()["faults"]}
        rates = {run: Decimal(box.host.usd_per_hour) for run, box in self.hosted.by_run.items()}
        told = (PACKED.startup_script, PACKED.sha256)
        self.ceiling = self.planned("any").ceiling_usd
        self.past = self.ceiling * int(scenario.past * 10) / 10
        self.judge = Judge(
            self.cloud, bucket, self.run_ids, told, rates, self.deeds.forged, past=self.past, attempts=scenario.attempts
        )
        if self.past:
            then = start - timedelta(days=70)
            self.world(None).accounts.change(
                lambda books: settle(books, f"{then:%Y%m%d-%H%M%S}-l4-0ld0", self.past, then)
            )
        self.surveyed = False
        self.shared = self.caps_for(scenario.fits) if scenario.shared else Caps()
        if scenario.shared:
            self.share(self.shared)
        self.actors: list[Actor] = []
        for client in scenario.clients:
            self.enter(client)

    # --- money ------------------------------------------------------------------------------------------------------

    def caps_for(self, fits: float) -> Caps:
        """Caps under which so many ceilings fit, in the windows of the scenario."""
        cap = self.ceiling * int(fits * 10) / 10
        caps = dict.fromkeys(self.scenario.windows, cap)
        return Caps(**caps | ({"total": cap + self.past} if "total" in caps else {})) if fits else Caps()

    def own_caps(self, client: Client) -> Caps:
        return self.caps_for(client.fits or (0.0 if self.scenario.shared else self.scenario.fits))

    def share(self, caps: Caps) -> None:
        """What `bench budget set` does."""
        shared = SharedCaps(
            run=caps.run, day=caps.day, month=caps.month, total=caps.total, by="ada", at=self.timeline.now()
        )
        self.world(None).accounts.change(lambda ledger: set_caps(ledger, shared))

    def launching(self, actor: Actor) -> Launching:
        """What the judge is told of a launch: whose, when, and under what caps, told by nobody's ledger."""
        both = [(window, self.shared.of(window), actor.caps.of(window)) for window in WINDOWS]
        lowest = {window: min(cap for cap in caps if cap is not None) for window, *caps in both if any(caps)}
        return Launching(actor.run_id, self.timeline.now(), lowest)

    # --- the world of a client --------------------------------------------------------------------------------------

    def config(self, *more: str) -> Config:
        overrides = (
            f"zones=[{','.join(ZONES)}]", "measure.repeats=2", f"run.attempts={self.scenario.attempts}",
            f"run.max_minutes={self.scenario.max_minutes}", f"run.keep={str(self.scenario.keep).lower()}",
            "run.idle_minutes=3", *more,
        )  # fmt: skip
        asked = "gpu: a100\nmachine: {provisioning: flex-start}" if self.scenario.flexible else "gpu: l4"
        return configs.load(asked, source="chaos.yaml", overrides=overrides, grids=GRIDS)

    def planned(self, image: str) -> LaunchPlan:
        around = Circumstances(
            mode=Mode.GCE, prices=self.arena.rules.sheet, quotas=None, ledger=Ledger(), caps=Caps(), image=image,
            now=self.timeline.now(),
        )  # fmt: skip
        made = plan_launch(self.config(), "chaos", around)
        assert isinstance(made, LaunchPlan), made
        return made

    def world(self, actor: Actor | None) -> World:
        def before(call: str, arguments: tuple[Any, ...], _: Any) -> None:
            if call == "insert" and actor is not None and not self.on_host(actor):
                asked: InstanceRequest = arguments[0]
                kind = asked.machine_type, asked.provisioning
                self.judge.of_a_request(asked.name, asked.zone, kind, asked.request_id)
                self.judge.asked[asked.name] = asked.max_run_s
            try:
                self.moment(actor, f"before {call}", arguments)
            except Killed:
                if call == "insert" and actor is not None and actor.client.late_s and not self.on_host(actor):
                    request: InstanceRequest = arguments[0]
                    if actor.client.late_s >= POLICY.insert_limit_s:
                        self.judge.excused.add(actor.run_id)
                    self.timeline.call_later(actor.client.late_s, lambda: self.arrives(request))
                raise

        def after(call: str, arguments: tuple[Any, ...], _: Any) -> None:
            self.moment(actor, f"after {call}", arguments)

        boxes = self.hosted.boxes
        return world_of(
            self.cloud,
            self.timeline,
            self.bucket,
            self.arena.rules,
            self.heard,
            actor,
            before,
            after,
            boxes,
            is_fair=self.is_fair,
        )

    def is_fair(self) -> bool:
        """Whether no fault is left that could strike between clients and the bucket."""
        return self.fair or not any(fault.params.get("service") == "storage" for fault in self.cloud.weather.ahead)

    def on_host(self, actor: Actor) -> bool:
        return actor.run_id in self.hosted.by_run

    def own_config(self, actor: Actor) -> Config:
        """What an actor's launch or resumption goes by: its caps, and where its run is."""
        names = {"run": "per_run_usd", "day": "per_day_usd", "month": "per_month_usd", "total": "total_usd"}
        caps = [f"budget.{name}={actor.caps.of(window) or AMPLE}" for window, name in names.items()]  # type: ignore[arg-type]
        return self.config(*caps, *(self.hosted.settings(actor.run_id) if self.on_host(actor) else ()))

    def arrives(self, request: InstanceRequest) -> None:
        """A request of a client that is dead by now reaches the cloud."""
        body = json.loads(json.dumps(instance_body(request, self.cloud.project)))
        self.cloud.fleet.insert(body, request.zone, Sender("a dead client", request.request_id))

    def moment(self, actor: Actor | None, what: str, arguments: tuple[Any, ...] = ()) -> None:
        """Between two things: the promises are judged, somebody may die, somebody else may do something."""
        self.moments += 1
        self.judged()
        if actor is None:
            return
        actor.moments += 1
        if actor.moments in (actor.client.dies_at, actor.doomed) or what == actor.client.dies_on:
            raise Killed
        junk = self.junk.pop(self.moments, None)
        if junk is not None:
            self.litter(junk)
        self.hosted.weather(self.moments)
        for damage in [one for one in self.damages if one.moment <= self.moments]:
            self.damages.remove(damage)
            hurt(self, damage)
        meddling = self.meddling(f"{what} {arguments[0]}" if arguments else what) if self.depth == 1 else None
        other = self.actors[meddling.client] if meddling is not None else actor
        for _ in range(meddling.turns if meddling is not None else 0):
            if other is not actor and not other.busy and not other.over:
                self.turn(other)

    def meddling(self, what: str) -> Meddling | None:
        """Who does something now, in the middle of somebody's call; each once."""
        for one in self.meddlings:
            if one.moment == self.moments or (one.on and fnmatchcase(what, one.on)):
                self.meddlings.remove(one)
                return one
        return None

    def judged(self) -> None:
        self.judge.at_every_moment()
        if STARTED:
            raise Broken(OBEYED, ", ".join(STARTED))

    def litter(self, junk: Junk) -> None:
        """Somebody writes to the bucket."""
        bucket = self.quiet.bucket
        try:
            blob_of = lambda name: blob.data if (blob := bucket.read(name)) is not None else None  # noqa: E731
            begun = {one.run_id for one in self.judge.launchings}  # of later ones nobody knows the id, which is drawn
            runs = [run for run in self.run_ids if run in begun] or [f"{self.run_ids[0][:-4]}ffff"]
            made = written(junk.seed, Place(runs, self.timeline.now(), blob_of))
            if made is not None:
                bucket.replace(made.name, made.data, generation=None, metadata=made.metadata or None)
                self.put += 1
        except BenchError:
            return  # the weather was against it

    # --- time -------------------------------------------------------------------------------------------------------

    def to_the_end(self) -> Seen:
        self.forecast()
        for _ in range(TURNS):
            waiting = [actor for actor in self.actors if not actor.over]
            if not waiting:
                break
            if not self.surveyed and self.is_measuring():
                self.surveyed = True
                with suppress(BenchError):  # the weather may be against it
                    self.survey(self.quiet)
            actor = min(waiting, key=lambda one: one.ready)
            ahead = (actor.ready - self.timeline.now()).total_seconds()
            if ahead > 0:
                self.let_pass(ahead)
            self.turn(actor)
        else:
            stuck = ", ".join(f"{actor.client.role} of {actor.run_id}" for actor in self.actors if not actor.over)
            raise Broken(UNENDED, f"after {TURNS} turns these still turn: {stuck}")
        return aftermath(self)

    def forecast(self) -> None:
        self.cloud.weather.replace({"faults": list(self.scenario.faults)})

    def let_pass(self, seconds: float) -> None:
        """In slices, so that what is wrong for a minute is seen."""
        while seconds > 0:
            self.timeline.advance(min(seconds, SLICE_S))
            self.judged()
            seconds -= SLICE_S

    def enter(self, client: Client) -> Actor:
        """One more client, from now on."""
        name = f"client-{len(self.actors) + 1:06d}"
        begins = self.timeline.now() + timedelta(seconds=client.starts_s)
        actor = Actor(client, name, self.run_ids[client.run], begins, self.own_caps(client))
        self.actors.append(actor)
        return actor

    def turn(self, actor: Actor) -> None:
        """One thing that a client does."""
        actor.busy = True
        self.depth += 1
        watch.on = True
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
            watch.on = self.depth > 0

    def act(self, actor: Actor) -> float:
        world = self.world(actor) if actor.engine is None else actor.engine.world
        if actor.engine is not None:
            return self.go_on(actor, actor.engine)
        match actor.client.role:
            case "launch":
                self.judge.launchings.append(self.launching(actor))
                own = self.on_host(actor)
                made = (
                    self.hosted.planned(world, self.own_config(actor))
                    if own
                    else self.planned(world.cloud().image(*IMAGE))
                )
                actor.plan = None if own else made
                order = RunOrder(actor.run_id, made, PACKED, self.where(made.mode))
                actor.engine = begin_launch(world, order, cold=own)
            case "relaunch":
                self.judge.launchings.append(self.launching(actor))
                actor.engine = self.resumed(world, actor)
            case "stop":
                engine = Engine(world, actor.run_id)
                if engine.look().closed is None:
                    engine.request_stop("bob", "enough")
                actor.engine = engine
            case "reap":
                if actor.tried < PATIENT_TURNS and not self.is_measuring():
                    actor.tried += 1
                    return WAITS_S  # to look when no machine is at work tells nothing of those that are
                actor.over = True
                reap_orphans(world, self.survey(world))
            case "status":
                actor.over = True
                if isinstance(error := command(self.arena.home, world, "status"), HostUnfit):
                    raise Broken(CRASHED, f"a host keeps bench status from all else: {error}")
            case _:
                actor.engine = Engine(world, actor.run_id)
                return self.go_on(actor, actor.engine)
        return 0

    def go_on(self, actor: Actor, engine: Engine) -> float:
        """One turn of a run, and what a launch does when its run is over that was on a kept machine."""
        run, pause = engine.step()
        actor.over = done(run) or (actor.client.role in ("launch", "relaunch") and run.kept is not None)
        if not done(run) or run.taken is None or actor.client.role != "launch" or actor.plan is None:
            return pause
        plan_, actor.plan = actor.plan, None
        lost = lost_its_kept_machine(run)
        settle_owner(engine.world, run.taken.owner, wait=not self.scenario.keep or lost)
        if lost:
            where = self.where()
            self.judge.launchings.append(self.launching(actor))
            actor.engine = resume_run(engine.world, plan_, run_id=run.run_id, where=where, fresh=lambda: PACKED)
            actor.over = False
        return 0

    def is_measuring(self) -> bool:
        """Whether a machine has just taken up a case."""
        now = self.timeline.now()
        return any(now - self.deeds.at_work.get(name, NEVER) < timedelta(minutes=2) for name in self.judge.alive())

    def survey(self, world: World) -> list[MachineFinding]:
        """What a reaper finds, beside a machine of another bucket in the same project."""
        before, listed = self.judge.alive(), world.cloud().instances()
        rented = [instance for instance in listed if instance.name in before]
        labels = {"bench-run": "20260101-000000-l4-0000", "bench-bucket": "another-bucket"}
        others = [replace(one, name="bench-neighbour-1", labels={**one.labels, **labels}) for one in rented[:1]]
        findings = survey_machines(world, (*listed, *others))
        names = {instance.name for instance in others}
        orphan = any(finding.orphan for finding in findings if finding.instance.name in names)
        self.judge.of_a_survey(before, (one.name for one in listed), "bench-neighbour-1", orphan=orphan)
        own = [finding for finding in findings if finding.instance.name not in names]
        for finding in own:
            self.of_a_reaper(finding.instance.name, finding.run_id, orphan=finding.orphan)
        return own

    def of_a_reaper(self, machine: str, run_id: str, *, orphan: bool) -> None:
        live = self.live(run_id)
        owned = live is not None and live.vm is not None and live.vm.name == machine and not live.current.finished
        self.judge.of_a_reaper(machine, orphan=orphan, owned=owned, deeds=self.deeds)

    def where(self, mode: Mode = Mode.GCE) -> LaunchContext:
        return LaunchContext(mode, self.bucket, "ada", None, require_cuda=False)

    @cached_property
    def quiet(self) -> World:
        """A world in which nobody is watched."""
        nothing: Any = lambda *_: None  # noqa: E731
        return world_of(
            self.cloud, self.timeline, self.bucket, Rules(), self.heard, None, nothing, nothing, is_fair=lambda: True
        )

    def live(self, run_id: str) -> Run | None:
        """The run, unless it is over or was stopped."""
        run = replay(self.quiet.log(run_id).read())
        return run if run is not None and run.closed is None and run.stop is None else None

    def resumed(self, world: World, actor: Actor) -> Engine:
        """What `bench launch --resume` does."""
        stored = stored_plan(world.bucket, actor.run_id)
        site = RentedFrom(Mode.GCE, self.arena.rules.sheet)
        made = replan_run(lambda _: world, self.own_config(actor), stored, actor.run_id, site, say=lambda _: None)
        engine = resume_run(world, made, run_id=actor.run_id, where=self.where(made.mode), fresh=lambda: PACKED)
        self.resumes += 1
        return engine


def to_the_end_of_the_month(timeline: SimulatedTimeline, but: float) -> float:
    """Seconds until `but` seconds before the next month begins, UTC."""
    now = timeline.now()
    first = (now.replace(day=1, hour=0, minute=0, second=0, microsecond=0) + timedelta(days=32)).replace(day=1)
    return max((first - now).total_seconds() - but, 0.0)
