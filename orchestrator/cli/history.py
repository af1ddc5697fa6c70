"""`bench history --case CASE`: one case over all runs, and where its time changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.text import Text

from orchestrator.analysis.across import estimate_latency, floor_of
from orchestrator.analysis.history import Reading
from orchestrator.analysis.history import history as followed
from orchestrator.analysis.regimes import Setting
from orchestrator.analysis.samples import Reader
from orchestrator.analysis.study import KERNEL, Study, study
from orchestrator.cli.options import Json, group_options, known_cases, known_runs, options
from orchestrator.cli.screen import Columns, screen
from orchestrator.cli.terminal import emit_json
from orchestrator.core.bundled import DEFAULT
from orchestrator.core.errors import ConfigError, NotFound
from orchestrator.core.results import ResultsUnreadable
from orchestrator.core.text import count, parse_document
from orchestrator.report.document import history_document
from orchestrator.report.report import Report
from orchestrator.store.index import CaseFiles, case_files
from orchestrator.wiring import Wiring

NARROW = 60
"""In a terminal with fewer columns, each run has two lines, so that its id is not folded."""


@dataclass(frozen=True, slots=True)
class Question:
    """What to follow, as the user asked for it."""

    case: Annotated[
        str, typer.Option("--case", help="A case id; `bench cases` lists them.", autocompletion=known_cases)
    ]
    implementation: Annotated[
        str, typer.Option("--implementation", help="Whose time to show; by default bench, or your own kernel.")
    ] = ""
    relative_to: Annotated[
        str,
        typer.Option(
            "--relative-to", help=f"Show speed-ups over this implementation; by default {DEFAULT} if measured."
        ),
    ] = ""
    absolute: Annotated[
        bool, typer.Option("--absolute", help="Show times, which depend on the machine, not speed-ups.")
    ] = False
    device: Annotated[str, typer.Option(help="Only runs on a device whose name contains this.")] = ""
    regime: Annotated[
        str, typer.Option("--regime", help="burst, sustained-warm, …; by default the newest run's first.")
    ] = ""


@dataclass(frozen=True, slots=True)
class Span:
    """Which runs to show."""

    last: Annotated[int, typer.Option("--last", min=1, help="Show the newest N runs.")] = 30
    before: Annotated[
        str,
        typer.Option("--before", metavar="RUN", help="Show only runs older than this one.", autocompletion=known_runs),
    ] = ""


@group_options
def history(
    ctx: typer.Context,
    asked: Question,
    *,
    tolerance: Annotated[
        float, typer.Option(min=0, max=100, help="Changes up to this many per cent do not count.")
    ] = 2.0,
    span: Span,
    json: Json = False,
) -> None:
    """Show how one case changed over the runs in the bucket.

    A run that is faster or slower than those before it starts a new level. New payloads, kernels and libraries are
    named at the run where they first appear. Only runs on the newest run's device are shown, unless --device names one.
    """
    if asked.absolute and asked.relative_to:
        raise ConfigError("--absolute and --relative-to exclude each other: give only one")
    wanted = HistoryQuery(asked, asked.implementation, asked.relative_to or (None if not asked.absolute else ""))
    points, left_out, older = _points(options(ctx).wiring(), wanted, span)
    if not points:
        where = f" before {span.before}" if span.before else ""
        regime = f" in {asked.regime}" if asked.regime else ""
        raise NotFound(
            f"no run in this bucket{where} measured {asked.implementation or 'a kernel'} on {asked.case}{regime}",
            hint="`bench cases RUN` lists a run's cases; --implementation NAME asks for another implementation",
        )
    followed_points = followed(points, relative=bool(wanted.relative_to), tolerance=tolerance / 100)
    shown = history_document(
        asked.case, wanted.setting, wanted.implementation, wanted.relative_to or "", followed_points
    )
    if json:
        emit_json({**shown, "left_out": left_out, "older": older})
        return
    _show(shown, left_out, older)


@dataclass
class HistoryQuery:
    """What is followed. `own_device`, `setting` and, where they are empty or None, `implementation` and `relative_to`
    are taken from the newest run that has the case."""

    asked: Question
    implementation: str
    relative_to: str | None
    setting: Setting | None = None
    own_device: str | None = None

    def fits(self, device: str) -> bool:
        """The device whose name contains what was given; without that, the device of the newest run."""
        return self.asked.device in device if self.asked.device else self.own_device in (None, device)


def _points(wiring: Wiring, wanted: HistoryQuery, span: Span) -> tuple[list[Reading], int, bool]:
    """The newest `span.last` runs of the bucket that measured what is wanted, oldest first; how many on other devices
    or in other regimes were left out on the way; and whether there may be older ones. Reads no more than it needs."""
    runs = sorted((line.run_id for line in wiring.index.list_runs()), reverse=True)
    runs = [run for run in runs if not span.before or run < span.before]
    points: list[Reading] = []
    left_out = 0
    for place, files in enumerate(case_files(wiring.bucket, runs, wanted.asked.case), 1):
        study_of_files = _study(files)
        if study_of_files is None:
            continue
        reading = _reading(files.run_id, *study_of_files, wanted)
        if reading is None:
            left_out += 1
            continue
        points.append(reading)
        if len(points) == span.last:
            return points[::-1], left_out, place < len(runs)
    return points[::-1], left_out, False


def _study(found: CaseFiles) -> tuple[Study, dict[str, object]] | None:
    """What a run says about the case; None if it did not measure it or cannot be read."""
    reader = Reader()
    try:
        if found.measured is None:
            return None
        reader.read(found.measured.decode("utf-8", "replace").splitlines(keepends=True), found.run_id)
        environment = parse_document(found.environment) if found.environment is not None else {}
    except (ResultsUnreadable, ValueError):
        return None
    return study(reader.groups()), environment


def _reading(run: str, study: Study, environment: dict[str, object], wanted: HistoryQuery) -> Reading | None:
    """What one run says about the case; None if it ran on another device or measured it only in other regimes."""
    if not wanted.fits(study.device):
        return None
    regime = wanted.asked.regime
    # Of the bundled workload, whose baselines may have been measured alone, it is the bundled kernel.
    name = wanted.implementation or (KERNEL if study.subject == DEFAULT else study.subject)
    for case in study.cases:
        timing = case.timing(name)
        if regime and regime not in (case.setting.regime, case.setting.slug):
            continue
        if timing is None or (wanted.setting is not None and not case.setting.matches(wanted.setting)):
            continue
        over = DEFAULT if wanted.relative_to is None else wanted.relative_to
        value = estimate_latency(case, name, over)
        if value is None and wanted.relative_to is None:
            over, value = "", estimate_latency(case, name)
        if value is None:
            continue
        wanted.implementation = name
        wanted.relative_to, wanted.setting = over, wanted.setting or case.setting
        wanted.own_device = study.device if wanted.own_device is None else wanted.own_device
        environment_values = {**environment, "device": study.device, "backend": timing.backend}
        busy = "; ".join(words.rstrip(".") for words in Report(study, environment).busy())
        return Reading(run, environment_values, value, floor_of(case, name), busy)
    return None


def _show(shown: dict[str, Any], left_out: int, older: bool) -> None:
    console = screen()
    relative = shown["relative_to"]
    setting = ", ".join(part for part in (shown["regime"], shown["cache"]) if part)
    names = (shown["implementation"], "bold"), " on ", (shown["case_id"], "bold")
    console.print(Text.assemble(*names, f", {setting}" if setting else ""))
    narrow = console.width < NARROW
    if narrow:
        console.print(f"over {relative}" if relative else "median µs", style="dim")
    numbers = (f"over {relative}" if relative else "median µs", "95 % interval")
    # Of the code rows between tell what was new.
    heads = ("run", "commit", "payload", *numbers, "change")
    table = Columns(*heads, right=numbers, droppable=("payload",), prose=("change",))
    for one in shown["points"]:
        value, commit = one["value"], str(one["git_commit"] or "")[:10] + ("+" if one["git_dirty"] else "")
        limits = "" if value["low"] is None else f"{value['low']:.2f}, {value['high']:.2f}"
        changed = one["change"] in ("faster", "slower")
        word = f"◆ {one['change']} {one['ratio']['mid']:.3f}x" if changed else one["change"] or "first"
        word = ": ".join(part for part in (word, one["doubt"]) if part)
        if narrow:
            for words in one["split"]:
                console.print(words, style="dim")
            line = f"  {value['mid']:.2f}{f' [{limits}]' if limits else ''}  {word}"
            console.print(f"{one['run_id']}\n{line}", style="bold" if changed else None)
            continue
        for words in one["split"]:
            table.add_row("", "", "", "", "", words, style="dim")
        table.add_row(
            one["run_id"], commit, str(one["payload_sha256"] or "")[:8], f"{value['mid']:.2f}", limits,
            word, style="bold" if changed else None,
        )  # fmt: skip
    if not narrow:
        console.print(table)
    if left_out:
        console.print(
            f"left out: {count(left_out, 'run')} on other devices or in other regimes; see --device and --regime",
            style="dim",
        )
    if older:
        console.print(f"for older runs: --before {shown['points'][0]['run_id']}", style="dim")
