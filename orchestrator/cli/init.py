"""`bench init`: sets up a project once; it shows its steps before it takes them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.doctor import ask_confirmation
from orchestrator.cli.options import Json, group_options, options
from orchestrator.cli.terminal import documents, emit_json
from orchestrator.core.errors import BenchError, ConfigError
from orchestrator.core.setup import plan as asked
from orchestrator.core.setup.plan import ACCOUNT_ID, SetupRequest, plan_setup
from orchestrator.core.setup.plan import plan_setup as plan
from orchestrator.core.setup.steps import Step, WriteSettings, describe_step, setup_script, terraform_document
from orchestrator.core.text import count
from orchestrator.wiring import Wiring, load_settings, wire_embedded

if TYPE_CHECKING:
    from orchestrator.wiring import Setup


class InitForm(StrEnum):
    """The formats in which the steps can be printed instead of taken."""

    GCLOUD = "gcloud"
    TERRAFORM = "terraform"


@dataclass(frozen=True, slots=True)
class InitPlace:
    """What is set up, where, and for whom."""

    project: Annotated[str, typer.Option(help="Google Cloud project to set up.")] = ""
    bucket: Annotated[str, typer.Option(help="Bucket to create; by default PROJECT-bench.")] = ""
    location: Annotated[str, typer.Option(help="Location of the bucket.")] = ""
    service_account: Annotated[
        str, typer.Option(help="Name of the machines' service account; by default bench-vm.")
    ] = ""
    launcher: Annotated[
        str,
        typer.Option(help="Who may launch, e.g. user:ada@example.com; without it no permission to launch is granted."),
    ] = ""

    def asked(self) -> InitPlace:
        """The same; asks for what is missing."""
        project = self.project or ask_until_valid("project id", asked.a_project)
        a_bucket = partial(asked.a_bucket, project=project)
        return replace(
            self,
            project=project,
            bucket=self.bucket or ask_until_valid("bucket", a_bucket, default=f"{project}-bench"),
            location=self.location
            or ask_until_valid("location of the bucket", asked.a_location, default=asked.DEFAULT_LOCATION),
            launcher=self.launcher
            or ask_until_valid("who may launch (user:…; empty: only project owners)", asked.a_launcher, default=""),
        )


@dataclass(frozen=True, slots=True)
class CapOptions:
    """What may be spent."""

    per_run: Annotated[str, typer.Option(metavar="USD", help="Cap for each run, in dollars.")] = ""
    per_day: Annotated[str, typer.Option(metavar="USD", help="Cap for each day, in dollars.")] = ""
    per_month: Annotated[str, typer.Option(metavar="USD", help="Cap for each month, in dollars.")] = ""
    total: Annotated[str, typer.Option(metavar="USD", help="Cap for all time, in dollars.")] = ""

    def amounts(self, *, asks: bool) -> dict[str, str]:
        """The caps by their keys. Caps that were not given are asked for, or have their usual values."""
        given = {
            "per_run_usd": self.per_run,
            "per_day_usd": self.per_day,
            "per_month_usd": self.per_month,
            "total_usd": self.total,
        }
        return {
            key: given[key] or (_asked_cap(key, default) if asks else default)
            for key, default in asked.DEFAULT_CAPS.items()
        }


def _asked_cap(key: str, default: str) -> str:
    text = f"cap in dollars, {key.removesuffix('_usd').replace('_', ' ')}"
    return ask_until_valid(text, partial(asked.a_cap, key), default=default)


@dataclass(frozen=True, slots=True)
class Consent:
    """Which questions are answered in advance."""

    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False
    replace: Annotated[bool, typer.Option("--replace", help="With --yes: replace existing settings.")] = False


@group_options
def init(
    ctx: typer.Context,
    place: InitPlace,
    caps: CapOptions,
    *,
    print_: Annotated[
        InitForm | None, typer.Option("--print", help="Print gcloud commands or Terraform, and change nothing.")
    ] = None,
    embedded: Annotated[bool, typer.Option("--embedded", help="Practise on the embedded cloud.")] = False,
    consent: Consent,
    json: Json = False,
) -> None:
    """Set up a Google Cloud project: APIs, bucket, accounts, caps.

    Shows what is missing, asks, and does it, with the least permissions. It can be run again safely.
    """
    opts = options(ctx)
    place = replace(place, project=place.project or opts.project, bucket=place.bucket or opts.bucket)
    if embedded:
        place = _embedded(place)
    asks = not (consent.yes or print_ or json) and sys.stdin.isatty()
    if asks:
        place = place.asked()
    amounts = caps.amounts(asks=asks)
    if not place.project:
        raise ConfigError("which project?", hint="--project my-project, or --embedded to practise")
    wanted = asked.parse_setup(
        place.project,
        place.bucket or f"{place.project}-bench",
        location=place.location or asked.DEFAULT_LOCATION,
        account_id=place.service_account or ACCOUNT_ID,
        launcher=place.launcher,
        caps=amounts,
        keeps_names=not embedded,
    )
    if print_ is not None:
        _print(wanted, print_, json=json)
        return
    wiring = wire_embedded() if embedded else Wiring(load_settings(project=wanted.project, bucket=wanted.bucket))
    _carry_out(wanted, wiring.setup(wanted.project), consent, json=json)


def ask_until_valid(question: str, check: Callable[[str], object], default: str | None = None) -> str:
    """The user's answer; the question is repeated, with the reason, until the answer is valid."""
    while True:
        text = str(typer.prompt(question, default=default, show_default=bool(default))).strip()
        try:
            check(text)
        except ConfigError as exc:
            about = str(exc).partition(": ")[2] if str(exc).startswith("--") else str(exc)
            typer.echo(f"  {about}" + (f" ({exc.hint})" if exc.hint else ""), err=True)
        else:
            return text


