"""`bench costs`: the ledger; `bench costs add`: a cost that is not a machine."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestrator.cli.options import Json, emit_json, options

app = typer.Typer(invoke_without_command=True, help="What was spent and what is held; `add` adds.")


@app.callback()
def costs(ctx: typer.Context, json: Json = False) -> None:
    if ctx.invoked_subcommand is not None:
        return
    from rich.console import Console

    from orchestrator.cli.money_view import costs_document, costs_view
    from orchestrator.wiring import utc_now

    wiring = options(ctx).wiring()
    ledger = wiring.ledger.read()
    if any(entry.settled_usd is None for entry in ledger.runs.values()):
        from orchestrator.core.budget import Caps
        from orchestrator.reconcile import reconcile

        reconcile(wiring.world(Caps()))
        ledger = wiring.ledger.read()
    if json:
        emit_json(costs_document(ledger, utc_now()))
    else:
        Console(highlight=False).print(costs_view(ledger, utc_now()))


@app.command("add")
def add(
    ctx: typer.Context,
    usd: Annotated[str, typer.Argument(metavar="USD", help="The amount, e.g. 1.50.")],
    category: Annotated[str, typer.Option(help="What kind of cost, e.g. ai, storage.")] = "other",
    note: Annotated[str, typer.Option(help="What it was for.")] = "",
    json: Json = False,
) -> None:
    """Record a cost that is not a machine. It counts against the same caps."""
    import secrets
    from decimal import Decimal, InvalidOperation

    from orchestrator.core.budget import add_cost
    from orchestrator.core.errors import ConfigError

    try:
        amount = Decimal(usd.removeprefix("$"))
    except InvalidOperation:
        raise ConfigError(
            f"{usd} is not an amount in dollars", hint="for example: bench costs add 1.50 --category ai"
        ) from None
    if not amount.is_finite() or amount <= 0 or amount != amount.quantize(Decimal("0.000001")):
        raise ConfigError(f"{usd}: an amount is more than 0 and has at most six decimals")
    wiring = options(ctx).wiring()
    now, entry = wiring.clock.now(), f"cost-{secrets.token_hex(4)}"
    wiring.ledger.update(lambda ledger: add_cost(ledger, category, amount, note, now, entry))
    if json:
        emit_json({"schema": 1, "id": entry, "category": category, "usd": str(amount), "note": note})
    else:
        typer.echo(f"recorded ${amount} for {category}{f' ({note})' if note else ''}")
