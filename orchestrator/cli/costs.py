"""`bench costs`: the ledger; `bench costs add`: a cost that is not a machine."""

from __future__ import annotations

import secrets
from typing import Annotated

import typer

from orchestrator.cli.choices import agreed_to
from orchestrator.cli.money_view import costs_document, costs_view
from orchestrator.cli.options import Json, options
from orchestrator.cli.render import SIMULATED
from orchestrator.cli.terminal import print_answer
from orchestrator.core.errors import ConfigError
from orchestrator.core.ledger.budget import add_cost, take_back
from orchestrator.core.ledger.unlisted import is_due, is_large, parse_dollars

PAGE = 30
"How many entries are shown without `--last`."

app = typer.Typer(invoke_without_command=True, help="Show what was spent and held; add or remove other costs.")


@app.callback()
def costs(
    ctx: typer.Context,
    last: Annotated[
        int | None,
        typer.Option("--last", min=1, help="Show the newest N entries; by default 30, and all with --json."),
    ] = None,
    json: Json = False,
) -> None:
    if ctx.invoked_subcommand is not None:
        return
    wiring = options(ctx).wiring()
    ledger = wiring.ledger.read()
    if is_due(ledger):
        wiring.reconcile()
        ledger = wiring.ledger.read()
    practice = wiring.mode.simulated
    now, simulated = wiring.clock.now(), [f"machines of the embedded cloud, {SIMULATED}"] if practice else []
    view = costs_view(ledger, now, practice=practice, last=last or PAGE)
    print_answer(lambda: costs_document(ledger, now, practice=practice, last=last), view, *simulated, json=json)


@app.command("add")
def add(
    ctx: typer.Context,
    usd: Annotated[str, typer.Argument(metavar="USD", help="The amount, e.g. 1.50.")],
    category: Annotated[str, typer.Option(help="What kind of cost, e.g. ai, storage.")] = "other",
    note: Annotated[str, typer.Option(help="What it was for.")] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation of a large amount.")] = False,
    json: Json = False,
) -> None:
    """Record a cost that is not a machine. It counts against the same caps."""
    amount = parse_dollars(usd)
    wiring = options(ctx).wiring()
    accounts = wiring.accounts()
    if is_large(amount, accounts.ledger.read(), accounts.caps) and not yes:
        agreed_to(f"${amount} is as much as a whole cap, or more than a thousand dollars. Record it?", "--yes")
    now, entry = wiring.clock.now(), f"cost-{secrets.token_hex(4)}"
    accounts.change(lambda ledger: add_cost(ledger, category, amount, note, now, entry))
    document = {"schema": 1, "id": entry, "category": category, "usd": str(amount), "note": note}
    print_answer(document, f"recorded ${amount} for {category}{f' ({note})' if note else ''}", json=json)


@app.command("rm")
def remove(
    ctx: typer.Context,
    cost: Annotated[
        str, typer.Argument(metavar="ID", help="The cost's id from `bench costs --json`, e.g. cost-1a2b3c4d.")
    ],
    note: Annotated[str, typer.Option(help="Why.")] = "",
    json: Json = False,
) -> None:
    """Take back a cost that was added by hand. Both entries stay visible; neither counts."""
    wiring = options(ctx).wiring()
    accounts, now, entry = wiring.accounts(), wiring.clock.now(), f"cost-{secrets.token_hex(4)}"
    after = accounts.change(lambda ledger: take_back(ledger, cost, note, now, entry))
    if after is None:
        raise ConfigError(
            f"cost not found: {cost}; costs of past months are archived and stay",
            hint="`bench costs --json` lists all costs with their ids",
        )
    usd = after.costs[cost].usd
    document = {"schema": 1, "id": entry, "takes_back": cost, "usd": str(usd), "note": note}
    print_answer(document, f"took back ${usd} ({cost})", json=json)
