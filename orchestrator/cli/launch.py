"""`bench launch`: plan, hold, provision, follow live. Ctrl-C detaches; the run goes on."""

from __future__ import annotations

import importlib
import math
import sys
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any

import typer

from orchestrator.api.finding import find_run
from orchestrator.api.outcome import raise_for
from orchestrator.cli.choices import AcceptPlan, ChoiceParam, Hosts, Terms, consented_plan, launch_options
from orchestrator.cli.driving import Driving, follow_to_end
from orchestrator.cli.options import Json, group_options, known_runs, options
from orchestrator.cli.plan import practice_words
from orchestrator.cli.render import ending_lines
from orchestrator.cli.terminal import is_stdout_closed, print_answer
from orchestrator.cli.watch import LiveView, watching
from orchestrator.core.config.model import Alerts, Config
from orchestrator.core.errors import BudgetExceeded, ConfigError, KernelIncorrect
from orchestrator.core.naming import Mode
from orchestrator.core.plan.plan import LaunchPlan
from orchestrator.core.run.fold import Phase, Run
from orchestrator.core.run.status import run_document, waiting_text
from orchestrator.core.text import parse_minutes
from orchestrator.ports import Notice
from orchestrator.runs.engine import Engine, World
from orchestrator.runs.launch import RunOrder, begin_launch
from orchestrator.runs.planning import LaunchOptions, plan_for_launch
from orchestrator.runs.reconcile import after_settling_abandoned
from orchestrator.runs.resume import resume_run
from orchestrator.runs.takeover import settle_owner
from orchestrator.wiring import Wiring, launch_context, new_run_id, payload_of, start_bench

ANSWER = "orchestrator.cli.fetch"  # what prints answers: loaded when there is one, and not when a command starts


@dataclass(frozen=True, slots=True)
class MachineDocument:
    """Which machine to use: a kept one, a new one, or the user's own; and how long to wait for one."""

    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Keep the machine for the next launch, for at most run.idle_minutes without a run."
        ),
    ] = False
    cold: Annotated[bool, typer.Option("--cold", help="Request a new machine even if one is kept.")] = False
    host: Hosts = None
    wait: Annotated[
        str,
        typer.Option(metavar="TIME", help="Wait so long for a machine if none can be had, such as 3h or 90m."),
    ] = ""

    @property
    def wait_minutes(self) -> int | None:
        """How long to wait; None if the configuration says. Raise `ConfigError`."""
        try:
            return parse_minutes(self.wait) if self.wait else None
        except ValueError as exc:
            raise ConfigError(f"--wait: {exc}", hint="`bench launch --gpu h100 --wait 3h`") from exc


@dataclass(frozen=True, slots=True)
class Resumption:
    """The run to resume, and the plan and the payload that may be taken from the bucket."""

    resume: Annotated[
        str,
        typer.Option(
            "--resume",
            metavar="RUN",
            help="Continue a run whose client is gone, or that was cut short.",
            autocompletion=known_runs,
        ),
    ] = ""
    accept: AcceptPlan = ""
    accept_payload: Annotated[
        str, typer.Option(metavar="SHA256", help="With --resume: use this payload from the bucket.")
    ] = ""


@group_options
def launch(
    ctx: typer.Context,
    choice: ChoiceParam,
    *,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once the machine is running, or is waited for.")
    ] = False,
    terms: Terms,
    machine: MachineDocument,
    again: Resumption,
    json: Json = False,
) -> None:
    """Rent a machine, measure, delete the machine.

    Follows the run live; Ctrl-C detaches and the run continues. Uses a machine that an earlier launch kept, if any.
    """
    if again.resume:
        _resume(ctx, again, _limits(choice, terms, machine), detach=detach, json=json)
        return
    chosen = replace(launch_options(choice, terms, machine.host, keep=machine.keep), wait_minutes=machine.wait_minutes)
    launch_and_follow(options(ctx).wiring(), chosen, cold=machine.cold, detach=detach, json=json)


