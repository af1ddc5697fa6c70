"""`bench history --case CASE`: one case over all runs, and where its time changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import Json, emit_json, options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.analysis.bootstrap import Interval
    from orchestrator.analysis.regimes import Setting
    from orchestrator.analysis.study import Study
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
    regime: Annotated[
        str, typer.Option("--regime", help="burst, sustained-warm, …; by default the first that the newest run has.")
    ] = "",
    tolerance: Annotated[float, typer.Option(min=0, max=100, help="Per cent that are no change.")] = 2.0,
    last: Annotated[int, typer.Option("--last", min=1, help="Show so many runs, the newest.")] = 30,
    before: Annotated[str, typer.Option("--before", metavar="RUN", help="Show those older than this run.")] = "",
    json: Json = False,
) -> None:
    """Follow a case over the runs in the bucket. A run that is faster or slower than the level begins a new one.

    Only runs on the device of the newest run are followed, unless --device names another.
    """
    from orchestrator.analysis.across import history as followed
    from orchestrator.core.errors import NotFound
    from orchestrator.report.document import history_document

    wanted = Wanted(case, implementation, relative_to, device, regime)
    points, left_out, older = _points(options(ctx).wiring(), wanted, last, before)
    if not points:
        where = f" before {before}" if before else ""
        raise NotFound(
            f"no run in this bucket{where} measured {implementation} on {case}{f' in {regime}' if regime else ''}",
            hint="`bench status` lists the runs",
        )
    found = followed(points, relative=bool(relative_to), tolerance=tolerance / 100)
    shown = history_document(case, wanted.setting, implementation, relative_to, found)
    if json:
        emit_json({**shown, "left_out": left_out, "older": older})
        return
    _show(shown, left_out, older)


PAGE = 50
"""Runs that are read at once."""


@dataclass
class Wanted:
    """What is followed. `own_device` and `setting` are those of the newest run that has the case."""

    case: str
    implementation: str
    relative_to: str
    device: str
    regime: str
    setting: Setting | None = None
    own_device: str | None = None

    def fits(self, device: str) -> bool:
        """The device that was named, by a part of its name, or else that of the newest run."""
        return self.device in device if self.device else self.own_device in (None, device)


def _points(
    wiring: Wiring, wanted: Wanted, last: int, before: str
) -> tuple[list[tuple[str, dict[str, object], Interval, Noise | None]], int, bool]:
    """The newest `last` runs of the bucket that measured what is wanted, oldest first; how many on other devices or in
    other regimes were left out on the way; and whether there may be older ones. Reads no more than it needs."""
    runs = sorted((line.run_id for line in wiring.index.list_runs()), reverse=True)
    runs = [run for run in runs if not before or run < before]
    points: list[tuple[str, dict[str, object], Interval, Noise | None]] = []
    left_out = 0
    for begin in range(0, len(runs), PAGE):
        page = runs[begin : begin + PAGE]
        for place, (run, study, environment) in enumerate(_read(wiring, page, wanted.case)):
            if study is None:
                continue
            found = _point(study, wanted)
            if found is None:
                left_out += 1
                continue
            points.append((run, {"device": study.device, **environment}, *found))
            if len(points) == last:
                return points[::-1], left_out, begin + place + 1 < len(runs)
    return points[::-1], left_out, False


def _read(wiring: Wiring, runs: list[str], case: str) -> Iterator[tuple[str, Study | None, dict[str, object]]]:
    """What each run says of the case; None where it did not measure it or cannot be read."""
    import json

    from orchestrator.analysis.samples import Reader
    from orchestrator.analysis.study import study
    from orchestrator.core.naming import artifacts_prefix, cases_prefix
    from orchestrator.core.results import ResultsUnreadable

    cases = wiring.bucket.read_many([f"{cases_prefix(run)}{case}.csv" for run in runs])
    environments = wiring.bucket.read_many([f"{artifacts_prefix(run)}environment.json" for run in runs])
    for run in runs:
        blob = cases.get(f"{cases_prefix(run)}{case}.csv")
        known = environments.get(f"{artifacts_prefix(run)}environment.json")
        reader = Reader()
        try:
            if blob is None:
                raise ResultsUnreadable(f"{run} did not measure {case}")
            reader.read(blob.data.decode("utf-8", "replace").splitlines(keepends=True), run)
            environment = json.loads(known.data) if known is not None else {}
        except (ResultsUnreadable, ValueError):
            yield run, None, {}
            continue
        yield run, study(reader.groups()), environment if isinstance(environment, dict) else {}


def _point(study: Study, wanted: Wanted) -> tuple[Interval, Noise | None] | None:
    """What one run says of it; None where the run is another device's or has it in other regimes only."""
    from orchestrator.analysis.across import estimate, floor_of

    fitting = [
        (case, value)
        for case in study.cases
        if (not wanted.regime or wanted.regime in (case.setting.regime, case.setting.slug))
        and (wanted.setting is None or case.setting.matches(wanted.setting))
        and (value := estimate(case, wanted.implementation, wanted.relative_to)) is not None
    ]
    if not fitting or not wanted.fits(study.device):
        return None
    case, value = fitting[0]
    wanted.setting = wanted.setting or case.setting
    wanted.own_device = study.device if wanted.own_device is None else wanted.own_device
    return value, floor_of(case, wanted.implementation)


def _show(shown: dict[str, Any], left_out: int, older: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    relative = shown["relative_to"]
    setting = ", ".join(part for part in (shown["regime"], shown["cache"]) if part)
    console.print(
        f"[bold]{shown['implementation']}[/] on [bold]{shown['case_id']}[/]{f', {setting}' if setting else ''}"
    )
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
        console.print(
            f"{left_out} runs on other devices or in other regimes are left out; --device, --regime", style="dim"
        )
    if older:
        console.print(f"older ones: --before {shown['points'][0]['run_id']}", style="dim")
