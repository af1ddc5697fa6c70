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
    from orchestrator.engine import Engine
    from orchestrator.launch import Where
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
    host: Hosts = None,
    resume: Annotated[
        str,
        typer.Option("--resume", metavar="RUN", help="Go on with a run that lost its client, or was cut short."),
    ] = "",
    json: Json = False,
) -> None:
    """Rent a machine, measure, delete the machine.

    Follows the run live; Ctrl-C detaches and the run goes on.
    """
    if resume:
        if config or gpu or set_ or baseline_only or max_price or fallback_gpu or host or on_demand_after is not None:
            from orchestrator.core.errors import ConfigError

            raise ConfigError("--resume goes on with the plan of the run: it takes no other choice of what to measure")
        _resume(ctx, resume, detach=detach, json=json)
        return
    from orchestrator.cli.asking import Asked, load_asked, make_plan
    from orchestrator.cli.watch import watching
    from orchestrator.launch import begin
    from orchestrator.wiring import new_run_id, payload_of

    asked = Asked(
        gpu, config, tuple(set_ or ()), baseline_only, max_price, on_demand_after, tuple(fallback_gpu or ()),
        tuple(host or ()),
    )  # fmt: skip
    wiring = options(ctx).wiring()
    settings, name = load_asked(asked.known(wiring))
    payload = payload_of(settings.payload.root)
    with watching(quiet=json) as watch:
        wiring.say = watch.say
        watch.step("planning")
        plan = make_plan(wiring, settings, name)
        watch.planned(plan)
        world = wiring.world(settings.budget.caps(), command=settings.alerts.command, webhook=settings.alerts.webhook)
        where = _where(wiring, plan)
        run_id = new_run_id(wiring.clock.now(), plan.label)
        engine = begin(world, plan, payload, run_id=run_id, where=where, say=watch.say)
        run = _until_created(engine, watch) if detach else _until_detached(engine, watch, wiring.user)
    finish(run, json=json)


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
    from orchestrator.cli.watch import watching
    from orchestrator.core.budget import Caps
    from orchestrator.resume import resume, stored_plan
    from orchestrator.wiring import payload_of

    wiring = options(ctx).wiring()
    run_id = find_run(wiring, text)
    with watching(quiet=json) as watch:
        wiring.say = watch.say
        plan = stored_plan(wiring.world(Caps()), run_id)
        settings = plan.config
        world = wiring.world(settings.budget.caps(), command=settings.alerts.command, webhook=settings.alerts.webhook)
        engine = resume(
            world,
            plan,
            run_id=run_id,
            where=_where(wiring, plan),
            fresh=lambda: payload_of(settings.payload.root),
            say=watch.say,
        )
        run = _until_created(engine, watch) if detach else _until_detached(engine, watch, wiring.user)
    finish(run, json=json)


def _until_created(engine: Engine, watch: Watch) -> Run:
    while True:
        run, pause = engine.step()
        watch.show(run)
        if run.closed is not None or (run.vm is not None and run.vm.open and run.vm.started_at is not None):
            return run
        engine.world.clock.sleep(pause)


def _until_detached(engine: Engine, watch: Watch, user: str) -> Run:
    run_id = engine.run_id
    try:
        return engine.follow(watch=watch.show, trouble=watch.trouble)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # one is enough: a second must not cut the farewell short
        run = engine.look()
        if run.vms:
            watch.say(f"detached; the run goes on. `bench status {run_id}` shows it, `bench stop {run_id}` ends it.")
            return run
        engine.request_stop(user, "interrupted before there was a machine")
        return engine.follow()


def finish(run: Run, *, json: bool) -> None:
    """The last words of a launch, and its exit code."""
    from orchestrator.cli.outcome import raise_for
    from orchestrator.cli.render import ending_lines
    from orchestrator.core.status import document
    from orchestrator.wiring import utc_now

    if json:
        emit_json(document(run, utc_now()))
    else:
        for line in ending_lines(run, utc_now()):
            typer.echo(line)
    if run.closed is not None:
        raise_for(run)
