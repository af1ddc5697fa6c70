"""`bench budget`: caps, what is spent and held in each window, and what is left; `set` and `rebuild` for the bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.choices import Gpu, Overrides
from orchestrator.cli.money_view import budget_document, budget_view, caps_document, caps_line
from orchestrator.cli.options import Json, options
from orchestrator.cli.render import SIMULATED
from orchestrator.cli.terminal import print_answer
from orchestrator.core.errors import ConfigError
from orchestrator.core.ledger.budget import WINDOWS, Ledger, SharedCaps, set_caps
from orchestrator.core.ledger.unlisted import parse_dollars
from orchestrator.core.text import count
from orchestrator.runs.planning import LaunchOptions
from orchestrator.runs.rebuild import rebuild_from_events
from orchestrator.wiring import load_chosen_config

app = typer.Typer(invoke_without_command=True, help="Show the caps, what is spent, and what is left.")
Cap = Annotated[str, typer.Option(metavar="USD", help="In dollars; `none` takes the cap away.")]


@app.callback()
def budget(
    ctx: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="A YAML file whose caps to show.")
    ] = None,
    gpu: Gpu = "l4",
    set_: Overrides = None,
    json: Json = False,
) -> None:
    if ctx.invoked_subcommand is not None:
        return
    chosen, name = load_chosen_config(LaunchOptions("" if config else gpu, config, tuple(set_ or ())))
    wiring = options(ctx).wiring()
    ledger, now, caps = wiring.ledger.read(), wiring.clock.now(), chosen.budget.caps()
    practice = wiring.mode.simulated
    simulated = [f"machines of the embedded cloud, {SIMULATED}"] if practice else []
    print_answer(
        lambda: budget_document(ledger, caps, now, name, practice=practice),
        budget_view(ledger, caps, now, name, practice=practice),
        *simulated,
        json=json,
    )


@app.command("set")
def set_for_all(
    ctx: typer.Context, run: Cap = "", day: Cap = "", month: Cap = "", total: Cap = "", json: Json = False
) -> None:
    """Set caps for everybody who uses this bucket. Where you have a cap too, the lower one counts."""
    cap_amounts = {"run": run, "day": day, "month": month, "total": total}
    if not any(cap_amounts.values()):
        raise ConfigError("no cap given", hint="for example: bench budget set --day 5 --month 20 --total 100")
    amounts = {
        key: None if text == "none" else parse_dollars(text, zero=True) for key, text in cap_amounts.items() if text
    }
    wiring = options(ctx).wiring()
    by, now = wiring.user, wiring.clock.now()

    def change(ledger: Ledger) -> Ledger:
        there = {window: ledger.caps.caps().of(window) if ledger.caps else None for window in WINDOWS}
        if there == there | amounts:
            return ledger
        return set_caps(ledger, SharedCaps.model_validate(there | amounts | {"by": by, "at": now}))

    ledger = wiring.accounts().change(change)
    print_answer({"schema": 1, "caps": caps_document(ledger)}, caps_line(ledger), json=json)


@app.command("rebuild")
def rebuild_ledger(ctx: typer.Context, json: Json = False) -> None:
    """Rebuild a missing or unreadable ledger from the events of the runs."""
    wiring = options(ctx).wiring()
    done = rebuild_from_events(wiring.world())
    aside = [f"the unreadable ledger was moved to gs://{wiring.bucket.name}/{done.kept_as}"] if done.kept_as else []
    added = f"{count(len(done.added), 'hold')} added, {len(done.ledger.runs)} in the ledger"
    lost = (
        [("events do not record costs added by hand or caps of the bucket: add and set those again")]
        if done.added
        else []
    )
    document = {"schema": 1, "added": list(done.added), "put_aside": done.kept_as}
    print_answer(document, *aside, added, *lost, json=json)
