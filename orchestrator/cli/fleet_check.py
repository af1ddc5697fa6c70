"""`bench fleet check-batch`: tests with a small job whether Google Cloud Batch keeps a fleet within its cap."""

from __future__ import annotations

import secrets
from datetime import timedelta
from decimal import Decimal
from typing import Annotated

import typer
from rich.markup import escape

from orchestrator.cli.options import Json, emit_json, options
from orchestrator.core.errors import RunFailed
from orchestrator.core.fleet.batch_gate import QUESTIONS, REQUIRED, Verdict
from orchestrator.core.fleet.names import fleet_id
from orchestrator.core.fleet.sweep import Sweep
from orchestrator.fleets.purse import Purse
from orchestrator.runs.planning import LaunchOptions
from orchestrator.schedulers import check_batch as checked
from orchestrator.store.fleets import FleetRecord
from orchestrator.wiring import Wiring

HOLD_USD = Decimal("0.05")
"Two e2-micro with their disks for a quarter of an hour cost about a tenth of it."
LASTS = timedelta(minutes=15)


def check_batch(
    ctx: typer.Context,
    region: Annotated[
        str, typer.Option("--region", help="Region to check in; by default the first with CPU machines.")
    ] = "",
    json: Json = False,
) -> None:
    """Check four behaviours of Google Cloud Batch in this project, for a few cents.

    No fleet is launched on Batch before this check has passed.
    """
    wiring = options(ctx).wiring()
    overrides = (f"regions=[{region}]",) if region else ()
    config, _ = wiring.configured(LaunchOptions("cpu", None, overrides))
    purse = _held(wiring)
    try:
        verdict = checked(wiring, config, lambda text: typer.echo(text, err=True))
    finally:
        purse.settle(HOLD_USD)  # nobody meters these machines: the whole hold counts as spent
    if json:
        emit_json({"schema": 1, **verdict.model_dump(mode="json", by_alias=True), "passed": verdict.passed})
    else:
        _show(verdict)
    if not verdict.passed:
        raise RunFailed(
            (
                f"Google Cloud Batch does not end machines on time in project {verdict.project}: a fleet there "
                "could exceed its cap"
            ),
            hint="use --engine cloud, which gives each machine its own end",
        )


def _held(wiring: Wiring) -> Purse:
    """The worst case of the check, held like a fleet's. Raises `BudgetExceeded`."""
    now = wiring.clock.now()
    record = FleetRecord(
        fleet=fleet_id(now, secrets.token_hex(2)),
        engine="batch",
        mode=wiring.mode,
        user=wiring.user,
        sweep=Sweep(engine="batch", axes={"gpu": ("cpu",)}),
        created_at=now,
        ends_at=now + LASTS,
        hold_usd=HOLD_USD,
    )
    purse = Purse(wiring.world(), record)
    purse.take(HOLD_USD)
    return purse


def _show(verdict: Verdict) -> None:
    for name, question in QUESTIONS.items():
        answer = verdict.answers.get(name)
        mark = "yes" if answer is not None and answer.ok else "NO" if name in REQUIRED else "no"
        typer.echo(f"{mark:>3}  {question}")
        if answer is not None:
            typer.echo(f"     {escape(answer.seen)}")
    typer.echo(f"{verdict.project}: {'fleets may run on Batch' if verdict.passed else 'fleets may not run on Batch'}")