def _embedded(place: InitPlace) -> InitPlace:
    address = wire_embedded().address
    assert address is not None
    return replace(place, project=address.project, bucket=place.bucket or f"{address.project}-practice")


def _print(wanted: SetupRequest, form: InitForm, *, json: bool) -> None:
    steps = plan_setup(wanted)
    path = str(load_settings().home / "settings.yaml")
    text = setup_script(steps, path) if form is InitForm.GCLOUD else terraform_document(steps)
    if json:
        emit_json(_document(wanted, [_step(step, False) for step in steps], form=form.value, text=text))
    else:
        typer.echo(text, nl=False)


def _carry_out(wanted: SetupRequest, setup: Setup, consent: Consent, *, json: bool) -> None:
    steps = plan(wanted, setup.survey(wanted))
    done: list[documents.SetUpStep] = []
    if not json:
        _show(wanted, steps)
    if steps and not _agreed(steps, consent, json=json):
        if json:
            emit_json(_document(wanted, [_step(step, False) for step in steps]))
        return
    for step in steps:
        try:
            setup.take(step)
        except BenchError as exc:
            steps_left = steps[len(done) :]
            hint = f"{exc.hint}. {len(done)} of {count(len(steps), 'step')} done; the same command does the rest"
            if json:
                emit_json(_document(wanted, [*done, *(_step(step, False) for step in steps_left)]))
            raise type(exc)(str(exc), hint=hint) from exc
        done.append(_step(step, True))
        if not json:
            typer.echo(f"done: {describe_step(step)}")
    if json:
        emit_json(_document(wanted, done))
    elif steps:
        typer.echo("`bench doctor` checks all of it; `bench plan --gpu l4` shows what a run would cost")


def _document(wanted: SetupRequest, steps: list[documents.SetUpStep], **more: Any) -> documents.SetUp:
    return documents.SetUp.of(wanted, schema=1, steps=steps, **more)


def _step(step: Step, done: bool) -> documents.SetUpStep:
    return documents.SetUpStep(step=type(step).__name__, text=describe_step(step), done=done)


def _show(wanted: SetupRequest, steps: Sequence[Step]) -> None:
    if not steps:
        typer.echo(f"{wanted.project} and gs://{wanted.bucket} are set up: nothing to do")
        return
    typer.echo(f"in {wanted.project}, {count(len(steps), 'step')} would be done (they cost nothing):")
    for number, step in enumerate(steps, 1):
        typer.echo(f"  {number:2}  {describe_step(step)}")
    if not wanted.launcher:
        typer.echo("      nobody is granted permission to launch; --launcher user:YOU does that")


def _agreed(steps: Sequence[Step], consent: Consent, *, json: bool) -> bool:
    over = [key for step in steps if isinstance(step, WriteSettings) for key in step.replaces]
    if consent.yes and over and not consent.replace:
        raise ConfigError(
            f"settings.yaml says otherwise: {', '.join(over)}",
            hint="--replace overwrites these settings; without --yes you are asked",
        )
    if consent.yes:
        return True
    return not json and ask_confirmation()
