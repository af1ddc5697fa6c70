"""What `launch` and `launch --resume` do about a grid that several hosts share: begin it, hand it out, tell of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import typer

from orchestrator.cli.options import emit_json
from orchestrator.cli.watch import Watch
from orchestrator.core.errors import BenchError, ConfigError, KernelIncorrect, RunFailed
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.core.run.leases import SharedGrid, superseded
from orchestrator.hosts.shared_grid import GridDispatcher, Member, begin_grid
from orchestrator.runs.engine import Engine
from orchestrator.runs.launch import LaunchContext, Payload
from orchestrator.runs.planning import LaunchOptions
from orchestrator.runs.resume import resume
from orchestrator.store.grids import read_grid
from orchestrator.wiring import Wiring, new_run_id, payload_of


def launch_grid(
    wiring: Wiring, plan: LaunchPlan, payload: Payload, where: LaunchContext, watch: Watch, *, detach: bool
) -> GridDispatcher:
    """Launches one grid on several hosts and hands it out to its end. Raises what `begin_grid` and `follow` raise."""
    if detach:
        raise ConfigError(
            "a grid that several hosts share needs somebody to hand out its cases: no --detach",
            hint="Ctrl-C, or a lost terminal, loses nothing: `bench launch --resume RUN` hands out the rest",
        )
    world = wiring.world(plan.config)
    run_ids: list[str] = []
    while len(run_ids) < len(plan.offers):
        run_id = new_run_id(wiring.clock.now(), plan.label)
        run_ids += [run_id] if run_id not in run_ids else []
    members = begin_grid(world, plan, payload, run_ids=run_ids, where=where, say=watch.say)
    return hand_out(GridDispatcher(world, wiring.hosts, run_ids[0], members, watch.say), watch)


def lead_of(wiring: Wiring, run_id: str) -> str:
    """The first run of the grid that a run shares; empty for one that shares none."""
    plan = Engine(wiring.world(), run_id).look().plan
    return plan.grid if plan is not None else ""


def resume_grid(
    wiring: Wiring,
    lead: str,
    limits: LaunchOptions,
    where: Callable[[LaunchPlan], LaunchContext],
    watch: Watch,
    accept: str = "",
) -> GridDispatcher:
    """Goes on handing out a grid: runs that are over and not finished are resumed, under holds of their own."""
    grid = read_grid(wiring.bucket, lead)
    members = []
    for run_id, target in grid.members.items():
        try:
            engine = _taken_up(wiring, run_id, limits, where, watch, accept, over=grid.over)
        except BenchError as exc:
            watch.say(f"{target} takes no more part: {exc}")
            continue
        members.append(Member(run_id, target, engine))
    return hand_out(GridDispatcher(wiring.world(), wiring.hosts, lead, tuple(members), watch.say), watch)


def _taken_up(
    wiring: Wiring,
    run_id: str,
    limits: LaunchOptions,
    where: Callable[[LaunchPlan], LaunchContext],
    watch: Watch,
    accept: str,
    *,
    over: bool,
) -> Engine:
    plan = wiring.plan_again(run_id, limits)
    world = wiring.world(plan.config)
    engine = Engine(world, run_id)
    if engine.look().closed is not None and over:
        return engine

    def fresh() -> Payload:
        return payload_of(plan.config)

    return resume(world, plan, run_id=run_id, where=where(plan), fresh=fresh, accept=accept, say=watch.say)


def hand_out(handing: GridDispatcher, watch: Watch) -> GridDispatcher:
    """Follows to the end, or until Ctrl-C."""
    said: set[str] = set(handing.grid.done)

    def show(members: Sequence[Member], grid: SharedGrid) -> None:
        targets = {member.run_id: member.target for member in members}
        for case in grid.cases:
            if case in grid.done and case not in said:
                said.add(case)
                who = targets.get(grid.done[case], grid.members[grid.done[case]])
                watch.say(f"{len(said)}/{len(grid.cases)}  {who}  {case}")

    try:
        handing.follow(show)
    except KeyboardInterrupt:
        watch.say(
            "detached; each host finishes what it has in hand. "
            f"`bench launch --resume {handing.lead}` hands out the rest."
        )
    return handing


def finish_grid(handing: GridDispatcher, *, json: bool) -> None:
    """The last words of a shared grid, and its exit code."""
    grid = handing.grid
    done = sum(case in grid.done for case in grid.cases)
    wrong = [member for member in handing.members if member.run is not None and member.run.wrong]
    if json:
        emit_json(document(handing))
    else:
        typer.echo(f"{'✓' if grid.over and not wrong else '✗'} {done} of {len(grid.cases)} cases on several hosts")
        for line in lines(handing):
            typer.echo(f"  {line}")
        typer.echo(f"  bench fetch {handing.lead}")
    if not grid.over:
        raise RunFailed(
            f"{done} of {len(grid.cases)} cases of the shared grid are measured",
            hint=f"`bench launch --resume {handing.lead}` hands out the rest",
        )
    if wrong:
        raise KernelIncorrect(
            f"an implementation was wrong on {wrong[0].target}", hint=f"`bench fetch {handing.lead}` has the rows"
        )


def lines(handing: GridDispatcher) -> list[str]:
    """One line a host."""
    told = []
    for member in handing.members:
        state = member.run.phase.value if member.run is not None else "planned"
        lost = "  cannot be reached: `bench status` looks after it" if member.trouble and not member.closed else ""
        cases = len(handing.grid.done_by(member.run_id))
        told.append(f"{member.target}  {cases} cases  {state}  {member.run_id}{lost}")
    stored = {m.run_id: {fact.case_id for fact in m.run.measured} for m in handing.members if m.run is not None}
    for holder, case in superseded(handing.grid, stored):
        told.append(f"{case} came from {handing.grid.members[holder]} too, too late: what was first stands")
    return told


def document(handing: GridDispatcher) -> dict[str, object]:
    """What `bench launch --json` prints for a shared grid."""
    grid = handing.grid
    return {
        "schema": 1,
        "run_id": handing.lead,
        "state": "succeeded" if grid.over else "open",
        "cases_done": sum(case in grid.done for case in grid.cases),
        "cases_total": len(grid.cases),
        "machines": [
            {
                "run_id": member.run_id,
                "target": member.target,
                "state": member.run.phase.value if member.run is not None else "planned",
                "reached": not member.trouble,
                "cases": list(grid.done_by(member.run_id)),
            }
            for member in handing.members
        ],
    }
