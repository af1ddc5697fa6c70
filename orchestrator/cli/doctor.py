"""`bench doctor`: finds what would go wrong before it costs anything, and prints the command that repairs it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from rich.console import Console

from orchestrator.cli.choices import Choice, Overrides
from orchestrator.cli.doctor_view import document, show
from orchestrator.cli.grouped import grouped
from orchestrator.cli.options import Json, emit_json, options
from orchestrator.core.doctor.verdicts import Result, exit_code, fixes
from orchestrator.core.errors import BenchError
from orchestrator.core.foreign import log_text
from orchestrator.core.hosts import parse_target
from orchestrator.core.setup.steps import Step, describe
from orchestrator.doctor.on_host import host_tasks
from orchestrator.doctor.runner import Task, examine
from orchestrator.doctor.tasks import CloudExamination, here_tasks
from orchestrator.runs.planning import LaunchOptions
from orchestrator.wiring import Wiring, configured


@grouped
def doctor(
    ctx: typer.Context,
    choice: Choice,
    set_: Overrides = None,
    host: Annotated[
        str, typer.Option("--host", metavar="USER@BOX[:PORT]", help="Check your own machine instead, over SSH.")
    ] = "",
    fix: Annotated[bool, typer.Option("--fix", help="Fix what is safe and free to fix, after asking.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --fix: do not ask.")] = False,
    json: Json = False,
) -> None:
    """Check everything that a launch needs; costs nothing.

    Changes nothing without --fix. With a GPU or a configuration, checks what that run would need.
    """
    if host:
        _host(ctx, host, LaunchOptions(choice.gpu, choice.config, tuple(set_ or ()), hosts=(host,)), json=json)
    wiring = options(ctx).wiring(needs_bucket=False)
    cloud = _examination(wiring, choice, tuple(set_ or ()))
    begun = time.monotonic()
    results = _examine((*here_tasks(wiring.surroundings(), choice.config), *cloud.tasks()), quiet=json)
    subject = cloud.subject() if wiring.reached else None
    wished = fixes(results) if fix else ()
    if wished and _agreed(wished, yes=yes, json=json):
        _mend(wiring, wished, say=(lambda _text: None) if json else typer.echo)
        cloud.session.close()
        cloud = _examination(wiring, choice, tuple(set_ or ()))
        results = _examine((*here_tasks(wiring.surroundings(), choice.config), *cloud.tasks()), quiet=json)
    cloud.session.close()
    project, bucket = (subject.project, subject.bucket) if subject else ("", "")
    if json:
        emit_json(document(results, wiring.mode, project, bucket))
    else:
        where = f"{project}, {f'gs://{bucket}' if bucket else 'no bucket'}" if subject else wiring.settings.project
        kind = "the embedded cloud: " if wiring.mode.simulated else ""
        show(results, kind + where, time.monotonic() - begun)
    raise typer.Exit(exit_code(results))


def _host(ctx: typer.Context, name: str, asked: LaunchOptions, *, json: bool) -> None:
    """Checks a host and this machine, prints the page and exits."""
    wiring, begun = options(ctx).wiring(), time.monotonic()
    target = parse_target(name, wiring.machine)
    wiring.name_hosts((name,))
    shell = wiring.shell(target)
    try:
        here = here_tasks(wiring.surroundings(), None)
        results = _examine((*here, *host_tasks(target, shell, asked, configured)), quiet=json)
    finally:
        shell.close()
    if json:
        emit_json(document(results, "host", "", "") | {"host": str(target)})
    else:
        show(results, str(target), time.monotonic() - begun)
    raise typer.Exit(exit_code(results))


def _examination(wiring: Wiring, choice: Choice, overrides: tuple[str, ...]) -> CloudExamination:
    session = wiring.checking_session()
    if choice == Choice():
        if not overrides:
            return CloudExamination(session, wiring.subject)
        choice = Choice(gpu="l4")
    loaded, _name = configured(LaunchOptions(choice.gpu, choice.config, overrides))
    return CloudExamination(session, wiring.subject, loaded, (loaded.gpu, *loaded.placement.fallback_gpus))


def _examine(tasks: Sequence[Task], *, quiet: bool) -> tuple[Result, ...]:
    """Makes all checks; on a terminal, a line counts them."""
    err = Console(stderr=True)
    if quiet or not err.is_terminal:
        return examine(tasks)
    with err.status(f"checking: 0 of {len(tasks)}") as status:
        seen = 0

        def report(result: Result) -> None:
            nonlocal seen
            seen += 1
            status.update(f"checking: {seen} of {len(tasks)}, {result.check.title}")

        return examine(tasks, report)


def _agreed(steps: Sequence[Step], *, yes: bool, json: bool) -> bool:
    if yes:
        return True
    if json:
        return False
    typer.echo("these fixes cost nothing:")
    for step in steps:
        typer.echo(f"  {describe(step)}")
    return confirmed()


def confirmed() -> bool:
    """Whether the user says yes. Without a terminal, or after Ctrl-C, the answer is no."""
    try:
        return typer.confirm("do it?")
    except typer.Abort:
        typer.echo("\nnothing was done; --yes does it without asking")
        return False


def _mend(wiring: Wiring, steps: Sequence[Step], say: Callable[[str], None]) -> None:
    setup = wiring.setup()
    for step in steps:
        try:
            setup.take(step)
        except BenchError as exc:
            say(log_text(f"not done: {exc}"))
        else:
            say(f"done: {describe(step)}")
