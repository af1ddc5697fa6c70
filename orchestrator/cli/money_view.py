"""Shows the ledger, as lines and as JSON."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.text import Text

from orchestrator.cli.render import usd
from orchestrator.cli.screen import Columns
from orchestrator.cli.terminal import documents
from orchestrator.core.ledger.alerts import THRESHOLDS
from orchestrator.core.ledger.budget import WINDOWS, Caps, Ledger, key_of, lower_caps, window_exposure
from orchestrator.core.run.status import iso_time
from orchestrator.core.text import clean_line


def kinds_of_dollars(*, practice: bool) -> tuple[tuple[str, bool], ...]:
    """The kinds of dollars to show, each with its mark and whether it is simulated. They are never added: a practice
    run counts against the caps only with other practice runs, a real one only with what is really paid."""
    return (("", False), (" (practice)", True)) if practice else (("", False),)


def spent_and_held(ledger: Ledger, now: datetime, *, pretend: bool) -> dict[str, documents.WindowDocument]:
    """What is spent and held in each window, in dollars of one kind."""
    exposures = {window: window_exposure(ledger, window, now, pretend=pretend) for window in WINDOWS[1:]}
    return {window: documents.WindowDocument.of(seen, key=key_of(window, now)) for window, seen in exposures.items()}


def costs_document(
    ledger: Ledger, now: datetime, *, practice: bool = False, last: int | None = None
) -> documents.CostsDocument:
    shown, older = newest(ledger, last)
    costs = sorted(shown.costs.items(), key=lambda item: item[1].at)
    return documents.CostsDocument(
        schema=1,
        runs=[documents.LedgerRun.of(entry, run_id=run_id) for run_id, entry in sorted(shown.runs.items())],
        costs=[documents.LedgerCost.of(cost, id=name) for name, cost in costs],
        older=older,
        windows=spent_and_held(ledger, now, pretend=False),
        practice_windows=spent_and_held(ledger, now, pretend=True) if practice else None,
        prices_simulated=practice,
    )


def newest(ledger: Ledger, last: int | None) -> tuple[Ledger, int]:
    """The ledger with its newest `last` runs and costs alone, and how many older ones it has; all where that is None.
    For showing: what is spent is summed over the whole."""
    times = {name: entry.held_at for name, entry in ledger.runs.items()}
    times |= {name: cost.at for name, cost in ledger.costs.items()}
    kept = set(sorted(times, key=lambda name: (times[name], name))[-(last or len(times)) :])
    runs = {name: entry for name, entry in ledger.runs.items() if name in kept}
    costs = {name: cost for name, cost in ledger.costs.items() if name in kept}
    return ledger.model_copy(update={"runs": runs, "costs": costs}), len(times) - len(kept)


def costs_view(ledger: Ledger, now: datetime, *, practice: bool = False, last: int | None = None) -> RenderableType:
    shown, older = newest(ledger, last)
    table = Columns("what", "spent", "held", "note", right=("spent", "held"), prose=("note",))
    for run_id, entry in sorted(shown.runs.items()):
        held = usd(entry.held) if entry.held else ""
        table.add_row(Text(clean_line(run_id)), usd(entry.spent), held, f"of {usd(entry.hold_usd)} held")
    for cost in sorted(shown.costs.values(), key=lambda cost: cost.at):
        sign = "-" if cost.takes_back else ""
        table.add_row(Text(clean_line(cost.category)), f"{sign}{usd(cost.usd)}", "", Text(clean_line(cost.note)))
    sums = Text()
    for _, pretend in kinds_of_dollars(practice=practice):
        sums.append("\npractice: " if pretend else "")
        for window in WINDOWS[1:]:
            seen = window_exposure(ledger, window, now, pretend=pretend)
            sums.append(f"{window} ", "dim").append(usd(seen.spent), "bold")
            sums.append(f" + {usd(seen.held)} held   ", "dim")
    if not ledger.runs and not ledger.costs:
        return Group(Text("nothing was spent yet", "dim"), sums)
    older_lines = [Text(f"… and {older} older entries; --last N shows more", "dim")] if older else []
    return Group(table, *older_lines, Text(), sums)


def budget_document(
    ledger: Ledger, caps: Caps, now: datetime, name: str, *, practice: bool = False
) -> documents.BudgetDocument:
    caps = lower_caps(ledger, caps)

    def rows(*, pretend: bool) -> list[documents.CappedWindow]:
        made = []
        for window in WINDOWS:
            cap, seen = caps.of(window), window_exposure(ledger, window, now, pretend=pretend)
            left = None if cap is None else max(cap - seen.total, Decimal(0))
            key = key_of(window, now)
            made.append(documents.CappedWindow.of(seen, window=window, key=key, cap_usd=cap, left_usd=left))
        return made

    return documents.BudgetDocument(
        schema=1,
        config=name,
        windows=rows(pretend=False),
        practice_windows=rows(pretend=True) if practice else None,
        caps_of_the_bucket=caps_document(ledger),
        alerts_at_percent=list(THRESHOLDS),
        alerted=sorted(ledger.alerts),
        prices_simulated=practice,
    )


def budget_view(ledger: Ledger, caps: Caps, now: datetime, name: str, *, practice: bool = False) -> RenderableType:
    amounts = ("spent", "held", "cap", "left")
    table = Columns("window", *amounts, right=amounts, droppable=("", "spent"))
    table.add_column("")
    caps = lower_caps(ledger, caps)
    kinds = kinds_of_dollars(practice=practice)
    for mark, pretend, window in ((*kind, window) for kind in kinds for window in WINDOWS):
        if pretend and window == "run":
            continue  # the cap on each run is the same for both
        cap, seen = caps.of(window), window_exposure(ledger, window, now, pretend=pretend)
        label = "each run" if window == "run" else f"{key_of(window, now)}{mark}"
        if cap is None:
            table.add_row(label, usd(seen.spent), usd(seen.held), "none", "", "")
            continue
        bar = ProgressBar(total=float(cap) or 1, completed=float(seen.total), width=20)
        table.add_row(label, usd(seen.spent), usd(seen.held), usd(cap), usd(max(cap - seen.total, Decimal(0))), bar)
    alerts = Text(f"alerts at {', '.join(map(str, THRESHOLDS))} % of what is spent", "dim")
    return Group(Text.assemble(("caps of ", "dim"), (name, "bold")), table, Text(caps_line(ledger), "dim"), alerts)


def caps_document(ledger: Ledger) -> dict[str, str | None] | None:
    """The caps that bind everybody, with who set them and when; None when there are none."""
    if ledger.caps is None:
        return None
    amounts = {window: ledger.caps.caps().of(window) for window in WINDOWS}
    usd_or_none = {window: None if cap is None else str(cap) for window, cap in amounts.items()}
    return usd_or_none | {"by": ledger.caps.by, "at": iso_time(ledger.caps.at)}


def caps_line(ledger: Ledger) -> str:
    if ledger.caps is None:
        return "this bucket has no caps of its own; `bench budget set --day 5.00` sets one for everybody who uses it"
    shared = ledger.caps.caps()
    amounts = [f"{window} ${cap}" for window in WINDOWS if (cap := shared.of(window)) is not None]
    return f"caps of this bucket: {', '.join(amounts) or 'none'} (set by {ledger.caps.by}, {iso_time(ledger.caps.at)})"
