"""What `launch` and `launch --resume` do about a grid that several hosts share: begin it, hand it out, tell of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from orchestrator.core.errors import BenchError, ConfigError, KernelIncorrect, RunFailed
from orchestrator.core.leases import superseded

if TYPE_CHECKING:
    from orchestrator.cli.watch import Watch
    from orchestrator.core.leases import SharedGrid
    from orchestrator.core.plan import LaunchPlan
    from orchestrator.engine import Engine
    from orchestrator.launch import Payload, Where
    from orchestrator.shared_grid import Handing, Member
    from orchestrator.wiring import Wiring


def launch_grid(
    wiring: Wiring, plan: LaunchPlan, payload: Payload, where: Where, watch: Watch, *, detach: bool
) -> Handing:
    """Launches one grid on several hosts and hands it out to its end. Raises what `begin_grid` and `follow` raise."""
    from orchestrator.shared_grid import Handing, begin_grid
    from orchestrator.wiring import new_run_id

    if detach:
        raise ConfigError(
            "a grid that several hosts share needs somebody to hand out its cases: no --detach",
            hint="Ctrl-C, or a lost terminal, loses nothing: `bench launch --resume RUN` hands out the rest",
        )
    settings = plan.config
    world = wiring.world(settings.budget.caps(), command=settings.alerts.command, webhook=settings.alerts.webhook)
    run_ids: list[str] = []
    while len(run_ids) < len(plan.offers):
        run_id = new_run_id(wiring.clock.now(), plan.label)
        run_ids += [run_id] if run_id not in run_ids else []
    members = begin_grid(world, plan, payload, run_ids=run_ids, where=where, say=watch.say)
    return hand_out(Handing(world, wiring.hosts, run_ids[0], members, watch.say), watch)


def lead_of(wiring: Wiring, run_id: str) -> str:
    """The first run of the grid that a run shares; empty for one that shares none."""
    from orchestrator.core.budget import Caps
    from orchestrator.engine import Engine

    plan = Engine(wiring.world(Caps()), run_id).look().plan
    return plan.grid if plan is not None else ""


def resume_grid(wiring: Wiring, lead: str, where: Callable[[LaunchPlan], Where], watch: Watch) -> Handing:
    """Goes on handing out a grid: runs that are over and not finished are resumed, under holds of their own."""
    from orchestrator.core.budget import Caps
    from orchestrator.shared_grid import Handing, Member, read_grid

    grid = read_grid(wiring.bucket, lead)
    members = []
    for run_id, target in grid.members.items():
        try:
            engine = _taken_up(wiring, run_id, where, watch, over=grid.over)
        except BenchError as exc:
            watch.say(f"{target} takes no more part: {exc}")
            continue
        members.append(Member(run_id, target, engine))
    return hand_out(Handing(wiring.world(Caps()), wiring.hosts, lead, tuple(members), watch.say), watch)


def _taken_up(wiring: Wiring, run_id: str, where: Callable[[LaunchPlan], Where], watch: Watch, *, over: bool) -> Engine:
    from orchestrator.core.budget import Caps
    from orchestrator.engine import Engine
    from orchestrator.launch import engine_for
    from orchestrator.resume import payload_of_run, resume, stored_plan
    from orchestrator.wiring import payload_of

    plan = stored_plan(wiring.world(Caps()), run_id)
    settings = plan.config
    world = wiring.world(settings.budget.caps(), command=settings.alerts.command, webhook=settings.alerts.webhook)
    engine = Engine(world, run_id)
    run = engine.look()

    def fresh() -> Payload:
        return payload_of(settings.payload.root)

    if run.closed is None:
        payload = payload_of_run(world, run, fresh)
        return engine_for(world, plan, payload, run_id, where(plan), engine.log)
    if over:
        return engine
    return resume(world, plan, run_id=run_id, where=where(plan), fresh=fresh, say=watch.say)


def hand_out(handing: Handing, watch: Watch) -> Handing:
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


def finish_grid(handing: Handing, *, json: bool) -> None:
    """The last words of a shared grid, and its exit code."""
    import typer

    from orchestrator.cli.options import emit_json

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


def lines(handing: Handing) -> list[str]:
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


def document(handing: Handing) -> dict[str, object]:
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
