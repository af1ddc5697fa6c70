"""`bench init`: the first set-up of a project, shown before it is done, and done once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.doctor import confirmed
from orchestrator.cli.options import Json, emit_json, options
from orchestrator.core.errors import BenchError, ConfigError
from orchestrator.core.setup import asked, gcloud, terraform
from orchestrator.core.setup.plan import ACCOUNT_ID, Wanted, setup
from orchestrator.core.setup.plan import setup as plan
from orchestrator.core.setup.steps import Step, WriteSettings, describe
from orchestrator.user_settings import load_settings
from orchestrator.wiring import Wiring, wire_embedded

if TYPE_CHECKING:
    from orchestrator.wiring import Setup


class Form(StrEnum):
    """What can be printed instead of done."""

    GCLOUD = "gcloud"
    TERRAFORM = "terraform"


def init(
    ctx: typer.Context,
    project: Annotated[str, typer.Option(help="Google Cloud project to set up.")] = "",
    bucket: Annotated[str, typer.Option(help="Bucket to make; PROJECT-bench unless given.")] = "",
    location: Annotated[str, typer.Option(help="Where the bucket lies.")] = "",
    service_account: Annotated[str, typer.Option(help="Name of the machines' account; bench-vm unless given.")] = "",
    launcher: Annotated[
        str, typer.Option(help="Who may launch, e.g. user:ada@example.com; without it, nobody is granted anything.")
    ] = "",
    per_run: Annotated[str, typer.Option(metavar="USD", help="Cap for each run.")] = "",
    per_day: Annotated[str, typer.Option(metavar="USD", help="Cap for each day.")] = "",
    per_month: Annotated[str, typer.Option(metavar="USD", help="Cap for each month.")] = "",
    total: Annotated[str, typer.Option(metavar="USD", help="Cap for all time.")] = "",
    print_: Annotated[
        Form | None, typer.Option("--print", help="Print commands or Terraform instead of doing anything.")
    ] = None,
    embedded: Annotated[bool, typer.Option("--embedded", help="Practise on the embedded cloud.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="With --yes: settings may be replaced.")] = False,
    json: Json = False,
) -> None:
    """Set a project up, once, with the least rights.

    Shows what it will do, asks, and does what is missing; a second time there is nothing to do.
    """
    opts = options(ctx)
    project, bucket = project or opts.project, bucket or opts.bucket
    caps = {"per_run_usd": per_run, "per_day_usd": per_day, "per_month_usd": per_month, "total_usd": total}
    if embedded:
        project, bucket = _embedded(bucket)
    asks = not (yes or print_ or json) and sys.stdin.isatty()
    if asks:
        project = project or answered("project id", asked.a_project)
        bucket = bucket or answered("bucket", partial(asked.a_bucket, project=project), default=f"{project}-bench")
        location = location or answered("where the bucket lies", asked.a_location, default=asked.DEFAULT_LOCATION)
        launcher = launcher or answered("who may launch (user:…; empty: only owners)", asked.a_launcher, default="")
        for key, default in asked.DEFAULT_CAPS.items():
            text = f"cap in dollars, {key.removesuffix('_usd').replace('_', ' ')}"
            caps[key] = caps[key] or answered(text, partial(asked.a_cap, key), default=default)
    if not project:
        raise ConfigError("which project?", hint="--project my-project, or --embedded to practise")
    wanted = asked.wanted(
        project,
        bucket or f"{project}-bench",
        location=location or asked.DEFAULT_LOCATION,
        account_id=service_account or ACCOUNT_ID,
        launcher=launcher,
        caps={key: caps[key] or default for key, default in asked.DEFAULT_CAPS.items()},
        keeps_names=not embedded,
    )
    if print_ is not None:
        _print(wanted, print_, json=json)
        return
    _carry_out(
        wanted,
        (wire_embedded() if embedded else Wiring(load_settings(project=wanted.project, bucket=wanted.bucket))).setup(
            wanted.project
        ),
        yes=yes,
        replace=replace,
        json=json,
    )


def answered(question: str, check: Callable[[str], object], default: str | None = None) -> str:
    """What somebody answers, asked again until it can be right: each mistake is told where it is made."""
    while True:
        text = str(typer.prompt(question, default=default, show_default=bool(default))).strip()
        try:
            check(text)
        except ConfigError as exc:
            about = str(exc).partition(": ")[2] if str(exc).startswith("--") else str(exc)
            typer.echo(f"  {about}" + (f" ({exc.hint})" if exc.hint else ""), err=True)
        else:
            return text


def _embedded(bucket: str) -> tuple[str, str]:
    address = wire_embedded().address
    assert address is not None
    return address.project, bucket or f"{address.project}-practice"


def _print(wanted: Wanted, form: Form, *, json: bool) -> None:
    steps = setup(wanted)
    path = str(load_settings().home / "settings.yaml")
    text = gcloud.script(steps, path) if form is Form.GCLOUD else terraform.document(steps)
    if json:
        emit_json(
            {
                "schema": 1,
                "project": wanted.project,
                "bucket": wanted.bucket,
                "steps": [_step(step, False) for step in steps],
                "form": form.value,
                "text": text,
            }
        )
    else:
        typer.echo(text, nl=False)


def _carry_out(wanted: Wanted, setup: Setup, *, yes: bool, replace: bool, json: bool) -> None:
    steps = plan(wanted, setup.survey(wanted))
    done: list[dict[str, Any]] = []
    if not json:
        _show(wanted, steps)
    if steps and not _agreed(steps, yes=yes, replace=replace, json=json):
        if json:
            emit_json(
                {
                    "schema": 1,
                    "project": wanted.project,
                    "bucket": wanted.bucket,
                    "steps": [_step(s, False) for s in steps],
                }
            )
        return
    for step in steps:
        try:
            setup.take(step)
        except BenchError as exc:
            left = steps[len(done) :]
            hint = f"{exc.hint}. {len(done)} of {len(steps)} steps are done; the rest: `bench init` again"
            if json:
                emit_json(
                    {
                        "schema": 1,
                        "project": wanted.project,
                        "bucket": wanted.bucket,
                        "steps": [*done, *(_step(s, False) for s in left)],
                    }
                )
            raise type(exc)(str(exc), hint=hint) from exc
        done.append(_step(step, True))
        if not json:
            typer.echo(f"done: {describe(step)}")
    if json:
        emit_json({"schema": 1, "project": wanted.project, "bucket": wanted.bucket, "steps": done})
    elif steps:
        typer.echo("`bench doctor` looks at all of it; `bench plan --gpu l4` shows what a run would cost")


def _step(step: Step, done: bool) -> dict[str, Any]:
    return {"step": type(step).__name__, "text": describe(step), "done": done}


def _show(wanted: Wanted, steps: Sequence[Step]) -> None:
    if not steps:
        typer.echo(f"{wanted.project} and gs://{wanted.bucket} are set up: nothing to do")
        return
    typer.echo(f"in {wanted.project}, this would be done ({len(steps)} steps; none of them costs anything):")
    for number, step in enumerate(steps, 1):
        typer.echo(f"  {number:2}  {describe(step)}")
    if not wanted.launcher:
        typer.echo("      nobody is granted the right to launch; --launcher user:YOU does that")


def _agreed(steps: Sequence[Step], *, yes: bool, replace: bool, json: bool) -> bool:
    over = [key for step in steps if isinstance(step, WriteSettings) for key in step.replaces]
    if yes and over and not replace:
        raise ConfigError(
            f"settings.yaml says otherwise: {', '.join(over)}",
            hint="--replace overwrites them; without --yes you are asked",
        )
    if yes:
        return True
    return not json and confirmed()
