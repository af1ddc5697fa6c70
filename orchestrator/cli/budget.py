"""`bench budget`: caps, what is spent and held in each window, and what is left."""

from __future__ import annotations

import typer

from orchestrator.cli.launch import ConfigFile, Gpu, Overrides
from orchestrator.cli.options import Json, emit_json, options


def budget(
    ctx: typer.Context, config: ConfigFile = None, gpu: Gpu = "l4", set_: Overrides = None, json: Json = False
) -> None:
    """Show the caps, what is spent, and what is left."""
    from rich.console import Console

    from orchestrator.cli.asking import Asked, load_asked
    from orchestrator.cli.money_view import budget_document, budget_view
    from orchestrator.wiring import utc_now

    settings, name = load_asked(Asked("" if config else gpu, config, tuple(set_ or ()), False))
    wiring = options(ctx).wiring()
    ledger = wiring.ledger.read()
    if json:
        emit_json(budget_document(ledger, settings.budget.caps(), utc_now(), name))
    else:
        Console(highlight=False).print(budget_view(ledger, settings.budget.caps(), utc_now(), name))