def launch_and_follow(wiring: Wiring, chosen: LaunchOptions, *, cold: bool, detach: bool, json: bool) -> None:
    """Plan, launch and follow a run, and print its answer. Raise the run's own error if it has one."""
    configuration, name = wiring.configured(chosen)
    payload = payload_of(configuration)
    with watching(quiet=json, now=wiring.clock.now) as watch:
        wiring.say = watch.say
        if wiring.mode.simulated and not chosen.hosts:
            watch.say(practice_words(configuration.gpu))
        watch.step("planning")
        plan, refused = _planned(wiring, configuration, name, cold=cold)
        watch.planned(plan)
        world = wiring.world(configuration)
        run_id = new_run_id(wiring.clock.now(), plan.label_on(wiring.here))
        order = RunOrder(run_id, plan, payload, launch_context(wiring, plan))
        is_own_machine = cold or plan.mode is Mode.HOST

        def begun() -> Engine:
            return begin_launch(world, order, say=watch.say, cold=is_own_machine, refused=refused)

        extras = _waiting(wiring, chosen, plan) | (
            {} if json else {"import_answer": partial(importlib.import_module, ANSWER)}
        )
        ended = follow_to_end(Driving(world, order.run_id, begun, watch, wiring.user, detach=detach, **extras))
        if not detach and ended.closed is not None and ended.taken is not None:
            ended = _after_a_kept_machine(world, ended, order, watch, wiring.user)
        tell_of_the_end(wiring, configuration.alerts, ended)
    finish(wiring, ended, json=json)


def _waiting(wiring: Wiring, chosen: LaunchOptions, plan: LaunchPlan) -> dict[str, Any]:
    """How a process in the background waits for capacity in the place of this one, and whether this one does."""
    minutes = plan.config.placement.wait_minutes
    until = wiring.clock.now() + timedelta(minutes=minutes)
    return {"wait_on": partial(_wait_in_background, wiring, chosen, until=until), "keeps_waiting": minutes > 0}


def _wait_in_background(wiring: Wiring, chosen: LaunchOptions, run: Run, *, until: datetime | None = None) -> str:
    """Start a process that resumes the run for the rest of its wait, until `until` if the run does not say, under the
    same limits; return what to say."""
    until = run.waiting.until if run.waiting is not None else until
    assert until is not None, "only a run that waits"
    minutes = max(1, math.ceil((until - wiring.clock.now()).total_seconds() / 60))
    is_yaml = chosen.path is not None and chosen.path.suffix in (".yaml", ".yml")
    config = [str(chosen.path.resolve())] if is_yaml and chosen.path else []
    overrides = [part for override in chosen.overrides for part in ("--set", override)]
    log = wiring.home / "waiting" / f"{run.run_id}.log"
    settings = {"BENCH_PROJECT": wiring.settings.project, "BENCH_BUCKET": wiring.settings.bucket}
    arguments = ["launch", "--resume", run.run_id, "--wait", f"{minutes}m", *config, *overrides]
    pid = start_bench(arguments, settings | {"BENCH_HOME": str(wiring.home.absolute())}, log)
    return f"{waiting_text(run)}; process {pid} waits in the background, and writes to {log}"


def _limits(choice: ChoiceParam, terms: Terms, machine: MachineDocument) -> LaunchOptions:
    """The options that a resumed run may have: those that limit its cost. Raises `ConfigError` for any other."""
    limits = LaunchOptions("", choice.config, terms.overrides)
    if machine.cold or launch_options(choice, terms, machine.host, keep=machine.keep) != limits:
        raise ConfigError(
            "--resume continues the run's own plan, so options that change what is measured are not allowed",
            hint="allowed are --wait, a configuration and --set keys that limit cost: budget, run.max_minutes, alerts",
        )
    return replace(limits, wait_minutes=machine.wait_minutes)


def _planned(wiring: Wiring, config: Config, name: str, *, cold: bool) -> tuple[LaunchPlan, BudgetExceeded | None]:
    world = wiring.world(config)
    return plan_for_launch(world, config, lambda one: wiring.plan(one, name), cold=cold, say=wiring.say)


