"""`bench launch`: plan, hold, provision, follow live. Ctrl-C detaches; the run goes on."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import Json, emit_json, options

if TYPE_CHECKING:
    from orchestrator.cli.watch import Watch
    from orchestrator.core.plan import LaunchPlan
    from orchestrator.core.run import Run
    from orchestrator.engine import Engine, World
    from orchestrator.launch import Payload, Where
    from orchestrator.shared_grid import Handing
    from orchestrator.wiring import Wiring

Gpu = Annotated[
    str, typer.Option("--gpu", "-g", help="l4, t4, a100, h100 or cpu: takes the configuration of that name.")
]
ConfigFile = Annotated[Path | None, typer.Argument(metavar="[CONFIG]", help="A YAML file instead; see configs/.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key, e.g. run.max_minutes=10.")
]
BaselineOnly = Annotated[
    bool, typer.Option("--baseline-only", help="Measure PyTorch's SDPA only, not the bundled kernel.")
]

MaxPrice = Annotated[str, typer.Option("--max-price", metavar="USD", help="Leave out what costs more an hour.")]
OnDemandAfter = Annotated[
    int | None,
    typer.Option(
        "--on-demand-after", metavar="N", min=0, help="On demand once N spot machines were taken back, or none is left."
    ),
]
FallbackGpu = Annotated[
    list[str] | None, typer.Option("--fallback-gpu", metavar="GPU", help="Another GPU if the first cannot be had.")
]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="USER@BOX[:PORT]", help="Measure on a machine of your own, over SSH; rent none."),
]

Keep = Annotated[
    bool, typer.Option("--keep", help="The machine stays for the next launch, at most run.idle_minutes without a run.")
]
Cold = Annotated[bool, typer.Option("--cold", help="A machine of its own, also where one is kept.")]


def launch(
    ctx: typer.Context,
    config: ConfigFile = None,
    gpu: Gpu = "",
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return once the machine is there.")] = False,
    baseline_only: BaselineOnly = False,
    set_: Overrides = None,
    max_price: MaxPrice = "",
    on_demand_after: OnDemandAfter = None,
    fallback_gpu: FallbackGpu = None,
    keep: Keep = False,
    cold: Cold = False,
    host: Hosts = None,
    resume: Annotated[
        str,
        typer.Option("--resume", metavar="RUN", help="Go on with a run that lost its client, or was cut short."),
    ] = "",
    json: Json = False,
) -> None:
    """Rent a machine, measure, delete the machine.

    Follows the run live; Ctrl-C detaches and the run goes on. A machine that an earlier launch kept is taken over.
    """
    if resume:
        choices = (config, gpu, set_, baseline_only, max_price, fallback_gpu, keep, cold, host)
        if any(choices) or on_demand_after is not None:
            from orchestrator.core.errors import ConfigError

            raise ConfigError("--resume goes on with the plan of the run: it takes no other choice of what to measure")
        _resume(ctx, resume, detach=detach, json=json)
        return
    from orchestrator.cli.asking import Asked, load_asked, plan_for_launch
    from orchestrator.cli.grid import launch_grid
    from orchestrator.cli.watch import watching
    from orchestrator.launch import begin
    from orchestrator.wiring import new_run_id, payload_of

    asked = Asked(
        gpu, config, tuple(set_ or ()), baseline_only, max_price, on_demand_after, tuple(fallback_gpu or ()),
        keep=keep, hosts=tuple(host or ()),
    )  # fmt: skip
    wiring = options(ctx).wiring()
    settings, name = load_asked(asked.known(wiring))
    payload = payload_of(settings.payload.root)
    with watching(quiet=json) as watch:
        wiring.say = watch.say
        watch.step("planning")
        plan, refused = plan_for_launch(wiring, settings, name, cold=cold)
        watch.planned(plan)
        where = _where(wiring, plan)
        if len(plan.offers) > 1 and plan.mode == "host":
            ended: Run | Handing = launch_grid(wiring, plan, payload, where, watch, detach=detach)
        else:
            caps, alerts = settings.budget.caps(), settings.alerts
            world = wiring.world(caps, command=alerts.command, webhook=alerts.webhook)
            run_id = new_run_id(wiring.clock.now(), plan.label)
            own = cold or plan.mode == "host"
            engine = begin(world, plan, payload, run_id=run_id, where=where, say=watch.say, cold=own, refused=refused)
            run = _until_created(engine, watch) if detach else _until_detached(engine, watch, wiring.user)
            if not detach and run.closed is not None and run.taken is not None:
                run = _after_a_kept_machine(world, run, plan, payload, where, watch, wiring.user)
            ended = run
    finish(ended, json=json)


def _after_a_kept_machine(
    world: World, run: Run, plan: LaunchPlan, payload: Payload, where: Where, watch: Watch, user: str
) -> Run:
    """The run that pays for the machine is settled, if that is over; a run that lost it goes on, on one of its own."""
    from orchestrator.core.run import Phase
    from orchestrator.resume import resume
    from orchestrator.takeover import settle_owner

    assert run.taken is not None
    lost = run.phase not in (Phase.SUCCEEDED, Phase.INCORRECT) and run.stop is None
    settle_owner(world, run.taken.owner, wait=not plan.config.run.keep or lost)
    if not lost or (run.finished is not None and run.finished.outcome == "failed"):
        return run
    watch.say(f"{run.taken.vm} is gone: the run goes on, on a machine of its own")
    engine = resume(world, plan, run_id=run.run_id, where=where, fresh=lambda: payload, say=watch.say)
    return _until_detached(engine, watch, user)


def _where(wiring: Wiring, plan: LaunchPlan) -> Where:
    from orchestrator.launch import Where

    mode = "host" if plan.mode == "host" else wiring.mode
    return Where(
        mode=mode,
        bucket=wiring.bucket.name,
        user=wiring.user,
        endpoints=wiring.endpoints,
        require_cuda=mode != "embedded" and plan.config.gpu != "cpu",
    )


def _resume(ctx: typer.Context, text: str, *, detach: bool, json: bool) -> None:
    from orchestrator.cli.finding import find_run
    from orchestrator.cli.grid import lead_of, resume_grid
    from orchestrator.cli.watch import watching
    from orchestrator.core.budget import Caps
    from orchestrator.resume import resume, stored_plan
    from orchestrator.wiring import payload_of

    wiring = options(ctx).wiring()
    run_id = find_run(wiring, text)
    with watching(quiet=json) as watch:
        wiring.say = watch.say
        plan = stored_plan(wiring.world(Caps()), run_id)
        if lead := lead_of(wiring, run_id):
            ended: Run | Handing = resume_grid(wiring, lead, lambda one: _where(wiring, one), watch)
        else:
            settings = plan.config
            caps, alerts = settings.budget.caps(), settings.alerts
            engine = resume(
                wiring.world(caps, command=alerts.command, webhook=alerts.webhook),
                plan,
                run_id=run_id,
                where=_where(wiring, plan),
                fresh=lambda: payload_of(settings.payload.root),
                say=watch.say,
            )
            ended = _until_created(engine, watch) if detach else _until_detached(engine, watch, wiring.user)
    finish(ended, json=json)


def _until_created(engine: Engine, watch: Watch) -> Run:
    while True:
        run, pause = engine.step()
        watch.show(run)
        there = run.vm is not None and run.vm.open and run.vm.started_at is not None
        if run.closed is not None or there or run.booted_at is not None:
            return run
        engine.world.clock.sleep(pause)


def _until_detached(engine: Engine, watch: Watch, user: str) -> Run:
    run_id = engine.run_id
    try:
        return engine.follow(watch=watch.show, trouble=watch.trouble, until=lambda run: run.kept is not None)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # one is enough: a second must not cut the farewell short
        run = engine.look()
        if run.vms or run.taken is not None:
            watch.say(f"detached; the run goes on. `bench status {run_id}` shows it, `bench stop {run_id}` ends it.")
            return run
        engine.request_stop(user, "interrupted before there was a machine")
        return engine.follow()


def finish(run: Run | Handing, *, json: bool) -> None:
    """The last words of a launch, and its exit code."""
    from orchestrator.core.run import Run

    if not isinstance(run, Run):
        from orchestrator.cli.grid import finish_grid

        finish_grid(run, json=json)
        return
    from orchestrator.cli.outcome import raise_for
    from orchestrator.cli.render import ending_lines
    from orchestrator.core.status import document
    from orchestrator.wiring import utc_now

    if json:
        emit_json(document(run, utc_now()))
    else:
        for line in ending_lines(run, utc_now()):
            typer.echo(line)
    raise_for(run)
