"""`bench doctor`: what would go wrong, before it costs anything, and the command that mends it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.launch import ConfigFile, Gpu, Overrides
from orchestrator.cli.options import Json, emit_json, options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestrator.cli.doctor_tasks import Clinic
    from orchestrator.core.doctor.verdicts import Result
    from orchestrator.core.setup.steps import Step
    from orchestrator.doctor import Task


def doctor(
    ctx: typer.Context,
    config: ConfigFile = None,
    gpu: Gpu = "",
    set_: Overrides = None,
    host: Annotated[
        str, typer.Option("--host", metavar="USER@BOX[:PORT]", help="Look at a machine of your own instead.")
    ] = "",
    fix: Annotated[bool, typer.Option("--fix", help="Do what is safe and free, after asking.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --fix: do not ask.")] = False,
    json: Json = False,
) -> None:
    """Look at all that a launch needs; costs nothing.

    Only looks, and costs nothing. With a GPU or a configuration, looks at what that run would need.
    """
    import time

    from orchestrator.cli.doctor_tasks import Clinic, cloud_tasks, here_tasks
    from orchestrator.cli.doctor_view import document, show
    from orchestrator.core.doctor.verdicts import exit_code, fixes

    if host:
        _host(ctx, host, json=json)
    clinic = _clinic(ctx, config, gpu, tuple(set_ or ()))
    begun = time.monotonic()
    results = _examine((*here_tasks(clinic, config), *cloud_tasks(clinic)), quiet=json)
    subject = clinic.subject() if clinic.ready else None
    wished = fixes(results) if fix else ()
    if wished and _agreed(wished, yes=yes, json=json):
        _mend(clinic, wished, say=(lambda _text: None) if json else typer.echo)
        clinic.close()
        clinic = Clinic(clinic.wiring, clinic.config, clinic.gpus)
        results = _examine((*here_tasks(clinic, config), *cloud_tasks(clinic)), quiet=json)
    clinic.close()
    project, bucket = (subject.project, subject.bucket) if subject else ("", "")
    if json:
        emit_json(document(results, clinic.wiring.mode, project, bucket))
    else:
        where = f"{project}, gs://{bucket}" if subject else clinic.wiring.settings.project
        kind = "the embedded cloud: " if clinic.wiring.mode == "embedded" else ""
        show(results, kind + where, time.monotonic() - begun)
    raise typer.Exit(exit_code(results))


def _host(ctx: typer.Context, name: str, *, json: bool) -> None:
    """The page of a host and of this machine. Exits."""
    import time

    from orchestrator.adapters.ssh import SshShell
    from orchestrator.cli.doctor_tasks import Clinic, here_tasks, host_tasks
    from orchestrator.cli.doctor_view import document, show
    from orchestrator.core.doctor.verdicts import exit_code
    from orchestrator.core.hosts import parse_target

    target, begun = parse_target(name), time.monotonic()
    shell = SshShell(target)
    try:
        here = here_tasks(Clinic(options(ctx).wiring(), None, ()), None)
        results = _examine((*here, *host_tasks(target, shell.run)), quiet=json)
    finally:
        shell.close()
    if json:
        emit_json(document(results, "host", "", "") | {"host": str(target)})
    else:
        show(results, str(target), time.monotonic() - begun)
    raise typer.Exit(exit_code(results))


def _clinic(ctx: typer.Context, config: Path | None, gpu: str, overrides: tuple[str, ...]) -> Clinic:
    from orchestrator.cli.asking import Asked, load_asked
    from orchestrator.cli.doctor_tasks import Clinic

    wiring = options(ctx).wiring()
    if config is None and not gpu:
        if not overrides:
            return Clinic(wiring, None, ())
        gpu = "l4"
    loaded, _name = load_asked(Asked(gpu, config, overrides, False))
    return Clinic(wiring, loaded, (loaded.gpu, *loaded.placement.fallback_gpus))


def _examine(tasks: Sequence[Task], *, quiet: bool) -> tuple[Result, ...]:
    """All checks, with a line that counts them on a terminal."""
    from rich.console import Console

    from orchestrator.doctor import examine

    err = Console(stderr=True)
    if quiet or not err.is_terminal:
        return examine(tasks)
    with err.status(f"looking: 0 of {len(tasks)}") as status:
        seen = 0

        def report(result: Result) -> None:
            nonlocal seen
            seen += 1
            status.update(f"looking: {seen} of {len(tasks)}, {result.check.title}")

        return examine(tasks, report)


def _agreed(steps: Sequence[Step], *, yes: bool, json: bool) -> bool:
    from orchestrator.core.setup.steps import describe

    if yes:
        return True
    if json:
        return False
    typer.echo("this would be done, and costs nothing:")
    for step in steps:
        typer.echo(f"  {describe(step)}")
    return confirmed()


def confirmed() -> bool:
    """Whether somebody says yes; nobody there, or an interruption, is a no."""
    try:
        return typer.confirm("do it?")
    except typer.Abort:
        typer.echo("\nnothing was done; --yes does it without asking")
        return False


def _mend(clinic: Clinic, steps: Sequence[Step], say: Callable[[str], None]) -> None:
    from orchestrator.core.errors import BenchError
    from orchestrator.core.setup.steps import describe

    setup = clinic.setup()
    for step in steps:
        try:
            setup.take(step)
        except BenchError as exc:
            say(f"not done: {exc}")
        else:
            say(f"done: {describe(step)}")
