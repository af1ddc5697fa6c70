"""`bench launch`: plan, hold, provision, follow live. Ctrl-C detaches; the run goes on."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import Json, emit_json, options

if TYPE_CHECKING:
    from orchestrator.cli.watch import Watch
    from orchestrator.core.run import Run
    from orchestrator.engine import Engine

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


def launch(
    ctx: typer.Context,
    config: ConfigFile = None,
    gpu: Gpu = "",
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return once the machine is there.")] = False,
    baseline_only: BaselineOnly = False,
    set_: Overrides = None,
    json: Json = False,
) -> None:
    """Rent a machine, measure, delete the machine.

    Follows the run live; Ctrl-C detaches and the run goes on.
    """
    from orchestrator.cli.asking import Asked, load_asked, make_plan
    from orchestrator.cli.watch import watching
    from orchestrator.launch import Where, begin
    from orchestrator.wiring import new_run_id, payload_of

    settings, name = load_asked(Asked(gpu, config, tuple(set_ or ()), baseline_only))
    payload = payload_of(settings.payload.root)
    wiring = options(ctx).wiring()
    with watching(quiet=json) as watch:
        wiring.say = watch.say
        watch.step("planning")
        plan = make_plan(wiring, settings, name)
        watch.planned(plan)
        world = wiring.world(settings.budget.caps(), command=settings.alerts.command, webhook=settings.alerts.webhook)
        where = Where(
            mode=wiring.mode,
            bucket=wiring.bucket.name,
            user=wiring.user,
            endpoints=wiring.endpoints,
            require_cuda=wiring.mode == "gce" and settings.gpu != "cpu",
        )
        run_id = new_run_id(wiring.clock.now(), settings.gpu)
        engine = begin(world, plan, payload, run_id=run_id, where=where, say=watch.say)
        run = _until_detached(engine, watch, run_id, wiring.user) if not detach else _until_created(engine, watch)
    finish(run, json=json, detached=run.closed is None)


def _until_created(engine: Engine, watch: Watch) -> Run:
    while True:
        run, pause = engine.step()
        watch.show(run)
        if run.closed is not None or (run.vm is not None and run.vm.started_at is not None):
            return run
        engine.world.clock.sleep(pause)


def _until_detached(engine: Engine, watch: Watch, run_id: str, user: str) -> Run:
    try:
        return engine.follow(watch=watch.show, trouble=watch.trouble)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # one is enough: a second must not cut the farewell short
        run = engine.look()
        if run.vms:
            watch.say(f"detached; the run goes on. `bench status {run_id}` shows it, `bench stop {run_id}` ends it.")
            return run
        from orchestrator.core.events import StopRequested

        engine.log.append(StopRequested(by=user, reason="interrupted before there was a machine"))
        return engine.follow()


def finish(run: Run, *, json: bool, detached: bool) -> None:
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
    if not detached:
        raise_for(run)
