"""`bench prices`: shows the price table, its age, and where each figure comes from."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer
from rich.console import RenderableType
from rich.text import Text

from orchestrator.cli.options import Json, options
from orchestrator.cli.screen import Columns
from orchestrator.cli.terminal import print_answer
from orchestrator.core.errors import BenchError, ConfigError
from orchestrator.core.market.catalog import CATALOG
from orchestrator.core.market.offers import Offer, region_of
from orchestrator.core.market.pricing import STALE_DAYS, STALE_MARGIN, PricedMachine, PriceSheet
from orchestrator.core.market.skus import Refreshed
from orchestrator.core.names import MachineType, Region, Zone
from orchestrator.core.text import count
from orchestrator.wiring import Wiring, utc_now


def prices(
    ctx: typer.Context,
    region: Annotated[str, typer.Option(help="Only this region, e.g. us-central1.")] = "",
    gpu: Annotated[str, typer.Option("--gpu", "-g", help="Only this GPU, such as l4, h100 or cpu.")] = "",
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Ask the Cloud Billing Catalog for today's, and keep them.")
    ] = False,
    leave_out: Annotated[
        bool, typer.Option("--leave-out", help="With --refresh: do without prices that are not found or not clear.")
    ] = False,
    history: Annotated[
        bool,
        typer.Option("--history", help="With --gpu: ask Google for the last weeks of spot machines, zone by zone."),
    ] = False,
    json: Json = False,
) -> None:
    """Show the prices that plans and holds are made with.

    Dollars per hour of each GPU's default machine with a boot disk of 60 GB and an address.
    """
    wiring = options(ctx).wiring()
    if leave_out and not refresh:
        raise ConfigError("--leave-out says how to refresh", hint="bench prices --refresh --leave-out")
    if history and not gpu:
        raise ConfigError("--history is that of one GPU", hint="bench prices --history --gpu l4")
    made = _refresh(wiring, leave_out=leave_out) if refresh else None
    if made is not None and not json:
        _say(made, wiring)
    sheet = wiring.price_book.current()
    age = sheet.age_days(datetime.now(UTC).date())
    rows = _rows(sheet, region, gpu.lower())
    if not rows:
        what = " ".join(part for part in (gpu, region) if part)
        raise ConfigError(
            f"no price is known for {what}",
            hint="`bench prices` shows all that are; configs/README.md says how to add one",
        )
    about = {"as_of": str(sheet.as_of), "age_days": age, "stale": age > STALE_DAYS, "sources": sheet.sources}
    about |= {"refreshed": made is not None, "left_out": list(made.left_out if made else ())}
    document = {"schema": 1, "currency": sheet.currency, **about, "trusted": list(sheet.trusted), "prices": rows}
    document["history"] = zones = _history(wiring, sheet, rows) if history else []
    notes = _notes(sheet, rows, age)
    if history:
        notes += [Text("without disk and address:", "dim"), _history_table(zones)] if zones else [Text(NO_HISTORY)]
    print_answer(document, _table(rows), *notes, json=json)


NO_HISTORY: Final = "Google gives no history of these machines here (compute.advice)"
UNTRUSTED: Final = " (not a record: look it up before you rely on it)"


def _notes(sheet: PriceSheet, rows: list[dict[str, Any]], age: int) -> list[RenderableType]:
    """What each source of the prices is, and how old the table is."""
    trust = {name: "" if name in sheet.trusted else UNTRUSTED for name in dict.fromkeys(row["source"] for row in rows)}
    notes: list[RenderableType] = [
        Text(f"{name}: {sheet.sources[name]}{words}", "dim") for name, words in trust.items()
    ]
    held = (
        f"; older than {STALE_DAYS} days: {STALE_MARGIN:.0%} more is held; `bench prices --refresh` gets today's prices"
    )
    stale = held if age > STALE_DAYS else ""
    notes.append(Text(f"as of {sheet.as_of}, {count(age, 'day')} old{stale}", "yellow" if stale else ""))
    return notes


def _refresh(wiring: Wiring, *, leave_out: bool) -> Refreshed:
    try:
        return wiring.price_book.refresh(utc_now(), leave_out=leave_out)
    except BenchError as exc:
        kept = wiring.price_book.usable()
        raise type(exc)(f"{exc}; the table of {kept.as_of} is kept", hint=exc.hint) from exc


def _say(made: Refreshed, wiring: Wiring) -> None:
    for text in made.left_out:
        typer.echo(f"left out: {text}")
    if made.changed:
        name, (was, now) = max(made.changed.items(), key=lambda one: abs(one[1][1] - one[1][0]) / max(one[1]))
        typer.echo(f"{count(len(made.changed), 'price')} changed, {name} most of all: ${was:f} was, ${now:f} is")
    typer.echo(f"{wiring.price_book.path} holds the prices of {made.sheet.as_of}")


def _rows(sheet: PriceSheet, region: str, gpu: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for one in CATALOG:
        machine = PricedMachine(one.default_machine, one.accelerator, one.gpus_of(one.default_machine))
        for place in one.regions if gpu in ("", one.name) else ():
            quotes = {way: sheet.quote(machine, place, way, 60, True, one.disk_type) for way in ("spot", "standard")}
            if region in ("", place) and any(quotes.values()):
                figures = {f"{way}_usd_per_hour": str(q.usd_per_hour) if q else None for way, q in quotes.items()}
                source = next(quote.source for quote in quotes.values() if quote)
                rows.append(
                    {"gpu": one.name, "machine": machine.machine_type, "region": place, **figures, "source": source}
                )
    return rows


def _table(rows: list[dict[str, Any]]) -> RenderableType:
    dollars = ("spot $/h", "on demand $/h")
    keys = ("gpu", "machine", "region", "spot_usd_per_hour", "standard_usd_per_hour", "source")
    cells = [[row[key] or "not sold" for key in keys] for row in rows]
    return Columns("GPU", "machine", "region", *dollars, "source", rows=cells, right=dollars)


def _history(wiring: Wiring, sheet: PriceSheet, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What Google says of spot machines in the cheapest zones of `rows`, beside the table's price of the machine alone.
    All rows are of one GPU."""
    (gpu,) = (one for one in CATALOG if one.name == rows[0]["gpu"])
    machine = PricedMachine(gpu.default_machine, gpu.accelerator, gpu.gpus_of(gpu.default_machine))
    offers = {
        zone: Offer(
            gpu=gpu.name,
            region=Region(region_of(zone)),
            zone=Zone(zone),
            machine_type=MachineType(gpu.default_machine),
            accelerator=gpu.accelerator if gpu.attached else None,
            accelerator_count=gpu.gpus_of(gpu.default_machine) if gpu.attached else 0,
            provisioning="SPOT",
            usd_per_hour=usd,
        )
        for zone in gpu.zones
        if region_of(zone) in {row["region"] for row in rows}
        and (usd := sheet.hourly(machine, region_of(zone), "spot", 0, False, gpu.disk_type)) is not None
    }
    return [
        {
            "zone": advice.zone,
            "spot_usd_per_hour": str(offers[advice.zone].usd_per_hour),
            "list_usd_per_hour": _text(advice.list_usd),
            "list_since": _text(advice.list_since),
            "list_usd_per_hour_before": _text(advice.list_was_usd),
            "preemption_rate": advice.preemption_rate,
        }
        for advice in wiring.cloud().advice(list(offers.values()))
    ]


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _history_table(zones: list[dict[str, Any]]) -> RenderableType:
    heads = ("table $/h", "listed $/h", "since", "before $/h", "preempted in 7 days")
    keys = ("spot_usd_per_hour", "list_usd_per_hour", "list_since", "list_usd_per_hour_before")
    rows = []
    for zone in zones:
        rate = zone["preemption_rate"]
        rows.append([zone["zone"], *(zone[key] or "?" for key in keys), "?" if rate is None else f"{rate:.0%}"])
    return Columns("zone", *heads, rows=rows, right=heads)
