"""`bench plan`: the same decisions as `launch`, with nothing spent."""

from __future__ import annotations

import typer

from orchestrator.cli.choices import Choice, Hosts, Terms, launch_options
from orchestrator.cli.grouped import grouped
from orchestrator.cli.options import Json, emit_json, options
from orchestrator.cli.plan_view import plan_view
from orchestrator.cli.screen import screen
from orchestrator.core.plan.document import plan_document


@grouped
def plan(ctx: typer.Context, choice: Choice, terms: Terms, host: Hosts = None, json: Json = False) -> None:
    """Show what a launch would do and the most it can cost.

    Zones in the order in which they would be tried, prices, quotas, cases. Nothing is requested or spent.
    """
    chosen = launch_options(choice, terms, host)
    wiring = options(ctx).wiring()
    if json:
        wiring.say = lambda _: None
    made = wiring.plan(*wiring.configured(chosen))
    if json:
        emit_json(plan_document(made))
    else:
        screen().print(plan_view(made))
