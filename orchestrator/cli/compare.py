"""`bench compare A B [...]`: what became faster or slower, with an exit code for CI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import Json, emit_json

if TYPE_CHECKING:
    from orchestrator.analysis.across import Change
    from orchestrator.report.report import Report


def compare(
    ctx: typer.Context,
    runs: Annotated[list[str], typer.Argument(metavar="A B [...]", help="Runs or folders; each is held against A.")],
    implementation: Annotated[
        list[str] | None, typer.Option("--implementation", help="Only these; by default the kernel, or else all.")
    ] = None,
    relative_to: Annotated[
        str, typer.Option("--relative-to", help="Compare speed-ups over this one; by default sdpa:default if there.")
    ] = "",
    absolute: Annotated[bool, typer.Option("--absolute", help="Compare times, not speed-ups within each run.")] = False,
    tolerance: Annotated[float, typer.Option(min=0, max=100, help="Per cent that are no regression.")] = 2.0,
    across_devices: Annotated[bool, typer.Option("--across-devices", help="The devices are what differs.")] = False,
    json: Json = False,
) -> None:
    """Hold runs against the first. Exit 12 when something became slower by more than noise and tolerance.

    Speed-ups over a baseline of the same run cancel what differs between machines; --absolute compares times.
    """
    from orchestrator.analysis.across import changes
    from orchestrator.analysis.fingerprint import Level, comparability
    from orchestrator.analysis.study import DEFAULT, KERNEL
    from orchestrator.analysis.verdicts import Verdict
    from orchestrator.cli.reading import fingerprint, report_of
    from orchestrator.core.errors import ConfigError, NotComparable, Regression
    from orchestrator.report.document import changes_document

    if len(runs) < 2:
        raise ConfigError("compare needs two runs at least", hint="`bench compare A B`; `bench status` lists the runs")
    if absolute and relative_to:
        raise ConfigError("give either --absolute or --relative-to")
    first, *others = [report_of(ctx, named)[0] for named in runs]
    documents: list[dict[str, Any]] = []
    refused: list[str] = []
    slower: list[Change] = []
    for other in others:
        level = comparability(fingerprint(first), fingerprint(other), across_devices=across_devices)
        base = relative_to or ("" if absolute else DEFAULT if _both(first, other, DEFAULT) else "")
        wanted = tuple(implementation or ([KERNEL] if _both(first, other, KERNEL) else []))
        found: tuple[Change, ...] = ()
        if level.level is Level.REFUSED:
            refused.append(f"{first.study.run_id} and {other.study.run_id}: {level.reasons[0]}")
        else:
            found = changes(
                first.study, other.study, relative_to=base, implementations=wanted, tolerance=tolerance / 100
            )
        slower += [one for one in found if one.verdict is Verdict.SLOWER]
        documents.append(changes_document(first, other, level, found))
        if not json:
            _show(documents[-1])
    if json:
        emit_json({"schema": 1, "tolerance_percent": tolerance, "comparisons": documents})
    if refused:
        raise NotComparable(refused[0], hint="--across-devices compares devices; a change of regime never compares")
    if not any(one["changes"] for one in documents):
        raise NotComparable(
            "the runs have no case and implementation in common", hint="`bench report` shows what is in each"
        )
    if slower:
        worst = min(slower, key=lambda one: one.ratio.mid)
        what = f"{worst.implementation} on {worst.case_id}, {worst.ratio.mid:.3f} times as fast"
        raise Regression(f"{len(slower)} slower; worst {what}")


def _both(first: Report, other: Report, name: str) -> bool:
    return all(name in (report.study.subject, *report.study.baselines) for report in (first, other))


def _show(document: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from orchestrator.report.text import labels

    console = Console(highlight=False)
    console.print(f"[bold]{document['before']}[/] → [bold]{document['after']}[/]: {document['comparability']}")
    for reason in document["reasons"]:
        console.print(f"  {reason}", style="dim", markup=False)
    if not document["changes"]:
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    several = len({one["implementation"] for one in document["changes"]}) > 1
    for name in ("case", "implementation") if several else ("case",):
        table.add_column(name, no_wrap=True)
    relative = document["changes"][0]["relative_to"]
    for name in ("before", "after", "ratio", "95 % interval"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    names = labels([one["case_id"] for one in document["changes"]])
    style = {"faster": "green", "slower": "red"}
    for one in document["changes"]:
        ratio = one["ratio"]
        limits = "" if ratio["low"] is None else f"{ratio['low']:.3f}, {ratio['high']:.3f}"
        values = [f"{one[key]['mid']:.3f}" if relative else f"{one[key]['mid']:.1f}" for key in ("before", "after")]
        word = one["verdict"]
        table.add_row(
            names[one["case_id"]], *([one["implementation"]] if several else []), *values,
            f"{ratio['mid']:.3f}", limits,
            f"[{style[word]}]{word}[/]" if word in style else word,
        )  # fmt: skip
    console.print(table)
    who = "" if several else f"{document['changes'][0]['implementation']}, "
    unit = f"times as fast as {relative} in the same run" if relative else "µs a call"
    console.print(f"{who}{unit}; a ratio over 1 is faster in the second run", style="dim")
