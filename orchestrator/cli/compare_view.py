"""Shows a comparison in a terminal."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from orchestrator.analysis.regimes import Setting
from orchestrator.cli.screen import Columns, screen
from orchestrator.report.comparison import Comparison
from orchestrator.report.text import labels, percent

STYLES = {"faster": "green", "slower": "red"}


def show(one: Comparison) -> None:
    """Prints whether the runs may be compared, and a table for each regime."""
    console = screen()
    runs = [escape(report.study.run_id) for report in (one.before, one.after)]
    console.print(f"[bold]{runs[0]}[/] → [bold]{runs[1]}[/]: {one.comparable.level.value}")
    for reason in one.comparable.reasons:
        console.print(f"  {reason}", style="dim", markup=False)
    for words in one.code:
        console.print(f"  {words}", markup=False)
    if not one.changes:
        console.print(one.headline(), markup=False)
        return
    for setting in one.settings:
        if len(one.settings) > 1:
            console.print(f"[bold]{escape(setting.name)}[/]")
        console.print(_table(one, setting))
    who = "" if len(one.implementations) > 1 else f"{one.implementations[0]}, "
    spread = f"; runs of the same code differ by {percent(max(change.spread for change in one.changes))} or less"
    console.print(f"{who}{one.unit()}{spread}; a ratio over 1 is faster in the second run", style="dim")
    if one.energy:
        console.print(one.joules(), markup=False)
    console.print(one.headline(), markup=False)


def _table(one: Comparison, setting: Setting) -> Table:
    several = len(one.implementations) > 1
    names = labels(list(dict.fromkeys(change.case_id for change in one.changes)))
    numbers = ("before", "after", "ratio", "95 % interval")
    table = Columns("case", *(["implementation"] if several else []), *numbers, "verdict", right=numbers)
    for change in one.changes:
        if change.setting != setting:
            continue
        ratio, word = change.ratio, change.verdict.value
        values = [f"{at.mid:.3f}" if one.relative_to else f"{at.mid:.1f}" for at in (change.before, change.after)]
        table.add_row(
            escape(names[change.case_id]), *([escape(change.implementation)] if several else []), *values,
            f"{ratio.mid:.3f}", f"{ratio.low:.3f}, {ratio.high:.3f}" if ratio.known else "",
            f"[{STYLES[word]}]{word}[/]" if word in STYLES else escape(change.said),
        )  # fmt: skip
    return table
