"""What a person, or a script, sees of the ledger."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.cli.render import usd
from orchestrator.core.budget import THRESHOLDS, WINDOWS, Caps, Ledger, exposure, key_of
from orchestrator.core.status import iso


def costs_document(ledger: Ledger, now: datetime) -> dict[str, Any]:
    windows = {}
    for window in ("day", "month", "total"):
        seen = exposure(ledger, window, now)
        windows[window] = {"key": key_of(window, now), "spent_usd": str(seen.spent), "held_usd": str(seen.held)}
    return {
        "schema": 1,
        "runs": [
            {
                "run_id": run_id,
                "gpu": entry.gpu,
                "held_at": iso(entry.held_at),
                "hold_usd": str(entry.hold_usd),
                "settled_usd": None if entry.settled_usd is None else str(entry.settled_usd),
            }
            for run_id, entry in sorted(ledger.runs.items())
        ],
        "costs": [
            {"id": name, "category": cost.category, "usd": str(cost.usd), "note": cost.note, "at": iso(cost.at)}
            for name, cost in sorted(ledger.costs.items(), key=lambda item: item[1].at)
        ],
        "windows": windows,
    }


def costs_view(ledger: Ledger, now: datetime) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("what", no_wrap=True)
    table.add_column("spent", justify="right")
    table.add_column("held", justify="right")
    table.add_column("note", overflow="ellipsis", no_wrap=True)
    for run_id, entry in sorted(ledger.runs.items()):
        table.add_row(run_id, usd(entry.spent), usd(entry.held) if entry.held else "", f"of {usd(entry.hold_usd)} held")
    for cost in sorted(ledger.costs.values(), key=lambda cost: cost.at):
        table.add_row(cost.category, usd(cost.usd), "", cost.note)
    sums = Text()
    for window in ("day", "month", "total"):
        seen = exposure(ledger, window, now)
        sums.append(f"{window} ", "dim").append(usd(seen.spent), "bold").append(f" + {usd(seen.held)} held   ", "dim")
    if not ledger.runs and not ledger.costs:
        return Group(Text("nothing was spent yet", "dim"), sums)
    return Group(table, Text(), sums)


def budget_document(ledger: Ledger, caps: Caps, now: datetime, name: str) -> dict[str, Any]:
    rows = []
    for window in WINDOWS:
        cap = caps.of(window)
        seen = exposure(ledger, window, now)
        rows.append(
            {
                "window": window,
                "key": key_of(window, now),
                "cap_usd": None if cap is None else str(cap),
                "spent_usd": str(seen.spent),
                "held_usd": str(seen.held),
                "left_usd": None if cap is None else str(max(cap - seen.total, Decimal(0))),
            }
        )
    return {
        "schema": 1,
        "config": name,
        "windows": rows,
        "alerts_at_percent": list(THRESHOLDS),
        "alerted": sorted(ledger.alerts),
    }


def budget_view(ledger: Ledger, caps: Caps, now: datetime, name: str) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("window", "spent", "held", "cap", "left"):
        table.add_column(title, justify="left" if title == "window" else "right", no_wrap=True)
    table.add_column("")
    for window in WINDOWS:
        cap, seen = caps.of(window), exposure(ledger, window, now)
        label = "each run" if window == "run" else key_of(window, now)
        if cap is None:
            table.add_row(label, usd(seen.spent), usd(seen.held), "none", "", "")
            continue
        bar = ProgressBar(total=float(cap) or 1, completed=float(seen.total), width=20)
        table.add_row(label, usd(seen.spent), usd(seen.held), usd(cap), usd(max(cap - seen.total, Decimal(0))), bar)
    alerts = Text(f"alerts at {', '.join(map(str, THRESHOLDS))} % of what is spent", "dim")
    return Group(Text.assemble(("caps of ", "dim"), (name, "bold")), table, alerts)