def _after_a_kept_machine(world: World, run: Run, order: RunOrder, watch: LiveView, user: str) -> Run:
    """Settles the run that pays for the kept machine, if that is gone; a run that lost it goes on on a new one."""
    assert run.taken is not None
    lost = run.phase not in (Phase.SUCCEEDED, Phase.INCORRECT) and run.stop is None
    settle_owner(world, run.taken.owner, wait=not order.plan.config.run.keep or lost)
    if not lost or (run.current.finished is not None and run.current.finished.outcome == "failed"):
        return run
    watch.say(f"{run.taken.vm} is gone: the run continues on a machine of its own")

    def begun() -> Engine:
        return resume_run(
            world, order.plan, run_id=run.run_id, where=order.where, fresh=lambda: order.payload, say=watch.say
        )

    return follow_to_end(Driving(world, run.run_id, begun, watch, user))


def _resume(ctx: typer.Context, again: Resumption, limits: LaunchOptions, *, detach: bool, json: bool) -> None:
    """Continues a run under this client's caps, prices, limits, alert channels and payload."""
    wiring = options(ctx).wiring()
    run_id = find_run(wiring, again.resume)
    command = "bench launch --resume {}"
    replan = consented_plan(wiring, again.resume, run_id, limits, again.accept, command)
    with watching(quiet=json, now=wiring.clock.now) as watch:
        wiring.say = watch.say
        plan = after_settling_abandoned(wiring.world(), replan, watch.say)
        world = wiring.world(plan.config)

        def begun() -> Engine:
            return resume_run(
                world,
                plan,
                run_id=run_id,
                where=launch_context(wiring, plan),
                fresh=lambda: payload_of(plan.config),
                accept=again.accept_payload,
                say=watch.say,
            )

        waits = _waiting(wiring, limits, plan)
        ended = follow_to_end(Driving(world, run_id, begun, watch, wiring.user, detach=detach, **waits))
        tell_of_the_end(wiring, plan.config.alerts, ended)
    finish(wiring, ended, json=json)


def tell_of_the_end(wiring: Wiring, alerts: Alerts, run: Run) -> None:
    """Rings the terminal's bell and calls the user's command and webhook when a run that was followed is over."""
    if not alerts.done or (run.closed is None and run.kept is None):
        return
    if sys.stdout.isatty():
        typer.echo("\a", nl=False)
    now = wiring.clock.now()
    first, *_ = ending_lines(run, now)
    about = {"run_id": run.run_id, "outcome": run.phase.value, "cases": f"{run.cases_done}/{run.cases_total}"}
    notice = Notice("run", f"run {run.run_id} is over", first, about | {"cost_usd": str(run.cost(now))})
    wiring.notifier(alerts.command, alerts.webhook, here=False).notify(notice)


def follow(wiring: Wiring, run_id: str) -> None:
    """Show a run live until it is over, then its answer. The exit code is the run's; Ctrl-C only ends the view."""
    engine = Engine(wiring.world(), run_id)
    with watching(quiet=False, now=wiring.clock.now) as view:
        try:
            run = engine.follow(watch=view.show, trouble=view.trouble, until=lambda run: run.kept is not None)
        except KeyboardInterrupt:
            view.say("no longer watched; the run continues")
            return
    finish(wiring, run, json=False)


def finish(wiring: Wiring, run: Run, *, json: bool) -> None:
    """Prints the answer of the run and the last lines of a launch, and sets its exit code."""
    now = wiring.clock.now()
    answered = not json and bool(importlib.import_module(ANSWER).print_answer(wiring, run))
    print_answer(run_document(run, now), *ending_lines(run, now, answered=answered), json=json)
    for line in ending_lines(run, now) if is_stdout_closed() else ():
        typer.echo(line, err=True)
    if answered and run.phase is Phase.INCORRECT and all(fact.cause == "kernel_wrong" for fact in run.diagnoses):
        raise KernelIncorrect(f"run {run.run_id} is incorrect, as shown above")
    raise_for(run)
