"""What comes when nobody is there any more: every deadline passes, somebody looks once more, and all is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.adapters.fetch import fetch_run
from orchestrator.api.outcome import error_of
from orchestrator.core.errors import ConfigError, DocumentUnreadable, NotComparable, NotFound
from orchestrator.core.run.fold import Phase, Run
from orchestrator.runs.engine import Engine, World
from orchestrator.runs.reconcile import reconcile_holds
from tests.search.chaos.clients import command, watch
from tests.search.chaos.damage import mend
from tests.search.chaos.judge import CRASHED, LEFT, UNENDED, Broken, Ended
from tests.search.chaos.scenario import SWAP

if TYPE_CHECKING:
    from tests.search.chaos.play import Play

TURNS = 6000
"""More than any scenario needs: past this a client turns in circles."""
LATEST_REQUEST_S = 410.0
LATEST_SETTLEMENT_S = 7200.0
"""A hold whose client died in between is kept until no machine can be running under it: longer than any deadline."""


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
    junk: int
    taken_over: int
    clocks: int
    swaps: int
    damaged: int
    hosted: int
    """Runs that ran on hosts."""
    hosts: Mapping[str, int]
    """How often each kind of weather struck a host."""


def done(run: Run) -> bool:
    """Whether nothing is left to do for a run."""
    return (run.over and run.settled is not None) or run.phase is Phase.REFUSED


def aftermath(play: Play) -> Seen:
    """Nobody is there: every deadline passes. Then somebody looks once more, in fair weather."""
    play.let_pass(LATEST_REQUEST_S)
    pass_every_deadline(play)
    play.judged()
    leaked = play.judge.alive()
    faults = [fault for fault in play.cloud.weather.document()["faults"] if fault["id"] not in play.before]
    play.cloud.weather.replace({"faults": []})
    play.fair = True
    play.hosted.clears_up()
    mend(play)
    world = play.world(None)
    watch.on = True
    try:
        reconcile_holds(world)
        play.timeline.advance(LATEST_SETTLEMENT_S)
        reconcile_holds(world)
        runs = [run for run_id in play.run_ids if (run := last_look(play, world, run_id)) is not None]
        if play.put or play.scenario.hosts:
            all_commands(play, world, runs)
        files = {run.run_id: fetched(play, world, run) for run in runs}
    finally:
        watch.on = False
    play.judged()
    assert not leaked, leaked
    left = [f"{name} on {box.name}" for box in play.hosted.boxes.values() for name in box.visits]
    if left:
        raise Broken(LEFT, ", ".join(left))
    ended = [Ended(run.run_id, run.phase.value, run.over, bool(run.diagnoses)) for run in runs]
    play.judge.at_the_end(ended, play.deeds, files, exact=not play.put)
    fired: dict[str, int] = {}
    for fault in faults:
        fired[fault["fault"]] = fired.get(fault["fault"], 0) + fault["fired"]
    return Seen(
        moments=play.moments,
        outcomes=tuple(run.phase.value for run in runs),
        refused=play.refused,
        kills=play.kills,
        fired=fired,
        preemptions=sum(1 for row in play.judge.bill() if row.ended_by == "preemption"),
        resumes=play.resumes,
        machines=len(play.judge.bill()),
        checks=play.judge.checks,
        cases=len(play.deeds.stored),
        junk=play.put,
        taken_over=len(play.deeds.lent),
        damaged=play.damaged,
        hosted=len(play.deeds.stays),
        hosts=play.deeds.hosts,
        clocks=sum(1 for client in play.scenario.clients if client.off_s),
        swaps=sum(fault["fired"] for fault in faults if fault.get("path", "").startswith(SWAP)),
    )


def all_commands(play: Play, world: World, runs: list[Run]) -> None:
    """Every command that protects money or measurements, in fair weather, with all the junk there: none may crash,
    or give up for more than an object that it names. A fetch of a run without a case ends as that run did."""
    ends = {run.run_id: str(error_of(run)) for run in runs}
    of_a_run = ("status", "stop", "ssh", "logs", "diagnose", "fetch", "report", "compare")
    of_all = ("status", "reap", "costs", "history", "site")
    given = [*((name, "") for name in of_all), *((name, run) for run in ends for name in of_a_run)]
    for name, run_id in given:
        try:
            error = command(play.arena.home, world, name, run_id)
        except Exception as crash:
            raise Broken(CRASHED, f"bench {name} {run_id}: {type(crash).__name__}: {crash}") from crash
        told = isinstance(error, (DocumentUnreadable, NotFound)) or (name == "fetch" and str(error) == ends[run_id])
        told = told or (name == "ssh" and isinstance(error, ConfigError))  # there is no machine to reach
        told = told or (name == "compare" and isinstance(error, NotComparable))  # nothing was measured
        if error is not None and not told:
            raise Broken(CRASHED, f"bench {name} {run_id}: {type(error).__name__}: {error}")


def pass_every_deadline(play: Play) -> None:
    for _ in range(200):
        if not play.judge.alive() and not play.hosted.busy():
            return
        play.let_pass(60)


def last_look(play: Play, world: World, run_id: str) -> Run | None:
    engine = Engine(world, run_id)
    if not engine.log.read():
        return None
    for _ in range(TURNS):
        run, pause = engine.step()
        if done(run):
            return run
        play.timeline.advance(max(pause, 1))
    raise Broken(UNENDED, f"{run_id} is {run.phase.value} for good")


def fetched(play: Play, world: World, run: Run) -> dict[str, bytes]:
    folder = play.arena.home / "fetched" / play.bucket
    play.hosted.bring_home(world, run.run_id)
    fetch_run(world.bucket, run, folder)
    return {path.stem: path.read_bytes() for path in (folder / run.run_id / "cases").glob("*.csv")}
