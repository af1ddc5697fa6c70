"""`bench history --case CASE`: one case over all runs, and where its time changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import Json, emit_json, options

if TYPE_CHECKING:
    from orchestrator.analysis.bootstrap import Interval
    from orchestrator.analysis.verdicts import Noise
    from orchestrator.wiring import Wiring


def history(
    ctx: typer.Context,
    case: Annotated[str, typer.Option("--case", help="A case id, as in the results.")],
    implementation: Annotated[str, typer.Option("--implementation", help="Whose time.")] = "bench",
    relative_to: Annotated[
        str, typer.Option("--relative-to", help="Follow the speed-up over this one instead of the time.")
    ] = "",
    device: Annotated[str, typer.Option(help="Only runs whose device's name contains this.")] = "",
    tolerance: Annotated[float, typer.Option(min=0, max=100, help="Per cent that are no change.")] = 2.0,
    json: Json = False,
) -> None:
    """Follow a case over every run in the bucket. A run that is faster or slower than the level begins a new one.

    Only runs on the device of the newest run are followed, unless --device names another.
    """
    from orchestrator.analysis.across import history as followed
    from orchestrator.core.errors import NotFound
    from orchestrator.report.document import history_document

    points = _points(options(ctx).wiring(), case, implementation, relative_to)
    if not points:
        raise NotFound(
            f"no run in this bucket measured {implementation} on {case}", hint="`bench status` lists the runs"
        )
    newest = points[-1][1].get("device")
    kept = [
        one for one in points if (device in str(one[1].get("device")) if device else one[1].get("device") == newest)
    ]
    found = followed(kept, relative=bool(relative_to), tolerance=tolerance / 100)
    shown = history_document(case, implementation, relative_to, found)
    if json:
        emit_json({**shown, "left_out": len(points) - len(kept)})
        return
    _show(shown, len(points) - len(kept))


def _points(
    wiring: Wiring, case: str, implementation: str, relative_to: str
) -> list[tuple[str, dict[str, object], Interval, Noise | None]]:
    """What each run of the bucket says of the case, oldest first; runs that did not measure it are left out."""
    import json

    from orchestrator.analysis.across import estimate, floor_of
    from orchestrator.analysis.samples import Reader
    from orchestrator.analysis.study import study
    from orchestrator.core.naming import artifacts_prefix, cases_prefix
    from orchestrator.core.results import ResultsUnreadable

    runs = sorted(line.run_id for line in wiring.index.list_runs())
    cases = wiring.bucket.read_many([f"{cases_prefix(run)}{case}.csv" for run in runs])
    environments = wiring.bucket.read_many([f"{artifacts_prefix(run)}environment.json" for run in runs])
    points = []
    for run in runs:
        blob, known = (
            cases.get(f"{cases_prefix(run)}{case}.csv"),
            environments.get(f"{artifacts_prefix(run)}environment.json"),
        )
        if blob is None:
            continue
        reader = Reader()
        try:
            reader.read(blob.data.decode("utf-8", "replace").splitlines(keepends=True), run)
            environment = json.loads(known.data) if known is not None else {}
        except (ResultsUnreadable, ValueError):
            continue
        found = study(reader.groups())
        value = estimate(found.cases[0], implementation, relative_to) if found.cases else None
        if value is not None:
            points.append(
                (run, {"device": found.device, **environment}, value, floor_of(found.cases[0], implementation))
            )
    return points


def _show(shown: dict[str, Any], left_out: int) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    relative = shown["relative_to"]
    console.print(f"[bold]{shown['implementation']}[/] on [bold]{shown['case_id']}[/]")
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("run", "commit"):
        table.add_column(name, no_wrap=True)
    for name in (f"over {relative}" if relative else "median µs", "95 % interval"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("change", no_wrap=True)
    for one in shown["points"]:
        value, commit = one["value"], str(one["git_commit"] or "")[:10] + ("+" if one["git_dirty"] else "")
        limits = "" if value["low"] is None else f"{value['low']:.2f}, {value['high']:.2f}"
        changed = one["change"] in ("faster", "slower")
        word = f"◆ {one['change']} {one['ratio']['mid']:.3f}x" if changed else one["change"] or "first"
        table.add_row(one["run_id"], commit, f"{value['mid']:.2f}", limits, word, style="bold" if changed else None)
    console.print(table)
    if left_out:
        console.print(f"{left_out} runs on other devices are left out; --device names one", style="dim")
